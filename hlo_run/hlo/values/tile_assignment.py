"""Tile assignments: the device of each tile, as a list or as an iota with a reshape and a transpose."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct


class Iota(Struct, frozen=True):
    """The numbers 0, 1, 2, .. reshaped to `reshape_dims`, transposed by `transpose_perm`, in row-major order.

    `Iota.canonical` makes equal records for equal sequences.
    """

    reshape_dims: tuple[int, ...]
    transpose_perm: tuple[int, ...] = (0,)

    @staticmethod
    def canonical(reshape_dims: Sequence[int], transpose_perm: Sequence[int]) -> Iota:
        """Return the iota without dimensions of size 1, and with dimensions merged that stay adjacent in order."""
        order = [dim for dim in transpose_perm if reshape_dims[dim] != 1]
        runs: list[list[int]] = []
        kept = [dim for dim in range(len(reshape_dims)) if reshape_dims[dim] != 1]
        rank = {dim: number for number, dim in enumerate(kept)}
        for dim in order:
            if runs and rank[runs[-1][-1]] + 1 == rank[dim]:
                runs[-1].append(dim)
            else:
                runs.append([dim])
        by_place = sorted(runs)
        sizes = tuple(math.prod(reshape_dims[dim] for dim in run) for run in by_place)
        return Iota(sizes or (1,), tuple(by_place.index(run) for run in runs) or (0,))

    def split(self, extents: Sequence[int]) -> tuple[list[int], list[list[int]]] | None:
        """Split dimensions such that every extent of `extents`, the result's row-major dimensions, is a product of dimensions.

        Returns the sizes of the dimensions after the split, and for each extent its dimensions in the transposed order;
        None if a size is not divisible.
        """
        waiting = [[dim, self.reshape_dims[dim]] for dim in reversed(self.transpose_perm)]
        parts: dict[int, list[int]] = {dim: [] for dim in range(len(self.reshape_dims))}
        read: list[list[tuple[int, int]]] = []
        for extent in extents:
            read.append([])
            while extent > 1:
                if not waiting:
                    return None
                dim, size = waiting[-1]
                taken = min(extent, size)
                if not taken or extent % taken or size % taken:
                    return None
                read[-1].append((dim, len(parts[dim])))
                parts[dim].append(taken)
                extent //= taken
                waiting[-1][1] = size // taken
                if size == taken:
                    waiting.pop()
        first = [sum(len(parts[before]) for before in range(dim)) for dim in parts]
        return [size for row in parts.values() for size in row], [[first[dim] + place for dim, place in row] for row in read]

    @property
    def count(self) -> int:
        """The length of the sequence."""
        return math.prod(self.reshape_dims)

    def numbers(self) -> tuple[int, ...]:
        """Return the numbers in row-major order of the transposed array."""
        found = [0]
        for dim in self.transpose_perm:
            stride = math.prod(self.reshape_dims[dim + 1 :])
            found = [base + step * stride for base in found for step in range(self.reshape_dims[dim])]
        return tuple(found)

    def __str__(self) -> str:
        dims = ",".join(map(str, self.reshape_dims))
        perm = f"T({','.join(map(str, self.transpose_perm))})" if len(self.reshape_dims) > 1 else ""
        return f"[{dims}]{perm}"


class TileAssignment(Struct, frozen=True):
    """The devices of an array of tiles with extents `dims`, in row-major order: `order` is their list or an `Iota`."""

    dims: tuple[int, ...]
    order: Iota | tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of tiles."""
        return math.prod(self.dims)

    def devices(self) -> tuple[int, ...]:
        """Return the devices, row by row."""
        return self.order.numbers() if isinstance(self.order, Iota) else self.order

    def reshape(self, dims: tuple[int, ...]) -> TileAssignment:
        """Return the same devices with other extents."""
        return TileAssignment(dims, self.order)

    def transpose(self, perm: Sequence[int]) -> TileAssignment:
        """Transpose: the new dimension i is dimension `perm[i]`. An `Iota` stays one if `Iota.split` succeeds."""
        dims = tuple(self.dims[dim] for dim in perm)
        if [dim for dim in range(len(self.dims)) if self.dims[dim] != 1] == [dim for dim in perm if self.dims[dim] != 1]:
            return TileAssignment(dims, self.order)
        if isinstance(self.order, Iota) and (split := self.order.split(self.dims)) is not None:
            sizes, groups = split
            return TileAssignment(dims, Iota.canonical(sizes, [number for dim in perm for number in groups[dim]]))
        devices = self.devices()
        strides = [math.prod(self.dims[dim + 1 :]) for dim in range(len(self.dims))]
        places = [0]
        for dim in perm:
            places = [base + step * strides[dim] for base in places for step in range(self.dims[dim])]
        return TileAssignment(dims, tuple(devices[place] for place in places))

    def sort_rows(self) -> TileAssignment:
        """Return the tiles with the devices along the last dimension sorted."""
        size = self.dims[-1]
        if isinstance(self.order, Iota) and (split := self.order.split((self.count // size, size))) is not None:
            sizes, (rows_perm, row_perm) = split
            return TileAssignment(self.dims, Iota.canonical(sizes, [*rows_perm, *sorted(row_perm)]))
        devices = self.devices()
        rows = (sorted(devices[begin : begin + size]) for begin in range(0, len(devices), size))
        return TileAssignment(self.dims, tuple(device for row in rows for device in row))

    def __str__(self) -> str:
        devices = f"<={self.order}" if isinstance(self.order, Iota) else ",".join(map(str, self.order))
        return f"[{','.join(map(str, self.dims))}]{devices}"
