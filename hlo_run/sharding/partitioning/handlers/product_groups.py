"""Group the devices of a product by dimensions that match, and partition the products inside of the groups."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.attribute_values import Window
from hlo_run.hlo.values.sharding import SingleSharding
from hlo_run.hlo.values.tile_assignment import TileAssignment
from hlo_run.records import replace
from hlo_run.sharding.analysis.dot_dims import DimGroup, ProductDims, operand_sharding
from hlo_run.sharding.partitioning.collectives import all_reduce_dims, all_reduce_groups, sum_of
from hlo_run.sharding.partitioning.grouping import align, aligned, base_in_group, group_state, state_in
from hlo_run.sharding.partitioning.handlers.product import (
    Multiply,
    Product,
    share_of_whole,
    tile_of_fitting,
    tile_of_resharded,
    tiles_at,
)
from hlo_run.sharding.partitioning.handlers.ring_product import ring_product
from hlo_run.sharding.partitioning.masks import zero_excess
from hlo_run.sharding.partitioning.state import Part, State
from hlo_run.sharding.values.groups import GroupedSharding, group_on_dims, same_groups, ungroup, with_groups_of
from hlo_run.sharding.values.make import REPLICATED, device_array, shard_shape, with_tiles
from hlo_run.sharding.values.merge import is_subtiling
from hlo_run.sharding.values.moves import transpose_collapsing
from hlo_run.sharding.values.replicate import replicate_dims, transpose


def partition(p: Product) -> HloInstruction:
    """Return the tile of a product."""
    for is_strict in (True, False):
        found = _attempt(p, is_strict)
        if found is not None:
            return found
    has_groups = p.whole.opcode == "convolution" and max(p.whole.feature_group_count, p.whole.batch_group_count) > 1
    if not p.dims.spatial and not has_groups:  # XLA divides features of groups here, and fails or gets other values
        sides = (p.lhs, p.rhs)
        wanted = [operand_sharding(p.sharding, None, index, p.dims, may_combine=False) for index in range(2)]
        return p.multiply(sides[0].reshard(wanted[0]), sides[1].reshard(wanted[1]))
    made = p.multiply(p.lhs.replicate(), p.rhs.replicate())
    return Part(made, p.base, REPLICATED, p.lhs.state).reshard(p.sharding).hlo


def _attempt(p: Product, is_strict: bool) -> HloInstruction | None:
    if p.special is not None:
        found = p.special(p, is_strict)
        if found is False:
            return None
        if isinstance(found, HloInstruction):
            return found
    return tile_of_fitting(p, ring_product) or _by_groups(p, is_strict) or _without_copies(p) or tile_of_resharded(p)


def _without_copies(p: Product) -> HloInstruction | None:
    """Divide a product of replicated operands inside of each group of devices with different tiles."""
    if not (p.lhs.leaf.is_replicated and p.rhs.leaf.is_replicated and p.sharding.subgroups == ("replicated",)):
        return None
    grouped = group_on_dims(p.sharding, [p.base.rank])
    state = group_state(p.lhs.state, grouped.devices)
    lhs, rhs = (Part(side.hlo, side.base, REPLICATED, state) for side in (p.lhs, p.rhs))
    return partition(replace(p, lhs=lhs, rhs=rhs, sharding=grouped.sharding, partitions=p.sharding.tile_count))


def _by_groups(p: Product, is_strict: bool) -> HloInstruction | None:
    """Return the tile of a product by groups of devices; None if no dimensions match. `is_strict`: groups stay as they are."""
    return _by_batch(p, is_strict) or _by_free(p, is_strict) or _by_contracting(p, is_strict)


def _in_group(part: Part, grouped: GroupedSharding, state: State) -> Part:
    return Part(part.hlo, base_in_group(grouped, part.base), grouped.sharding, state)


def _retiled(sharding: SingleSharding, dims: Sequence[int]) -> SingleSharding:
    assert sharding.tiles is not None, "a sharding with tiles"
    return with_tiles(sharding, sharding.tiles.reshape(tuple(dims)))


def _by_batch(p: Product, is_strict: bool) -> HloInstruction | None:
    d = p.dims
    lhs, rhs, output = (p.tiles(d.batch, side) for side in ("lhs", "rhs", "output"))
    return by_batch_dims(p, is_strict) if output > 1 and output in (lhs, rhs) else None


def by_batch_dims(p: Product, is_strict: bool) -> HloInstruction | None:
    """Group by the batch dimensions, as the operands divide them if they agree, else as the result does."""
    d = p.dims
    lhs_dims = [group.lhs for group in d.batch]
    rhs_dims = [group.rhs for group in d.batch]
    output_dims = [group.output for group in d.batch]
    matches = all(tiles_at(p.lhs.leaf, a) == tiles_at(p.rhs.leaf, b) for a, b in zip(lhs_dims, rhs_dims, strict=True))
    lhs, rhs = p.lhs, p.rhs
    if matches and (lhs.leaf.tiles is None or rhs.leaf.tiles is None):
        matches = False
    if matches and is_strict:
        target = aligned(group_on_dims(rhs.leaf, rhs_dims), group_on_dims(lhs.leaf, lhs_dims))
        matches = rhs.leaf.is_same(ungroup(target))
    if matches:
        lhs_grouped, rhs_grouped = group_on_dims(lhs.leaf, lhs_dims), group_on_dims(rhs.leaf, rhs_dims)
        if lhs.hlo.shape.size_bytes > rhs.hlo.shape.size_bytes:
            rhs_grouped = aligned(rhs_grouped, lhs_grouped)
            rhs = rhs.reshard(ungroup(rhs_grouped))
        else:
            lhs_grouped = aligned(lhs_grouped, rhs_grouped)
            lhs = lhs.reshard(ungroup(lhs_grouped))
        sizes = list(p.sharding.dims)
        for group in d.batch:
            sizes[group.output] = tiles_at(p.lhs.leaf, group.lhs)
        output = aligned(group_on_dims(_retiled(p.sharding, sizes), output_dims), lhs_grouped)
        state = group_state(lhs.state, lhs_grouped.devices)
        inner = (_in_group(lhs, lhs_grouped, state), _in_group(rhs, rhs_grouped, state))
    else:
        output = group_on_dims(p.sharding, output_dims)
        state = group_state(lhs.state, output.devices)
        first = _to_batch(p, 0, output, state, is_strict)
        second = _to_batch(p, 1, output, state, is_strict) if first is not None else None
        if first is None or second is None:
            return None
        inner = (first, second)
    count = p.partitions // output.devices.dims[0]
    made = partition(
        replace(p, lhs=inner[0], rhs=inner[1], base=base_in_group(output, p.base), sharding=output.sharding, partitions=count)
    )
    return Part(made, p.base, ungroup(output), p.lhs.state).reshard(p.sharding).hlo


def _to_batch(p: Product, index: int, output: GroupedSharding, state: State, is_strict: bool) -> Part | None:
    """Divide an operand's batch dimensions as the result does, with fewer tiles of other dimensions where necessary."""
    part = (p.lhs, p.rhs)[index]
    d, side, other_side = p.dims, ("lhs", "rhs")[index], ("rhs", "lhs")[index]
    batch = [group.operand(index) for group in d.batch]
    if part.leaf.tiles is None:
        return share_of_whole(part, batch, output, state)
    sizes = list(part.leaf.dims)
    for group in d.batch:
        sizes[group.operand(index)] = tiles_at(p.sharding, group.output)
    devices = part.leaf.device_count
    contracting, free = p.tiles(d.contracting, side), p.tiles(d.free(index), side)
    if math.prod(sizes) > devices:
        if math.prod(sizes) % devices:
            return None
        ratio = math.prod(sizes) // devices
        if part.leaf.subgroups == ("replicated",) and part.leaf.dims[-1] % ratio == 0:
            sizes[-1] //= ratio
            if sizes[-1] == 1:
                sizes.pop()
        elif ratio == free and (ratio != contracting or contracting == p.tiles(d.contracting, other_side)):
            for group in d.free(index):
                sizes[group.operand(index)] = 1
        elif ratio == contracting:
            for group in d.contracting:
                sizes[group.operand(index)] = 1
        else:
            return None
    if math.prod(sizes) < devices:
        return None
    assert part.leaf.tiles is not None
    subgroups = ("replicated",) if part.base.rank < len(sizes) else ()
    retiled = with_tiles(part.leaf, part.leaf.tiles.reshape(tuple(sizes)), subgroups)
    if retiled.tiles is None:
        return None
    grouped = aligned(group_on_dims(retiled, batch), output)
    if is_strict and not part.leaf.is_same(ungroup(grouped)):
        return None
    return _in_group(part.reshard(ungroup(grouped)), grouped, state)


