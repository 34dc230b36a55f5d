"""A compiled module: kernels, thunks and buffers."""

from __future__ import annotations

from msgspec import Struct

from hlo_run.artifact.buffers import ArrayTree, BufferAllocation, NamedValue
from hlo_run.artifact.division import DividedEntry
from hlo_run.artifact.thunks import Thunk
from hlo_run.errors import InternalError


class Kernel(Struct, frozen=True):
    """The `.entry` of one PTX module, with its launch dimensions.

    `grid` counts blocks and `block` counts threads, both (x, y, z). `shared_bytes` is the static shared memory that the
    PTX declares. The kernel's parameters are 64-bit pointers: operands, then results.
    """

    name: str
    ptx: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0


class ObjectCode(Struct, frozen=True):
    """Object code of a kernel for the Host backend; `key` is the digest of the source it was compiled from."""

    key: str
    data: bytes


class MachineCode(Struct, frozen=True):
    """Object code for one processor, given by LLVM's name and features. On another processor Host compiles the PTX."""

    processor: str
    features: str
    objects: tuple[ObjectCode, ...]


class Executable(Struct, frozen=True):
    """A compiled module: everything a backend needs to run it.

    `parameters` has one tree per entry parameter. HLO tuples are nested Python tuples. Thunks run in order. `target` is the
    name of the `TargetSpec` it was compiled for. `module_text` is the text of the optimised module, `source_text` that of
    the input module; both may be empty. `machine_code` is set if it was requested. `divided` is set if the module was divided
    between partitions: then `parameters` and `result` are those of one partition. `values` says where the operands and results
    of the instructions are that thunks compute, by which a run is checked.
    """

    name: str
    target: str
    kernels: tuple[Kernel, ...]
    thunks: tuple[Thunk, ...]
    allocations: tuple[BufferAllocation, ...]
    parameters: tuple[ArrayTree, ...]
    result: ArrayTree
    module_text: str = ""
    source_text: str = ""
    machine_code: MachineCode | None = None
    divided: DividedEntry | None = None
    values: tuple[NamedValue, ...] = ()

    def kernel(self, name: str) -> Kernel:
        """Return the kernel called `name`. Raises InternalError if the executable lacks it."""
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        raise InternalError(f"'{self.name}' has no kernel '{name}'")
