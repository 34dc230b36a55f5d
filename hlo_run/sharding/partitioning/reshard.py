"""Bring a part under another sharding, by the cheapest collectives that do.

As in XLA, equal steps to different shardings stay apart: they have the shardings until the clean-up.
"""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import Sharding, SingleSharding, TupleSharding
from hlo_run.records import replace
from hlo_run.sharding.partitioning.all_to_all import reshard_by_all_to_all, swapped_dims
from hlo_run.sharding.partitioning.collectives import all_gather_dims, all_reduce, all_reduce_dims, permute, sum_of
from hlo_run.sharding.partitioning.compact_halo import exchange_compactly
from hlo_run.sharding.partitioning.compatible import compatible_with
from hlo_run.sharding.partitioning.grouping import align, aligned, group_state, pad_to_tiles, slice_of_group
from hlo_run.sharding.partitioning.masks import fill_excess
from hlo_run.sharding.partitioning.offsets import Combined, Linear, minus, partition_offsets, tile_ordinals
from hlo_run.sharding.partitioning.split import partly_replicated, split_pair
from hlo_run.sharding.partitioning.state import Part, key_of
from hlo_run.sharding.values.groups import GroupedSharding, group_on_dims, manual_groups, ungroup
from hlo_run.sharding.values.make import (
    REPLICATED,
    device_array,
    divides_evenly,
    elements_of,
    maximal,
    part_of,
    same,
    same_for_all,
    shard_shape,
    with_tiles,
)
from hlo_run.sharding.values.replicate import keep_dims

_WITHOUT_ZERO = frozenset(["f8e8m0fnu"])


def reshard(part: Part, target: Sharding) -> Part:
    """Return the part under `target`. Equal steps from one instruction are made once."""
    if same(part.sharding, target):
        return part
    if part.hlo.opcode == "constant" and not _is_manual(part.sharding) and _is_manual(target):
        return replicate(part).with_value(replicate(part).hlo, target)
    cache = part.state.cache.setdefault(part.hlo, {})
    found = cache.get((key_of(part.sharding), key_of(target)))
    if found is not None:
        return found
    made = _reshard(part, target)
    part.state.cache.setdefault(made.hlo, {})[key_of(target), key_of(part.sharding)] = part
    cache[key_of(part.sharding), key_of(target)] = made
    return made


def _is_manual(sharding: Sharding) -> bool:
    return all(leaf.is_manual for leaf in elements_of(sharding))


def _reshard(part: Part, target: Sharding, replicates: bool = True) -> Part:
    shape = part.hlo.shape
    if not shape.is_tuple and not shape.is_array:
        return part.with_value(part.hlo, target)
    if shape.is_tuple:
        return _tuple(part, target if isinstance(target, TupleSharding) else same_for_all(shape, elements_of(target)[0]))
    (wanted,) = elements_of(target)
    if shape.element_type in _WITHOUT_ZERO and not (divides_evenly(part.base, part.leaf) and divides_evenly(part.base, wanted)):
        return _as_bytes(part, wanted, replicates)
    return _array(part, wanted, replicates)


def _as_bytes(part: Part, wanted: SingleSharding, replicates: bool) -> Part:
    """Bring a part under a sharding as integers: masks and sums need a zero, and XLA has NaN for it in types without one."""
    b, base = part.builder, part.base
    whole = base.with_element_type("u8")
    value = b.add("bitcast-convert", part.hlo.shape.with_element_type("u8"), [part.hlo])
    moved = _array(Part(value, whole, part.sharding, part.state), wanted, replicates).hlo
    return part.with_value(b.add("bitcast-convert", moved.shape.with_element_type(base.element_type), [moved]), wanted)


def _tuple(part: Part, target: Sharding) -> Part:
    b, shape = part.builder, part.hlo.shape
    elements: list[HloInstruction] = []
    for number in range(len(shape.tuple_shapes)):
        source = part_of(part.sharding, part.base, number)
        element = Part(b.get_tuple_element(part.hlo, number), part.base.tuple_shapes[number], source, part.state)
        elements.append(reshard(element, part_of(target, part.base, number)).hlo)
    return part.with_value(b.tuple(elements), target)


