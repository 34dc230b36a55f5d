"""Types and helpers shared by the evaluators: values, evaluator tables, computing types, rounding, chunks, threads."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np

from hlo_run.arrays import Array, NumpyType
from hlo_run.errors import DeviceError, Unsupported
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.dtype import DType

# An array in logical order, a tuple of values, or an empty tuple for a token. An array is never written after it was
# returned, so it may be a view or a broadcast (stride 0).
Value: TypeAlias = "Array | tuple[Value, ...]"
Function: TypeAlias = Callable[..., Array]

TOKEN: tuple[Value, ...] = ()

# Elements per chunk of an elementwise op: the chunks of operands and result fit in the L2 cache.
CHUNK_ELEMENTS = 1 << 15
# The smallest number of elements for which a second thread pays off.
THREADED_ELEMENTS = 1 << 19
_MOST_THREADS = 8
_thread = threading.local()


class Calls(Protocol):
    """Runs the computations that an instruction calls; evaluators get it as an argument."""

    def call(self, computation: HloComputation, arguments: Sequence[Value]) -> Value:
        """Run a computation and return the value of its root."""
        ...

    def call_on_elements(self, computation: HloComputation, arguments: Sequence[Array]) -> tuple[Array, ...]:
        """Apply a computation of scalars to all elements of arrays of equal shape; returns one array per result."""
        ...


Evaluator: TypeAlias = Callable[[HloInstruction, Sequence[Value], Calls], Value]
ArrayEvaluator: TypeAlias = Callable[[HloInstruction, Sequence[Array]], Array]
# Evaluates an instruction whose types and attributes have already been read: arrays to array. It may return a numpy
# scalar for a result of rank 0.
Kernel: TypeAlias = Callable[..., Array]
Row: TypeAlias = tuple[Opcode, Evaluator]
Table: TypeAlias = Mapping[Opcode, Evaluator]


def table(*rows: Row) -> dict[Opcode, Evaluator]:
    """Return the dict opcode → evaluator of the rows; an opcode may have one row only."""
    found = dict(rows)
    assert len(found) == len(rows), "an opcode has two rows"
    return found


def arrays_row(opcode: Opcode, function: ArrayEvaluator) -> Row:
    """Return the row of an op that takes arrays, returns an array and calls no computation."""

    def evaluate(instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
        # numpy returns scalars for some results of rank 0.
        return np.asarray(function(instruction, [as_array(operand) for operand in operands]))

    return opcode, evaluate


class Prepared:
    """An evaluator that can read its instruction in advance: plans call the kernel that `prepare` returns.

    `prepare` returns None if it has no kernel for an instruction; `otherwise` then evaluates it.
    """

    __slots__ = ("otherwise", "prepare")

    def __init__(self, prepare: Callable[[HloInstruction], Kernel | None], otherwise: Evaluator | None = None) -> None:
        self.prepare = prepare
        self.otherwise = otherwise

    def __call__(self, instruction: HloInstruction, operands: Sequence[Value], calls: Calls) -> Value:
        kernel = self.prepare(instruction)
        if kernel is not None:
            return np.asarray(kernel(*operands))
        assert self.otherwise is not None, "an evaluator has a kernel or another way"
        return self.otherwise(instruction, operands, calls)


def prepared_row(opcode: Opcode, prepare: Callable[[HloInstruction], Kernel | None], otherwise: Evaluator | None = None) -> Row:
    """Return the row of an op with a `Prepared` evaluator: its instruction is read once, not at every evaluation."""
    return opcode, Prepared(prepare, otherwise)


def as_array(value: Value) -> Array:
    """Return a value that must be an array, which the verifier ensures."""
    assert isinstance(value, np.ndarray), "an array is needed here"
    return value


def as_tuple(value: Value) -> tuple[Value, ...]:
    """Return a value that must be a tuple, which the verifier ensures."""
    assert isinstance(value, tuple), "a tuple is needed here"
    return value


NO_REFERENCE = '--reference_platform=Host compares with our own kernels, --reference_platform="" with nothing'
"""What helps if the reference cannot evaluate a module that another platform runs."""


def unsupported(instruction: HloInstruction, what: str = "", hint: str = "") -> Unsupported:
    """Return the error for an instruction that the reference cannot evaluate, with its name and place in the source."""
    types = ", ".join(operand.shape.element_type for operand in instruction.operands)
    what = what or f"'{instruction.opcode}' on ({types}) giving {instruction.shape.element_type}"
    return Unsupported(
        f"the reference cannot evaluate {what}",
        instruction.where,
        hint=hint or NO_REFERENCE,
        notes=(f"instruction %{instruction.name}",),
    )


def out_of_memory(instruction: HloInstruction) -> DeviceError:
    """Return the error for an instruction whose value does not fit in memory."""
    shape = instruction.shape.to_string(layout=False)
    return DeviceError(f"out of memory in the reference for %{instruction.name}, {shape}", instruction.where)


def computing_type(dtype: DType) -> NumpyType:
    """Return the numpy type in which an op on `dtype` computes: f32 for narrower floats, a byte for narrower ints."""
    if dtype.is_float and dtype.bits < 32:
        return np.dtype(np.float32)
    if dtype.is_integer and dtype.bits < 8:
        return np.dtype(np.int8 if dtype.is_signed else np.uint8)
    return dtype.numpy


def precise_type(computing: NumpyType) -> NumpyType:
    """Return the type for inexact functions: f64 or c128, so that rounding once gives the nearest value."""
    return np.dtype(np.complex128 if computing.kind == "c" else np.float64)


def widen(array: Array, dtype: DType) -> Array:
    """Return elements of type `dtype` in its computing type; exact."""
    return array.astype(computing_type(dtype), copy=False)


def narrow(array: Array, dtype: DType) -> Array:
    """Round to `dtype`: nearest even for floats, wrapping for ints."""
    if array.dtype == dtype.numpy:
        return array
    # ml_dtypes rounds f64 to bf16 and narrower types by way of f32.
    if dtype.is_float and (dtype.bits < 16 or dtype.name == "bf16") and array.dtype != np.float32:
        array = _odd_float32(array) if array.dtype == np.float64 else array.astype(np.float32)
    return array.astype(dtype.numpy)


def _odd_float32(array: Array) -> Array:
    """Round f64 to odd in f32: towards zero, with the last bit set if inexact. A second rounding then gives the nearest."""
    near = array.astype(np.float32)
    bits = near.view(np.uint32)
    is_inexact = (near != array) & ~np.isnan(array)
    is_outside = is_inexact & (np.abs(near) > np.abs(array))
    return np.where(is_inexact, (bits - is_outside) | np.uint32(1), bits).astype(np.uint32).view(np.float32)


def quiet() -> np.errstate:
    """Return a context without numpy's warnings: overflow, division by zero and NaN are ordinary results in HLO."""
    return np.errstate(all="ignore")


