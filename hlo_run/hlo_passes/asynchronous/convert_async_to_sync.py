"""Mark collectives as synchronous if no work was scheduled between start and done, and put the two together.

    s = all-gather-start(p);  b = bitcast(p);  d = all-gather-done(s)
    =>  b = bitcast(p);  s = all-gather-start(p), backend_config={.. "is_sync":true ..};  d = all-gather-done(s)

XLA's `GpuConvertAsyncCollectivesToSync`. Needs a schedule.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.latency.async_kinds import is_collective_done, is_collective_start
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import ASYNC_START, COLLECTIVE
from hlo_run.hlo_passes.subgraphs.async_pairs import set_sync
from hlo_run.pass_support.hlo_pass import PassContext

_NO_WORK: frozenset[Opcode] = frozenset(("parameter", "constant", "bitcast", "get-tuple-element"))


class ConvertAsyncToSync(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "gpu-convert-async-collectives-to-sync"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Change the schedules and the configurations of starts."""
        del ctx
        if not module.instructions_of("async-start", *COLLECTIVE & ASYNC_START):
            return
        for computation, order in (module.schedule or {}).items():
            if computation.is_fusion:
                continue
            dones = _without_work(order)
            starts = {done.operands[0] for done in dones}
            for start in starts:
                set_sync(start, True)
            if starts:
                order[:] = _together(order, starts, dones)
                module.version += 1


def _without_work(order: list[HloInstruction]) -> set[HloInstruction]:
    """Return the dones between which and their starts only instructions without work, starts and dones are."""
    found: set[HloInstruction] = set()
    in_flight: set[HloInstruction] = set()
    for instruction in order:
        if is_collective_start(instruction):
            in_flight.add(instruction)
        elif is_collective_done(instruction):
            if instruction.operands[0] in in_flight:
                in_flight.remove(instruction.operands[0])
                found.add(instruction)
        elif instruction.opcode not in _NO_WORK:
            in_flight.clear()
    return found


def _together(order: list[HloInstruction], starts: set[HloInstruction], dones: set[HloInstruction]) -> list[HloInstruction]:
    made: list[HloInstruction] = []
    for instruction in order:
        if instruction in dones:
            made.append(instruction.operands[0])
        if instruction not in starts:
            made.append(instruction)
    return made
