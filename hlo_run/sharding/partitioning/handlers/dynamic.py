"""Handlers of dynamic slices and updates."""

from __future__ import annotations

import numpy as np

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.sharding.analysis.index_range import index_range
from hlo_run.sharding.partitioning.handlers.constant_updates import constant_starts, update_at
from hlo_run.sharding.partitioning.handlers.visit import Visit
from hlo_run.sharding.partitioning.offsets import tile_ordinals
from hlo_run.sharding.partitioning.state import Part
from hlo_run.sharding.values.replicate import replicate_dims


def dynamic_slice(v: Visit) -> Part:
    """Slice each tile; a sliced dimension must not be divided."""
    if v.is_whole or v.leaf.tiles is None:
        return v.by_default()
    source, target = v.hlo.operands[0].shape.dims, v.hlo.shape.dims
    if any(v.leaf.dims[dim] != 1 and source[dim] != target[dim] for dim in range(len(target))):
        return v.by_default()
    value = v.parts[0].reshard(v.leaf).hlo
    starts = _starts(v, 1, source, target)
    made = v.clone([value, *starts], name="dynamic-slice")
    made.attrs["dynamic_slice_sizes"] = made.shape.dims
    return v.made(made)


def _starts(v: Visit, first: int, source: tuple[int, ...], target: tuple[int, ...]) -> list[HloInstruction]:
    """Return whole start indices, 0 for dimensions that are taken whole."""
    starts: list[HloInstruction] = []
    for dim, (size, wanted) in enumerate(zip(source, target, strict=True)):
        part = v.parts[first + dim]
        starts.append(v.b.zeros(part.hlo.shape) if size == wanted else part.replicate().hlo)
    return starts


def dynamic_update_slice(v: Visit) -> Part:
    """Update each tile; an update that lies in one tile of each divided dimension is made by the devices that have it."""
    if v.is_whole or v.leaf.tiles is None:
        return v.by_default()
    whole, update = v.hlo.shape.dims, v.hlo.operands[1].shape.dims
    starts = _starts(v, 2, whole, update)
    cut = [dim for dim in range(len(whole)) if whole[dim] != update[dim]]
    divided = [dim for dim in cut if v.leaf.dims[dim] != 1]
    places = constant_starts(v) if divided and v.earlier is not None else None
    if places is not None:
        return update_at(v, places)
    if divided and all(_is_in_one_tile(v, dim) for dim in divided):
        return _in_one_tile(v, starts, cut, divided)
    better = v.parts[0].leaf if v.parts[0].leaf.tile_count > v.leaf.tile_count else v.leaf
    between = replicate_dims(better, cut)
    base, value = v.parts[0].reshard(between), v.parts[1].reshard(between)
    made = v.b.add("dynamic-update-slice", base.hlo.shape, [base.hlo, value.hlo, *starts])
    return v.made(made, between)


def _is_in_one_tile(v: Visit, dim: int) -> bool:
    size = v.hlo.operands[1].shape.dims[dim]
    index = v.hlo.operands[2 + dim]
    if size == 1:
        return True
    if index.opcode != "constant":
        return False
    start = min(max(int(np.asarray(index.constant_array)), 0), v.hlo.shape.dims[dim] - size)
    tile = -(-v.hlo.shape.dims[dim] // v.leaf.dims[dim])
    return start // tile == (start + size - 1) // tile


def _in_one_tile(v: Visit, starts: list[HloInstruction], cut: list[int], divided: list[int]) -> Part:
    b = v.b
    base = v.parts[0].reshard(v.leaf).hlo
    value = v.parts[1].reshard(replicate_dims(v.leaf, cut)).hlo
    ordinals = tile_ordinals(b, v.leaf, v.state.partition_id)
    inside = b.constant(True, "pred")
    for dim in divided:
        size = b.constant(base.shape.dims[dim], "s32")
        start = _clamped(v, starts[dim], dim)
        index_type = start.shape.element_type
        if index_type != "s32":
            start = b.add("convert", Shape.array("s32", ()), [start])
        begin = b.binary("multiply", ordinals[dim], size)
        following = b.binary("add", ordinals[dim], b.constant(1, "s32"))
        is_here = b.binary("and", b.compare(start, begin, "GE"), b.compare(start, b.binary("multiply", following, size), "LT"))
        inside = b.binary("and", inside, is_here)
        start = b.select(is_here, b.binary("subtract", start, begin), b.constant(0, "s32"))
        starts[dim] = start if index_type == "s32" else b.add("convert", Shape.array(index_type, ()), [start])
    made = b.add("dynamic-update-slice", base.shape, [base, value, *starts])
    return v.made(b.select(b.filled(inside, made.shape), made, base))


def _clamped(v: Visit, start: HloInstruction, dim: int) -> HloInstruction:
    """Return a start index in bounds, as the tile of a device cannot see that it is not.

    XLA leaves this out, and loses an update out of bounds. An index that is known to stay in bounds stays as it is.
    """
    last = v.hlo.shape.dims[dim] - v.hlo.operands[1].shape.dims[dim]
    found = index_range(v.hlo.operands[2 + dim])
    if found is not None and found[0] >= 0 and found[1] <= last:
        return start
    b, dtype = v.b, start.shape.dtype
    # The greatest number of the type bounds the index too.
    last = min(last, (1 << (dtype.bits - dtype.is_signed)) - 1)
    return b.add("clamp", start.shape, [b.constant(0, dtype.name), start, b.constant(last, dtype.name)])
