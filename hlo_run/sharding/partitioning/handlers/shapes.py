"""Handlers of instructions that move elements by fixed amounts: reshape, slice, pad, reverse."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.attribute_values import Window, WindowDim
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import SingleSharding
from hlo_run.records import replace
from hlo_run.sharding.partitioning.grouping import aligned, group_state
from hlo_run.sharding.partitioning.handlers.visit import Visit
from hlo_run.sharding.partitioning.state import Part, key_of
from hlo_run.sharding.partitioning.window import (
    pad_of,
    slice_of,
    windowed,
    windowed_for_pad,
    windowed_for_slice,
)
from hlo_run.sharding.values.groups import group_on_dims, ungroup
from hlo_run.sharding.values.make import REPLICATED, shard_shape, with_tiles
from hlo_run.sharding.values.moves import reshape as reshaped
from hlo_run.sharding.values.moves import reverse as reversed_sharding
from hlo_run.sharding.values.moves import through_reshape

# Start, limit and stride of each dimension.
Ranges = Sequence[tuple[int, int, int]]


def slice_values(v: Visit) -> Part:
    """Handle a slice: under the operand's sharding if that divides more, else under the result's."""
    return slice_part(v.parts[0], v.hlo.shape, v.hlo.slice_ranges, v.leaf, copies=True) or v.by_default()


def slice_part(part: Part, base: Shape, ranges: Ranges, target: SingleSharding, copies: bool = False) -> Part | None:
    """Return the part of a slice of shape `base` under `target`; None if the devices cannot exchange the needed elements.

    With `copies`, the result is a copy if it would be a tile of the operand.
    """
    found: Part | None = None
    if part.leaf.tile_count > target.tile_count:
        found = _slice_under(part, base, ranges, part.leaf, target, copies)
    return found or _slice_under(part, base, ranges, target, target, copies)


def _slice_under(
    part: Part, base: Shape, ranges: Ranges, sharding: SingleSharding, target: SingleSharding, copies: bool
) -> Part | None:
    if sharding.tiles is None:
        return None
    starts, limits, strides = zip(*ranges, strict=True) if ranges else ((), (), ())
    moved = part.reshard(sharding)
    found = windowed_for_slice(moved, starts, limits, strides, sharding)
    if found is None:
        return None
    sliced = slice_of(moved, found, strides, base, sharding)
    # A tile may be that of the operand, which became others under other shardings; XLA takes those for the slice's.
    cache = part.state.cache
    of_operand = cache.pop(sliced, None)
    made = Part(sliced, base, sharding, part.state).reshard(target)
    cache.pop(sliced, None)
    if of_operand is not None:
        cache[sliced] = of_operand
    return replace(made, hlo=part.builder.copy(made.hlo)) if copies and made.hlo is found.value else made


def pad(v: Visit) -> Part:
    """Handle a pad."""
    fill = v.parts[1].replicate().hlo
    if v.leaf.tiles is None:
        return v.by_default()
    found = windowed_for_pad(v.parts[0], fill, v.hlo.padding, v.leaf)
    if found is None:
        return v.by_default()
    made = pad_of(v.parts[0], found, fill)
    if found.starts is not None:
        made = v.b.dynamic_slice(made, found.starts, shard_shape(v.hlo.shape, v.sharding).dims)
    return v.made(made)


def reverse(v: Visit) -> Part:
    """Handle a reverse: tiles come from the mirrored place, with their excess in front."""
    if v.leaf.tiles is None:
        return v.by_default()
    part = v.parts[0].reshard(reversed_sharding(v.leaf, v.hlo.dimensions))
    padded = padded_in_front(part, v.hlo.dimensions)
    return v.made(v.b.clone(v.hlo, padded.shape, [padded])) if padded is not None else v.by_default()


def padded_in_front(part: Part, dims: tuple[int, ...]) -> HloInstruction | None:
    """Return a part of the value whose excess along `dims` is in front of the elements, not behind them; None if it fails."""
    if part.leaf.tiles is None:
        return part.hlo
    window: list[WindowDim] = []
    for dim, (size, count) in enumerate(zip(part.base.dims, part.leaf.data_dims, strict=True)):
        low = -(-size // count) * count - size if dim in dims else 0
        window.append(WindowDim(1, 1, low, 0))
    zero = part.builder.constant(0, part.base.element_type)
    found = windowed(part, Window(tuple(window)), part.leaf, zero, masks=False)
    return found.value if found is not None else None


def reshape(v: Visit) -> Part:
    """Handle a reshape: under tiles that stay in one piece, else by an exchange of halos, else of the whole value."""
    if v.is_whole or v.leaf.tiles is None:
        return v.by_default()
    part = v.parts[0]
    source, target = part.base.dims, v.hlo.shape.dims
    pairs: list[tuple[SingleSharding, SingleSharding]] = []
    wanted = reshaped(target, source, v.leaf)
    if wanted is not None and wanted.tile_count == v.leaf.tile_count:
        pairs.append((wanted, v.leaf))
    given = reshaped(source, target, part.leaf)
    if given is not None:
        back = reshaped(target, source, given)
        if back is not None and back.tile_count == given.tile_count:
            pairs.append((back, given))
    if not pairs:
        return v.made(_by_groups(part, v.leaf, v.hlo.shape))
    before, after = pairs[0]
    moved = part.reshard(before)
    made = v.made(v.clone([moved.hlo], after), after)
    if len(pairs) == 2 and pairs[1][0].is_same(part.leaf) and not pairs[1][1].is_same(v.leaf):
        # The same reshape of the operand as it is: another user may want that.
        other = pairs[1][1]
        there = Part(v.clone([part.hlo], other), v.hlo.shape, other, v.state)
        v.state.cache.setdefault(made.hlo, {})[key_of(v.leaf), key_of(other)] = there
    return made


def _by_groups(part: Part, sharding: SingleSharding, base: Shape) -> HloInstruction:
    """Reshape inside of the groups of tiles that stay in one piece."""
    source = part.leaf
    kept = through_reshape(part.base.dims, base.dims, source)
    back = reshaped(base.dims, part.base.dims, kept) if kept.kind == "tiled" else None
    if back is None:
        return _exchanged(part, sharding, base)
    own = [dim for dim in range(part.base.rank) if back.dims[dim] > 1]
    inner_source = tuple(part.hlo.shape.dims[d] if d in own else n for d, n in enumerate(part.base.dims))
    uses_target = sharding.tile_count > kept.tile_count
    others = [dim for dim in range(base.rank) if kept.dims[dim] > 1]
    inner_target = tuple(-(-n // kept.dims[d]) if d in others else n for d, n in enumerate(base.dims))
    uses_target &= all(kept.dims[dim] == sharding.dims[dim] for dim in others)
    group = group_on_dims(source, own)
    result = group_on_dims(sharding if uses_target else kept, others)
    if uses_target:
        result = aligned(result, group)
    state = group_state(part.state, group.devices)
    inner = Part(part.builder.copy(part.hlo), replace(part.base, dims=inner_source), group.sharding, state)
    made = _by_groups(inner, result.sharding, replace(base, dims=inner_target))
    return Part(made, base, ungroup(result), part.state).reshard(sharding).hlo


def _exchanged(part: Part, sharding: SingleSharding, base: Shape) -> HloInstruction:
    """Reshape tiles of one dimension that is split or joined unevenly; else the whole value."""
    source, b = part.leaf, part.builder
    dims = [_only_tiled(source), _only_tiled(sharding)]
    if source.tile_count != sharding.tile_count or dims[0] is None or dims[1] is None:
        return _whole(part, sharding, base)
    one, two = dims[0], dims[1]
    if math.prod(part.base.dims[:one]) != math.prod(base.dims[:two]) or len(source.dims) - source.data_rank != len(
        sharding.subgroups
    ):
        return _whole(part, sharding, base)
    assert sharding.tiles is not None
    part = part.reshard(with_tiles(sharding, sharding.tiles.reshape(source.dims)))
    count = sharding.dims[two]
    size, wanted = part.base.dims[one], base.dims[two]
    shape = shard_shape(base, sharding)
    zero = b.constant(0, base.element_type)
    if 0 in (size, wanted):
        return _whole(part, sharding, base)
    if size % wanted == 0:
        factor = size // wanted
        window = _padded_behind(part.base.rank, one, shape.dims[two] * factor * count - size)
        found = windowed(part, window, part.leaf, zero, masks=False)
        return b.add("reshape", shape, [found.value]) if found is not None else _whole(part, sharding, base)
    if wanted % size == 0:
        factor = wanted // size
        own = part.hlo.shape.dims[one] * factor
        local = replace(shape, dims=(*shape.dims[:two], own, *shape.dims[two + 1 :]))
        full = replace(shape, dims=(*shape.dims[:two], own * count, *shape.dims[two + 1 :]))
        moved = Part(b.add("reshape", local, [part.hlo]), full, sharding, part.state)
        found = windowed(moved, _padded_behind(len(full.dims), two, wanted - own * count), sharding, zero, masks=False)
        return found.value if found is not None else _whole(part, sharding, base)
    return _whole(part, sharding, base)


def _padded_behind(rank: int, dim: int, high: int) -> Window:
    return Window(tuple(WindowDim(1, 1, 0, high if d == dim else 0) for d in range(rank)))


def _whole(part: Part, sharding: SingleSharding, base: Shape) -> HloInstruction:
    made = part.builder.add("reshape", base, [part.replicate().hlo])
    return Part(made, base, REPLICATED, part.state).reshard(sharding).hlo


def _only_tiled(sharding: SingleSharding) -> int | None:
    found = [dim for dim, count in enumerate(sharding.data_dims) if count > 1]
    return found[0] if len(found) == 1 else None