def _by_free(p: Product, is_strict: bool) -> HloInstruction | None:
    """Group by the free dimensions of the operand that the result divides alike."""
    d = p.dims
    counts = {
        (index, side): p.tiles(d.free(index), side) for index, side in ((0, "lhs"), (1, "rhs"), (0, "output"), (1, "output"))
    }
    lhs, rhs = counts[0, "lhs"], counts[1, "rhs"]
    fits = [lhs == counts[0, "output"] and lhs > 1, rhs == counts[1, "output"] and rhs > 1]
    sizes = [part.hlo.shape.size_bytes for part in (p.lhs, p.rhs)]
    index = 0
    groups: list[DimGroup] = []
    if any(fits):
        index = 0 if fits[0] and (not fits[1] or lhs * sizes[1] < rhs * sizes[0]) else 1
        groups = list(d.free(index))
    else:
        for index in range(2):
            own = (p.lhs, p.rhs)[index].leaf
            if counts[index, ("lhs", "rhs")[index]] > 1 and counts[index, "output"] > 1:
                pairs = ((g, tiles_at(own, g.operand(index))) for g in d.free(index))
                groups = [g for g, count in pairs if count > 1 and count == tiles_at(p.sharding, g.output)]
                break
    return _by_free_dims(p, index, groups, is_strict) if groups else None


