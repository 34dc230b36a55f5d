"""Algebraic rules of slices, updates, concatenates and pads."""

from __future__ import annotations

import ml_dtypes

from hlo_run.hlo.edit import copy_instruction
from hlo_run.hlo.fused_names import clone_name
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.views.slices import DynamicSlice
from hlo_run.hlo_passes.simplifiers.algebraic.rule import Rewriter, Rules, is_all, is_integer, scalar_of, splat_value
from hlo_run.records import replace


def slice_of_all(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """slice(A) of the whole array => A; pad(A) by 0 elements => A."""
    return i.operands[0] if i.operands[0].shape == i.shape and _takes_all(i) else None


def _takes_all(i: HloInstruction) -> bool:
    return i.opcode == "slice" or not any(any(edge) for edge in i.padding)


def slice_twice(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """slice(slice(A)) => slice(A), without strides."""
    inner = i.operands[0]
    if inner.opcode != "slice" or any(stride != 1 for _, _, stride in (*i.slice_ranges, *inner.slice_ranges)):
        return None
    firsts = [first for first, _, _ in inner.slice_ranges]
    ranges = tuple((first + start, first + limit, 1) for (start, limit, _), first in zip(i.slice_ranges, firsts, strict=True))
    return rw.add("slice", i.shape, inner.operands, slice=ranges)


def slice_of_one_value(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """slice(broadcast(scalar)) => broadcast(scalar); also for dynamic-slice."""
    value = i.operands[0]
    scalar = scalar_of(value)
    return rw.spread(scalar, i.shape) if value.opcode == "broadcast" and scalar is not None else None


def slice_of_concatenate(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """slice(concatenate(A, B, C)) => slice(concatenate(B, C)) without the operands outside of the slice."""
    joined = i.operands[0]
    if joined.opcode != "concatenate":
        return None
    places = joined.dimensions
    dim, begin, skipped = places[0], 0, 0
    start, limit, stride = i.slice_ranges[dim]
    taken: list[HloInstruction] = []
    for operand in joined.operands:
        end = begin + operand.shape.dims[dim]
        skipped += end - begin if end <= start else 0
        taken += [operand] if end > start and begin < limit else []
        begin = end
    if not taken or len(taken) == len(joined.operands):
        return None
    ranges = list(i.slice_ranges)
    ranges[dim] = (start - skipped, limit - skipped, stride)
    if len(taken) == 1:
        return taken[0] if taken[0].shape == i.shape else rw.add("slice", i.shape, taken, slice=tuple(ranges))
    dims = joined.shape.dims
    dims = (*dims[:dim], sum(operand.shape.dims[dim] for operand in taken), *dims[dim + 1 :])
    narrow = rw.like(joined, taken, replace(joined.shape, dims=dims))
    return rw.add("slice", i.shape, [narrow], slice=tuple(ranges))


def slice_of_pad(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """slice(pad(A, c)) => slice(A) if only elements of A are sliced, A if all of them are, broadcast(c) if none is."""
    padded = i.operands[0]
    if padded.opcode != "pad":
        return None
    ranges: list[tuple[int, int, int]] = []
    edges = padded.padding
    sizes = padded.operands[0].shape.dims
    is_undone = padded.operands[0].shape == i.shape
    for (start, limit, stride), (low, high, interior), whole in zip(i.slice_ranges, edges, padded.shape.dims, strict=True):
        if start < limit and (limit <= low or start >= whole - max(high, 0)):
            return rw.spread(padded.operands[1], i.shape)
        is_undone = is_undone and start == low and stride == interior + 1
    if is_undone:
        return padded.operands[0]
    for (start, limit, stride), (low, _, interior), size in zip(i.slice_ranges, edges, sizes, strict=True):
        if interior or start < low or limit > low + size or low < 0:
            return None
        ranges.append((start - low, limit - low, stride))
    return rw.add("slice", i.shape, padded.operands[:1], slice=tuple(ranges))


def dynamic_slice_of_all(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """dynamic-slice(A, at) of the whole array => A; dynamic-update-slice(A, B, at) of the whole array => B."""
    view = DynamicSlice.of(i)
    same = view.whole if i.opcode == "dynamic-slice" else view.part
    return same if same.shape == i.shape else None


def dynamic_slice_at_constants(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """dynamic-slice(A, 3, 0) => slice(A)."""
    starts = _known_starts(DynamicSlice.of(i))
    if starts is None:
        return None
    ranges = tuple((start, start + size, 1) for start, size in zip(starts, i.shape.dims, strict=True))
    return rw.add("slice", i.shape, i.operands[:1], slice=ranges)


def dynamic_index_that_is_clamped(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """dynamic-slice(A, x, y) => dynamic-slice(A, 0, y) if the slice has the full size of dimension 0; also for updates."""
    view = DynamicSlice.of(i)
    indices = view.starts
    if not indices or not view.has_scalar_starts:
        return None
    sizes = enumerate(zip(view.whole.shape.dims, view.sizes, strict=True))
    whole = [dim for dim, (size, taken) in sizes if size == taken and not is_all(indices[dim], 0)]
    if not whole:
        return None
    zero = rw.at(indices[0]).constant(0, indices[0].shape.element_type)
    arrays = i.operands[: -len(indices)]
    return rw.like(i, [*arrays, *(zero if dim in whole else index for dim, index in enumerate(indices))])


def dynamic_slice_of_iota(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """dynamic-slice(iota[8], x) with size 1 => the clamped index; also of a constant that counts in steps of the same size.

    Only for integers as wide as the index.
    """
    source, size = i.operands[0], i.operands[0].shape.dims
    scale = None
    if source.opcode == "multiply" and source.operands[0].opcode == "iota":
        source, scale = source.operands[0], splat_value(source.operands[1])
        if scale is None:
            return None
    if source.opcode != "iota" or len(size) != 1 or i.shape.dims != (1,) or i.operands[1].shape.dims:
        return None
    index = i.operands[1]
    dtype = index.shape.dtype
    if size[0] - 1 >= 1 << (dtype.bits - dtype.is_signed) or not is_integer(i) or i.shape.dtype.bits != dtype.bits:
        return None
    low, high = rw.constant(0, dtype.name), rw.constant(size[0] - 1, dtype.name)
    clamped = rw.add("clamp", index.shape, [low, index, high])
    number = rw.convert(clamped, i.shape.element_type)
    if scale is not None:
        number = rw.mul(number, rw.constant(scale, i.shape.element_type))
    return rw.reshape(number, (1,))


def dynamic_slice_twice(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """dynamic-slice(dynamic-slice(A, x), y) => dynamic-slice(A, clamp(0, y, its limit) + clamp(0, x, its limit))."""
    inner = i.operands[0]
    if inner.opcode != "dynamic-slice":
        return None
    outer_view, view = DynamicSlice.of(i), DynamicSlice.of(inner)
    if not outer_view.has_scalar_starts or not view.has_scalar_starts:
        return None
    sizes = list(zip(view.whole.shape.dims, view.sizes, outer_view.sizes, strict=True))
    indices = list(zip(view.starts, outer_view.starts, strict=True))
    if any(
        whole - taken > int(ml_dtypes.iinfo(start.shape.dtype.numpy).max)
        for (whole, _, taken), starts in zip(sizes, indices, strict=True)
        for start in starts
    ):
        return None
    sums: list[HloInstruction] = []
    for (whole, between, taken), (first, then) in zip(sizes, indices, strict=True):
        second = _clamped(rw, then, between - taken)
        moved = rw.at(first).convert(_clamped(rw, first, whole - between), then.shape.element_type)
        sums.append(rw.at(inner).binary("add", second, moved))
    # As in XLA, which edits the second slice: if nothing else uses the first one, a later pass removes it.
    return rw.with_operands(i, [view.whole, *sums])


def _clamped(rw: Rewriter, start: HloInstruction, limit: int) -> HloInstruction:
    at = rw.at(start)
    low, high = (at.constant(bound, start.shape.element_type) for bound in (0, limit))
    return at.add("clamp", start.shape, [low, start, high])


def update_with_nothing(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """dynamic-update-slice(A, B, at) => A if B has no elements."""
    whole, part = i.operands[:2]
    return whole if 0 in part.shape.dims else None


def update_of_one_value(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """dynamic-update-slice(broadcast(scalar), B, 1, 0) => pad(B, scalar)."""
    view = DynamicSlice.of(i)
    whole, part = view.whole, view.part
    fill = scalar_of(whole)
    starts = _known_starts(view)
    if fill is None or starts is None or whole.opcode != "broadcast":
        return None
    if rw.sees_layouts and part.shape.minor_to_major != i.shape.minor_to_major:
        return None
    sizes = zip(starts, part.shape.dims, whole.shape.dims, strict=True)
    edges = tuple((start, size - start - taken, 0) for start, taken, size in sizes)
    return rw.add("pad", i.shape, [part, fill], padding=edges)


def _known_starts(view: DynamicSlice) -> list[int] | None:
    indices, whole = view.starts, view.whole.shape.dims
    if len(indices) != len(whole) or any(index.opcode != "constant" or index.shape.dims for index in indices):
        return None
    numbers = [int(index.constant_array) for index in indices]
    return [min(max(n, 0), size - taken) for n, size, taken in zip(numbers, whole, view.sizes, strict=True)]


def concatenate_of_one(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """concatenate(A) => A, concatenate(A, B) => A if B has no elements."""
    (dim,) = i.dimensions
    kept = [operand for operand in i.operands if operand.shape.dims[dim]]
    if len(kept) == 1:
        return kept[0]
    return rw.like(i, kept) if kept and len(kept) < len(i.operands) else None


def concatenate_twice(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """concatenate(concatenate(A, B), C) => concatenate(A, B, C)."""
    flat: list[HloInstruction] = []
    for operand in i.operands:
        is_same = operand.opcode == "concatenate" and operand.dimensions == i.dimensions
        flat += operand.operands if is_same else [operand]
    return rw.like(i, flat) if len(flat) != len(i.operands) else None


def concatenate_neighbours(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """concatenate(slice(A)[0:3], slice(A)[3:8]) => slice(A)[0:8]."""
    (dim,) = i.dimensions
    joined: list[HloInstruction] = []
    for operand in i.operands:
        last = joined[-1] if joined else None
        merged = _merged(rw, last, operand, dim) if last is not None else None
        if merged is None:
            joined.append(operand)
        else:
            joined[-1] = merged
    if len(joined) == len(i.operands):
        return None
    return joined[0] if len(joined) == 1 else rw.like(i, joined)


def _merged(rw: Rewriter, one: HloInstruction, two: HloInstruction, dim: int) -> HloInstruction | None:
    if one.opcode != "slice" or two.opcode != "slice" or one.operands != two.operands:
        return None
    first, second = list(one.slice_ranges), list(two.slice_ranges)
    starts_there = first[dim][1] == second[dim][0] and first[dim][2] == second[dim][2] == 1
    if not starts_there or [r for d, r in enumerate(first) if d != dim] != [r for d, r in enumerate(second) if d != dim]:
        return None
    size = one.shape.dims[dim] + two.shape.dims[dim]
    dims = tuple(size if d == dim else s for d, s in enumerate(one.shape.dims))
    first[dim] = (first[dim][0], second[dim][1], 1)
    return rw.add("slice", replace(one.shape, dims=dims), one.operands, slice=tuple(first))


def concatenate_with_one_value(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """concatenate(A, broadcast(scalar)) => pad(A, scalar)."""
    if len(i.operands) != 2:
        return None
    places = i.dimensions
    dim = places[0]
    for number, (value, other) in enumerate((i.operands, i.operands[::-1])):
        if other.opcode == "broadcast" and not other.operands[0].shape.dims:
            size = other.shape.dims[dim]
            edge = (0, size, 0) if number == 0 else (size, 0, 0)
            edges = tuple(edge if d == dim else (0, 0, 0) for d in range(i.shape.rank))
            return rw.add("pad", i.shape, [value, other.operands[0]], padding=edges)
    return None


def concatenate_of_copies(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """concatenate(A, A, A) along a dimension of size 1 => broadcast(reshape(A)); two operands stay."""
    places = i.dimensions
    value, dim = i.operands[0], places[0]
    if len(i.operands) == 2 or len(set(i.operands)) > 1 or value.shape.dims[dim] != 1:
        return None
    kept = tuple(d for d in range(i.shape.rank) if d != dim)
    return rw.add("broadcast", i.shape, [rw.reshape(value, [value.shape.dims[d] for d in kept])], dimensions=kept)


def pad_between_nothing(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """pad(f32[1] A, c), padding=1_2_3 => pad(A, c), padding=1_2: one element has no interior padding."""
    edges = i.padding
    sizes = i.operands[0].shape.dims
    new = tuple((low, high, 0 if size == 1 else interior) for (low, high, interior), size in zip(edges, sizes, strict=True))
    return rw.add("pad", i.shape, i.operands, padding=new) if new != edges else None


def pad_of_broadcast(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """pad(broadcast(A), c) => broadcast(pad(broadcast(A), c)); the inner broadcast only has the padded dimensions."""
    inner = i.operands[0]
    if inner.opcode != "broadcast" or len(inner.users) > 1:
        return None
    edges = i.padding
    padded = [d for d, edge in enumerate(edges) if any(edge)]
    mapped = inner.dimensions
    if len(padded) == i.shape.rank or not padded or any(d not in padded for d in mapped):
        return None
    # As in XLA, which narrows the broadcast in place and copies the pad.
    sizes = tuple(inner.shape.dims[d] for d in padded)
    narrow = copy_instruction(inner, inner.operands, Shape.array(i.shape.element_type, sizes))
    narrow.attrs["dimensions"] = tuple(padded.index(d) for d in mapped)
    narrow.attrs.pop("sharding", None)
    rw.computation.add_named(narrow)
    shape = Shape.array(i.shape.element_type, tuple(i.shape.dims[d] for d in padded))
    made = copy_instruction(i, [narrow, i.operands[1]], shape, clone_name(i.name))
    made.attrs.pop("sharding", None)
    made.attrs["padding"] = tuple(edges[d] for d in padded)
    return rw.bare.add("broadcast", i.shape, [rw.computation.add(made)], dimensions=tuple(padded))


def pad_of_nothing(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """pad(A, c) => broadcast(c) if A has no elements."""
    return rw.spread(i.operands[1], i.shape) if 0 in i.operands[0].shape.dims else None


def pad_by_less_than_nothing(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """pad(A, c) with negative edges => slice(pad(A, c))."""
    edges = i.padding
    if not any(low < 0 or high < 0 for low, high, _ in edges):
        return None
    wider = tuple((max(low, 0), max(high, 0), interior) for low, high, interior in edges)
    padded = rw.bare.pad(i.operands[0], i.operands[1], wider)
    ranges = tuple((max(-low, 0), max(-low, 0) + size, 1) for (low, _, _), size in zip(edges, i.shape.dims, strict=True))
    return rw.add("slice", i.shape, [padded], slice=ranges)


RULES: Rules = {
    "concatenate": (concatenate_of_one,),
    "dynamic-slice": (
        dynamic_slice_of_all,
        slice_of_one_value,
        dynamic_slice_at_constants,
        dynamic_index_that_is_clamped,
        dynamic_slice_twice,
    ),
    "dynamic-update-slice": (
        dynamic_slice_of_all,
        update_with_nothing,
        update_of_one_value,
        dynamic_index_that_is_clamped,
    ),
    "pad": (slice_of_all, pad_of_nothing, pad_between_nothing, pad_by_less_than_nothing),
    "slice": (slice_of_all, slice_of_pad, slice_twice, slice_of_concatenate),
}
# Before layout assignment.
FREE_RULES: Rules = {
    "concatenate": (concatenate_twice, concatenate_neighbours, concatenate_with_one_value, concatenate_of_copies),
    "dynamic-slice": (dynamic_slice_of_iota,),
    "pad": (pad_of_broadcast,),
}
