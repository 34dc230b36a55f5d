"""Replica groups of collectives in three forms: lists, an iota tile assignment, and axes of a device mesh."""

from __future__ import annotations

import math
from typing import TypeAlias

from msgspec import Struct

from hlo_run.hlo.values.mesh import AxisRef, Mesh
from hlo_run.hlo.values.tile_assignment import TileAssignment

IntLists: TypeAlias = "tuple[tuple[int, ...], ...]"


class MeshGroups(Struct, frozen=True):
    """One group per index of all axes but `axes`; a group has the devices along `axes`, the last one fastest."""

    mesh: Mesh
    axes: tuple[AxisRef, ...]

    @property
    def group_size(self) -> int:
        """The number of devices in each group."""
        return math.prod(axis.size(self.mesh) for axis in self.axes)

    def groups(self) -> IntLists:
        """Return the devices of each group."""
        pieces = [self._pieces(number) for number in range(len(self.mesh.axes))]
        strides: dict[tuple[int, int], int] = {}
        stride = 1
        for number in reversed(range(len(pieces))):
            for pre_size, size in reversed(pieces[number]):
                strides[number, pre_size] = stride
                stride *= size
        sizes = {(number, pre_size): size for number, row in enumerate(pieces) for pre_size, size in row}
        inner = [(ref.axis, ref.pre_size) for ref in self.axes]
        outer = [piece for piece in sizes if piece not in inner]
        places = [0]
        for piece in outer + inner:
            places = [base + step * strides[piece] for base in places for step in range(sizes[piece])]
        devices, per_group = self.mesh.devices(), self.group_size
        return tuple(tuple(devices[p] for p in places[i : i + per_group]) for i in range(0, len(places), per_group))

    def _pieces(self, number: int) -> list[tuple[int, int]]:
        """Return (pre_size, size) of the sub-axes into which `axes` divide axis `number`, major first."""
        full = self.mesh.axes[number][1]
        used = sorted((ref.pre_size, ref.size(self.mesh)) for ref in self.axes if ref.axis == number)
        pieces: list[tuple[int, int]] = []
        reached = 1
        for pre_size, size in used:
            if pre_size != reached:
                pieces.append((reached, pre_size // reached))
            pieces.append((pre_size, size))
            reached = pre_size * size
        if reached != full:
            pieces.append((reached, full // reached))
        return pieces

    def __str__(self) -> str:
        return f"{self.mesh} {{{','.join(ref.text(self.mesh) for ref in self.axes)}}}"


class ReplicaGroups(Struct, frozen=True):
    """The groups of replicas (or partitions) that take part in a collective together.

    `form` is the form of the text: lists; tiles of two dimensions (groups, members); or axes of a mesh. An empty list means
    one group of all.
    """

    form: IntLists | TileAssignment | MeshGroups = ()

    def groups(self) -> IntLists:
        """Return the members of each group, in order; empty means one group of all."""
        if isinstance(self.form, TileAssignment):
            members, size = self.form.devices(), self.form.dims[1]
            return tuple(members[i : i + size] for i in range(0, len(members), size))
        return self.form.groups() if isinstance(self.form, MeshGroups) else self.form

    def __str__(self) -> str:
        if isinstance(self.form, tuple):
            return "{" + ",".join("{" + ",".join(map(str, group)) + "}" for group in self.form) + "}"
        return str(self.form)