def _by_free_dims(p: Product, index: int, groups: list[DimGroup], is_strict: bool) -> HloInstruction | None:
    own, other = (p.lhs, p.rhs)[:: 1 if index == 0 else -1]
    output_dims = [group.output for group in groups]
    output = group_on_dims(p.sharding, output_dims)
    sizes = list(own.leaf.dims)
    for group in groups:
        sizes[group.operand(index)] = tiles_at(p.sharding, group.output)
    if math.prod(sizes) != own.leaf.device_count:
        return None
    own_grouped = aligned(group_on_dims(_retiled(own.leaf, sizes), [g.operand(index) for g in groups]), output)
    if is_strict and not own.leaf.is_same(ungroup(own_grouped)):
        return None
    other_grouped = _groups_of_other(p, index, groups, other, output)
    if other_grouped is None and not other.leaf.is_replicated and not p.dims.spatial:
        expected = operand_sharding(p.sharding, own.leaf, 1 - index, p.dims, may_combine=True)
        moved = other.reshard(expected)
        other_grouped = _groups_of_other(p, index, groups, moved, output)
        other = moved if other_grouped is not None else other
    if other_grouped is None:
        other = other.replicate()
    own = own.reshard(ungroup(own_grouped))
    state = group_state(own.state, own_grouped.devices)
    inner_own = _in_group(own, own_grouped, state)
    shared = other
    inside = REPLICATED if other_grouped is None else other.leaf
    if other_grouped is not None and other_grouped.dims == (other.base.rank,):
        shared = other.reshard(ungroup(other_grouped))
        inside = other_grouped.sharding
    elif other_grouped is not None and not other.leaf.is_replicated:
        target = ungroup(other_grouped)
        fits = same_groups(group_on_dims(target, other_grouped.dims), other_grouped)
        if other.leaf.subgroups != ("replicated",) or not fits:
            other = other.reshard(target)
        gone = [dim for dim in other_grouped.dims if dim < other.base.rank]
        shared = other.reshard(replicate_dims(other.leaf, gone))
        inside = other_grouped.sharding
    inner_other = Part(shared.hlo, other.base, inside, state)
    sides = (inner_own, inner_other)[:: 1 if index == 0 else -1]
    count = p.partitions // own_grouped.devices.dims[0]
    return partition(
        replace(p, lhs=sides[0], rhs=sides[1], base=base_in_group(output, p.base), sharding=output.sharding, partitions=count)
    )


