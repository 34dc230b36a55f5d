"""`reduce-window` and `select-and-scatter`: one vectorised step per place in the window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hlo_run.hlo.attributes import Window, WindowDim
from hlo_run.hlo.dtype import DType
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.reference.indexed import combine_quickly, rounds
from hlo_run.reference.reduce import recognised
from hlo_run.reference.values import Array, Calls, Value, as_array, narrow, table


def _reduce_window(instruction: HloInstruction, operands: Sequence[Value], calls: Calls) -> Value:
    """Each output starts from init and takes its window's elements in row-major order; padding and holes add nothing."""
    arrays = [as_array(operand) for operand in operands]
    count = len(arrays) // 2
    inputs, inits = arrays[:count], arrays[count:]
    (reducer,) = instruction.called["to_apply"]
    leaves = [shape for _, shape in instruction.shape.leaves()]
    outs = [np.full(shape.dims, init, shape.dtype.numpy) for shape, init in zip(leaves, inits, strict=True)]
    for targets, sources in window_steps(instruction.attrs.get("window"), inputs[0].shape, leaves[0].dims):
        accumulators, elements = [out[targets] for out in outs], [array[sources] for array in inputs]
        for out, shape, new in zip(outs, leaves, calls.call_on_elements(reducer, [*accumulators, *elements]), strict=True):
            out[targets] = narrow(new, shape.dtype)
    return tuple(outs) if instruction.shape.is_tuple else outs[0]


def window_steps(
    window: Window | None, dims: Sequence[int], out_dims: Sequence[int]
) -> Iterator[tuple[tuple[Array, ...], tuple[Array, ...]]]:
    """Yield for each place in the window, row-major, the outputs it matters to and the inputs it reads there.

    Both are open meshes of indices of equal size; places that fall into padding or holes everywhere are left out.
    """
    window_dims = window.dims if window else (WindowDim(),) * len(dims)
    for place in np.ndindex(*(dim.size for dim in window_dims)):
        targets: list[Array] = []
        sources: list[Array] = []
        for k, dim, size, out_size in zip(place, window_dims, dims, out_dims, strict=True):
            target, source = _reads(dim, k, size, out_size)
            targets.append(target)
            sources.append(source)
        if all(target.size for target in targets):
            yield np.ix_(*targets), np.ix_(*sources)


def _reads(dim: WindowDim, k: int, size: int, out_size: int) -> tuple[Array, Array]:
    """Return, for place `k` of one window dimension, the output indices that read an element and which one."""
    if dim.reversal:
        k = dim.size - 1 - k
    outs = np.arange(out_size)
    padded = outs * dim.stride + k * dim.window_dilation - dim.pad_low
    sources = padded // dim.base_dilation
    inside = (padded >= 0) & (padded % dim.base_dilation == 0) & (sources < size)
    return outs[inside], sources[inside]


def _select_and_scatter(instruction: HloInstruction, operands: Sequence[Value], calls: Calls) -> Value:
    """For each source element: the window's first element that no later one beats takes part in its sum."""
    operand, source, init = (as_array(value) for value in operands)
    (select,), (scatter,) = instruction.called["select"], instruction.called["scatter"]
    chosen = np.full(source.shape, -1, np.int64)
    best = np.zeros(source.shape, operand.dtype)
    numbers = np.arange(operand.size).reshape(operand.shape)
    for targets, sources in window_steps(instruction.attrs.get("window"), operand.shape, source.shape):
        current, candidate = best[targets], operand[sources]
        (keep,) = calls.call_on_elements(select, [current, candidate])
        keep = keep & (chosen[targets] >= 0)
        best[targets] = np.where(keep, current, candidate)
        chosen[targets] = np.where(keep, chosen[targets], numbers[sources])
    out = np.full(operand.size, init, operand.dtype)
    targets, values = chosen.reshape(-1), source.reshape(-1)
    within = targets >= 0
    _scatter(scatter, out, targets[within], values[within], instruction.operands[0].shape.dtype, calls)
    return out.reshape(operand.shape)


def _scatter(scatter: HloComputation, out: Array, targets: Array, values: Array, dtype: DType, calls: Calls) -> None:
    """Combine (value, current) in the order of the values."""
    if combine_quickly(recognised(scatter), out, targets, values, dtype):
        return
    for now in rounds(targets):
        places = targets[now]
        (combined,) = calls.call_on_elements(scatter, [values[now], out[places]])
        out[places] = narrow(combined, dtype)


EVALUATE = table(("reduce-window", _reduce_window), ("select-and-scatter", _select_and_scatter))
