"""Describes the state of a loop that is a tuple with separately used elements."""

from __future__ import annotations

from msgspec import Struct

from hlo_run.hlo.graph import HloComputation, HloInstruction


class LoopState(Struct, frozen=True):
    """A loop with its initial state (a `tuple`). `unchanged` are the elements that the body returns unchanged."""

    loop: HloInstruction
    init: HloInstruction
    body: HloComputation
    condition: HloComputation
    unchanged: tuple[int, ...]


def loop_state(loop: HloInstruction) -> LoopState | None:
    """Return the state of a `while`. None unless all its makers and readers name single elements and it alone calls its parts."""
    init, body, condition = loop.operands[0], loop.while_body, loop.while_condition
    if init.opcode != "tuple" or body.root.opcode != "tuple" or body is condition:
        return None
    if len(body.callers) != 1 or len(condition.callers) != 1:
        return None
    for computation in (body, condition):
        (parameter,) = computation.parameters
        if parameter.is_root or any(user.opcode != "get-tuple-element" for user in parameter.users):
            return None
    operands = enumerate(body.root.operands)
    unchanged = tuple(n for n, operand in operands if operand.opcode == "get-tuple-element" and _is_element(operand, n))
    return LoopState(loop, init, body, condition, unchanged)


def _is_element(value: HloInstruction, number: int) -> bool:
    return value.operands[0].opcode == "parameter" and value.tuple_index == number