def _array(part: Part, target: SingleSharding, replicates: bool) -> Part:
    if part.leaf.is_same(target):
        return part
    made = _reshard_array(part, target, replicates)
    if made.hlo is not part.hlo:
        made.hlo.attrs["sharding"] = made.leaf
    return made


def _reshard_array(part: Part, target: SingleSharding, replicates: bool) -> Part:
    source, b = part.leaf, part.builder
    if "manual" in source.subgroups or "manual" in target.subgroups:
        found = _in_manual_groups(part, target)
        if found is not None:
            return found
    if part.hlo.opcode == "broadcast" and not part.hlo.operands[0].shape.dims:
        return part.with_value(b.add("broadcast", shard_shape(part.base, target), part.hlo.operands, dimensions=()), target)
    if can_permute(source, target):
        return by_permute(part, target)
    swaps = swapped_dims(source, target)
    if swaps is not None:
        return by_all_to_all(part, target, swaps)
    if not target.is_whole and "replicated" in source.subgroups:
        found = _by_slice(part, target) or _partial_all_to_all(part, target)
        if found is not None:
            return found
    if not source.is_whole and "replicated" in target.subgroups:
        found = _by_all_gather(part, target) or _partial_all_to_all(part, target)
        if found is not None:
            return found
    if not source.is_replicated:
        if not target.is_replicated:
            found = _tiled_to_tiled(part, target)
            if found is not None:
                return found
        if not replicates:
            return part
        return reshard(replicate(part), target)
    return _from_replicated(part, target)


def _tiled_to_tiled(part: Part, target: SingleSharding) -> Part | None:
    """Reshard in steps: by splitting a dimension, or inside of the groups of equally divided dimensions."""
    source = part.leaf
    if source.kind != "tiled" or target.kind != "tiled":
        return None
    found = _by_split(part, target)
    if found is not None:
        return found
    equal = [dim for dim in range(part.base.rank) if source.dims[dim] != 1 and source.dims[dim] == target.dims[dim]]
    if not equal:
        return None
    grouped = group_on_dims(source, equal)
    wanted = aligned(group_on_dims(target, equal), grouped)
    dims = tuple(part.hlo.shape.dims[dim] if dim in equal else size for dim, size in enumerate(part.base.dims))
    state = group_state(part.state, grouped.devices)
    inner = Part(part.builder.copy(part.hlo), replace(part.base, dims=dims), grouped.sharding, state)
    moved = _reshard(inner, wanted.sharding)
    return _reshard(part.with_value(moved.hlo, ungroup(wanted)), target)


def _from_replicated(part: Part, target: SingleSharding) -> Part:
    b = part.builder
    if target.tiles is None:
        return part.with_value(b.copy(part.hlo), target)
    if "replicated" in target.subgroups:
        last = target.subgroup_dim("replicated")
        dims = [dim for dim in range(len(target.dims)) if dim != last]
        grouped = group_on_dims(target, dims)
        sizes = [size for dim, size in zip(dims, grouped.dim_sizes, strict=True) if dim < part.base.rank]
        inner = slice_of_group(b, part.hlo, part.state.partition_id, grouped.devices, dims[: len(sizes)], sizes)
        return part.with_value(inner, target)
    padded = pad_to_tiles(b, part.hlo, target)
    shape = shard_shape(part.hlo.shape, target)
    offsets = partition_offsets(b, part.hlo.shape, target, part.state.partition_id)
    return part.with_value(b.dynamic_slice(padded, offsets, shape.dims), target)


def _in_manual_groups(part: Part, target: SingleSharding) -> Part | None:
    """Reshard inside of the groups that a manual subgroup distinguishes; None if the groups do not fit."""
    source = part.leaf
    grouped: GroupedSharding | None = None
    wanted: GroupedSharding | None = None
    if "manual" in source.subgroups and "manual" in target.subgroups:
        grouped = manual_groups(source)
        wanted = align(manual_groups(target), grouped, is_strict=True)
    elif "manual" in source.subgroups and target.is_replicated:
        grouped = manual_groups(source)
        wanted = replace(grouped, sharding=REPLICATED)
    elif source.is_replicated and "manual" in target.subgroups:
        wanted = manual_groups(target)
        grouped = replace(wanted, sharding=REPLICATED)
    if grouped is None or wanted is None:
        return None
    state = group_state(part.state, grouped.devices)
    inner = _reshard(Part(part.hlo, part.base, grouped.sharding, state), wanted.sharding)
    return part.with_value(inner.hlo, target)


