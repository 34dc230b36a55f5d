"""Index maps of reductions, windows, dot, convolution and scan; symbols are loops over combined elements."""

from __future__ import annotations

from hlo_run.hlo.attributes.table import WindowDim
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.views.dots import dot_side
from hlo_run.indexing import Expr, IndexingMap, Interval, dim, symbol
from hlo_run.ops.convolution import convolution_labels
from hlo_run.ops.index_rule import IndexRule, from_scalar, operand_dims, output_dims, to_scalar
from hlo_run.records import replace


def _reduce_operand(instruction: HloInstruction, number: int) -> IndexingMap:
    if number >= len(instruction.operands) // 2:
        return to_scalar(instruction)
    reduced = instruction.dimensions
    results: list[Expr] = []
    loops: list[int] = []
    for d, size in enumerate(operand_dims(instruction, number)):
        if d in reduced:
            results.append(symbol(len(loops)))
            loops.append(size)
        else:
            results.append(dim(d - len(loops)))
    return IndexingMap.from_sizes(results, output_dims(instruction), loops)


def _reduce_user(instruction: HloInstruction, number: int) -> IndexingMap:
    if number >= len(instruction.operands) // 2:
        return from_scalar(instruction)
    reduced = instruction.dimensions
    sizes = operand_dims(instruction, number)
    return IndexingMap.from_sizes((dim(d) for d in range(len(sizes)) if d not in reduced), sizes)


def _window_index(output: Expr, position: Expr, window: WindowDim, size: int) -> tuple[Expr, list[tuple[Expr, Interval]]]:
    """Return the input index of a window position, and the constraints that it is neither padding nor between elements."""
    padded = output * window.stride + position * window.window_dilation
    dilated = (size - 1) * window.base_dilation + 1 if size else 0
    total = window.pad_low + dilated + window.pad_high
    inside = Interval(max(0, window.pad_low), min(total - 1, window.pad_low + dilated - 1))
    undilated = padded - window.pad_low
    holes = (undilated % window.base_dilation, Interval.point(0))
    return undilated // window.base_dilation, [(padded, inside), holes]


def _reduce_window_operand(instruction: HloInstruction, number: int) -> IndexingMap:
    if number >= len(instruction.operands) // 2:
        return to_scalar(instruction)
    window = instruction.window
    results: list[Expr] = []
    constraints: list[tuple[Expr, Interval]] = []
    for d, (window_dim, size) in enumerate(zip(window.dims, operand_dims(instruction, number), strict=True)):
        index, inside = _window_index(dim(d), symbol(d), window_dim, size)
        results.append(index)
        constraints += inside
    bare = IndexingMap.from_sizes(results, output_dims(instruction), [d.size for d in window.dims])
    return bare.with_constraints(constraints).simplify().remove_unused_symbols()[0]


def _dot_operand(instruction: HloInstruction, number: int) -> IndexingMap:
    side, sizes = dot_side(instruction, number), operand_dims(instruction, number)
    first_free = len(side.batch) if number == 0 else len(output_dims(instruction)) - len(side.free)
    results: list[Expr] = [dim(0)] * len(sizes)
    for position, d in enumerate(side.batch):
        results[d] = dim(position)
    for position, d in enumerate(side.free):
        results[d] = dim(first_free + position)
    for position, d in enumerate(side.contracting):
        results[d] = symbol(position)
    return IndexingMap.from_sizes(results, output_dims(instruction), [sizes[d] for d in side.contracting])


