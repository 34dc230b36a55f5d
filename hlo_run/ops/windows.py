"""Shape rules of reduce-window and select-and-scatter, and the window sizes that convolution shares (`ops.md` 6)."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.hlo.attributes.table import Window, WindowDim
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape
from hlo_run.ops.reduce import like_result, values_and_inits
from hlo_run.ops.reducer import check_reducer
from hlo_run.ops.rule import (
    SCALAR_PRED,
    Rule,
    array_operands,
    brief,
    called,
    compatible_up_to_precision,
    dynamic_dims,
    is_open,
    make_array,
    refuse,
    wrong_parameter,
)


def window_sizes(sizes: Sequence[int], window: Window) -> list[int]:
    """Return the number of window positions per dimension; refuse a window of another rank, or sizes that are not positive."""
    if len(window.dims) != len(sizes):
        raise refuse(f"the window has {len(window.dims)} dimensions, but the operand has {len(sizes)}")
    return [_positions(size, dim) for size, dim in zip(sizes, window.dims, strict=True)]


def _positions(size: int, dim: WindowDim) -> int:
    if min(dim.size, dim.stride, dim.base_dilation, dim.window_dilation) < 1:
        raise refuse("window sizes, strides and dilations must be positive")
    padded = dim.pad_low + dilated(size, dim.base_dilation) + dim.pad_high
    extent = dilated(dim.size, dim.window_dilation)
    if padded < 0:
        raise refuse(f"the padding leaves a negative extent of {padded}")
    return 0 if padded < extent else (padded - extent) // dim.stride + 1


def dilated(size: int, dilation: int) -> int:
    """Return the extent of `size` elements with `dilation` - 1 gaps between neighbours."""
    return (size - 1) * dilation + 1 if size else 0


def _reduce_window(instruction: HloInstruction) -> Shape:
    values, inits = values_and_inits(instruction)
    if is_open(instruction.shape) and called(instruction, "to_apply").root.shape.is_tuple:
        raise refuse("cannot infer the shape of windows that are reduced to a tuple", hint="write the result's shape")
    sizes = window_sizes(values[0].dims, instruction.window)
    check_reducer(instruction, [i.element_type for i in inits], [v.element_type for v in values])
    shapes = [make_array(i.element_type, sizes, dynamic_dims(v)) for v, i in zip(values, inits, strict=True)]
    return like_result(instruction, shapes)


def _select_and_scatter(instruction: HloInstruction) -> Shape:
    value, source, init = array_operands(instruction)
    sizes = window_sizes(value.dims, instruction.window)
    select = called(instruction, "select")
    scalar = make_array(value.element_type, ())
    if len(select.parameters) != 2:
        raise refuse(f"select '{select.name}' has {len(select.parameters)} parameters, but must have 2")
    if not select.root.shape.compatible(SCALAR_PRED):
        raise refuse(f"select '{select.name}': expected pred[], found {brief(select.root.shape)}")
    for number, parameter in enumerate(select.parameters):
        if not compatible_up_to_precision(parameter.shape, scalar):
            raise wrong_parameter(select, number, scalar, "select")
    if init.rank:
        raise refuse(f"the initial value must be a scalar, but has shape {brief(init)}")
    check_reducer(instruction, [init.element_type], [source.element_type], "scatter")
    expected = make_array(value.element_type, sizes, dynamic_dims(value))
    if not compatible_up_to_precision(source, expected):
        raise refuse(f"the source's shape {brief(source)} is not that of the reduced operand, {brief(expected)}")
    return value


INFER: dict[Opcode, Rule] = {
    "reduce-window": _reduce_window,
    "select-and-scatter": _select_and_scatter,
}
