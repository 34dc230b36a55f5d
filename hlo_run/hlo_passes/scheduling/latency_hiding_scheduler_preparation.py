"""Order messages by control dependencies, so that no schedule can make devices wait for each other.

    r = recv(t), s = send(x, t), rd = recv-done(r), sd = send-done(s)    =>    r before s before rd before sd

Two messages that belong together (pipelines 0 and 1) are ordered as r0, s0, r1, s1, rd0, rd1, sd0, sd1. Other collectives, custom
calls, loops that have some, and other messages run before the first recv or after the last send-done, and before the message of
the next iteration in the body of a loop that carries one. XLA's `P2PSchedulePreparation`.
"""

from __future__ import annotations

import itertools
from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.computation_order import computation_post_order
from hlo_run.analysis.latency.async_kinds import async_kind
from hlo_run.analysis.latency.message_chains import Chain, Chains, Message, is_message, start_of
from hlo_run.analysis.topological_order import runs_before
from hlo_run.errors import InternalError, Unsupported
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import COLLECTIVE
from hlo_run.pass_support.hlo_pass import PassContext

_ONE: tuple[Opcode, ...] = ("recv", "send", "recv-done", "send-done")


class LatencyHidingSchedulerPreparation(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "latency-hiding-scheduler-preparation"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Add control dependencies. Raises InternalError if a loop carries messages in a way that XLA never makes,
        Unsupported if messages wait for each other in a cycle. XLA refuses those, too."""
        del ctx
        if not module.instructions_of("send", "recv"):
            return
        computations = computation_post_order(module)
        chains = Chains()
        for computation in computations:
            chains.add(computation)
        if not chains.by_channel:
            return
        for computation in reversed(computations):
            found = [chains.by_channel[n] for n in sorted(chains.channels.get(computation, ())) if n in chains.by_channel]
            if not found:
                continue
            carried = _order_parts(found, computation)
            if carried is not None:
                _order_before_carried(chains, carried, computation)
            _order_others(chains, computation)
        module.version += 1


def _add(first: HloInstruction, then: HloInstruction) -> None:
    if runs_before(then, first):
        raise Unsupported(
            f"'{first.name}' must run before '{then.name}' and after it: their messages cannot be ordered", then.where
        )
    if first not in then.control_predecessors:
        then.control_predecessors = [*then.control_predecessors, first]
        then.touch()


def _add_unless_ordered(first: HloInstruction, then: HloInstruction) -> None:
    if not runs_before(first, then):
        _add(first, then)


def _order_parts(chains: list[Chain], computation: HloComputation) -> Chain | None:
    """Order the parts of each chain. Return the chain that the loop around the computation carries."""
    carried: Chain | None = None
    for chain in chains:
        if chain.partner is not None and chain.pipeline != "1":
            continue
        if chain.is_carried_in(computation):
            if carried is not None:
                raise InternalError(f"the loop of '{computation.name}' carries several messages that do not belong together")
            carried = chain
        message = chain.message(computation)
        if chain.partner is None:
            parts = [message.part(opcode) for opcode in _ONE]
            for first, then in itertools.pairwise(parts):
                _add(first, then)
        else:
            _order_pair(chain.partner.message(computation), message)
    return carried


def _order_pair(one: Message, two: Message) -> None:
    dones = [message.part(opcode) for opcode in ("recv-done", "send-done") for message in (one, two)]
    starts = [message.part(opcode) for message in (one, two) for opcode in ("recv", "send")]
    for parts in (dones, starts, (starts[-1], dones[0])):
        for first, then in itertools.pairwise(parts):
            _add(first, then)


def _order_before_carried(chains: Chains, carried: Chain, computation: HloComputation) -> None:
    """Let all other communication run before the message that the loop carries to its next iteration."""
    begin, _ = carried.ends(computation)
    for instruction in computation.post_order():
        if not chains.communicates(instruction):
            continue
        if not is_message(instruction):
            _add_unless_ordered(instruction, begin)
        elif instruction.opcode == "send-done":
            chain = chains.of(instruction)
            if chain is not None and not chain.is_carried_in(computation):
                _add_unless_ordered(chain.ends(computation)[1], begin)


def _order_others(chains: Chains, computation: HloComputation) -> None:
    """Let other communication run before or after each message that no loop carries."""
    instructions = computation.post_order()
    for place, instruction in enumerate(instructions):
        chain = chains.of(instruction) if is_message(instruction) else None
        if chain is None or chain.is_carried_in(computation):
            continue
        if chain.ends(computation)[0] is instruction:
            _order_around(chains, chain, instructions, place)


def _order_around(chains: Chains, chain: Chain, instructions: list[HloInstruction], place: int) -> None:
    computation = instructions[place].parent
    assert computation is not None, "it is in a computation"
    begin, end = chain.ends(computation)
    loop = chain.beside.loop if chain.beside is not None else None
    for other_place, other in enumerate(instructions):
        if is_message(other):
            other_chain = chains.of(other)
            if other_chain is None or other_chain.is_carried_in(computation) or other_place <= place:
                continue
            other_begin, other_end = other_chain.ends(computation)
            if other_begin is other:
                first, then = (end, other_begin) if runs_before(begin, other_end) else (other_end, begin)
                _add_unless_ordered(first, then)
        elif chains.communicates(other) and other is not loop:
            if _is_collective_done(other):
                _order_beside(begin, end, other, start_of(other))
            _order_beside(begin, end, other, other)


def _order_beside(begin: HloInstruction, end: HloInstruction, done: HloInstruction, start: HloInstruction) -> None:
    """Let `start` run after the message if `done` runs after its begin, else `done` before the message."""
    if runs_before(begin, done):
        _add_unless_ordered(end, start)
    else:
        _add_unless_ordered(done, begin)


def _is_collective_done(instruction: HloInstruction) -> bool:
    kind = async_kind(instruction)
    return kind.phase == "done" and kind.inner in COLLECTIVE
