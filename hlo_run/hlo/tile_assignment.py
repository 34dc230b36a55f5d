"""Which device holds which tile: a list of devices, or an arrangement of 0, 1, 2, .. that a reshape and a transpose describe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Iota:
    """The numbers 0, 1, 2, .. reshaped to `reshape_dims`, transposed by `transpose_perm` and read row by row.

    Make one with `Iota.canonical`: then two that arrange the numbers alike are equal.
    """

    reshape_dims: tuple[int, ...]
    transpose_perm: tuple[int, ...] = (0,)

    @staticmethod
    def canonical(reshape_dims: Sequence[int], transpose_perm: Sequence[int]) -> Iota:
        """Return the arrangement without dimensions of size 1, neighbours that stay neighbours merged into one."""
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

    @property
    def count(self) -> int:
        return math.prod(self.reshape_dims)

    def numbers(self) -> tuple[int, ...]:
        """Return the numbers in the order in which they are read."""
        found = [0]
        for dim in self.transpose_perm:
            stride = math.prod(self.reshape_dims[dim + 1 :])
            found = [base + step * stride for base in found for step in range(self.reshape_dims[dim])]
        return tuple(found)

    def __str__(self) -> str:
        dims = ",".join(map(str, self.reshape_dims))
        perm = f"T({','.join(map(str, self.transpose_perm))})" if len(self.reshape_dims) > 1 else ""
        return f"[{dims}]{perm}"


@dataclass(frozen=True, slots=True)
class TileAssignment:
    """The devices of an array of tiles of extents `dims`, row by row; `order` is their list or an `Iota` of as many."""

    dims: tuple[int, ...]
    order: Iota | tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.dims)

    def devices(self) -> tuple[int, ...]:
        """Return the devices, row by row."""
        return self.order.numbers() if isinstance(self.order, Iota) else self.order

    def reshape(self, dims: tuple[int, ...]) -> TileAssignment:
        """Return the same devices as tiles of other extents."""
        return TileAssignment(dims, self.order)

    def transpose(self, perm: Sequence[int]) -> TileAssignment:
        """Return the tiles with dimension `perm[i]` as the new dimension i.

        Stays an `Iota` only where XLA's text does: where the old one is a plain row, or its dimensions are those of the tiles.
        """
        dims = tuple(self.dims[dim] for dim in perm)
        solid = [dim for dim in range(len(self.dims)) if self.dims[dim] != 1]
        moved = [dim for dim in perm if self.dims[dim] != 1]
        if solid == moved:
            return TileAssignment(dims, self.order)
        if isinstance(self.order, Iota):
            inner = self.order
            if len(inner.reshape_dims) == 1:
                return TileAssignment(dims, Iota.canonical(self.dims, perm))
            if [inner.reshape_dims[dim] for dim in inner.transpose_perm] == [self.dims[dim] for dim in solid]:
                places = [inner.transpose_perm[solid.index(dim)] for dim in moved]
                return TileAssignment(dims, Iota.canonical(inner.reshape_dims, places))
        devices = self.devices()
        strides = [math.prod(self.dims[dim + 1 :]) for dim in range(len(self.dims))]
        places = [0]
        for dim in perm:
            places = [base + step * strides[dim] for base in places for step in range(self.dims[dim])]
        return TileAssignment(dims, tuple(devices[place] for place in places))

    def __str__(self) -> str:
        devices = f"<={self.order}" if isinstance(self.order, Iota) else ",".join(map(str, self.order))
        return f"[{','.join(map(str, self.dims))}]{devices}"
