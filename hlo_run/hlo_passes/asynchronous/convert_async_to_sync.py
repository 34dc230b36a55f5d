"""Replace the start and the done of a collective by the collective itself if no work was scheduled between the two.

    s = ((f32[4]), f32[8]) async-start(p), calls=async_computation;  b = bitcast(p);  d = f32[8] async-done(s)
    =>  b = bitcast(p);  g = f32[8] all-gather(p), backend_config={.. "is_sync":true ..}

The collective has the metadata of the start and the place of the done. Needs a schedule. XLA's
`GpuConvertAsyncCollectivesToSync`, which leaves the computations of the starts to a later pass.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.latency.async_kinds import is_collective_done, is_collective_start
from hlo_run.hlo.edit import InstructionMaker, copy_instruction
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import ASYNC_START, COLLECTIVE, OPERATION_OF
from hlo_run.hlo_passes.subgraphs.async_pairs import set_sync
from hlo_run.pass_support.hlo_pass import PassContext

_NO_WORK: frozenset[Opcode] = frozenset(("parameter", "constant", "bitcast", "get-tuple-element"))
# What the collective has from its start. Its frontend attributes are those of the done.
_OF_START = ("metadata", "backend_config")


class ConvertAsyncToSync(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "gpu-convert-async-collectives-to-sync"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Replace pairs, also in the schedules."""
        del ctx
        if not module.instructions_of("async-start", *COLLECTIVE & ASYNC_START):
            return
        for computation, order in list((module.schedule or {}).items()):
            before = list(order)
            dones = [] if computation.is_fusion else _without_work(before)
            made = {done: _synchronous(module, computation, done) for done in dones}
            if made:
                starts = {done.operands[0] for done in made}
                order[:] = [made.get(i, i) for i in before if i not in starts]
                _remove_pairs(module, computation, list(made))


def _without_work(order: list[HloInstruction]) -> list[HloInstruction]:
    """Return the dones between which and their starts only instructions without work, starts and dones are."""
    found: list[HloInstruction] = []
    in_flight: set[HloInstruction] = set()
    for instruction in order:
        if is_collective_start(instruction):
            in_flight.add(instruction)
        elif is_collective_done(instruction):
            if instruction.operands[0] in in_flight:
                in_flight.remove(instruction.operands[0])
                found.append(instruction)
        elif instruction.opcode not in _NO_WORK:
            in_flight.clear()
    return found


def _synchronous(module: HloModule, computation: HloComputation, done: HloInstruction) -> HloInstruction:
    """Add the collective of a pair, which takes over the users and the order of the pair."""
    start = done.operands[0]
    set_sync(start, True)
    if start.opcode == "async-start":
        made = computation.add(copy_instruction(start.called_computations[0].root, start.operands, done.shape))
    else:
        attributes = {name: value for name, value in start.attrs.items() if name not in (*_OF_START, "frontend_attributes")}
        make = InstructionMaker(computation, start.where)
        made = make.add_with(OPERATION_OF[start.opcode], done.shape, start.operands, attributes, dict(start.called))
    for name, source in (*((name, start) for name in _OF_START), ("frontend_attributes", done)):
        made.attrs.pop(name, None)
        if name in source.attrs:
            made.attrs[name] = source.attrs[name]
    made.control_predecessors = list(start.control_predecessors)
    for other in computation.instructions:
        if done in other.control_predecessors:
            other.control_predecessors = [made if first is done else first for first in other.control_predecessors]
    module.replace_uses(done, made)
    return made


def _remove_pairs(module: HloModule, computation: HloComputation, dones: list[HloInstruction]) -> None:
    """Remove pairs, whose order no longer counts, and the computations that only they called."""
    pairs = {*dones, *(done.operands[0] for done in dones)}
    for other in computation.instructions:
        if any(first in pairs for first in other.control_predecessors):
            other.control_predecessors = [first for first in other.control_predecessors if first not in pairs]
    bodies = [body for start in pairs if start.opcode == "async-start" for body in start.called_computations]
    computation.remove_all(pairs)
    for body in dict.fromkeys(bodies):
        if not body.callers:
            module.remove_computation(body)
