"""What evaluators share: values, the face of an evaluator, computing types and rounding after every op."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hlo_run.errors import DeviceError, Unsupported
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.values.dtype import DType

Array: TypeAlias = NDArray[Any]
# An array in logical order, a tuple of values, or an empty tuple for a token. Arrays are never written to after
# they were returned: views and broadcasts (stride 0) are handed around freely.
Value: TypeAlias = "Array | tuple[Value, ...]"
Function: TypeAlias = Callable[..., Array]

TOKEN: tuple[Value, ...] = ()

# Elements per step of an elementwise op: the operands' and the result's steps stay in the second-level cache.
CHUNK_ELEMENTS = 1 << 15
# From here on a second core is worth the start of a thread.
THREADED_ELEMENTS = 1 << 19
_MOST_THREADS = 8
_thread = threading.local()


class Calls(Protocol):
    """How an evaluator runs computations that its instruction calls."""

    def call(self, computation: HloComputation, arguments: Sequence[Value]) -> Value:
        """Return the value of the root."""
        ...

    def call_on_elements(self, computation: HloComputation, arguments: Sequence[Array]) -> tuple[Array, ...]:
        """Apply a computation of scalars to all elements of arrays of equal shape; one array per result."""
        ...


Evaluator: TypeAlias = Callable[[HloInstruction, Sequence[Value], Calls], Value]
ArrayEvaluator: TypeAlias = Callable[[HloInstruction, Sequence[Array]], Array]
# What is left to do of an instruction once its types and attributes have been looked at: arrays to array. It may return
# a numpy scalar where the result has no dimensions.
Kernel: TypeAlias = Callable[..., Array]
Row: TypeAlias = tuple[str, Evaluator]
Table: TypeAlias = Mapping[str, Evaluator]


def table(*rows: Row) -> dict[str, Evaluator]:
    """Return opcode → evaluator; an opcode has one row."""
    found = dict(rows)
    assert len(found) == len(rows), "an opcode has two rows"
    return found


def arrays_row(opcode: str, function: ArrayEvaluator) -> Row:
    """A row for an op from arrays to an array that calls no computation."""

    def evaluate(instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
        # numpy makes scalars of some results without dimensions.
        return np.asarray(function(instruction, [as_array(operand) for operand in operands]))

    return opcode, evaluate


class Prepared:
    """An evaluator that can look at its instruction beforehand: plans call the kernel that `prepare` returns.

    `prepare` returns None where it has no kernel for an instruction; `otherwise` evaluates those.
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


def prepared_row(
    opcode: str, prepare: Callable[[HloInstruction], Kernel | None], otherwise: Evaluator | None = None
) -> tuple[str, Evaluator]:
    """A row for an op from arrays to an array whose work on the instruction can be done once."""
    return opcode, Prepared(prepare, otherwise)


def as_array(value: Value) -> Array:
    """Return a value that the verifier promises to be an array."""
    assert isinstance(value, np.ndarray), "an array is needed here"
    return value


def as_tuple(value: Value) -> tuple[Value, ...]:
    """Return a value that the verifier promises to be a tuple."""
    assert isinstance(value, tuple), "a tuple is needed here"
    return value


def unsupported(instruction: HloInstruction, what: str = "", hint: str = "") -> Unsupported:
    """The error for an instruction without evaluation; it names the instruction and where it stands."""
    types = ", ".join(operand.shape.element_type for operand in instruction.operands)
    what = what or f"'{instruction.opcode}' on ({types}) giving {instruction.shape.element_type}"
    return Unsupported(
        f"the reference cannot evaluate {what}",
        instruction.where,
        hint=hint or "run without a reference: --reference_platform=",
        notes=(f"instruction %{instruction.name}",),
    )


def out_of_memory(instruction: HloInstruction) -> DeviceError:
    """The error for an instruction whose value does not fit."""
    shape = instruction.shape.to_string(layout=False)
    return DeviceError(f"the reference has no memory for %{instruction.name}, {shape}", instruction.where)


def computing_type(dtype: DType) -> np.dtype[Any]:
    """The numpy type an op on `dtype` computes in: itself, but f32 for narrower floats and a byte for narrower ints."""
    if dtype.is_float and dtype.bits < 32:
        return np.dtype(np.float32)
    if dtype.is_integer and dtype.bits < 8:
        return np.dtype(np.int8 if dtype.is_signed else np.uint8)
    return dtype.numpy


