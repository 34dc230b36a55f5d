"""Arrays of an executable as numpy sees them: views of a buffer where the bytes allow it, else copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hlo_run.artifact import ArraySpec
from hlo_run.backends.literals import Bytes, from_bytes, to_bytes
from hlo_run.hlo.values.dtype import DTYPES

Array: TypeAlias = "NDArray[Any]"
Bind: TypeAlias = "Callable[[Sequence[Array], Sequence[Array]], Callable[[], object]]"


_KEPT_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """What to read, what to write, and the function from the first arrays to the second, which it fills.

    `bind`, where there is one, prepares that for arrays that stay where they are: what it returns computes, again and again.
    """

    inputs: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    compute: Callable[[Sequence[Array], Sequence[Array]], None]
    bind: Bind | None = None

    @staticmethod
    def prepared(inputs: tuple[ArraySpec, ...], outputs: tuple[ArraySpec, ...], bind: Bind) -> LibraryCall:
        """Return a call that is always prepared."""

        def compute(arrays: Sequence[Array], results: Sequence[Array]) -> None:
            bind(arrays, results)()

        return LibraryCall(inputs, outputs, compute, bind)


def run_all(steps: Sequence[Callable[[], object]]) -> None:
    """Do one thing after the other."""
    for step in steps:
        step()


def sparing(bind: Bind) -> Bind:
    """Return `bind`, but for large arrays what it prepares, with its memory, lives for one call only."""

    def bound(inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], object]:
        if sum(array.nbytes for array in (*inputs, *outputs)) <= _KEPT_BYTES:
            return bind(inputs, outputs)
        return lambda: bind(inputs, outputs)()

    return bound


def is_viewable(spec: ArraySpec) -> bool:
    """True if numpy can see the array in its buffer: a pred may hold any byte, and small types are packed."""
    record = DTYPES[spec.dtype]
    return record.bits >= 8 and record.kind != "pred"


def view(spec: ArraySpec, data: Bytes) -> Array:
    """Return the array in logical order; it shares memory with `data`, its buffer, if it is viewable."""
    return from_bytes(data, spec.dtype, spec.dims, spec.minor_to_major)


def store(spec: ArraySpec, data: Bytes, array: Array) -> None:
    """Write an array that is not viewable into its buffer."""
    packed = to_bytes(array, spec.dtype, spec.minor_to_major)
    data[: packed.size] = packed


def empty(spec: ArraySpec) -> Array:
    """Return an array for a result that cannot be written in place."""
    return np.empty(spec.dims, DTYPES[spec.dtype].numpy)