def _groups_of_other(
    p: Product, index: int, groups: list[DimGroup], other: Part, output: GroupedSharding
) -> GroupedSharding | None:
    """Return the other operand's groups such that each has all that a group of the result needs; None if there are none."""
    sharding = other.leaf
    count = math.prod(tiles_at(p.sharding, group.output) for group in groups)
    if sharding.tiles is None:
        return None
    last = len(sharding.dims) - 1
    dims: list[int] = []
    if sharding.subgroups == ("replicated",) and sharding.dims[-1] % count == 0:
        for dim in range(last, -1, -1):
            if sharding.dims[dim] % count == 0:
                perm = list(range(last + 1))
                perm[dim], perm[last] = perm[last], perm[dim]
                moved = sharding if dim == last else _swapped(sharding, perm)
                found = with_groups_of(moved, output) if moved is not None else None
                if found is not None:
                    return replace(found, dim_sizes=(moved.dims[-1] // (moved.dims[-1] // count),)) if moved else found
        dims = [last]
    if not dims:
        side, other_side = ("lhs", "rhs")[index], ("rhs", "lhs")[index]
        contracting = p.tiles(p.dims.contracting, other_side)
        free = p.tiles(p.dims.free(1 - index), other_side)
        may_contract = contracting == count and free == p.tiles(p.dims.free(1 - index), "output")
        may_free = count == free and p.tiles(p.dims.contracting, side) == contracting
        found_dims = matching_dims(sharding, output.devices)
        is_smaller = other.hlo.shape.size_bytes <= shard_shape(p.base, p.sharding).size_bytes
        if found_dims is not None:
            dims = found_dims
        elif may_contract and (not may_free or is_smaller):
            dims = [group.operand(1 - index) for group in p.dims.contracting]
        elif may_free:
            dims = [group.operand(1 - index) for group in p.dims.free(1 - index)]
        else:
            return None
    if dims == [last] and sharding.subgroups == ("replicated",):
        return aligned(group_on_dims(sharding, dims, [sharding.dims[-1] // count]), output, ignores_order=True)
    return aligned(group_on_dims(sharding, dims), output, ignores_order=True)


def _swapped(sharding: SingleSharding, perm: Sequence[int]) -> SingleSharding | None:
    moved = transpose(sharding, perm[: sharding.data_rank]) if perm[-1] == len(perm) - 1 else None
    if moved is None and sharding.tiles is not None:
        moved = with_tiles(sharding, sharding.tiles.transpose(perm))
    return moved


def matching_dims(sharding: SingleSharding, devices: TileAssignment) -> list[int] | None:
    """Return the tile dimensions that divide the devices into these groups, or None if none do."""
    if sharding.tiles is None or devices.dims[0] < 2 or sharding.device_count != devices.count:
        return None
    if devices.dims[1] < 2:
        return [dim for dim, count in enumerate(sharding.dims) if count > 1]
    places = {int(device): place for place, device in np.ndenumerate(device_array(sharding))}
    rows = np.array(devices.devices()).reshape(devices.dims)
    first, second = places[int(rows[0, 0])], places[int(rows[0, 1])]
    dims = [dim for dim in range(len(sharding.dims)) if first[dim] == second[dim]]
    if math.prod(sharding.dims[dim] for dim in dims) != devices.dims[0]:
        return None
    for row in rows:
        if len({tuple(places[int(device)][dim] for dim in dims) for device in row}) > 1:
            return None
    return dims


def _by_contracting(p: Product, is_strict: bool) -> HloInstruction | None:
    """Group by the contracting dimensions that both operands divide alike, and add the partial products."""
    d = p.dims
    lhs, rhs = p.tiles(d.contracting, "lhs"), p.tiles(d.contracting, "rhs")
    if lhs == rhs and lhs > 1:
        found = _by_contracting_dims(p, list(d.contracting), is_strict)
        if found is not None:
            return found
    if lhs > 1 and rhs > 1:
        pairs = ((g, tiles_at(p.lhs.leaf, g.lhs), tiles_at(p.rhs.leaf, g.rhs)) for g in d.contracting)
        groups = [g for g, one, two in pairs if one == two and one > 1]
        return _by_contracting_dims(p, groups, is_strict) if groups else None
    return None


def _by_contracting_dims(p: Product, groups: list[DimGroup], is_strict: bool) -> HloInstruction | None:
    lhs, rhs = p.lhs, p.rhs
    lhs_dims, rhs_dims = [group.lhs for group in groups], [group.rhs for group in groups]
    count = math.prod(tiles_at(lhs.leaf, dim) for dim in lhs_dims)
    sizes = [list(lhs.leaf.dims), list(rhs.leaf.dims)]
    lhs_leads = lhs.hlo.shape.size_bytes > rhs.hlo.shape.size_bytes
    for group in groups:
        if lhs_leads:
            sizes[1][group.rhs] = sizes[0][group.lhs]
        else:
            sizes[0][group.lhs] = sizes[1][group.rhs]
    if math.prod(sizes[0]) != lhs.leaf.device_count or math.prod(sizes[1]) != rhs.leaf.device_count:
        return None
    lhs_grouped = group_on_dims(_retiled(lhs.leaf, sizes[0]), lhs_dims)
    rhs_grouped = group_on_dims(_retiled(rhs.leaf, sizes[1]), rhs_dims)
    if lhs_leads:
        rhs_grouped = aligned(rhs_grouped, lhs_grouped)
        if is_strict and not rhs.leaf.is_same(ungroup(rhs_grouped)):
            return None
        rhs = rhs.reshard(ungroup(rhs_grouped))
    else:
        lhs_grouped = aligned(lhs_grouped, rhs_grouped)
        if is_strict and not lhs.leaf.is_same(ungroup(lhs_grouped)):
            return None
        lhs = lhs.reshard(ungroup(lhs_grouped))
    lhs, rhs = zero_excess(lhs, lhs_dims), zero_excess(rhs, rhs_dims)
    inside, outside, sliced = _output_of_contracting(p, lhs_grouped, rhs_grouped, count)
    base = p.base
    others = [dim for dim in range(base.rank) if dim not in sliced]
    groups_copies = base.rank in sliced
    sliced = [dim for dim in sliced if dim < base.rank]
    if sliced:
        base = shard_shape(base, replicate_dims(p.sharding, others))
    # XLA takes the groups of the all-reduce from this notation of the sharding.
    along = replace(lhs, sharding=_retiled(p.lhs.leaf, sizes[0]) if lhs_leads else ungroup(lhs_grouped))
    meeting = (lhs_grouped.devices, (lhs_grouped.sharding, rhs_grouped.sharding, inside))
    multiply = _adding(p, along, lhs_dims, outside, sliced, others, groups_copies, meeting)
    state = group_state(lhs.state, lhs_grouped.devices)
    inner = replace(
        p,
        lhs=_in_group(lhs, lhs_grouped, state),
        rhs=_in_group(rhs, rhs_grouped, state),
        base=base,
        sharding=inside,
        partitions=p.partitions // count,
        multiply=multiply,
    )
    return Part(partition(inner), p.base, outside, lhs.state).reshard(p.sharding).hlo


def _adding(
    p: Product,
    along: Part,
    lhs_dims: Sequence[int],
    outside: SingleSharding,
    sliced: Sequence[int],
    others: Sequence[int],
    groups_copies: bool,
    meeting: tuple[TileAssignment, Sequence[SingleSharding]],
) -> Multiply:
    """Return a product that adds the partial products of the groups' devices, and keeps the tile of the result."""
    element_type = p.base.element_type

    def multiply(lhs: Part, rhs: Part, window: Window | None = None) -> HloInstruction:
        made = p.multiply(lhs, rhs, window)
        state = along.state if lhs.builder is along.builder else state_in(lhs.builder, along.state)
        if not sliced:
            return all_reduce_groups(state, made, along.leaf, lhs_dims, sum_of(state.module, element_type), *meeting)
        made = all_reduce_dims(state, made, outside, sliced, sum_of(state.module, element_type))
        fresh = replace(state, cache={}, group_caches={}, windows={})
        made = Part(made, made.shape, REPLICATED, fresh).reshard(replicate_dims(outside, others)).hlo
        if groups_copies:
            made = all_reduce_dims(state, made, outside, [p.base.rank], sum_of(state.module, element_type))
        return made

    return multiply


def _output_of_contracting(
    p: Product, lhs: GroupedSharding, rhs: GroupedSharding, count: int
) -> tuple[SingleSharding, SingleSharding, list[int]]:
    """Return the result's sharding inside of the groups, over all devices, and the dimensions that the groups' devices divide."""
    sharding = _as_operands(p, lhs, rhs, count)
    if sharding.subgroups == ("replicated",) and sharding.dims[-1] % count == 0:
        last = len(sharding.dims) - 1
        grouped = aligned(group_on_dims(sharding, [last], [sharding.dims[-1] // count]), lhs, ignores_order=True)
        return grouped.sharding, ungroup(grouped), []
    found = matching_dims(sharding, lhs.devices)
    if found is not None:
        # XLA takes the order of the groups' members to be the same, and gets other values where it is not.
        own = group_on_dims(sharding, found)
        is_free = bool(found) and not _divides_inside(p.dims, lhs, rhs, found, own.sharding, own.devices.dims[1])
        grouped = align(own, lhs, ignores_order=True, is_strict=True) if is_free else None
        return (REPLICATED, REPLICATED, []) if grouped is None else (grouped.sharding, sharding, found)
    if not sharding.is_replicated:
        d = p.dims
        for groups in (d.lhs_free, d.rhs_free, d.batch):
            dims = [group.output for group in groups]
            if p.tiles(groups, "output") != count:
                continue
            own = group_on_dims(sharding, dims)
            if not _divides_inside(d, lhs, rhs, dims, own.sharding, own.devices.dims[1]):
                grouped = aligned(own, lhs)
                return grouped.sharding, ungroup(grouped), dims
    return REPLICATED, REPLICATED, []


def _divides_inside(
    d: ProductDims, lhs: GroupedSharding, rhs: GroupedSharding, dims: Sequence[int], inside: SingleSharding, members: int
) -> bool:
    """True if groups of `members` devices divide dimensions `dims` of the result inside: tiles of those tiles would be joined in
    another order, as XLA does. An operand with the tiles of the result `inside` leads, and the other one is made whole.
    """
    for groups, sharding, side in ((d.lhs_free, lhs.sharding, "lhs"), (d.rhs_free, rhs.sharding, "rhs")):
        tiles = [tiles_at(inside, group.output) for group in groups]
        if math.prod(tiles) == members > 1 and tiles == [tiles_at(sharding, getattr(group, side)) for group in groups]:
            return False
    groups = [group for group in (*d.batch, *d.lhs_free, *d.rhs_free) if group.output in dims]
    return any(tiles_at(lhs.sharding, group.lhs) > 1 or tiles_at(rhs.sharding, group.rhs) > 1 for group in groups)


def _as_operands(p: Product, lhs: GroupedSharding, rhs: GroupedSharding, count: int) -> SingleSharding:
    """Return the result's sharding, or the only operand's that is divided inside of the groups if that is coarser."""
    sharding = p.sharding
    if sharding.kind != "tiled" or (sharding.subgroups == ("replicated",) and sharding.dims[-1] % count == 0):
        return sharding
    if lhs.sharding.is_replicated == rhs.sharding.is_replicated:
        return sharding
    index, grouped = (1, rhs) if lhs.sharding.is_replicated else (0, lhs)
    kept = replicate_dims(ungroup(grouped), [group.operand(index) for group in p.dims.contracting])
    d = p.dims
    to_output, to_operand = [-1] * d.rank(index), [-1] * d.output_rank
    for group in (*d.batch, *d.contracting, *d.lhs_free, *d.rhs_free, *d.spatial):
        if group.operand(index) >= 0:
            to_output[group.operand(index)] = group.output
        if group.output >= 0:
            to_operand[group.output] = group.operand(index)
    moved = transpose_collapsing(kept, to_output, to_operand)
    assert moved is not None, "the contracting dimensions are replicated"
    return moved if is_subtiling(p.base.dims, sharding, moved) else sharding
