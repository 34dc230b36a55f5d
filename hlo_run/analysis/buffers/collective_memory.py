"""Finds the buffers that devices read or write in each other's memory. XLA puts them into a separate memory space."""

from __future__ import annotations

from typing import cast

from hlo_run.analysis.buffers.alias_analysis import AliasAnalysis, HloBuffer
from hlo_run.analysis.buffers.dataflow_values import HloValue
from hlo_run.hlo.async_ops import async_start
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.opcodes.traits import ASYNC, COLLECTIVE, DONE_OF
from hlo_run.hlo.values.backend_config import config_of

COLLECTIVE_SPACE = 7
"""The memory space of these buffers."""
_DONES: frozenset[Opcode] = frozenset(done for start, done in DONE_OF.items() if start in COLLECTIVE)
EXCHANGES: list[Opcode] = sorted((COLLECTIVE | _DONES) - opcode_set("collective-broadcast"))
"""The collectives with such buffers. XLA leaves collective-broadcasts out."""
_SYMMETRIC = "COLLECTIVES_SYMMETRIC_MEMORY"


def uses_collective_memory(module: HloModule, every: bool) -> bool:
    """True if the module may have such buffers. With `every`, all collectives count, not only marked ones."""
    found = module.instructions_of(*EXCHANGES)
    return any(map(_is_symmetric, found)) or (every and bool(found))


def collective_buffers(analysis: AliasAnalysis, every: bool) -> list[HloBuffer]:
    """Return the buffers with an array that a collective reads or writes; for `every` see `uses_collective_memory`."""
    return [buffer for buffer in analysis.buffers if any(_is_exchanged(value, every) for value in buffer.values)]


def _is_exchanged(value: HloValue, every: bool) -> bool:
    if value.shape.is_tuple:
        return False
    return any(_asks(i, every) for i in (value.instruction, *(use.instruction for use in value.uses)))


def _asks(instruction: HloInstruction, every: bool) -> bool:
    return _is_symmetric(instruction) or (every and _wrapped(instruction) in EXCHANGES)


def _wrapped(instruction: HloInstruction) -> str:
    """Return the opcode; for an asynchronous instruction the opcode that it wraps."""
    start = async_start(instruction) if instruction.opcode in ASYNC else None
    return instruction.opcode if start is None else start.called_computations[0].root.opcode


def _is_symmetric(instruction: HloInstruction) -> bool:
    """True if `collectives_mode` in the backend_config asks for symmetric memory."""
    record: object = config_of(instruction.backend_config).get("collective_backend_config")
    return isinstance(record, dict) and cast("dict[str, object]", record).get("collectives_mode") == _SYMMETRIC
