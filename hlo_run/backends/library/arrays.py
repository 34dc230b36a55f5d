"""Arrays of an executable in numpy: views of a buffer where the type allows it, else copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from msgspec import Struct

from hlo_run.arrays import Array
from hlo_run.artifact import ArraySpec
from hlo_run.backends.literals import Bytes, from_bytes, to_bytes
from hlo_run.hlo.values.dtype import DTYPES

Bind: TypeAlias = "Callable[[Sequence[Array], Sequence[Array]], Callable[[], object]]"


_KEPT_BYTES = 1 << 24


class LibraryCall(Struct, frozen=True):
    """A library thunk as a function: `compute` reads the arrays of `inputs` and fills the arrays of `outputs`.

    `bind`, if present, prepares the work for arrays at fixed addresses. The function that it returns can run many times.
    """

    inputs: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    compute: Callable[[Sequence[Array], Sequence[Array]], None]
    bind: Bind | None = None

    @staticmethod
    def prepared(inputs: tuple[ArraySpec, ...], outputs: tuple[ArraySpec, ...], bind: Bind) -> LibraryCall:
        """Return a call whose `compute` binds first."""

        def compute(arrays: Sequence[Array], results: Sequence[Array]) -> None:
            bind(arrays, results)()

        return LibraryCall(inputs, outputs, compute, bind)


def run_all(steps: Sequence[Callable[[], object]]) -> None:
    """Call all steps in order."""
    for step in steps:
        step()


def sparing(bind: Bind) -> Bind:
    """Return `bind`, but prepare large arrays (above `_KEPT_BYTES`) for every call, so that their memory is freed after it."""

    def bound(inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], object]:
        if sum(array.nbytes for array in (*inputs, *outputs)) <= _KEPT_BYTES:
            return bind(inputs, outputs)
        return lambda: bind(inputs, outputs)()

    return bound


def is_viewable(spec: ArraySpec) -> bool:
    """True if numpy can view the array in its buffer. It cannot for pred (any byte may be true) and types below 8 bits."""
    record = DTYPES[spec.dtype]
    return record.bits >= 8 and record.kind != "pred"


def view(spec: ArraySpec, data: Bytes) -> Array:
    """Return the array in logical order. It shares memory with its buffer `data` if `is_viewable`."""
    return from_bytes(data, spec.dtype, spec.dims, spec.minor_to_major)


def store(spec: ArraySpec, data: Bytes, array: Array) -> None:
    """Write an array into the buffer `data`. Needed for arrays that are not viewable."""
    packed = to_bytes(array, spec.dtype, spec.minor_to_major)
    data[: packed.size] = packed


def empty(spec: ArraySpec) -> Array:
    """Return an array for a result that cannot be written in place."""
    return np.empty(spec.dims, DTYPES[spec.dtype].numpy)
