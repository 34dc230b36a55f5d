"""Changes an order so that asynchronous work starts early and ends late.

XLA's `PostProcessSchedule`. The start of a synchronous collective goes directly before its done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from hlo_run.analysis.latency.async_kinds import is_collective_done, is_collective_start, is_sync
from hlo_run.analysis.latency.memory_schedulers import followers
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.traits import ASYNC_START, COLLECTIVE, TRANSFER

_Hlos = Iterable[HloInstruction]


def early_and_late(computation: HloComputation, order: list[HloInstruction]) -> list[HloInstruction]:
    """Return the changed order of a computation."""
    if not any(i.opcode in ASYNC_START or i.schedule for i in order):
        return order
    after = followers(computation)

    def next_of(instruction: HloInstruction) -> _Hlos:
        return (*instruction.users, *after.get(instruction, ()))

    def before(instruction: HloInstruction) -> _Hlos:
        return (*dict.fromkeys(instruction.operands), *dict.fromkeys(instruction.control_predecessors))

    early = _drawn(_with_sync_together(order), next_of, before, _is_early)
    late = _drawn(reversed(early), before, next_of, _is_late)
    late.reverse()
    return late


def _drawn(
    order: _Hlos,
    next_of: Callable[[HloInstruction], _Hlos],
    before: Callable[[HloInstruction], _Hlos],
    is_drawn: Callable[[HloInstruction], bool],
) -> list[HloInstruction]:
    """Return the order with every instruction of a kind directly after the last of those that must precede it."""
    placed: dict[HloInstruction, None] = {}

    def is_ready(instruction: HloInstruction, placed: Collection[HloInstruction]) -> bool:
        return instruction not in placed and is_drawn(instruction) and all(other in placed for other in before(instruction))

    for instruction in order:
        if instruction in placed:
            continue
        placed[instruction] = None
        for follower in next_of(instruction):
            if is_ready(follower, placed):
                placed[follower] = None
    return list(placed)


def _with_sync_together(order: list[HloInstruction]) -> list[HloInstruction]:
    found: list[HloInstruction] = []
    for instruction in order:
        if _is_sync_start(instruction):
            continue
        if _is_done(instruction) and _is_sync_start(instruction.operands[0]):
            found.append(instruction.operands[0])
        found.append(instruction)
    return found


def _is_sync_start(instruction: HloInstruction) -> bool:
    return (is_collective_start(instruction) or instruction.opcode in TRANSFER) and is_sync(instruction)


def _is_done(instruction: HloInstruction) -> bool:
    return is_collective_done(instruction) or instruction.opcode in ("send-done", "recv-done")


def _is_early(instruction: HloInstruction) -> bool:
    if instruction.opcode == "async-start" or instruction.opcode in COLLECTIVE & ASYNC_START:
        return not is_sync(instruction)
    return instruction.opcode == "custom-call" and instruction.schedule == "SCHEDULE_EARLIEST"


def _is_late(instruction: HloInstruction) -> bool:
    if instruction.opcode == "async-done" or is_collective_done(instruction):
        return not is_sync(instruction.operands[0])
    return instruction.opcode == "custom-call" and instruction.schedule == "SCHEDULE_LATEST"
