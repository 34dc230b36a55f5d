"""Orders the computations of a module as XLA walks them, and their instructions as they would run."""

from __future__ import annotations

from collections.abc import Iterator

from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import CONTROL_FLOW


def computation_post_order(module: HloModule) -> list[HloComputation]:
    """Return all computations, callees before callers, in the order that XLA keeps while passes add computations and calls.

    A new computation goes to the end. If one before it calls it, that caller moves behind it, and with it every computation
    that reaches the caller. So the condition of a loop comes before the body once the body has a new callee.
    """
    return sorted(module.computations, key=module.call_order.place, reverse=True)


def in_definition_order(module: HloModule, *opcodes: Opcode) -> list[HloInstruction]:
    """Return the instructions of `HloModule.instructions_of`, computations in the order of definition, as some passes of XLA."""
    found = module.instructions_of(*opcodes)
    places = {computation: place for place, computation in enumerate(module.computations)} if found else {}
    return sorted(found, key=lambda i: places[i.parent] if i.parent is not None else 0)


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
