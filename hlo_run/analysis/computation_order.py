"""Orders the computations of a module as XLA walks them, and their instructions as they would run."""

from __future__ import annotations

from collections.abc import Iterator

from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import CONTROL_FLOW


def computation_post_order(module: HloModule) -> list[HloComputation]:
    """Return all computations, callees before callers: in the module's order, with a later callee just before its first caller.

    This is the order that XLA keeps while passes add computations. A module in which a later callee itself calls a computation
    that would follow it is walked depth first instead.
    """
    callers = {c: {i.parent for i in c.callers} for c in module.computations if c.callers}
    order: list[HloComputation] = []
    placed: set[HloComputation | None] = set()
    for computation in module.computations:
        place = len(order)
        known = callers.get(computation)
        if known is not None and not known.isdisjoint(placed):
            place = next(n for n, other in enumerate(order) if other in known)
        order.insert(place, computation)
        placed.add(computation)
    done: set[HloComputation | None] = set()
    for computation in order:
        if computation in callers and not callers[computation].isdisjoint(done):
            return _depth_first(module)
        done.add(computation)
    return order


def _depth_first(module: HloModule) -> list[HloComputation]:
    called = {callee for instruction in module.instructions for callee in instruction.called_computations}
    done: dict[HloComputation, None] = {}
    for start in module.computations:
        if start not in called:
            _add_callees_first(start, done)
    return list(done)


def _add_callees_first(start: HloComputation, done: dict[HloComputation, None]) -> None:
    visited = {start, *done}
    waiting: list[tuple[HloComputation, Iterator[HloInstruction]]] = [(start, iter(start.instructions))]
    while waiting:
        computation, rest = waiting[-1]
        instruction = next(rest, None)
        if instruction is None:
            waiting.pop()
            done[computation] = None
            continue
        for callee in reversed(instruction.called_computations):
            if callee not in visited:
                visited.add(callee)
                waiting.append((callee, iter(callee.instructions)))


def nested_computations(instruction: HloInstruction) -> tuple[HloComputation, ...]:
    """Return the computations that run as separate code when the instruction runs, in the order of a flat schedule."""
    if instruction.opcode == "while":
        return (instruction.while_condition, instruction.while_body)
    if instruction.opcode in CONTROL_FLOW:
        return instruction.called_computations
    return ()


def flat_post_order(module: HloModule) -> list[HloInstruction]:
    """Return the instructions of all executed computations in post-order. The instructions of a callee come before its caller."""
    order: list[HloInstruction] = []
    waiting: list[Iterator[HloInstruction]] = [iter(module.entry.post_order())]
    entered: dict[HloComputation, None] = {module.entry: None}
    callers: list[HloInstruction] = []
    while waiting:
        instruction = next(waiting[-1], None)
        if instruction is None:
            waiting.pop()
            if callers:
                order.append(callers.pop())
            continue
        inner = [c for c in nested_computations(instruction) if c not in entered]
        if not inner:
            order.append(instruction)
            continue
        entered.update(dict.fromkeys(inner))
        callers.append(instruction)
        waiting.append(iter([i for c in inner for i in c.post_order()]))
    return order
