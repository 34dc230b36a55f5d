"""Emits thunks of asynchronous pairs: the work of a start on another stream, and a done that waits for it.

A collective that is marked synchronous is one thunk, at its start.
"""

from __future__ import annotations

from collections import deque

from hlo_run.artifact import AsyncDoneThunk, AsyncStartThunk, CopyThunk, SequentialThunk, Thunk
from hlo_run.hlo.async_ops import async_start, is_one_instruction
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import ASYNC_START, COLLECTIVE, DONE_OF, SYNC_CONTROL_FLOW, TRANSFER
from hlo_run.runtime.collective_thunks import collective_thunk
from hlo_run.runtime.thunk_context import EmitThunk, ThunkContext, backend_config, record

# XLA's defaults; it gives streams to starts in turn.
_COMPUTATION_STREAMS, _COMMUNICATION_STREAMS, _MORE_COMMUNICATION_STREAMS = 4, 1, 2
_FABRIC, _FABRIC_STREAM = "_SCALE_UP_FABRIC", 3
_STREAM = "_xla_stream_annotation"
_COLLECTIVE_STREAM = "collective"
_GROUP = "_collectives_group"


def is_sync(start: HloInstruction) -> bool:
    """Return True for the start of a collective whose backend_config says that nothing runs between start and done."""
    return bool(record(backend_config(start), "collective_backend_config").get("is_sync", False))


def stream_numbers(module: HloModule, many_for_communication: bool = False) -> dict[HloInstruction, int]:
    """Return the number of the stream of every start: the number in its attribute, or else the next of the streams of its kind.

    Communication and computation have streams of their own. Communication has one, or more with `many_for_communication`.
    """
    streams = _MORE_COMMUNICATION_STREAMS if many_for_communication else _COMMUNICATION_STREAMS
    communication_starts = 0
    numbers: dict[HloInstruction, int] = {}
    computation_starts = 0
    waiting = deque([module.entry])
    while waiting:
        for instruction in waiting.popleft().post_order():
            if instruction.opcode in ASYNC_START - TRANSFER:
                given = _annotated_stream(instruction)
                if given.isdecimal():
                    numbers[instruction] = int(given)
                elif _uses_fabric(instruction):
                    numbers[instruction] = _FABRIC_STREAM
                elif is_communication(instruction):
                    numbers[instruction] = communication_starts % streams
                    communication_starts += 1
                else:
                    numbers[instruction] = computation_starts % _COMPUTATION_STREAMS
                    computation_starts += 1
            elif instruction.opcode in SYNC_CONTROL_FLOW:
                waiting += instruction.called_computations
    return numbers


def _uses_fabric(start: HloInstruction) -> bool:
    """True for collectives with XLA's domain of the fabric between near devices."""
    return str(record(backend_config(start), "collective_backend_config").get("communication_domain", "")).endswith(_FABRIC)


def _has(start: HloInstruction, name: str) -> bool:
    return frontend_attribute(start, name) is not None


def _annotated_stream(start: HloInstruction) -> str:
    return frontend_attribute(start, _STREAM) or ""


def is_communication(start: HloInstruction) -> bool:
    """Return True for the start of a collective, of a group of collectives, or of a computation on the stream for collectives."""
    if start.opcode != "async-start":
        return start.opcode in COLLECTIVE
    if _has(start, _GROUP) or _annotated_stream(start).lower() == _COLLECTIVE_STREAM:
        return True
    return start.called_computations[0].root.opcode in COLLECTIVE


def _start(context: ThunkContext, start: HloInstruction) -> list[Thunk]:
    inner = _inner(context, start)
    if is_sync(start):
        return inner
    stream = "communication" if is_communication(start) else "computation"
    return [AsyncStartThunk(start.name, start.name, stream, context.streams[start], tuple(inner))]


def _inner(context: ThunkContext, start: HloInstruction) -> list[Thunk]:
    match start.opcode:
        case "async-start":
            root = start.called_computations[0].root
            body = root.to_apply if root.opcode == "call" and is_one_instruction(start.called_computations[0]) else root.parent
            assert body is not None, "the root is in a computation"
            inner = context.sequence(body)
            return [SequentialThunk(start.name, inner, "kGroup")] if _has(start, _GROUP) else list(inner)
        case "copy-start":
            source, target = context.buffers.slice(start.operands[0]), context.buffers.slice(start, (0,))
            return [] if source == target else [CopyThunk(start.name, source, target)]
        case _:
            return [collective_thunk(context, start)]


def _done(_context: ThunkContext, done: HloInstruction) -> list[Thunk]:
    start = async_start(done) if done.opcode == "async-done" else done.operands[0]
    assert start is not None, "the verifier checks chains"
    return [] if is_sync(start) else [AsyncDoneThunk(done.name, start.name)]


def _update(_context: ThunkContext, _update: HloInstruction) -> list[Thunk]:
    return []


OPCODES: dict[Opcode, EmitThunk] = {
    **dict.fromkeys(ASYNC_START - TRANSFER, _start),
    **{DONE_OF[start]: _done for start in ASYNC_START - TRANSFER},
    "async-update": _update,
}
