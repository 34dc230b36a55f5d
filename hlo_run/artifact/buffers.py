"""Device memory: buffer allocations, slices of them, and arrays in slices."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct


class ConstantData(Struct, frozen=True):
    """The value of a constant allocation: one numpy item per element in logical (row-major) order.

    The backend packs it into physical order, as it packs arguments.
    """

    dtype: str
    dims: tuple[int, ...]
    minor_to_major: tuple[int, ...]
    items: bytes


class BufferAllocation(Struct, frozen=True):
    """One block of device memory.

    `parameter_number` is set for entry parameters; `parameter_index` is the shape index of the part. `constant` is set for
    read-only constants. `is_output` says that the module's result, or a leaf of it, is here. `alias` is the keyword of
    `input_output_alias` for a parameter whose memory a result may or must take; nothing writes to other parameters.
    A thread-local allocation is inside of kernels; backends do not allocate it.
    """

    index: int
    size_bytes: int
    parameter_number: int | None = None
    constant: ConstantData | None = None
    is_output: bool = False
    parameter_index: tuple[int, ...] = ()
    alias: Literal["", "may-alias", "must-alias"] = ""
    is_thread_local: bool = False


class BufferSlice(Struct, frozen=True, order=True):
    """`size_bytes` bytes of an allocation, from `offset_bytes`."""

    allocation: int
    offset_bytes: int
    size_bytes: int


class ArraySpec(Struct, frozen=True):
    """An array in a buffer: HLO dtype name (`bf16`, `pred`), logical dims, layout minor to major, and its slice.

    `dynamic` marks dimensions whose size is known at run time only; `dims` holds their bounds. The elements of a dynamic
    array are packed at the beginning of the slice. The size of each dimension follows as s32, after space for as many
    elements as the bounds allow.
    """

    dtype: str
    dims: tuple[int, ...]
    minor_to_major: tuple[int, ...]
    slice: BufferSlice
    dynamic: tuple[bool, ...] = ()


class NamedValue(Struct, frozen=True):
    """The arrays of the instruction `name`: the result or an operand of an instruction that a thunk computes."""

    name: str
    arrays: ArrayTree


ArrayTree: TypeAlias = "ArraySpec | tuple[ArrayTree, ...]"
