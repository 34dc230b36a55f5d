"""Finds the buffers that XLA's checks of floats read, for the texts about thunks: XLA's `ThunkBufferDebugPass`.

    001: kCustomKernel wrapped_tanh  =>  000: kSequential { 001: kCustomKernel wrapped_tanh; 000: kBuffersDebugFloatCheck }

A check follows each thunk that reads or writes floats. Its buffers have the numbers that they have among the thunk's. XLA lists
them in an order that changes from run to run; here they are in order. At a run hlo-run looks at the floats without such thunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from hlo_run.artifact import (
    AsyncDoneThunk,
    AsyncStartThunk,
    BufferSlice,
    CollectiveThunk,
    CommandBufferThunk,
    ConditionalThunk,
    CopyThunk,
    FunctionCall,
    GemmThunk,
    KernelThunk,
    MemsetThunk,
    SequentialThunk,
    SliceCopyThunk,
    SlicedProductThunk,
    Thunk,
    WhileThunk,
    accesses,
    every_thunk,
    tree_slices,
)
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.runtime.buffers import BufferAssignment

Checks: TypeAlias = "Mapping[int, tuple[tuple[int, BufferSlice], ...]]"
"""(number among the thunk's buffers, buffer) of each check, by the `id()` of the thunk that it follows."""

Outputs: TypeAlias = "tuple[tuple[BufferSlice, bool], ...]"
"""The buffers of the result in order, each with whether it holds floats that are checked."""

_CHECKED = ("f16", "bf16", "f32", "f64")


def float_checks(thunks: Iterable[Thunk], module: HloModule, buffers: BufferAssignment) -> Checks:
    """Return the checks of all thunks that read or write floats, those in loops and branches included."""
    instructions = {i.name: i for c in module.computations if not c.is_fusion for i in c.instructions}
    found: dict[int, tuple[tuple[int, BufferSlice], ...]] = {}
    inner = {
        id(part) for t in every_thunk(thunks) if t.kind == "kDynamicSliceFusion" for part in every_thunk((t,)) if part is not t
    }
    for thunk in every_thunk(thunks):
        instruction = instructions.get(thunk.name)
        if instruction is None or id(thunk) in inner:
            continue
        arrays = _arrays(instruction, buffers)
        floats = [piece for piece, element_type in arrays if element_type in _CHECKED]
        pieces = enumerate(_buffers(thunk, [piece for piece, _ in arrays]))
        checked = tuple((n, piece) for n, piece in pieces if any(_holds(array, piece) for array in floats))
        if checked:
            found[id(thunk)] = checked
    return found


def checked_outputs(module: HloModule, buffers: BufferAssignment) -> Outputs:
    """Return the buffers of the module's result, at which `xla_gpu_experimental_thunk_buffer_debug_module_outputs` looks."""
    root = module.entry.root
    leaves = [(index, leaf) for index, leaf in root.shape.leaves() if leaf.is_array and (root, index) in buffers.slices]
    return tuple((buffers.slices[root, index], leaf.element_type in _CHECKED) for index, leaf in leaves)


def _holds(array: BufferSlice, piece: BufferSlice) -> bool:
    """True if `piece` is in the array: a copy may read or write a part of it."""
    begin = piece.offset_bytes - array.offset_bytes
    return piece.allocation == array.allocation and 0 <= begin <= array.size_bytes - piece.size_bytes


def _arrays(instruction: HloInstruction, buffers: BufferAssignment) -> list[tuple[BufferSlice, str]]:
    """Return the arrays of the operands and then of the result, with their element types."""
    return [
        (buffers.slices[value, index], leaf.element_type)
        for value in (*instruction.operands, instruction)
        for index, leaf in value.shape.leaves()
        if leaf.is_array and (value, index) in buffers.slices
    ]


def _buffers(thunk: Thunk, arrays: list[BufferSlice]) -> list[BufferSlice]:
    """Return the buffers of a thunk in XLA's order; `arrays` are the arrays of its instruction."""
    match thunk:
        case KernelThunk():
            return arrays
        case GemmThunk():
            addend = thunk.addend or thunk.result
            others = (thunk.bias, thunk.auxiliary, *thunk.scales, thunk.result_scale, thunk.largest)
            return [a.slice for a in (thunk.lhs, thunk.rhs, addend, thunk.result, *others) if a is not None]
        case SlicedProductThunk():
            return _buffers(thunk.product, arrays)
        case SequentialThunk(kind="kDynamicSliceFusion"):
            return list(thunk.copied)
        case CollectiveThunk():
            pairs = zip(thunk.operands, thunk.results, strict=True)
            return [piece for pair in pairs for tree in pair for piece in tree_slices(tree)]
        case CopyThunk() | SliceCopyThunk() | MemsetThunk() | FunctionCall():
            found = accesses(thunk)
            return [*found.reads, *found.writes]
        case WhileThunk() | ConditionalThunk() | SequentialThunk() | CommandBufferThunk() | AsyncStartThunk() | AsyncDoneThunk():
            return []