def replicate(part: Part) -> Part:
    """Return the whole value of an array."""
    source = part.leaf
    if source.is_replicated:
        return part
    cache = part.state.cache.setdefault(part.hlo, {})
    key = key_of(source), key_of(REPLICATED)
    if key in cache:
        return cache[key]
    if source.tiles is None:
        made = _from_one_device(part)
    else:
        made = part.with_value(replicate_along(part, range(part.base.rank)), REPLICATED)
    part.state.cache.setdefault(made.hlo, {})[key_of(REPLICATED), key_of(source)] = part
    cache[key] = made
    return made


def _from_one_device(part: Part) -> Part:
    """Send the value of one device to all, by a sum with zeros."""
    b, shape = part.builder, part.hlo.shape
    device = b.constant(part.leaf.device, "u32")
    is_source = b.filled(b.compare(part.state.partition_id, device, "EQ"), shape)
    zeros = b.filled(b.constant(0, shape.element_type), shape)
    value = b.select(is_source, part.hlo, zeros)
    return part.with_value(all_reduce(part.state, value, sum_of(part.state.module, shape.element_type), ()), REPLICATED)


def replicate_along(part: Part, dims: Sequence[int]) -> HloInstruction:
    """Return the part with all tiles along `dims`."""
    source, shape, base, b = part.leaf, part.hlo.shape, part.base, part.builder
    sent: list[int] = []
    summed: list[int] = []
    gathered: list[int] = []
    for dim in dims:
        count = source.dims[dim]
        if count == 1:
            continue
        whole = base.dims[dim]
        (sent if whole == shape.dims[dim] else summed if whole <= count // 2 else gathered).append(dim)
    value = part.hlo
    if sent:
        others = [dim for dim in range(len(source.dims)) if dim not in sent]
        grouped = group_on_dims(source, others)
        device = int(device_array(grouped.sharding).reshape(-1)[0]) if grouped.sharding.tiles is not None else 0
        state = group_state(part.state, grouped.devices)
        value = _from_one_device(Part(value, shape, maximal(device), state)).hlo
    if not gathered and not summed:
        return value
    result = all_gather_dims(part.state, value, source, gathered)
    exact = tuple(base.dims[dim] if dim in gathered else size for dim, size in enumerate(shape.dims))
    if result.shape.dims != exact:
        result = b.slice(result, [0] * base.rank, exact)
    if not summed:
        return result
    final = tuple(base.dims[dim] if dim in dims and source.dims[dim] > 1 else size for dim, size in enumerate(shape.dims))
    final_shape = replace(shape, dims=final)
    zero = b.constant(0, shape.element_type)
    result = fill_excess(Part(result, final_shape, source, part.state), zero, summed).hlo
    offsets = partition_offsets(b, final_shape, keep_dims(source, summed), part.state.partition_id, summed)
    zeros = b.filled(zero, final_shape)
    placed = b.add("dynamic-update-slice", final_shape, [zeros, result, *offsets])
    return all_reduce_dims(part.state, placed, source, summed, sum_of(part.state.module, shape.element_type))


def can_permute(source: SingleSharding, target: SingleSharding) -> bool:
    """True if the shardings have the same tiles on different devices."""
    if source.tiles is None or target.tiles is None or source.dims != target.dims:
        return False
    return source.subgroups == target.subgroups and not source.is_same(target)


def by_permute(part: Part, target: SingleSharding) -> Part:
    """Move tiles between devices; nothing moves if the devices' tiles are known to be equal."""
    source, b = part.leaf, part.builder
    equal = b.broadcast_dims(part.hlo)
    if equal:
        others = [dim for dim in range(part.base.rank) if dim not in equal]
        if keep_dims(source, others).is_same(keep_dims(target, others)):
            return part.with_value(b.copy(part.hlo), target)
    pairs = zip(device_array(source).reshape(-1), device_array(target).reshape(-1), strict=True)
    moved = permute(part.state, part.hlo, [(int(one), int(two)) for one, two in pairs])
    return part.with_value(moved, target)


def by_all_to_all(part: Part, target: SingleSharding, swaps: Sequence[tuple[int, int]]) -> Part:
    """Swap the division of pairs of dimensions, then move tiles to their devices."""
    moved = reshard_by_all_to_all(part, target, swaps)
    return moved if moved.leaf.is_same(target) else by_permute(moved, target)


def _by_slice(part: Part, target: SingleSharding) -> Part | None:
    """Slice tiles from those that several devices have."""
    source, b, state = part.leaf, part.builder, part.state
    between = compatible_with(source, target)
    if between is None:
        return None
    expanded = [dim for dim in range(part.base.rank) if between.dims[dim] > source.dims[dim]]
    padded = _padded_for(part, between, expanded)
    shape = shard_shape(part.base, between)
    whole = replace(shape, dims=tuple(size * count for size, count in zip(shape.dims, between.data_dims, strict=True)))
    offsets = partition_offsets(b, whole, between, state.partition_id)
    before = partition_offsets(b, whole, source, state.partition_id)
    starts = [b.binary("subtract", new, old) for new, old in zip(offsets, before, strict=True)]
    result = part.with_value(b.dynamic_slice(padded, starts, shape.dims), between)
    return by_permute(result, target) if can_permute(between, target) else result


def _padded_dims(base: Shape, sharding: SingleSharding) -> tuple[int, ...]:
    if sharding.tiles is None or divides_evenly(base, sharding):
        return base.dims
    pairs = zip(shard_shape(base, sharding).dims, sharding.data_dims, strict=True)
    return tuple(size * count for size, count in pairs)


def _padded_for(part: Part, target: SingleSharding, dims: Sequence[int]) -> HloInstruction:
    """Return a part such that `target` divides it evenly; moves elements where the tiles get larger."""
    source, b = part.leaf, part.builder
    before, after = _padded_dims(part.base, source), _padded_dims(part.base, target)
    if after == part.hlo.shape.dims:
        return part.hlo
    ordinals = tile_ordinals(b, source, part.state.partition_id)
    zero = b.constant(0, part.hlo.shape.element_type)
    value = part.hlo
    simple: list[int] = []
    for dim in dims:
        count = source.dims[dim]
        old, new = before[dim] // count, after[dim] // count
        if old >= new:
            continue
        if count == 1:
            simple.append(dim)
            continue
        left, right = Linear.of(old - new, 0), Linear.of(new - old, new - old)
        value = exchange_compactly(part.state, value, part.base, left, right, None, dim, source, ordinals[dim])
    if simple:
        edges = [(0, after[dim] - before[dim], 0) if dim in simple else (0, 0, 0) for dim in range(part.base.rank)]
        value = b.pad(value, zero, edges)
    return value


def _by_all_gather(part: Part, target: SingleSharding) -> Part | None:
    """Gather the tiles along the dimensions that `target` divides less."""
    between = compatible_with(target, part.leaf)
    if between is None:
        return None
    if can_permute(part.leaf, between):
        part = by_permute(part, between)
    factors = {d: between.dims[d] // target.dims[d] for d in range(part.base.rank)}
    dims = [dim for dim, factor in factors.items() if factor > 1]
    value = _moved_for_gather(part, between, target, dims)
    grouped = group_on_dims(between, dims, [factors[dim] for dim in dims])
    inner = Part(value, shard_shape(part.base, target), grouped.sharding, group_state(part.state, grouped.devices))
    return part.with_value(replicate_along(inner, dims), target)


def _moved_for_gather(part: Part, source: SingleSharding, target: SingleSharding, dims: Sequence[int]) -> HloInstruction:
    """Move elements such that the tiles of each group are those that its larger tile has."""
    before, after = _padded_dims(part.base, source), _padded_dims(part.base, target)
    if after == part.hlo.shape.dims:
        return part.hlo
    ordinals = tile_ordinals(part.builder, source, part.state.partition_id)
    value = part.hlo
    for dim in dims:
        count = target.dims[dim]
        old, new = before[dim] // count, after[dim] // count
        if old <= new or count == 1:
            continue
        left = Combined("multiply", Linear(0, old - new), Linear(1, 0, source.dims[dim] // count))
        right = minus(Linear(0, 0), left)
        value = exchange_compactly(part.state, value, part.base, left, right, None, dim, source, ordinals[dim])
    return value


def _partial_all_to_all(part: Part, target: SingleSharding) -> Part | None:
    """Reshard between tiles whose devices are shifted by one dimension of devices with the same data."""
    source = part.leaf
    is_source = source.subgroups == ("replicated",)
    partial, other = (source, target) if is_source else (target, source)
    if partial.subgroups != ("replicated",) or other.subgroups == ("replicated",) or other.tiles is None:
        return None
    copies = partial.dims[-1]
    if len(other.dims) + 1 != len(partial.dims) or partial.dims[0] != 1 or partial.tiles is None:
        return None
    chosen = next((dim for dim in reversed(range(len(other.dims))) if other.dims[dim] > 1), -1)
    if chosen < 0 or other.dims[chosen] != copies or other.dims != partial.dims[1:]:
        return None
    if partial.tiles.reshape(other.dims).devices() != other.tiles.devices():
        return None
    dims = [1 if dim == chosen else size for dim, size in enumerate(other.dims)]
    between = with_tiles(other, other.tiles.reshape((*dims, copies)), ("replicated",))
    if is_source:
        swaps = swapped_dims(source, between)
        return reshard(by_all_to_all(part, between, swaps), target) if swaps is not None else None
    first = reshard(part, between)
    swaps = swapped_dims(first.leaf, target)
    return by_all_to_all(first, target, swaps) if swaps is not None else None


def _by_split(part: Part, target: SingleSharding) -> Part | None:
    """Reshard by a split of a dimension, by less division first, or by a move of the devices with the same data."""
    source = part.leaf
    pair = split_pair(part.base, source, target)
    if pair is not None:
        before, after, dim = pair
        moved = _reshard(_split(part, dim, before), after, replicates=False)
        if not moved.leaf.is_same(after):
            return None
        joined = _joined(moved, dim, part.base)
        if not joined.leaf.is_same(target):
            joined = _reshard(joined, target, replicates=False)
        return joined if joined.leaf.is_same(target) else None
    between = partly_replicated(source, target)
    if between is None and "replicated" in source.subgroups and "replicated" not in target.subgroups:
        copies = source.dims[source.subgroup_dim("replicated")]
        free = [
            dim
            for dim in range(len(target.dims))
            if target.dims[dim] != source.dims[dim] and source.dims[dim] == 1 and target.dims[dim] % copies == 0
        ]
        if not free or source.tiles is None:
            return None
        perm = list(range(len(source.dims)))
        last = source.subgroup_dim("replicated")
        perm[free[0]], perm[last] = perm[last], perm[free[0]]
        between = with_tiles(source, source.tiles.transpose(perm))
    if between is None:
        return None
    final = _reshard(reshard(part, between), target, replicates=False)
    return final if final.leaf.is_same(target) else None


def _split(part: Part, dim: int, sharding: SingleSharding) -> Part:
    """View dimension `dim` of a part as two, of which the minor one has all elements of the part."""
    size = part.hlo.shape.dims[dim]
    dims, base = list(part.hlo.shape.dims), list(part.base.dims)
    dims[dim : dim + 1] = [1, size]
    inner = size * sharding.dims[dim + 1]
    base[dim : dim + 1] = [base[dim] // inner, inner]
    made = part.builder.reshape(part.hlo, dims)
    made.attrs["sharding"] = sharding
    return Part(made, Shape.array(part.base.element_type, tuple(base)), sharding, part.state)


def _joined(part: Part, dim: int, base: Shape) -> Part:
    dims = list(part.hlo.shape.dims)
    dims[dim : dim + 2] = [dims[dim] * dims[dim + 1]]
    tiles = part.leaf
    assert tiles.tiles is not None
    counts = [*tiles.dims[:dim], tiles.dims[dim] * tiles.dims[dim + 1], *tiles.dims[dim + 2 :]]
    return Part(part.builder.reshape(part.hlo, dims), base, with_tiles(tiles, tiles.tiles.reshape(tuple(counts))), part.state)
