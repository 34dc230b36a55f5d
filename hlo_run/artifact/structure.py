"""Checks that the records of an executable fit together: names, numbers, slices, and CUDA's limits of launches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from hlo_run.artifact.access import accesses, tree_leaves, tree_slices
from hlo_run.artifact.buffers import ArraySpec, ArrayTree, BufferAllocation, BufferSlice
from hlo_run.artifact.collective_thunks import CollectiveThunk
from hlo_run.artifact.executable import Executable, Kernel
from hlo_run.artifact.sort_orders import SortOrder
from hlo_run.artifact.thunks import (
    ConditionalThunk,
    CopyThunk,
    KernelThunk,
    MemsetThunk,
    RecvThunk,
    RngStateThunk,
    SendThunk,
    SliceCopyThunk,
    SlicedProductThunk,
    Thunk,
    WhileThunk,
    every_thunk,
)

# An expression for each kernel's name would be compiled for each kernel.
_ENTRY = re.compile(r"\.entry\s+")
_IN_NAME = re.compile(r"[\w$]")
# The CUDA programming guide's limits of all GPUs: blocks of a grid, threads of a block, each in x, y and z.
_GRID, _BLOCK = (2**31 - 1, 65535, 65535), (1024, 1024, 64)
_BLOCK_THREADS = 1024
_SHARED_BYTES = 1 << 20
_PARAMETERS = 4000
_COUNTER_BYTES = 16
_MOST_DEVICE = 1 << 31


def check_structure(program: Executable) -> None:
    """Raise ValueError unless the records fit together."""
    sizes = [allocation.size_bytes for allocation in program.allocations]
    if [allocation.index for allocation in program.allocations] != list(range(len(sizes))):
        raise ValueError("its allocations are not numbered in order")
    for allocation in program.allocations:
        _check_allocation(program, allocation)
    kernels = {kernel.name: kernel for kernel in program.kernels}
    if len(kernels) != len(program.kernels):
        raise ValueError("two of its kernels have the same name")
    for kernel in program.kernels:
        _check_kernel(kernel)
    for thunk in every_thunk(program.thunks):
        _check_thunk(thunk, kernels)
    for piece in _slices(program):
        _check_slice(piece, sizes)


def _check_allocation(program: Executable, allocation: BufferAllocation) -> None:
    what = f"allocation {allocation.index}"
    if allocation.size_bytes < 0:
        raise ValueError(f"{what} has {allocation.size_bytes} bytes")
    if allocation.parameter_number is not None:
        if not 0 <= allocation.parameter_number < len(program.parameters):
            raise ValueError(f"{what} is for parameter {allocation.parameter_number}, which does not exist")
        part: ArrayTree = program.parameters[allocation.parameter_number]
        for index in allocation.parameter_index:
            if isinstance(part, ArraySpec) or not 0 <= index < len(part):
                raise ValueError(f"{what} is for a part of parameter {allocation.parameter_number} that does not exist")
            part = part[index]
    if allocation.constant is not None and allocation.parameter_number is not None:
        raise ValueError(f"{what} is for a constant and for a parameter")


def launch_problem(grid: tuple[int, int, int], block: tuple[int, int, int]) -> str:
    """Return which of CUDA's limits of all GPUs a launch exceeds; empty if none."""
    for extents, limits, name in ((grid, _GRID, "grid"), (block, _BLOCK, "block")):
        if not all(1 <= extent <= limit for extent, limit in zip(extents, limits, strict=True)):
            return f"a {name} of {extents}, CUDA's limit is {limits}"
    x, y, z = block
    return f"{x * y * z} threads per block, CUDA's limit is {_BLOCK_THREADS}" if x * y * z > _BLOCK_THREADS else ""


def _is_defined(name: str, ptx: str) -> bool:
    ends = (found.end() + len(name) for found in _ENTRY.finditer(ptx) if ptx.startswith(name, found.end()))
    return any(not _IN_NAME.match(ptx, end) for end in ends)


def _check_kernel(kernel: Kernel) -> None:
    what = f"kernel {kernel.name}"
    if not _is_defined(kernel.name, kernel.ptx):
        raise ValueError(f"the PTX of {what} does not define it")
    if problem := launch_problem(kernel.grid, kernel.block):
        raise ValueError(f"{what} has {problem}")
    if not 0 <= kernel.shared_bytes <= _SHARED_BYTES:
        raise ValueError(f"{what} has {kernel.shared_bytes} bytes of shared memory")


