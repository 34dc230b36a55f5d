"""Evaluate `reduce-window` and `select-and-scatter`: one vectorised step per window element, or fewer with a ufunc."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from types import EllipsisType
from typing import TypeAlias

import numpy as np

from hlo_run.arrays import NumpyType
from hlo_run.hlo.attributes.table import WindowDim
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.dtype import DType
from hlo_run.reference.numerics.indexed import combine_quickly, rounds
from hlo_run.reference.numerics.reduce import accumulating_type, recognised, ufunc_of
from hlo_run.reference.numerics.shaping import padded
from hlo_run.reference.values import Array, Calls, Kernel, Value, as_array, narrow, prepared_row, table

# XLA cuts longer running sums into shorter ones, so that the order of their additions is free.
_LONGEST_SUM_BY_STEPS = 16

# One slice per dimension, and an ellipsis, which keeps an array without dimensions an array.
_Slices: TypeAlias = "tuple[slice | EllipsisType, ...]"


def _prepare_reduce_window(instruction: HloInstruction) -> Kernel | None:
    """Return a kernel with one reduction per dimension if the reducer of one array is a ufunc; else None.

    Sums of floats accumulate in double, as those of reduce do; short ones of narrow floats are left to the steps of the op.
    """
    reducer = instruction.to_apply
    opcode, dtype = recognised(reducer), instruction.operands[0].shape.dtype
    if opcode is None or len(instruction.operands) != 2 or instruction.shape.dtype is not dtype:
        return None
    ufunc = ufunc_of(opcode, dtype)
    if ufunc is None:
        return None
    wide, dims = accumulating_type(opcode, dtype), _window_dims(instruction)
    longest = max((dim.size for dim in dims), default=0)
    if opcode == "add" and dtype.is_float and dtype.bits < 32 and longest <= _LONGEST_SUM_BY_STEPS:
        return None
    identity = _identity(opcode, wide)
    edges = [(dim.pad_low, dim.pad_high, dim.base_dilation - 1) for dim in dims]
    is_padded = any(edge != (0, 0, 0) for edge in edges)

    def kernel(array: Array, init: Array) -> Array:
        array, init = array.astype(wide, copy=False), init.astype(wide, copy=False)
        if opcode == "multiply" and dtype.is_float and init == 0:  # a product that begins with 0 cannot overflow
            array = np.where(np.isfinite(array), np.copysign(np.ones((), wide), array), array)
        if is_padded:
            array = padded(array, identity, edges)
        for axis, (dim, count) in enumerate(zip(dims, instruction.shape.dims, strict=True)):
            array = _slide(ufunc, array, axis, dim, count, identity)
        return narrow(np.asarray(ufunc(init, array)), dtype)

    return kernel


def _identity(opcode: Opcode, dtype: NumpyType) -> Array:
    """Return the identity of a reduction; a sum has -0."""
    if opcode in ("maximum", "minimum") and dtype.kind != "b":
        low, high = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        return np.asarray(low if opcode == "maximum" else high, dtype)
    if dtype.kind == "b":
        return np.asarray(opcode in ("multiply", "minimum", "and"))
    if opcode == "and":
        return ~np.zeros((), dtype)
    return np.asarray(1 if opcode == "multiply" else -0.0 if dtype.kind in "fc" else 0, dtype)


def _slide(ufunc: np.ufunc, array: Array, axis: int, dim: WindowDim, count: int, identity: Array) -> Array:
    """Return the reductions of `count` windows along one dimension, combined from runs of doubling length."""
    if dim.size == 1 and dim.stride == 1 and count == array.shape[axis]:
        return array
    if not count or not dim.size:
        return np.full([count if d == axis else size for d, size in enumerate(array.shape)], identity, array.dtype)

    def at(line: Array, start: int, step: int, many: int) -> Array:
        return line[(slice(None),) * axis + (slice(start, start + step * (many - 1) + 1, step),)]

    # runs[i] reduces 1, 2, 4 .. elements from i on, `window_dilation` apart; a window is divided into such runs.
    # With a large stride, few of the longer runs would be used: short windows take one step per element.
    runs, length, begin = array, 1, 0
    grows = dim.stride == 1 or dim.size > 2 * dim.stride
    pieces: list[Array] = []
    while begin < dim.size:
        if not grows or (dim.size - begin) & length:
            pieces.append(at(runs, begin * dim.window_dilation, dim.stride, count))
            begin += length
        if grows and begin < dim.size:
            step = length * dim.window_dilation
            many = runs.shape[axis] - step
            runs, length = ufunc(at(runs, 0, 1, many), at(runs, step, 1, many)), 2 * length
    return functools.reduce(ufunc, pieces)


def _reduce_window(instruction: HloInstruction, operands: Sequence[Value], calls: Calls) -> Value:
    """Reduce each window in row-major order, starting from init; padding and dilation holes are skipped."""
    arrays = [as_array(operand) for operand in operands]
    count = len(arrays) // 2
    inputs, inits = arrays[:count], arrays[count:]
    reducer = instruction.to_apply
    leaves = [shape for _, shape in instruction.shape.leaves()]
    outs = [np.full(shape.dims, init, shape.dtype.numpy) for shape, init in zip(leaves, inits, strict=True)]
    for targets, sources in window_steps(_window_dims(instruction), inputs[0].shape, leaves[0].dims):
        accumulators, elements = [out[targets] for out in outs], [array[sources] for array in inputs]
        for out, shape, new in zip(outs, leaves, calls.call_on_elements(reducer, [*accumulators, *elements]), strict=True):
            out[targets] = narrow(new, shape.dtype)
    return tuple(outs) if instruction.shape.is_tuple else outs[0]


def _window_dims(instruction: HloInstruction) -> tuple[WindowDim, ...]:
    return instruction.window.dims or (WindowDim(),) * instruction.operands[0].shape.rank


def window_steps(
    window_dims: Sequence[WindowDim], dims: Sequence[int], out_dims: Sequence[int]
) -> Iterator[tuple[_Slices, _Slices]]:
    """Yield for each window element, row-major, the slices of outputs that read an input through it, and of these inputs.

    Window elements that fall into padding or dilation holes for every output are left out.
    """
    for place in np.ndindex(*(dim.size for dim in window_dims)):
        reads = [_reads(*four) for four in zip(window_dims, place, dims, out_dims, strict=True)]
        if all(target.start < target.stop for target, _ in reads):
            yield (*(target for target, _ in reads), ...), (*(source for _, source in reads), ...)


def _reads(dim: WindowDim, k: int, size: int, out_size: int) -> tuple[slice, slice]:
    """Return, for index `k` of one window dimension, the output indices that read an input, and the input indices."""
    if dim.reversal:
        k = dim.size - 1 - k
    outs = np.arange(out_size)
    spread = outs * dim.stride + k * dim.window_dilation - dim.pad_low
    sources = spread // dim.base_dilation
    inside = (spread >= 0) & (spread % dim.base_dilation == 0) & (sources < size)
    return _as_slice(outs[inside]), _as_slice(sources[inside])


def _as_slice(numbers: Array) -> slice:
    """Return evenly spaced numbers as a slice."""
    if not numbers.size:
        return slice(0, 0)
    step = int(numbers[1] - numbers[0]) if numbers.size > 1 else 1
    return slice(int(numbers[0]), int(numbers[-1]) + 1, step)


def _select_and_scatter(instruction: HloInstruction, operands: Sequence[Value], calls: Calls) -> Value:
    """Select one element of each window with `select`, and scatter the source element to its position."""
    operand, source, init = (as_array(value) for value in operands)
    (select,), (scatter,) = instruction.called["select"], instruction.called["scatter"]
    chosen = np.full(source.shape, -1, np.int64)
    best = np.zeros(source.shape, operand.dtype)
    numbers = np.arange(operand.size).reshape(operand.shape)
    keeps = _selection(select, calls)
    for targets, sources in window_steps(_window_dims(instruction), operand.shape, source.shape):
        candidate, known = operand[sources], chosen[targets]
        keep = keeps(best[targets], candidate) & (known >= 0)
        best[targets] = np.where(keep, best[targets], candidate)
        chosen[targets] = np.where(keep, known, numbers[sources])
    out = np.full(operand.size, init, operand.dtype)
    targets, values = chosen.reshape(-1), source.reshape(-1)
    if targets.min(initial=0) < 0:
        within = targets >= 0
        targets, values = targets[within], values[within]
    _scatter(scatter, out, targets, values, instruction.operands[0].shape.dtype, calls)
    return out.reshape(operand.shape)


_COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "GE": np.greater_equal,
    "GT": np.greater,
    "LE": np.less_equal,
    "LT": np.less,
}


def _selection(select: HloComputation, calls: Calls) -> Callable[[Array, Array], Array]:
    """Return a function of (selected, candidate) arrays that is true where the selected element stays."""
    root = select.root
    plain = root.opcode == "compare" and tuple(root.operands) == tuple(select.parameters) and root.comparison_order != "TOTAL"
    dtype = select.parameters[0].shape.dtype
    if plain and root.comparison_direction in _COMPARISONS and dtype.numpy.isbuiltin == 1:
        return _COMPARISONS[root.comparison_direction]
    return lambda current, candidate: calls.call_on_elements(select, [current, candidate])[0]


def _scatter(scatter: HloComputation, out: Array, targets: Array, values: Array, dtype: DType, calls: Calls) -> None:
    """Combine (value, current) in the order of the values."""
    if combine_quickly(recognised(scatter), out, targets, values, dtype):
        return
    for now in rounds(targets):
        places = targets[now]
        (combined,) = calls.call_on_elements(scatter, [values[now], out[places]])
        out[places] = narrow(combined, dtype)


EVALUATE = table(
    prepared_row("reduce-window", _prepare_reduce_window, _reduce_window), ("select-and-scatter", _select_and_scatter)
)
