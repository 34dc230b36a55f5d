"""A compiled module: kernels, thunks and buffers."""

from __future__ import annotations

from dataclasses import dataclass, field

from hlo_run.artifact.buffers import ArrayTree, BufferAllocation
from hlo_run.artifact.thunks import Thunk


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
class ObjectCode:
    """Object code of a kernel as Host launches it; `key` is the digest of what it was made from."""

    key: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class MachineCode:
    """Object code for one processor, by LLVM's name and features; on another one Host makes its own from the PTX."""

    processor: str
    features: str
    objects: tuple[ObjectCode, ...]


@dataclass(frozen=True, slots=True)
class Executable:
    """A compiled module: everything a backend needs to run it.

    `parameters` has one tree per entry parameter, `result` one tree; tuples are nested Python tuples.
    Thunks run in order. `module_text` is the optimised module, `source_text` the one that was read, where they are kept.
    `target` is the name of the `TargetSpec` it was compiled for. `machine_code` is there where it was asked for.
    """

    name: str
    target: str
    kernels: tuple[Kernel, ...]
    thunks: tuple[Thunk, ...]
    allocations: tuple[BufferAllocation, ...]
    parameters: tuple[ArrayTree, ...]
    result: ArrayTree
    module_text: str = field(default="", repr=False)
    source_text: str = field(default="", repr=False)
    machine_code: MachineCode | None = None

    def kernel(self, name: str) -> Kernel:
        """Return the kernel called `name`; the name must be one of ours."""
        return next(kernel for kernel in self.kernels if kernel.name == name)
