"""Turns the scheduled computations into thunks, the steps that the device runs: kernels, copies, library calls, loops."""

from __future__ import annotations

from hlo_run.analysis.buffers.copied_operands import CopiedSlice, copied_operands, copied_slice
from hlo_run.analysis.buffers.sliced_products import sliced_product
from hlo_run.analysis.fusion_owner import is_collective_fusion
from hlo_run.artifact import BufferSlice, CopyThunk, KernelThunk, LoopOffset, SequentialThunk, SliceCopyThunk, Thunk
from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.opcodes.traits import NO_CODE, SYNC_CONTROL_FLOW
from hlo_run.runtime import async_thunks, collective_thunks, control_thunks, library_thunks, sort_thunks
from hlo_run.runtime.buffers import BufferAssignment
from hlo_run.runtime.kernel_requests import KernelRequest, KernelRequests
from hlo_run.runtime.thunk_context import EmitThunk, ThunkContext
from hlo_run.target import TargetSpec

# They do something even where all arrays of the result are empty.
_EFFECTS = SYNC_CONTROL_FLOW | opcode_set("outfeed infeed send custom-call copy")


def plan_thunks(
    module: HloModule, buffers: BufferAssignment, target: TargetSpec, many_streams: bool = False
) -> tuple[tuple[Thunk, ...], list[KernelRequest]]:
    """Return the entry's thunks in schedule order, and the kernels that all thunks launch.

    With `many_streams` collectives are on several streams in turn. Raises Unsupported for an instruction that no thunk
    implements, ParseError for a backend_config that is not valid JSON.
    """
    planner = _Planner(module, buffers, target, many_streams)
    return planner.sequence(module.entry), planner.context.kernels.requests


class _Planner:
    def __init__(self, module: HloModule, buffers: BufferAssignment, target: TargetSpec, many_streams: bool) -> None:
        assert module.schedule is not None, "the schedule row is required"
        self._schedule = module.schedule
        self._emitted: dict[HloComputation, tuple[Thunk, ...]] = {}
        streams = async_thunks.stream_numbers(module, many_streams)
        self.context = ThunkContext(buffers, KernelRequests(buffers), self.sequence, target, streams)

    def sequence(self, computation: HloComputation) -> tuple[Thunk, ...]:
        """Return the thunks of a computation, such as the entry or a loop body."""
        if computation not in self._emitted:
            thunks: list[Thunk] = []
            for instruction in self._schedule[computation]:
                if instruction.opcode not in NO_CODE and not _is_nothing(instruction):
                    thunks += _emitter(instruction)(self.context, instruction)
            self._emitted[computation] = tuple(thunks)
        return self._emitted[computation]


def _is_nothing(instruction: HloInstruction) -> bool:
    """True if all arrays of the result are empty and the instruction has no other effect. As in XLA, a copy stays."""
    is_empty = all(leaf.element_count == 0 for _, leaf in instruction.shape.leaves() if leaf.is_array)
    return is_empty and instruction.opcode not in _EFFECTS


def _emitter(instruction: HloInstruction) -> EmitThunk:
    if instruction.opcode == "custom-call":
        target = instruction.custom_call_target
        return _CUSTOM_CALLS.get(target, control_thunks.custom_call)
    found = _OPCODES.get(instruction.opcode)
    if found is None:
        raise Unsupported(
            f"'{instruction.opcode}' has no thunk yet: %{instruction.name}",
            instruction.where,
            hint="use --platform=Interpreter, the numpy reference, which supports more instructions",
        )
    return found


def _fusion(context: ThunkContext, fusion: HloInstruction) -> list[Thunk]:
    if is_collective_fusion(fusion):
        return collective_thunks.collective_kernel(context, fusion)
    if fusion.fused_computation.root.opcode == "sort":
        return sort_thunks.sort_fusion(context, fusion)
    product = sliced_product(fusion)
    if product is not None:
        return library_thunks.sliced_product_thunks(context, fusion, product)
    found = copied_slice(fusion)
    if found is not None:
        return _slice_copy(context, fusion, found)
    copied = copied_operands(fusion)
    if not copied:
        kernel, arguments = context.kernels.of_fusion(fusion)
        return [KernelThunk(fusion.name, kernel, arguments)]
    thunks: list[Thunk] = []
    for part, (index, _) in zip(copied, fusion.shape.leaves(), strict=True):
        whole, target = context.buffers.slice(fusion.operands[part.number]), context.buffers.slice(fusion, index)
        source = BufferSlice(whole.allocation, whole.offset_bytes + part.offset_bytes, target.size_bytes)
        if source != target:  # a result may share the memory of its operand
            thunks.append(CopyThunk(fusion.name, source, target))
    return thunks


def _slice_copy(context: ThunkContext, fusion: HloInstruction, found: CopiedSlice) -> list[Thunk]:
    """Return the thunks of a fusion that copies a slice.

    A result that is not in the memory of the operand that the slice changes begins as a copy of it.
    """
    result = context.buffers.slice(fusion)
    source = context.buffers.slice(fusion.operands[found.source.number])
    before: list[Thunk] = []
    into = LoopOffset()
    if found.target is not None:
        old, into = context.buffers.slice(fusion.operands[found.target.number]), library_thunks.loop_offset(found.target)
        before = [] if old == result else [CopyThunk(fusion.name, old, result)]
    copy = SliceCopyThunk(found.copy.name, source, result, found.size_bytes, library_thunks.loop_offset(found.source), into)
    return [*before, SequentialThunk(fusion.name, (copy,), "kDynamicSliceFusion", (source, result))]


def _copy(context: ThunkContext, copy: HloInstruction) -> list[Thunk]:
    source, target = context.buffers.slice(copy.operands[0]), context.buffers.slice(copy)
    return [] if source == target else [CopyThunk(copy.name, source, target)]


_OPCODES: dict[Opcode, EmitThunk] = {
    **library_thunks.OPCODES,
    **sort_thunks.OPCODES,
    **control_thunks.OPCODES,
    **collective_thunks.OPCODES,
    **async_thunks.OPCODES,
    "fusion": _fusion,
    "copy": _copy,
}
_CUSTOM_CALLS = {**library_thunks.CUSTOM_CALLS, **sort_thunks.CUSTOM_CALLS, **control_thunks.CUSTOM_CALLS}
