"""Copy literals into an executable's buffers and read its result back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from hlo_run.artifact import ArraySpec, ArrayTree, BufferSlice, Executable
from hlo_run.backends.literals import Bytes, Literal, dynamic_from_bytes, dynamic_to_bytes, from_bytes, to_bytes
from hlo_run.errors import UsageError
from hlo_run.hlo.values.dtype import DTYPES


def parameter_bytes(executable: Executable, arguments: Sequence[Literal]) -> Iterator[tuple[BufferSlice, Bytes]]:
    """Yield (slice, bytes) for every leaf of every entry parameter. Raises UsageError for an argument of another type."""
    if len(arguments) != len(executable.parameters):
        raise UsageError(f"{executable.name} takes {len(executable.parameters)} arguments, got {len(arguments)}")
    for number, (tree, literal) in enumerate(zip(executable.parameters, arguments, strict=True)):
        yield from argument_bytes(tree, literal, number)


def argument_bytes(tree: ArrayTree, literal: Literal, number: int) -> Iterator[tuple[BufferSlice, Bytes]]:
    """Yield (slice, bytes) for every leaf of an argument. Raises UsageError for a value of another type; `number` names it."""
    if isinstance(tree, tuple):
        if not isinstance(literal, tuple) or len(literal) != len(tree):
            raise UsageError(f"argument {number} must be a tuple of {len(tree)}")
        for part, value in zip(tree, literal, strict=True):
            yield from argument_bytes(part, value, number)
        return
    if isinstance(literal, tuple) or not _fits(literal.shape, tree) or literal.dtype != DTYPES[tree.dtype].numpy:
        found = "a tuple" if isinstance(literal, tuple) else f"{literal.dtype}{list(literal.shape)}"
        raise UsageError(f"argument {number} must be {tree.dtype}{list(tree.dims)}, got {found}")
    if any(tree.dynamic):
        yield tree.slice, dynamic_to_bytes(literal, tree.dtype, tree.dims, tree.minor_to_major)
        return
    yield tree.slice, to_bytes(literal, tree.dtype, tree.minor_to_major)


def _fits(dims: tuple[int, ...], spec: ArraySpec) -> bool:
    dynamic = spec.dynamic or (False,) * len(spec.dims)
    return len(dims) == len(spec.dims) and all(
        size == bound or (is_open and size < bound) for size, bound, is_open in zip(dims, spec.dims, dynamic, strict=True)
    )


def constant_bytes(executable: Executable) -> Iterator[tuple[BufferSlice, Bytes]]:
    """Yield (slice, bytes) for every constant allocation."""
    for allocation in executable.allocations:
        constant = allocation.constant
        if constant is not None:
            items = np.frombuffer(constant.items, DTYPES[constant.dtype].numpy).reshape(constant.dims)
            data = to_bytes(items, constant.dtype, constant.minor_to_major)
            yield BufferSlice(allocation.index, 0, allocation.size_bytes), data


def result_literal(executable: Executable, read: Callable[[BufferSlice], Bytes]) -> Literal:
    """Return the module's result. `read` returns the bytes of a slice."""
    return literal_of(executable.result, read)


def literal_of(tree: ArrayTree, read: Callable[[BufferSlice], Bytes]) -> Literal:
    """Return the value whose arrays are in the slices of `tree`. `read` returns the bytes of a slice."""
    if isinstance(tree, ArraySpec):
        if any(tree.dynamic):
            return dynamic_from_bytes(read(tree.slice), tree.dtype, tree.dims, tree.minor_to_major)
        return from_bytes(read(tree.slice), tree.dtype, tree.dims, tree.minor_to_major)
    return tuple(literal_of(part, read) for part in tree)