def _check_thunk(thunk: Thunk, kernels: dict[str, Kernel]) -> None:
    problem = ""
    match thunk:
        case KernelThunk():
            if thunk.kernel not in kernels:
                raise ValueError(f"kernel {thunk.kernel} is missing")
            if len(thunk.arguments) > _PARAMETERS:
                problem = f"{len(thunk.arguments)} arguments"
            if thunk.sort is not None:
                problem = problem or _sort_problem(thunk.sort)
        case CopyThunk():
            if thunk.source.size_bytes != thunk.destination.size_bytes:
                problem = "two sizes"
        case SliceCopyThunk():
            loops = (thunk.source_offset.loop, thunk.destination_offset.loop)
            if not 0 <= thunk.size_bytes <= min(thunk.source.size_bytes, thunk.destination.size_bytes) or min(loops) < 0:
                problem = "a size that exceeds an array's or the number of a loop that is none"
        case SlicedProductThunk():
            problem = _moving_problem(thunk)
        case MemsetThunk():
            if thunk.destination.size_bytes % 4 or not 0 <= thunk.value < 1 << 32:
                problem = "a size or a value that is not of 32-bit words"
        case RngStateThunk():
            if thunk.result.size_bytes != _COUNTER_BYTES or thunk.delta < 0:
                problem = "a counter that is not of 128 bits"
        case WhileThunk():
            if thunk.predicate.size_bytes != 1 or (thunk.trip_count is not None and thunk.trip_count < 0):
                problem = "a predicate of another size or a negative trip count"
        case ConditionalThunk():
            wanted = (1, 2) if thunk.is_predicate else (4, None)
            if thunk.selector.size_bytes != wanted[0] or not thunk.branches or wanted[1] not in (None, len(thunk.branches)):
                problem = "a selector or branches that do not fit each other"
        case SendThunk() | RecvThunk():
            problem = _device_problem(thunk.pairs)
        case CollectiveThunk():
            problem = _device_problem(thunk.groups)
            if thunk.kind == "kCollectivePermute" and any(len(group) != 2 for group in thunk.groups):
                problem = "a pair that is none"
        case _:
            pass
    if problem:
        raise ValueError(f"thunk {thunk.name} has {problem}")


def _moving_problem(thunk: SlicedProductThunk) -> str:
    arrays = {"lhs": thunk.product.lhs, "rhs": thunk.product.rhs, "addend": thunk.product.addend, "result": thunk.product.result}
    for part in thunk.moving:
        array = arrays[part.field]
        if array is None or array.slice.size_bytes > part.whole.size_bytes or part.offset.loop < 0:
            return "a moving array that is none, or that is larger than the array around it"
    return ""


def _sort_problem(order: SortOrder) -> str:
    if order.launches < 1 or not order.keys or len(order.operands) != len(order.results) or order.dim < 0:
        return "a sort without keys, launches or results"
    for key in order.keys:
        if not key.ops:
            return "a key of a sort without steps"
        for number, op in enumerate(key.ops):
            if not all(0 <= operand < number for operand in op.operands):
                return "a key of a sort that uses a later step"
            if op.opcode == "parameter" and not 0 <= op.number < len(order.operands):
                return "a key of a sort that uses an operand that does not exist"
    return ""


def _device_problem(groups: tuple[tuple[int, ...], ...]) -> str:
    return "" if all(0 <= number < _MOST_DEVICE for number in chain.from_iterable(groups)) else "a device that cannot exist"


def _check_slice(piece: BufferSlice, sizes: list[int]) -> None:
    inside = 0 <= piece.allocation < len(sizes) and piece.offset_bytes >= 0 and piece.size_bytes >= 0
    if not inside or piece.offset_bytes + piece.size_bytes > sizes[piece.allocation]:
        raise ValueError(
            f"{piece.size_bytes} bytes from {piece.offset_bytes} are not inside its allocation, number {piece.allocation}"
        )


def _slices(program: Executable) -> Iterator[BufferSlice]:
    for tree in (*program.parameters, program.result, *(value.arrays for value in program.values)):
        yield from tree_slices(tree)
    for thunk in program.thunks:
        touched = accesses(thunk)
        yield from touched.reads
        yield from touched.writes
    for thunk in every_thunk(program.thunks):
        if isinstance(thunk, KernelThunk) and thunk.sort is not None:
            arrays = [*thunk.sort.results, *(operand for operand in thunk.sort.operands if isinstance(operand, ArraySpec))]
            yield from (leaf.slice for array in arrays for leaf in tree_leaves(array))
