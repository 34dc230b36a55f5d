"""Algebraic rules of convolutions, before layout assignment: later they are library calls."""

from __future__ import annotations

from hlo_run.analysis.backward_convolution import has_form_of_library
from hlo_run.hlo.attributes.table import DimLabels, Window, WindowDim
from hlo_run.hlo.edit import scalar_adder
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.attribute_values import OperandLabels
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.simplifiers.algebraic.rule import Rewriter, Rules, either, is_all
from hlo_run.records import replace


def _groups(i: HloInstruction) -> tuple[int, int]:
    return i.feature_group_count, i.batch_group_count


def convolution_of_nothing(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """convolution(A, B) without elements => 0."""
    return rw.splat(0, i.shape) if any(0 in operand.shape.dims for operand in i.operands) else None


def convolution_of_padded_input(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """convolution(pad(A, 0), B) => convolution(A, B), pad=.. or lhs_dilate=.., unless both use dilation in a dimension."""
    pad, window = i.operands[0], i.window
    labels = i.dim_labels
    edges = _zero_edges(pad, labels.input)
    if edges is None:
        return None
    dims: list[WindowDim] = []
    for dim, (low, high, interior) in zip(window.dims, edges, strict=True):
        if interior and (dim.pad_low or dim.pad_high or dim.base_dilation != 1):
            return None
        if dim.base_dilation != 1 and (low or high):
            return None
        holes = 1 + interior if interior else dim.base_dilation
        dims.append(replace(dim, pad_low=dim.pad_low + low, pad_high=dim.pad_high + high, base_dilation=holes))
    made = rw.like(i, [pad.operands[0], i.operands[1]])
    made.attrs["window"] = Window(tuple(dims))
    return made


def convolution_of_padded_filter(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """convolution(A, pad(B, 0)) with interior padding only => convolution(A, B), rhs_dilate=.."""
    pad, window = i.operands[1], i.window
    labels = i.dim_labels
    edges = _zero_edges(pad, labels.kernel)
    if edges is None:
        return None
    dims: list[WindowDim] = []
    sizes = [pad.operands[0].shape.dims[place] for place in labels.kernel.spatial_dims]
    for dim, size, (low, high, interior) in zip(window.dims, sizes, edges, strict=True):
        if low or high or (interior and dim.window_dilation > 1):
            return None
        dims.append(replace(dim, size=size, window_dilation=1 + interior) if interior else dim)
    made = rw.like(i, [i.operands[0], pad.operands[0]])
    made.attrs["window"] = Window(tuple(dims))
    return made


def _zero_edges(pad: HloInstruction, side: OperandLabels) -> list[tuple[int, int, int]] | None:
    """Return (low, high, interior) of the window dimensions; None unless the padding is 0 and only in these dimensions."""
    if pad.opcode != "pad" or not is_all(pad.operands[1], 0):
        return None
    edges = pad.padding
    if any(edge != (0, 0, 0) for place, edge in enumerate(edges) if place not in side.spatial_dims):
        return None
    return [edges[place] for place in side.spatial_dims]


def small_filter_first(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """convolution(A, B), size=7x7 of f32[8,2,2,4] A => convolution(reverse(B), A), size=2x2 rhs_reversal=1x1.

    Swaps batch and output features. Only if the library supports the result.
    """
    if _groups(i) != (1, 1):
        return None
    labels = i.dim_labels
    source, weights = i.operands
    dims: list[WindowDim] = []
    turned: list[int] = []
    before = after = 1
    for number, dim in enumerate(i.window.dims):
        size = source.shape.dims[labels.input.spatial_dims[number]]
        if _stays(dim, size):
            dims.append(dim)
            continue
        before *= dim.size
        after *= dim.size if size == 1 and dim.stride == dim.window_dilation == 1 else size
        if not dim.reversal:
            turned.append(labels.kernel.spatial_dims[number])
        dims.append(_swapped(dim, size))
    if before <= after:
        return None
    made = rw.like(i, [weights, source])
    made.attrs["window"] = Window(tuple(dims))
    made.attrs["dim_labels"] = _swapped_labels(labels)
    if "operand_precision" in i.attrs:
        made.attrs["operand_precision"] = i.operand_precision[::-1]
    if not has_form_of_library(made):
        return None
    if turned:
        made.operands = (rw.bare.add("reverse", weights.shape, [weights], dimensions=tuple(turned)), source)
    return made


def _stays(dim: WindowDim, size: int) -> bool:
    """Return True for a dimension that is contracted as a whole, or represents groups."""
    if dim.reversal or dim.pad_low or dim.pad_high or dim.window_dilation != 1:
        return False
    is_whole = dim.size == size and dim.base_dilation == dim.stride == 1
    return is_whole or (dim.base_dilation == dim.size and dim.stride == dim.size - 1)


def _swapped(dim: WindowDim, size: int) -> WindowDim:
    """Return the window dimension of the input moving over the filter."""
    more = (1 + (size - 1) * dim.base_dilation) - (1 + (dim.size - 1) * dim.window_dilation)
    return WindowDim(size, dim.stride, dim.pad_low + more, dim.pad_high + more, dim.window_dilation, dim.base_dilation, True)


def _swapped_labels(labels: DimLabels) -> DimLabels:
    given, kernel, result = labels.input, labels.kernel, labels.output
    return DimLabels(
        OperandLabels("bf", kernel.second_dim, kernel.first_dim, kernel.spatial_dims),
        OperandLabels("io", given.second_dim, given.first_dim, given.spatial_dims),
        OperandLabels("bf", result.second_dim, result.first_dim, result.spatial_dims),
    )


def convolution_of_single_features(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """convolution(A, B), depthwise, with a window of one or all elements => sum(A * broadcast(B))."""
    labels = i.dim_labels
    source, weights = i.operands
    features = source.shape.dims[labels.input.second_dim]
    if _groups(i) != (features, 1) or weights.shape.dims[labels.kernel.second_dim] != features:
        return None
    result = labels.output
    places = {result.first_dim: labels.input.first_dim, result.second_dim: labels.input.second_dim}
    taps = {result.first_dim: labels.kernel.first_dim, result.second_dim: labels.kernel.second_dim}
    summed: list[int] = []
    spatial = zip(i.window.dims, labels.input.spatial_dims, labels.kernel.spatial_dims, result.spatial_dims, strict=True)
    for dim, place, tap, target in spatial:
        if dim.pad_low or dim.pad_high or dim.base_dilation != 1:
            return None
        places[target], taps[target] = place, tap
        if dim.size == 1 and dim.stride == 1:
            continue
        if dim.size != source.shape.dims[place] or dim.window_dilation != 1 or dim.reversal:
            return None
        summed.append(target)
    return _sum_of_products(rw, i, [places[dim] for dim in sorted(places)], [taps[dim] for dim in sorted(taps)], sorted(summed))


def _sum_of_products(rw: Rewriter, i: HloInstruction, places: list[int], taps: list[int], summed: list[int]) -> HloInstruction:
    """Multiply the operands of a convolution, whose dimensions are in these orders in the result, and sum over `summed`."""
    source, weights = (rw.convert(operand, i.shape.element_type) for operand in i.operands)
    source, weights = rw.transpose_view(source, places), rw.transpose_view(weights, taps)
    sizes = source.shape.dims
    kept = [dim for dim, size in enumerate(weights.shape.dims) if size == sizes[dim]]
    small = rw.add("reshape", Shape.array(i.shape.element_type, tuple(sizes[dim] for dim in kept)), [weights])
    product = rw.mul(source, rw.add("broadcast", source.shape, [small], dimensions=tuple(kept)))
    if not summed:
        return product
    zero = rw.convert(rw.constant(0, "s32"), i.shape.element_type)
    assert i.parent is not None, "the instruction is in a computation"
    assert i.parent.module is not None, "the computation is in a module"
    adder = i.parent.module.add_computation(scalar_adder(i.shape.element_type))
    rest = [dim for dim in range(len(sizes)) if dim not in summed]
    layout = tuple(rest.index(dim) for dim in product.shape.minor_to_major if dim in rest)
    shape = Shape.array(i.shape.element_type, tuple(sizes[dim] for dim in rest), layout)
    total = rw.add("reduce", shape, [product, zero], {"to_apply": [adder]}, dimensions=tuple(summed))
    return rw.add("reshape", i.shape, [total])


def biases_of_convolution(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """(convolution + broadcast(C)) + broadcast(D) => convolution + broadcast(C + D), for constants of one shape."""
    found = either(i, "broadcast")
    if found is None or found[1].opcode != "add":
        return None
    last, inner = found
    parts = either(inner, "broadcast")
    if parts is None or parts[1].opcode != "convolution":
        return None
    first, convolution = parts
    constants = first.operands[0], last.operands[0]
    if any(c.opcode != "constant" for c in constants) or constants[0].shape != constants[1].shape:
        return None
    if first.dimensions != last.dimensions:
        return None
    together = rw.binary("add", *constants)
    return rw.binary("add", rw.add("broadcast", i.shape, [together], dimensions=first.dimensions), convolution)


FREE_RULES: Rules = {
    "convolution": (
        convolution_of_nothing,
        convolution_of_padded_input,
        convolution_of_padded_filter,
        small_filter_first,
        convolution_of_single_features,
    ),
    "add": (biases_of_convolution,),
}
