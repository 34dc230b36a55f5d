"""What the pipeline hands to a backend: kernels, thunks, buffers. Plain data: no graph, no arrays, no IR objects."""

from __future__ import annotations

from dataclasses import dataclass, field
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
class KernelArgument:
    """One pointer parameter of a kernel: the slice it points to and whether the kernel writes it."""

    slice: BufferSlice
    written: bool


@dataclass(frozen=True, slots=True)
class Kernel:
    """One `.entry` of its own PTX module.

    `grid` and `block` are (x, y, z) counts; `shared_bytes` is the static shared memory that the PTX declares.
    The parameters are 64-bit pointers in the order operands, then results.
    """

    name: str
    ptx: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class KernelThunk:
    """Launch `kernel` with a pointer per argument."""

    name: str
    kernel: str
    arguments: tuple[KernelArgument, ...]
    kind: Literal["kKernel"] = "kKernel"


@dataclass(frozen=True, slots=True)
class CopyThunk:
    """Copy device to device; source and destination have the same size."""

    name: str
    source: BufferSlice
    destination: BufferSlice
    kind: Literal["kCopy"] = "kCopy"


Thunk: TypeAlias = KernelThunk | CopyThunk


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """An array as a buffer holds it: HLO dtype name (`bf16`, `pred`), logical dims, layout minor to major, and its slice."""

    dtype: str
    dims: tuple[int, ...]
    minor_to_major: tuple[int, ...]
    slice: BufferSlice


ArrayTree: TypeAlias = "ArraySpec | tuple[ArrayTree, ...]"


@dataclass(frozen=True, slots=True)
class Executable:
    """A compiled module: everything a backend needs to run it.

    `parameters` has one tree per entry parameter, `result` one tree; tuples are nested Python tuples.
    Thunks run in order. `target` is the name of the `TargetSpec` it was compiled for.
    """

    name: str
    target: str
    kernels: tuple[Kernel, ...]
    thunks: tuple[Thunk, ...]
    allocations: tuple[BufferAllocation, ...]
    parameters: tuple[ArrayTree, ...]
    result: ArrayTree
    module_text: str = field(default="", repr=False)

    def kernel(self, name: str) -> Kernel:
        """Return the kernel called `name`; the name must be one of ours."""
        return next(kernel for kernel in self.kernels if kernel.name == name)
