"""Evaluate `reduce` and `map`, with numpy's reductions where they have the same roundings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from hlo_run.arrays import Array, NumpyType
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.dtype import DType
from hlo_run.reference.values import (
    Calls,
    Kernel,
    Value,
    as_array,
    computing_type,
    narrow,
    precise_type,
    prepared_row,
    table,
    widen,
)

# A reducer without a numpy reduction runs in order up to this many reduced elements, with one vectorised step each. Above,
# neighbours are combined pairwise. Both orders are valid; the first has the roundings of XLA's evaluator.
SEQUENTIAL_STEPS = 4096


def recognised(computation: HloComputation) -> Opcode | None:
    """Return the opcode of a computation of scalars that is one op of its two parameters, in any order; else None."""
    root = computation.root
    if len(computation.parameters) != 2 or set(root.operands) != set(computation.parameters):
        return None
    same_type = all(operand.shape.element_type == root.shape.element_type for operand in root.operands)
    return root.opcode if same_type and root.shape.is_array and not root.shape.rank else None


def _prepare(instruction: HloInstruction) -> Kernel | None:
    """Return the kernel that reduces one array with a numpy reduction; None if numpy has none for the reducer."""
    reducer = instruction.to_apply
    opcode = recognised(reducer)
    dtype = instruction.operands[0].shape.dtype
    if opcode is None or len(instruction.operands) != 2 or instruction.shape.dtype is not dtype:
        return None
    return array_reduction(opcode, instruction.dimensions, dtype)


def _reduce(instruction: HloInstruction, operands: Sequence[Value], calls: Calls) -> Value:
    arrays = [as_array(operand) for operand in operands]
    count = len(arrays) // 2
    dims = instruction.dimensions
    reducer = instruction.to_apply
    results = _reduce_with(lambda *parts: calls.call_on_elements(reducer, parts), arrays[:count], arrays[count:], dims)
    leaves = [shape for _, shape in instruction.shape.leaves()]
    typed = tuple(narrow(result, shape.dtype) for result, shape in zip(results, leaves, strict=True))
    return typed if instruction.shape.is_tuple else typed[0]


def array_reduction(opcode: Opcode, dims: tuple[int, ...], dtype: DType) -> Kernel | None:
    """Return a kernel that reduces (array, init) over `dims` with a ufunc; None if numpy has none with the right roundings.

    Sums of floats accumulate in f64 and round once: XLA's evaluator does so by default, XLA:CPU in a wider type.
    Products of floats below 32 bits round at every step in both, so they have no ufunc.
    """
    ufunc = ufunc_of(opcode, dtype)
    if ufunc is None:
        return None
    computing, wide = computing_type(dtype), accumulating_type(opcode, dtype)
    reduce: Callable[..., Array] = ufunc.reduce

    def kernel(array: Array, init: Array) -> Array:
        # numpy has no identity for maximum and minimum, but the init is part of the reduction.
        return reduce(array, dims, wide, initial=init).astype(dtype.numpy, copy=False)

    def widened(array: Array, init: Array) -> Array:
        return narrow(np.asarray(reduce(widen(array, dtype), dims, wide, initial=widen(init, dtype))), dtype)

    return kernel if computing == dtype.numpy else widened


def ufunc_of(opcode: Opcode, dtype: DType) -> np.ufunc | None:
    """Return the ufunc that reduces like an HLO op, or None; see `array_reduction`."""
    if opcode == "multiply" and dtype.is_float and dtype.bits < 32:
        return None
    # numpy's product of complex numbers differs between processors.
    if dtype.is_complex and opcode != "add":
        return None
    return PRED_REDUCTIONS.get(opcode) if dtype.kind == "pred" else REDUCTIONS.get(opcode)


def accumulating_type(opcode: Opcode, dtype: DType) -> NumpyType:
    """Return the type in which an op reduces: f64 or c128 for sums of floats or complex numbers."""
    computing = computing_type(dtype)
    return precise_type(computing) if opcode == "add" and dtype.kind in ("float", "complex") else computing


REDUCTIONS: dict[Opcode, np.ufunc] = {
    "add": np.add,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
PRED_REDUCTIONS: dict[Opcode, np.ufunc] = {
    "add": np.logical_or,
    "maximum": np.logical_or,
    "or": np.logical_or,
    "multiply": np.logical_and,
    "minimum": np.logical_and,
    "and": np.logical_and,
    "xor": np.logical_xor,
}


def _reduce_with(
    reducer: Callable[..., tuple[Array, ...]], arrays: Sequence[Array], inits: Sequence[Array], dims: tuple[int, ...]
) -> tuple[Array, ...]:
    """Reduce with any computation: (accumulators.., elements..) → accumulators, over `dims` in row-major order."""
    lines = [_reduced_first(array, dims) for array in arrays]
    kept = lines[0].shape[1:]
    accumulators = tuple(np.broadcast_to(init, kept) for init in inits)
    if lines[0].shape[0] > SEQUENTIAL_STEPS:
        lines = _pairwise(reducer, lines)
    for step in range(lines[0].shape[0]):
        accumulators = reducer(*accumulators, *(line[step, ...] for line in lines))
    return accumulators


def _pairwise(reducer: Callable[..., tuple[Array, ...]], lines: list[Array]) -> list[Array]:
    """Combine each line to one element in a tree of neighbours, which keeps the order of the elements."""
    while (size := lines[0].shape[0]) > 1:
        even = size // 2 * 2
        combined = reducer(*(line[0:even:2] for line in lines), *(line[1:even:2] for line in lines))
        lines = [np.concatenate([new, line[even:]]) for new, line in zip(combined, lines, strict=True)]
    return lines


def _reduced_first(array: Array, dims: tuple[int, ...]) -> Array:
    """Return the array [reduced, kept..], with the reduced dimensions collapsed in row-major order."""
    kept = [d for d in range(array.ndim) if d not in dims]
    moved = np.transpose(array, (*sorted(dims), *kept))
    return moved.reshape((math.prod(array.shape[d] for d in dims), *(array.shape[d] for d in kept)))


def _map(instruction: HloInstruction, operands: Sequence[Value], calls: Calls) -> Value:
    mapper = instruction.to_apply
    return calls.call_on_elements(mapper, [as_array(operand) for operand in operands])[0]


EVALUATE = table(prepared_row("reduce", _prepare, _reduce), ("map", _map))
