"""Answers about asynchronous instructions: their kind, whether they may overlap, and the configuration of collectives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

from hlo_run.analysis.buffers.slice_copies import copied_value
from hlo_run.analysis.fusion_owner import is_collective_fusion, is_slice_copy
from hlo_run.hlo.async_ops import MAIN_THREAD, async_start, execution_thread
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import ASYNC_DONE, ASYNC_START, COLLECTIVE, OPERATION_OF, TRANSFER
from hlo_run.hlo.values.backend_config import config_of

COLLECTIVE_STREAM = "collective"
"""The stream annotation of a computation that runs on the stream of collectives."""
_STREAM = "_xla_stream_annotation"
_CONFIG = "collective_backend_config"


class AsyncKind(NamedTuple):
    """`phase` is start, done or "" (not asynchronous). `inner` is the opcode of the operation, without -start and -done."""

    phase: str
    inner: Opcode


def async_kind(instruction: HloInstruction) -> AsyncKind:
    """Return the kind of an instruction. The transfers `send` and `recv` are starts."""
    opcode = instruction.opcode
    if opcode in ("async-start", "async-done"):
        start = async_start(instruction)
        inner = start.called_computations[0].root.opcode if start is not None else opcode
        return AsyncKind(opcode.removeprefix("async-"), inner)
    if opcode in ASYNC_START:
        return AsyncKind("start", OPERATION_OF[opcode])
    if opcode in ASYNC_DONE:
        return AsyncKind("done", OPERATION_OF[opcode])
    return AsyncKind("", opcode)


def collective_config(instruction: HloInstruction) -> Mapping[str, object]:
    """Return the collective's part of the backend_config; empty if there is none."""
    found: object = config_of(instruction.backend_config).get(_CONFIG)
    return cast("dict[str, object]", found) if isinstance(found, dict) else {}


def is_sync(start: HloInstruction) -> bool:
    """Return True for the start of a collective that is marked synchronous."""
    return bool(collective_config(start).get("is_sync", False))


def is_collective_start(instruction: HloInstruction) -> bool:
    """Return True for the start of a collective of any form, False for transfers."""
    kind = async_kind(instruction)
    return kind.phase == "start" and kind.inner in COLLECTIVE


def is_collective_done(instruction: HloInstruction) -> bool:
    """Return True for the done of a collective of any form, False for transfers."""
    kind = async_kind(instruction)
    return kind.phase == "done" and kind.inner in COLLECTIVE


def is_on_collective_stream(instruction: HloInstruction) -> bool:
    """Return True for an async-start or async-done of a computation on the stream of collectives."""
    return (
        instruction.opcode in ("async-start", "async-done")
        and (frontend_attribute(instruction, _STREAM) or "").lower() == COLLECTIVE_STREAM
    )


def copies_slice(instruction: HloInstruction) -> bool:
    """Return True for the start or done of a fusion that only copies a slice."""
    start = async_start(instruction) if instruction.opcode in ("async-start", "async-done") else None
    inner = start.called_computations[0].root if start is not None else None
    return inner is not None and inner.opcode == "fusion" and (copied_value(inner) is not None or is_slice_copy(inner))


def fused_collective(instruction: HloInstruction) -> HloInstruction | None:
    """Return the collective of a fusion that the instruction starts or ends; None for other instructions."""
    start = async_start(instruction) if instruction.opcode in ("async-start", "async-done") else None
    inner = start.called_computations[0].root if start is not None else None
    is_fused = inner is not None and inner.opcode == "fusion" and is_collective_fusion(inner)
    return inner.called_computations[0].root if inner is not None and is_fused else None


def overlaps_from(instruction: HloInstruction) -> bool:
    """Return True for a start whose work may overlap with what follows (XLA's `IsGpuAsyncStart`)."""
    if instruction.opcode == "copy-start" or copies_slice(instruction):
        return True
    if is_collective_start(instruction) or instruction.opcode in TRANSFER:
        return not is_sync(instruction)
    return instruction.opcode == "async-start" and execution_thread(instruction) != _thread(instruction)


def overlaps_until(instruction: HloInstruction) -> bool:
    """Return True for the done of a start whose work may overlap with the instructions between."""
    opcode = instruction.opcode
    if opcode not in ASYNC_DONE:
        return False
    if opcode == "copy-done" or copies_slice(instruction):
        return True
    if is_collective_done(instruction) or opcode in ("send-done", "recv-done"):
        return not is_sync(instruction.operands[0])
    start = async_start(instruction)
    return start is not None and execution_thread(start) != _thread(instruction)


def _thread(instruction: HloInstruction) -> str:
    return instruction.parent.execution_thread if instruction.parent is not None else MAIN_THREAD
