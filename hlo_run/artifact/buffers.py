"""Device memory: allocations, slices of them, and arrays that lie in slices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class ConstantData:
    """The value of a constant allocation: one numpy item per element in logical (row-major) order.

    The backend packs it into physical order, as it does with arguments.
    """

    dtype: str
    dims: tuple[int, ...]
    minor_to_major: tuple[int, ...]
    items: bytes


@dataclass(frozen=True, slots=True)
class BufferAllocation:
    """One block of device memory.

    `parameter_number` is set on entry parameters (`parameter_index`: which part of it), `constant` on read-only constants;
    `is_output` says that the module's result, or a leaf of it, lives here. `alias` is the word of `input_output_alias` for a
    parameter whose memory a result may (or must) take; without it nothing writes to a parameter. A thread-local allocation
    is inside of kernels: it is never made.
    """

    index: int
    size_bytes: int
    parameter_number: int | None = None
    constant: ConstantData | None = None
    is_output: bool = False
    parameter_index: tuple[int, ...] = ()
    alias: Literal["", "may-alias", "must-alias"] = ""
    is_thread_local: bool = False


@dataclass(frozen=True, slots=True, order=True)
class BufferSlice:
    """`size_bytes` bytes of an allocation, from `offset_bytes`."""

    allocation: int
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """An array as a buffer holds it: HLO dtype name (`bf16`, `pred`), logical dims, layout minor to major, and its slice.

    Where `dynamic` says that sizes are known at run time only, `dims` are their bounds: the elements lie packed at the
    beginning, and after room for as many as the bounds allow there is the size of each dimension, as s32.
    """

    dtype: str
    dims: tuple[int, ...]
    minor_to_major: tuple[int, ...]
    slice: BufferSlice
    dynamic: tuple[bool, ...] = ()


ArrayTree: TypeAlias = "ArraySpec | tuple[ArrayTree, ...]"
