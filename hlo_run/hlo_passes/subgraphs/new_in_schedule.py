"""Puts new instructions into a schedule, each as early as possible."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule


def schedule_again(module: HloModule, orders: dict[HloComputation, list[HloInstruction]] | None) -> None:
    """Schedule an edited module in the given orders, without removed instructions. None leaves it without a schedule.

    New instructions come right after the last of their operands and control predecessors (XLA's `HloSchedule::Update`).
    """
    if orders is not None:
        module.schedule = {c: _with_new(c, order) for c, order in orders.items() if c.module is module}


def _with_new(computation: HloComputation, order: Sequence[HloInstruction]) -> list[HloInstruction]:
    known = set(order)
    missing: dict[HloInstruction, int] = {}
    successors: dict[HloInstruction, list[HloInstruction]] = {}
    for new in computation.instructions:
        if new not in known:
            before = dict.fromkeys((*new.operands, *new.control_predecessors))
            missing[new] = len(before)
            for other in before:
                successors.setdefault(other, []).append(new)
    done: list[HloInstruction] = []
    ready = deque(new for new, count in missing.items() if not count)
    for instruction in (None, *order):
        if instruction is not None and instruction.parent is computation:
            ready.append(instruction)
        while ready:
            done.append(ready.popleft())
            for new in successors.get(done[-1], ()):
                missing[new] -= 1
                if not missing[new]:
                    ready.append(new)
    return done