def precise_type(computing: np.dtype[Any]) -> np.dtype[Any]:
    """The type for functions without an exact result: double, so that rounding once gives the nearest value."""
    return np.dtype(np.complex128 if computing.kind == "c" else np.float64)


def widen(array: Array, dtype: DType) -> Array:
    """Return the elements in the computing type of `dtype`, their own type; exact."""
    return array.astype(computing_type(dtype), copy=False)


def narrow(array: Array, dtype: DType) -> Array:
    """Round to `dtype`: nearest even for floats, wrapping for ints."""
    if array.dtype == dtype.numpy:
        return array
    if dtype.is_float and dtype.bits < 16 and array.dtype != np.float32:
        array = _odd_float32(array) if array.dtype == np.float64 else array.astype(np.float32)
    return array.astype(dtype.numpy)


def _odd_float32(array: Array) -> Array:
    """Round to f32 so that rounding again is as rounding once: towards zero, with the last bit set where that lost something."""
    near = array.astype(np.float32)
    bits = near.view(np.uint32)
    is_inexact = (near != array) & ~np.isnan(array)
    is_outside = is_inexact & (np.abs(near) > np.abs(array))
    return np.where(is_inexact, (bits - is_outside) | np.uint32(1), bits).astype(np.uint32).view(np.float32)


def quiet() -> np.errstate:
    """Overflow, division by zero and NaN are ordinary results in HLO: numpy must not warn."""
    return np.errstate(all="ignore")


def map_elements(function: Function, operands: Sequence[Array], result: np.dtype[Any]) -> Array:
    """Return `function` of every element of operands whose shapes broadcast; the result has type `result`.

    Large arrays go through in flat chunks, so that what `function` makes on the way stays in the cache; the chunks of
    very large ones are shared out to the cores.
    """
    dims = np.broadcast_shapes(*(operand.shape for operand in operands))
    count = math.prod(dims)
    if count <= CHUNK_ELEMENTS:
        return np.asarray(function(*operands), dtype=result).reshape(dims)
    flat = [_flat(operand, dims) for operand in operands]
    out = np.empty(count, result)

    def fill(begin: int, end: int) -> None:
        # Errors are quiet per thread.
        with quiet():
            for start in range(begin, end, CHUNK_ELEMENTS):
                stop = min(start + CHUNK_ELEMENTS, end)
                out[start:stop] = function(*(part if part.size == 1 else part[start:stop] for part in flat))

    if count < THREADED_ELEMENTS:
        fill(0, count)
    else:
        in_threads(fill, count)
    return out.reshape(dims)


def in_chunks(function: Function, result: np.dtype[Any]) -> Kernel:
    """Return the kernel that applies an elementwise function of one result type, in chunks where the arrays are large."""

    def kernel(*operands: Array) -> Array:
        if max([operand.size for operand in operands]) <= CHUNK_ELEMENTS:
            return function(*operands)
        return map_elements(function, operands, result)

    return kernel


def in_threads(fill: Callable[[int, int], None], count: int) -> None:
    """Call `fill` on as many parts of `count` as there are cores; numpy lets other threads run while it works.

    What runs in such a thread already goes on alone.
    """
    workers = 1 if getattr(_thread, "is_worker", False) else min(os.cpu_count() or 1, _MOST_THREADS)
    if workers == 1:
        fill(0, count)
        return
    step = -(-count // workers)
    with ThreadPoolExecutor(workers, initializer=lambda: setattr(_thread, "is_worker", True)) as pool:
        for future in [pool.submit(fill, start, min(start + step, count)) for start in range(0, count, step)]:
            future.result()


def _flat(array: Array, dims: tuple[int, ...]) -> Array:
    """Return the elements in row-major order of `dims`, or one element if all of them are one (a broadcast scalar)."""
    if all(stride == 0 or size == 1 for size, stride in zip(array.shape, array.strides, strict=True)):
        return array[(slice(0, 1),) * array.ndim].reshape(1)
    return np.ascontiguousarray(np.broadcast_to(array, dims)).reshape(-1)


def merge(tables: Iterable[Table]) -> dict[str, Evaluator]:
    """Return one table of all rows; an opcode has one row in one table."""
    rows = [row for rows in tables for row in rows.items()]
    return table(*rows)