def map_elements(function: Function, operands: Sequence[Array], result: NumpyType) -> Array:
    """Apply `function` to every element of operands whose shapes broadcast; the result has type `result`.

    Large arrays are processed in flat chunks, so that the intermediate values of `function` stay in the cache. The
    chunks of very large arrays are distributed over threads.
    """
    dims = np.broadcast_shapes(*(operand.shape for operand in operands))
    count = math.prod(dims)
    if count <= CHUNK_ELEMENTS:
        return np.asarray(function(*operands), dtype=result).reshape(dims)
    flat = [_flat(operand, dims) for operand in operands]
    out = np.empty(count, result)

    def fill(begin: int, end: int) -> None:
        # np.errstate holds for one thread.
        with quiet():
            for start in range(begin, end, CHUNK_ELEMENTS):
                stop = min(start + CHUNK_ELEMENTS, end)
                out[start:stop] = function(*(part if part.size == 1 else part[start:stop] for part in flat))

    if count < THREADED_ELEMENTS:
        fill(0, count)
    else:
        in_threads(fill, count)
    return out.reshape(dims)


def in_chunks(function: Function, result: NumpyType) -> Kernel:
    """Return a kernel that applies an elementwise function with the result type `result`, in chunks for large arrays."""

    def kernel(*operands: Array) -> Array:
        if max([operand.size for operand in operands]) <= CHUNK_ELEMENTS:
            return function(*operands)
        return map_elements(function, operands, result)

    return kernel


def in_threads(fill: Callable[[int, int], None], count: int) -> None:
    """Call `fill(start, stop)` on parts of `range(count)`, one per core, in threads: numpy releases Python's lock.

    A call within such a thread runs `fill` once, on the whole range.
    """
    workers = 1 if getattr(_thread, "is_worker", False) else min(os.cpu_count() or 1, _MOST_THREADS)
    if workers == 1:
        fill(0, count)
        return
    from concurrent.futures import ThreadPoolExecutor  # imports logging

    step = -(-count // workers)
    with ThreadPoolExecutor(workers, initializer=lambda: setattr(_thread, "is_worker", True)) as pool:
        for future in [pool.submit(fill, start, min(start + step, count)) for start in range(0, count, step)]:
            future.result()


def _flat(array: Array, dims: tuple[int, ...]) -> Array:
    """Return the elements in row-major order of `dims`, or one element if all are the same one (a broadcast scalar)."""
    if all(stride == 0 or size == 1 for size, stride in zip(array.shape, array.strides, strict=True)):
        return array[(slice(0, 1),) * array.ndim].reshape(1)
    return np.ascontiguousarray(np.broadcast_to(array, dims)).reshape(-1)


def merge(tables: Iterable[Table]) -> dict[Opcode, Evaluator]:
    """Return one table with the rows of all tables; an opcode may be in one table only."""
    rows = [row for rows in tables for row in rows.items()]
    return table(*rows)
