"""Algebraic rules that move slices before broadcasts, reverses, reshapes, transposes and reduce-windows."""

from __future__ import annotations

import math

from hlo_run.analysis.bitcast_kind import common_groups
from hlo_run.analysis.simple_reducer import is_identity, simple_reducer
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.attribute_values import WindowDim
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.views.slices import DynamicSlice
from hlo_run.hlo_passes.simplifiers.algebraic.rule import Rewriter, Rules
from hlo_run.records import replace

_Range = tuple[int, int, int]


def _slice(rw: Rewriter, value: HloInstruction, ranges: list[_Range]) -> HloInstruction:
    dims = tuple(max(-(-(limit - start) // stride), 0) for start, limit, stride in ranges)
    return rw.add("slice", replace(value.shape, dims=dims), [value], slice=tuple(ranges))


def slice_with_idle_stride(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """slice(A), slice={[3:5:2]} => slice(A), slice={[3:4]}: a stride over one element has no effect."""
    ranges: list[_Range] = [
        (start, start + 1, 1) if stride > 1 and start < limit <= start + stride else (start, limit, stride)
        for start, limit, stride in i.slice_ranges
    ]
    return rw.add("slice", i.shape, i.operands, slice=tuple(ranges)) if ranges != list(i.slice_ranges) else None


def slice_of_broadcast(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """slice(broadcast(A)) => broadcast(slice(A))."""
    inner = i.operands[0]
    if inner.opcode != "broadcast":
        return None
    value, dims = inner.operands[0], inner.dimensions
    ranges = [i.slice_ranges[d] for d in dims]
    is_whole = all(r == (0, size, 1) for r, size in zip(ranges, value.shape.dims, strict=True))
    if is_whole:
        return rw.add("broadcast", i.shape, [value], dimensions=dims)
    return rw.at(inner).add("broadcast", i.shape, [_slice(rw, value, ranges)], dimensions=dims)


def slice_of_reverse(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """slice(reverse(A)) => reverse(slice(A)), with indices from the other end."""
    inner = i.operands[0]
    if inner.opcode != "reverse":
        return None
    ranges: list[_Range] = list(i.slice_ranges)
    dims = inner.dimensions
    for d in dims:
        start, _, stride = ranges[d]
        size, count = inner.shape.dims[d], i.shape.dims[d]
        last = start + max(count - 1, 0) * stride
        ranges[d] = (size - 1 - last, size - start, stride) if count else (0, 0, 1)
    return rw.add("reverse", i.shape, [_slice(rw, inner.operands[0], ranges)], dimensions=inner.dimensions)


def slice_of_reshape(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """slice(f32[64] reshape(f32[16,4] A)), slice={[8:16]} => reshape(slice(A)), slice={[2:4], [0:4]}.

    The slice must cut dimension 0 alone, and take whole rows of A.
    """
    inner, ranges = i.operands[0], i.slice_ranges
    if inner.opcode != "reshape" or 0 in inner.shape.dims or any(stride != 1 for _, _, stride in ranges):
        return None
    source = inner.operands[0]
    if not source.shape.dims or not i.shape.element_count:
        return None
    if [d for d, size in enumerate(inner.shape.dims) if ranges[d][:2] != (0, size)] != [0]:
        return None
    # The first dimension with several rows; what comes before it has one element.
    rows = next((d for d, size in enumerate(source.shape.dims) if size > 1), 0)
    scale, row = math.prod(inner.shape.dims[1:]), math.prod(source.shape.dims[rows + 1 :])
    start, limit = ranges[0][0] * scale, ranges[0][1] * scale
    if start % row or limit % row:
        return None
    taken: list[_Range] = [(0, size, 1) for size in source.shape.dims]
    taken[rows] = (start // row, limit // row, 1)
    # As in XLA the slice has the default layout, whatever that of the operand.
    shape = Shape.array(source.shape.element_type, tuple(limit - start for start, limit, _ in taken))
    return rw.reshape(rw.add("slice", shape, [source], slice=tuple(taken)), i.shape.dims)


def slice_of_running_reduction(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """slice(reduce-window(f32[2,8] A), window={size=1x8 pad=0_0x7_0}), slice={[0:2], [7:8]} => reshape(reduce(A))."""
    inner, ranges = i.operands[0], i.slice_ranges
    if inner.opcode != "reduce-window" or inner.shape.is_tuple or len(inner.users) > 1 or "window" not in inner.attrs:
        return None
    if inner.operands[0].shape.dims != inner.shape.dims or not _has_neutral_start(inner):
        return None
    reduced: list[int] = []
    for d, (dim, (start, limit, stride)) in enumerate(zip(inner.window.dims, ranges, strict=True)):
        size = inner.shape.dims[d]
        is_whole = dim == WindowDim() and (start, limit, stride) == (0, size, 1)
        is_last = dim == WindowDim(size, pad_low=size - 1) and (start, limit, stride) == (size - 1, size, 1)
        if not is_whole and not is_last:
            return None
        reduced += [d] if is_last and not is_whole else []
    if not reduced:
        return None
    (made,) = rw.reduce_again(inner, inner.operands[:1], reduced)
    return rw.reshape(made, i.shape.dims)


def _has_neutral_start(i: HloInstruction) -> bool:
    opcode = simple_reducer(i.to_apply)
    return opcode is not None and is_identity(i.operands[1], opcode)


def dynamic_slice_of_broadcast(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """dynamic-slice(broadcast(A), x, y) => broadcast(dynamic-slice(A, x))."""
    inner = i.operands[0]
    view = DynamicSlice.of(i)
    if inner.opcode != "broadcast" or not view.has_scalar_starts:
        return None
    value = inner.operands[0]
    dims = inner.dimensions
    sizes = tuple(i.shape.dims[d] for d in dims)
    if sizes:
        starts = [view.starts[d] for d in dims]
        value = rw.add("dynamic-slice", replace(value.shape, dims=sizes), [value, *starts], dynamic_slice_sizes=sizes)
    return rw.add("broadcast", i.shape, [value], dimensions=dims)


def dynamic_slice_of_reshape(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """dynamic-slice(f32[8,1,3] reshape(f32[8,3] A), x, 0, y) => reshape(dynamic-slice(A, x, y)) if only size-1 dims change."""
    inner = i.operands[0]
    view = DynamicSlice.of(i)
    if inner.opcode != "reshape" or 0 in inner.shape.dims or not view.has_scalar_starts:
        return None
    source = inner.operands[0]
    groups = common_groups(source.shape.dims, inner.shape.dims)
    if not view.starts or any(len(ours) != 1 or len(theirs) != 1 for ours, theirs in groups):
        return None
    starts = [rw.at(view.starts[0]).constant(0, view.starts[0].shape.element_type)] * source.shape.rank
    sizes = [1] * source.shape.rank
    for (ours,), (theirs,) in groups:
        starts[ours], sizes[ours] = view.starts[theirs], view.sizes[theirs]
    shape = replace(source.shape, dims=tuple(sizes))
    return rw.reshape(rw.add("dynamic-slice", shape, [source, *starts], dynamic_slice_sizes=tuple(sizes)), i.shape.dims)


def dynamic_slice_of_transpose(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """dynamic-slice(transpose(A), x, y) => transpose(dynamic-slice(A, y, x))."""
    inner = i.operands[0]
    view = DynamicSlice.of(i)
    if inner.opcode != "transpose" or not view.has_scalar_starts:
        return None
    source, order = inner.operands[0], inner.dimensions
    places = [order.index(d) for d in range(len(order))]
    sizes = tuple(i.shape.dims[d] for d in places)
    starts = [view.starts[d] for d in places]
    made = rw.add("dynamic-slice", replace(source.shape, dims=sizes), [source, *starts], dynamic_slice_sizes=sizes)
    return rw.transpose(made, order)


RULES: Rules = {
    "dynamic-slice": (dynamic_slice_of_broadcast,),
    "slice": (slice_of_broadcast, slice_of_reverse, slice_with_idle_stride),
}
# Before layout assignment.
FREE_RULES: Rules = {
    "dynamic-slice": (dynamic_slice_of_reshape, dynamic_slice_of_transpose),
    "slice": (slice_of_running_reduction, slice_of_reshape),
}
