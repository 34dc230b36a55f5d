"""Orders the computations of a module as XLA walks them, and their instructions as they would run."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Mapping, Sequence

from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import CONTROL_FLOW


def computation_post_order(module: HloModule) -> list[HloComputation]:
    """Return all computations, callees before callers, in the order that XLA keeps while passes add computations.

    A new computation goes to the end. If one before it calls it, that caller moves behind it, and with it every computation
    that reaches the caller. So the condition of a loop comes before the body once the body has a new callee.
    """
    places: dict[HloComputation, int] = {}
    numbers = {c: number for number, c in enumerate(module.computations)}
    callers = {
        c: sorted({i.parent for i in c.callers if i.parent in numbers}, key=numbers.__getitem__) for c in numbers if c.callers
    }
    place = itertools.count()
    for computation in module.computations:
        places[computation] = next(place)
        for caller in callers.get(computation, ()):
            if caller in places and places[caller] < places[computation]:
                for moved in _callers_last(caller, callers, places):
                    places[moved] = next(place)
    return sorted(places, key=places.__getitem__)


def _callers_last(
    start: HloComputation, callers: Mapping[HloComputation, Sequence[HloComputation]], placed: Container[HloComputation]
) -> list[HloComputation]:
    """Return `start` and every placed computation that reaches it, each before its callers."""
    order: list[HloComputation] = []
    waiting, visited = [(start, False)], set[HloComputation]()
    while waiting:
        computation, is_done = waiting.pop()
        if is_done:
            order.append(computation)
        elif computation not in visited:
            visited.add(computation)
            waiting.append((computation, True))
            waiting += [(c, False) for c in callers.get(computation, ()) if c in placed]
    return order[::-1]


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
