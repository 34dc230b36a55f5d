"""Add collectives between the devices that hold tiles of one value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hlo_run.hlo.edit import copy_instruction, scalar_reducer
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.attribute_values import FrontendAttributes
from hlo_run.hlo.values.replica_groups import MeshGroups, ReplicaGroups
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import SingleSharding
from hlo_run.hlo.values.tile_assignment import Iota, TileAssignment
from hlo_run.records import replace
from hlo_run.sharding.partitioning.state import State
from hlo_run.sharding.values.make import device_array
from hlo_run.sharding.values.mesh_groups import mesh_groups

# Groups of devices: lists, tiles of (groups, members), or axes of a mesh; () is one group of all.
Groups = tuple[tuple[int, ...], ...] | TileAssignment | MeshGroups
# What XLA says of the collectives that the partitioner makes.
_MADE = FrontendAttributes((("is_spmd_generated", "true"),))


def groups_along(sharding: SingleSharding, dims: Sequence[int]) -> Groups:
    """Return the groups of devices whose tiles differ along tile dimensions `dims` only."""
    assert sharding.tiles is not None, "a sharding with tiles"
    return groups_within(sharding, dims, [sharding.dims[dim] for dim in dims])


def groups_within(sharding: SingleSharding, dims: Sequence[int], sizes: Sequence[int]) -> Groups:
    """Return groups of `sizes` neighbours along each of the tile dimensions `dims`."""
    assert sharding.tiles is not None, "a sharding with tiles"
    wanted = [(dim, size) for dim, size in zip(dims, sizes, strict=True) if size > 1]
    return mesh_groups(sharding.tiles, wanted) if wanted else _rows(device_array(sharding), 1)


def _rows(devices: np.ndarray[tuple[int, ...], np.dtype[np.int64]], size: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(device) for device in row) for row in devices.reshape(-1, size))


def _lists(groups: Groups) -> tuple[tuple[int, ...], ...]:
    return ReplicaGroups(groups).groups()


def _as_tiles(groups: MeshGroups) -> TileAssignment | None:
    """Return the groups of a mesh as tiles of (groups, members) in the order of an iota, or None."""
    mesh = groups.mesh
    order = Iota((mesh.size,), (0,)) if mesh.order is None else mesh.order
    if not isinstance(order, Iota):
        return None
    split: list[int] = []
    inner: list[int] = []
    refs = {ref.axis: ref for ref in groups.axes}
    for number, (_, size) in enumerate(mesh.axes):
        ref = refs.get(number)
        pre, own = (1, size) if ref is None or ref.sub_size is None else (ref.pre_size, ref.sub_size)
        split += [pre, own, size // (pre * own)]
    for ref in groups.axes:
        inner.append(3 * ref.axis + 1)
    perm = [place for place in range(len(split)) if place not in inner] + inner
    tiles = TileAssignment(tuple(split), order).transpose(perm)
    return tiles.reshape((mesh.size // groups.group_size, groups.group_size)) if isinstance(tiles.order, Iota) else None


def _outside(devices: TileAssignment, groups: Groups) -> Groups:
    """Return groups of numbers inside of each group of `devices` as groups of all devices."""
    count, per_group = devices.dims
    listed = devices.devices()
    if count == 1 and listed == tuple(range(per_group)):
        return groups
    rows = tuple(listed[first : first + per_group] for first in range(0, len(listed), per_group))
    if groups == ():
        return rows
    tiles = _as_tiles(groups) if isinstance(groups, MeshGroups) else groups if isinstance(groups, TileAssignment) else None
    if tiles is not None and isinstance(tiles.order, Iota) and isinstance(devices.order, Iota) and tiles.count == per_group:
        split = devices.reshape((count, *tiles.order.reshape_dims))
        moved = split.transpose([0, *(dim + 1 for dim in tiles.order.transpose_perm)])
        if isinstance(moved.order, Iota):
            return moved.reshape((count * tiles.dims[0], tiles.dims[1]))
    return tuple(tuple(row[place] for place in group) for row in rows for group in _lists(groups))


def _everywhere(state: State, groups: Groups, is_ordered: bool = True) -> ReplicaGroups:
    """Return the groups of global device numbers. A listed group of all devices is sorted if its order does not matter."""
    inside: State | None = state
    while inside is not None and inside.devices is not None:
        groups = _outside(inside.devices, groups)
        inside = inside.parent
    is_sorted = not is_ordered and isinstance(groups, tuple) and len(groups) == 1 and len(groups[0]) == state.partitions
    if groups == () or is_sorted:
        groups = (tuple(range(state.partitions)),)
    if state.replicas > 1 or (isinstance(groups, TileAssignment) and groups.count != state.partitions):
        shifts = range(0, state.replicas * state.partitions, state.partitions)
        groups = tuple(tuple(first + device for device in group) for first in shifts for group in _lists(groups))
    return ReplicaGroups(groups)


def all_gather(state: State, value: HloInstruction, groups: Groups, dim: int) -> HloInstruction:
    """Add an all-gather of equal parts along `dim`."""
    size = len(_lists(groups)[0])
    dims = tuple(n * (size if d == dim else 1) for d, n in enumerate(value.shape.dims))
    return state.builder.add(
        "all-gather",
        replace(value.shape, dims=dims),
        [value],
        channel_id=state.channels.take(),
        replica_groups=_everywhere(state, groups),
        dimensions=(dim,),
        use_global_device_ids=True,
        frontend_attributes=_MADE,
    )


def all_reduce(state: State, value: HloInstruction, reduction: HloComputation, groups: Groups) -> HloInstruction:
    """Add an all-reduce by `reduction`."""
    return state.builder.add(
        "all-reduce",
        value.shape,
        [value],
        {"to_apply": [_clone(state.module, reduction)]},
        channel_id=state.channels.take(),
        replica_groups=_everywhere(state, groups, is_ordered=False),
        use_global_device_ids=True,
        frontend_attributes=_MADE,
    )


def all_to_all(state: State, value: HloInstruction, groups: Groups, dim: int) -> HloInstruction:
    """Add an all-to-all that splits `dim`, of the size of a group, and joins it again."""
    return state.builder.add(
        "all-to-all",
        value.shape,
        [value],
        channel_id=state.channels.take(),
        replica_groups=_everywhere(state, groups),
        dimensions=(dim,),
        frontend_attributes=_MADE,
    )


def permute(state: State, value: HloInstruction, pairs: Sequence[tuple[int, int]]) -> HloInstruction:
    """Add a collective-permute; devices that receive nothing get zeros. Pairs that move nothing return the value."""
    channel = state.channels.take()
    inside: State | None = state
    moved = list(pairs)
    while inside is not None and inside.devices is not None:
        count, per_group = inside.devices.dims
        listed = inside.devices.devices()
        rows = [listed[first : first + per_group] for first in range(0, count * per_group, per_group)]
        moved = [(row[source], row[target]) for row in rows for source, target in moved]
        inside = inside.parent
    if not moved:
        return state.builder.zeros(value.shape)
    if len(moved) == state.partitions and all(source == target for source, target in moved):
        return value
    return state.builder.add(
        "collective-permute",
        value.shape,
        [value],
        channel_id=channel,
        source_target_pairs=tuple(moved),
        frontend_attributes=_MADE,
    )


def all_gather_dims(state: State, value: HloInstruction, sharding: SingleSharding, dims: Sequence[int]) -> HloInstruction:
    """Gather the tiles along `dims`, one dimension after the other from the last."""
    for dim in reversed(dims):
        if sharding.dims[dim] > 1:
            value = all_gather(state, value, groups_along(sharding, [dim]), dim)
    return value


def all_reduce_dims(
    state: State, value: HloInstruction, sharding: SingleSharding, dims: Sequence[int], reduction: HloComputation
) -> HloInstruction:
    """Reduce over the devices along tile dimensions `dims`, one dimension after the other from the last.

    What the visited instruction computes stays an addend if its sharding is unreduced.
    """
    if state.builder.keeps_addends(value):
        return value
    for dim in reversed(dims):
        if sharding.dims[dim] > 1:
            value = all_reduce(state, value, reduction, groups_along(sharding, [dim]))
    return value


def all_reduce_groups(
    state: State,
    value: HloInstruction,
    sharding: SingleSharding,
    dims: Sequence[int],
    reduction: HloComputation,
    groups: TileAssignment,
    inside: Sequence[SingleSharding],
) -> HloInstruction:
    """Reduce over the devices along tile dimensions `dims`, of which each is in another row of `groups`.

    Where these have different tiles under the shardings `inside` of their rows, the devices at one place of the rows meet. XLA
    takes the former ones, and adds up different tiles.
    """
    rows = _rows(np.array(groups.devices()), groups.dims[1])
    row_of = {device: number for number, row in enumerate(rows) for device in row}
    tiles_of = _tiles_by_place(inside, len(rows[0]))
    tile_of = {device: tiles_of[place] for row in rows for place, device in enumerate(row)}
    meetings = _lists(groups_along(sharding, dims))
    fits = all(
        len({row_of[device] for device in group}) == len(rows) == len(group) and len({tile_of[device] for device in group}) == 1
        for group in meetings
    )
    if fits or state.builder.keeps_addends(value):
        return all_reduce_dims(state, value, sharding, dims, reduction)
    return all_reduce(state, value, reduction, tuple(zip(*rows, strict=True)))


def _tiles_by_place(shardings: Sequence[SingleSharding], count: int) -> list[tuple[object, ...]]:
    """Return for each of `count` devices its tiles under all shardings."""
    found: list[list[object]] = [[] for _ in range(count)]
    for sharding in shardings:
        if sharding.tiles is not None:
            for place, device in np.ndenumerate(device_array(sharding)):
                found[int(device)].append(place[: sharding.data_rank])
    return [tuple(tiles) for tiles in found]


def sum_of(module: HloModule, element_type: str) -> HloComputation:
    """Add a computation that adds two scalars, or joins two preds by `or`."""
    opcode: Opcode = "or" if element_type == "pred" else "add"
    return module.add_computation(scalar_reducer("add", opcode, Shape.array(element_type, ())))


def _clone(module: HloModule, reduction: HloComputation) -> HloComputation:
    clone = HloComputation(f"{reduction.name}.clone")
    made: dict[HloInstruction, HloInstruction] = {}
    for old in reduction.post_order():
        operands = [made[operand] for operand in old.operands]
        new = copy_instruction(old, operands)
        new.attrs.pop("sharding", None)
        made[old] = clone.add(new, is_root=old is reduction.root)
    return module.add_computation(clone)
