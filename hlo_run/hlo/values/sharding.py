"""Shardings of arrays over devices, by tiles or by the named axes of a mesh; tuples of them for tuples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from hlo_run.hlo.values.mesh import AxisRef, Mesh, axes_problem
from hlo_run.hlo.values.metadata import OpMetadata
from hlo_run.hlo.values.tile_assignment import TileAssignment
from hlo_run.records import replace

# The order of the subgroups (the last dimensions of the tiles), with `replicated` last.
_SUBGROUP_ORDER = ("maximal", "manual", "unreduced", "replicated")


class SingleSharding(Struct, frozen=True):
    """The sharding of one array.

    `kind` is replicated, manual, unknown, unreduced, maximal (all on `device`) or tiled (`tiles`). The last dimensions of
    tiles are subgroups of devices, not dimensions of the array, one for each entry of `subgroups`: devices with the same
    data (replicated), or devices that a manual program distinguishes. `shard_group` is (`as` or `like`, id).
    """

    kind: str
    device: int = 0
    tiles: TileAssignment | None = None
    subgroups: tuple[str, ...] = ()
    metadata: tuple[OpMetadata, ...] = ()
    shard_group: tuple[str, int] | None = None

    @property
    def is_replicated(self) -> bool:
        """True if every device has the whole array."""
        return self.kind == "replicated"

    @property
    def is_manual(self) -> bool:
        """True if the program itself tells what every device computes."""
        return self.kind == "manual"

    @property
    def is_whole(self) -> bool:
        """True if every device that has the array has all of it: all devices, or one."""
        return self.kind in ("replicated", "maximal")

    @property
    def dims(self) -> tuple[int, ...]:
        """The extents of the tiles, then of the subgroups; () without tiles."""
        return self.tiles.dims if self.tiles is not None else ()

    @property
    def data_rank(self) -> int:
        """The number of tile dimensions that are dimensions of the array."""
        return len(self.dims) - len(self.subgroups)

    @property
    def data_dims(self) -> tuple[int, ...]:
        """The number of tiles along each dimension of the array; () without tiles."""
        return self.dims[: self.data_rank]

    @property
    def tile_count(self) -> int:
        """The number of different tiles, not counting the subgroups."""
        return math.prod(self.data_dims)

    @property
    def device_count(self) -> int:
        """The number of devices that the tiles name; 1 without tiles."""
        return math.prod(self.dims)

    def subgroup_dim(self, kind: str) -> int:
        """Return the tile dimension of the subgroup of this kind, or -1."""
        return self.data_rank + self.subgroups.index(kind) if kind in self.subgroups else -1

    def is_same(self, other: Sharding | None) -> bool:
        """True if both place the same tiles on the same devices, however their devices are written; metadata do not count."""
        if not isinstance(other, SingleSharding):
            return False
        if (self.kind, self.device, self.dims, self.subgroups) != (other.kind, other.device, other.dims, other.subgroups):
            return False
        return self.tiles == other.tiles or (
            self.tiles is not None and other.tiles is not None and self.tiles.devices() == other.tiles.devices()
        )

    def __str__(self) -> str:
        text = self.kind
        if self.kind == "maximal":
            text += f" device={self.device}"
        elif self.tiles is not None:
            text = f"devices={self.tiles}"
            if self.subgroups == ("replicated",):
                text += " last_tile_dim_replicate"
            elif self.subgroups:
                text += f" last_tile_dims={{{', '.join(self.subgroups)}}}"
        if self.shard_group:
            text += f" shard_{self.shard_group[0]} {self.shard_group[1]}"
        if self.metadata:
            shown = ", ".join(map(str, self.metadata))
            text += f" metadata={shown}" if len(self.metadata) == 1 else f" metadata={{{shown}}}"
        return "{" + text + "}"


class DimSharding(Struct, frozen=True):
    """The axes that shard one dimension of an array; more may be added unless it is closed.

    Shardy propagates dimensions of a lower `priority` first; None means 0.
    """

    axes: tuple[AxisRef, ...] = ()
    is_closed: bool = True
    priority: int | None = None

    def text(self, mesh: Mesh) -> str:
        """Return `{'x', 'y', ?}`: the axes from major to minor, and `?` unless the dimension is closed."""
        return "{" + ", ".join([*(axis.text(mesh) for axis in self.axes), *([] if self.is_closed else ["?"])]) + "}"


class NamedSharding(Struct, frozen=True):
    """The sharding of one array over a mesh: the axes of each dimension, and the replicated, unreduced and manual axes."""

    mesh: Mesh
    dims: tuple[DimSharding, ...] = ()
    replicated: tuple[AxisRef, ...] = ()
    unreduced: tuple[AxisRef, ...] = ()
    manual: tuple[AxisRef, ...] = ()
    metadata: tuple[OpMetadata, ...] = ()

    @staticmethod
    def whole(mesh: Mesh, kind: str, metadata: tuple[OpMetadata, ...]) -> NamedSharding:
        """Return the sharding over `mesh` whose axes are all of one kind: `replicated`, `unreduced` or `manual`."""
        axes = tuple(map(AxisRef, range(len(mesh.axes))))
        unreduced, manual = axes if kind == "unreduced" else (), axes if kind == "manual" else ()
        return NamedSharding(mesh, unreduced=unreduced, manual=manual, metadata=metadata)

    def problem(self) -> str:
        """Return the reason why the sharding is invalid, or ""."""
        groups = {"Replicated": self.replicated, "Unreduced": self.unreduced, "Manual": self.manual}
        for axes in (*(dim.axes for dim in self.dims), *groups.values()):
            if problem := axes_problem(axes, self.mesh):
                return problem
        for name, axes in groups.items():
            if list(axes) != sorted(axes, key=lambda axis: (axis.axis, axis.pre_size)):
                return f"{name} axes must be sorted by mesh axis index and sub-axis pre-size."
        every = [axis for axes in (*(dim.axes for dim in self.dims), *groups.values()) for axis in axes]
        overlap = any(axis.overlaps(other) for number, axis in enumerate(every) for other in every[number + 1 :])
        return "Axes cannot coexist or axes overlap." if overlap else ""

    def __str__(self) -> str:
        parts = [str(self.mesh)]
        everything = tuple(map(AxisRef, range(len(self.mesh.axes))))
        if self.mesh.maximal_device is not None:
            pass
        elif not (self.dims or self.replicated or self.unreduced or self.manual):
            parts.append("replicated")
        elif not (self.dims or self.replicated or self.manual) and self.unreduced == everything:
            parts.append("unreduced")
        elif not (self.dims or self.replicated or self.unreduced) and self.manual == everything:
            parts.append("manual")
        else:
            parts.append("[" + ", ".join(dim.text(self.mesh) for dim in self.dims) + "]")
            groups = (("replicated", self.replicated), ("unreduced", self.unreduced), ("manual", self.manual))
            parts += [f"{name}={{{', '.join(axis.text(self.mesh) for axis in axes)}}}" for name, axes in groups if axes]
        if self.metadata:
            parts.append("metadata={" + ", ".join(map(str, self.metadata)) + "}")
        return "{" + ", ".join(parts) + "}"


class TupleSharding(Struct, frozen=True):
    """One sharding per leaf of a tuple, depth first."""

    elements: tuple[SingleSharding | NamedSharding, ...] = ()

    def __str__(self) -> str:
        parts = [
            (f"/*index={number}*/" if number and number % 5 == 0 else "") + str(element)
            for number, element in enumerate(self.elements)
        ]
        return "{" + ", ".join(parts) + "}"


Sharding: TypeAlias = "SingleSharding | NamedSharding | TupleSharding"


def for_leaves(sharding: Sharding, leaf_count: int) -> Sharding:
    """Return the sharding of a tuple of `leaf_count` leaves; a single array's sharding is repeated for each leaf."""
    if isinstance(sharding, TupleSharding):
        return sharding
    return TupleSharding((sharding,) * max(leaf_count, 1))