def _scaled_dot_operand(instruction: HloInstruction, number: int) -> IndexingMap:
    if number < 2:
        return _dot_operand(instruction, number)
    scales, scaled = operand_dims(instruction, number), operand_dims(instruction, number - 2)
    if not scales:
        return to_scalar(instruction)
    whole = _dot_operand(instruction, number - 2)
    blocks = [size // scale for size, scale in zip(scaled, scales, strict=True)]
    return whole.with_results(r // block for r, block in zip(whole.results, blocks, strict=True)).simplify()


def _convolution_operand(instruction: HloInstruction, number: int) -> IndexingMap:
    """Return a map whose symbols are the window's dimensions, the input feature, and with batch groups the group.

    With batch groups, the input's map covers every group, although an output feature only needs one of them.
    """
    whole = _convolution_kernel(instruction) if number == 1 else _convolution_input(instruction)
    return whole.simplify().remove_unused_symbols()[0]


def convolution_maps(instruction: HloInstruction) -> tuple[IndexingMap, IndexingMap]:
    """Return the maps of input and kernel with equal symbols; with batch groups, the input has one more symbol.

    The symbols of both have the ranges of the input's map, which exclude positions that are padding for every output. If padding
    and dilation leave only one position of a window dimension, the simplified input map lacks its symbol; then neither map is
    simplified.
    """
    source, kernel = _convolution_operand(instruction, 0), _convolution_operand(instruction, 1)
    parted = instruction.batch_group_count > 1
    if source.is_known_empty:
        return source, kernel
    if len(source.ranges) == len(kernel.ranges) + parted:
        return source, replace(kernel, ranges=source.ranges[: len(kernel.ranges)])
    return _convolution_input(instruction), _convolution_kernel(instruction)


def _convolution_input(instruction: HloInstruction) -> IndexingMap:
    labels, window = convolution_labels(instruction.dim_labels), instruction.window
    groups, batch_groups = instruction.feature_group_count, instruction.batch_group_count
    source, kernel, output = operand_dims(instruction, 0), operand_dims(instruction, 1), output_dims(instruction)
    batch, feature, spatial = labels.input
    output_batch, output_feature, output_spatial = labels.output
    kernel_features = kernel[labels.kernel[0]]
    loops = [window_dim.size for window_dim in window.dims]
    results: list[Expr] = [dim(output_batch)] * len(source)
    constraints: list[tuple[Expr, Interval]] = []
    for number, (source_dim, output_dim) in enumerate(zip(spatial, output_spatial, strict=True)):
        index, inside = _window_index(dim(output_dim), symbol(number), window.dims[number], source[source_dim])
        results[source_dim] = index
        constraints += inside
    results[feature] = symbol(len(loops))
    loops.append(kernel_features)
    if groups > 1:
        results[feature] += dim(output_feature) // (output[output_feature] // groups) * kernel_features
    if batch_groups > 1:
        results[batch] += symbol(len(loops)) * output[output_batch]
        loops.append(batch_groups)
    return IndexingMap.from_sizes(results, output, loops).with_constraints(constraints)


def _convolution_kernel(instruction: HloInstruction) -> IndexingMap:
    labels, window = convolution_labels(instruction.dim_labels), instruction.window
    kernel = operand_dims(instruction, 1)
    kernel_in, kernel_out, spatial = labels.kernel
    results: list[Expr] = [dim(labels.output[1])] * len(kernel)
    for number, (kernel_dim, window_dim) in enumerate(zip(spatial, window.dims, strict=True)):
        results[kernel_dim] = window_dim.size - 1 - symbol(number) if window_dim.reversal else symbol(number)
    results[kernel_in] = symbol(len(spatial))
    assert results[kernel_out] is dim(labels.output[1]), "the dimension labels of a kernel are distinct"
    loops = [kernel[d] for d in (*spatial, kernel_in)]
    return IndexingMap.from_sizes(results, output_dims(instruction), loops)


def _scan_operand(instruction: HloInstruction, number: int) -> IndexingMap:
    """Return the map of an input: the element and all before it (after it, if reversed); for an init: all but the scanned dim."""
    dimension: int = instruction.dimensions[0]
    sizes = output_dims(instruction)
    if number >= len(instruction.operands) - instruction.num_carries:
        return IndexingMap.from_sizes((dim(d) for d in range(len(sizes)) if d != dimension), sizes)
    results = [symbol(0) if d == dimension else dim(d) for d in range(len(sizes))]
    distance = symbol(0) - dim(dimension) if instruction.is_reverse else dim(dimension) - symbol(0)
    past = Interval(0, sizes[dimension] - 1)
    return IndexingMap.from_sizes(results, sizes, (sizes[dimension],)).with_constraint(distance, past)


OPERAND: dict[Opcode, IndexRule] = {
    "reduce": _reduce_operand,
    "reduce-window": _reduce_window_operand,
    "dot": _dot_operand,
    "scaled-dot": _scaled_dot_operand,
    "convolution": _convolution_operand,
    "scan": _scan_operand,
}

USER: dict[Opcode, IndexRule] = {"reduce": _reduce_user}