def without_metadata(sharding: Sharding) -> Sharding:
    """Return the sharding without the metadata of any part."""
    if isinstance(sharding, TupleSharding):
        return TupleSharding(tuple(replace(element, metadata=()) for element in sharding.elements))
    return replace(sharding, metadata=())


def tiled(tiles: TileAssignment, subgroups: Sequence[str], metadata: tuple[OpMetadata, ...] = ()) -> SingleSharding:
    """Return XLA's canonical form of a tiling: subgroups sorted, merged, and without subgroups of size 1.

    Tiles that do not divide the array, with subgroups of one kind, become a sharding of that kind.
    """
    rank = len(tiles.dims) - len(subgroups)
    if not subgroups:
        return SingleSharding("tiled", tiles=tiles, metadata=metadata)
    if len(set(subgroups)) == 1 and math.prod(tiles.dims[:rank]) == 1 and subgroups[0] != "maximal":
        return SingleSharding(subgroups[0], metadata=metadata)
    by_kind: dict[str, list[int]] = {}
    for number, kind in enumerate(subgroups, rank):
        if tiles.dims[number] != 1:
            by_kind.setdefault(kind, []).append(number)
    kinds = sorted(by_kind, key=_SUBGROUP_ORDER.index)
    perm = [*range(rank), *(number for kind in kinds for number in by_kind[kind])]
    perm += [number for number in range(len(tiles.dims)) if number not in perm]
    sizes = tuple(math.prod(tiles.dims[number] for number in by_kind[kind]) for kind in kinds)
    merged = tiles.transpose(perm).reshape((*tiles.dims[:rank], *sizes))
    if kinds == ["manual"] and merged.dims[-1] == math.prod(merged.dims):
        return SingleSharding("manual", metadata=metadata)
    if kinds and kinds[-1] == "replicated":
        if len(merged.dims) == 1 or merged.dims[-1] == math.prod(merged.dims):
            return SingleSharding("replicated", metadata=metadata)
        # The devices of a row hold the same data, so their order has no meaning.
        merged = merged.sort_rows()
    return SingleSharding("tiled", tiles=merged, subgroups=tuple(kinds), metadata=metadata)
