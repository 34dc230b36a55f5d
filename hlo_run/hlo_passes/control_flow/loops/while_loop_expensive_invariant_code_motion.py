"""Move expensive instructions out of loop bodies, with their operands, if all these are the same in every iteration.

    body: .. d = dot(x, y) of unchanged elements   =>   d = dot(x, y) before the loop, a new element of its state

XLA's `WhileLoopExpensiveInvariantCodeMotion`: an instruction moves if its result is no larger than the elements that it is
computed from, and if no operand of it then stays in the body for other instructions. What it is computed from moves with it.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct, field

from hlo_run.analysis.loop_counter import find_counter
from hlo_run.hlo.edit import has_side_effect, remove_uncalled
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode, opcodes_in
from hlo_run.hlo_passes.control_flow.loops.hoisting import ends_after_one, hoist, is_pinned, shape_bytes, unchanged_elements
from hlo_run.pass_support.hlo_pass import PassContext


class WhileLoopExpensiveInvariantCodeMotion(Struct, frozen=True):
    """The pass; see the module's docstring. `opcodes` names the expensive ones, separated by `+`; without it nothing moves."""

    name: ClassVar[str] = "while-loop-expensive-invariant-code-motion"

    opcodes: str = ""

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place, inner loops before outer ones."""
        del ctx
        opcodes = frozenset(opcodes_in(self.opcodes))
        version = module.version
        for loop in reversed(module.instructions_of("while")):
            attributes = loop.frontend_attributes
            if "_xla_disable_loop_instr_hoisting" in str(attributes or "") or not loop.shape.is_tuple:
                continue
            if loop.while_body.root.opcode != "tuple" or is_pinned(loop.while_body) or ends_after_one(loop):
                continue
            counter = find_counter(loop)
            moved = _expensive(loop.while_body, opcodes) if counter is None or counter.trip_count not in (0, 1) else []
            if moved:
                hoist(module, loop, moved)
        if module.version != version:
            remove_uncalled(module)


class _Invariant(Struct):
    """The facts about an unchanged value: its users that may stay, the bytes that it is computed from, and who waits for it."""

    users_left: int
    source_bytes: int = 0
    waiting: list[HloInstruction] = field(default_factory=list[HloInstruction])


def _expensive(body: HloComputation, opcodes: frozenset[Opcode]) -> list[HloInstruction]:
    known = {
        value: _Invariant(len(value.users) - (body.root in value.users), shape_bytes(value.shape))
        for value in unchanged_elements(body)
    }
    ordered = {p for value in body.instructions for p in value.control_predecessors}
    blocked: dict[HloInstruction, int] = {}
    moved: list[HloInstruction] = []
    for value in body.post_order():
        if value in known or value.opcode == "parameter" or value is body.root or has_side_effect(value):
            continue
        if value.control_predecessors or value in ordered or any(operand not in known for operand in value.operands):
            continue
        known[value] = _Invariant(len(value.users) - (body.root in value.users))
        operands = list(dict.fromkeys(value.operands))
        for operand in operands:
            known[operand].users_left -= 1
        known[value].source_bytes = sum(known[operand].source_bytes for operand in operands)
        for operand in operands:
            if not known[operand].users_left:
                moved += _unblocked(known[operand].waiting, blocked)
        open_operands = [operand for operand in operands if known[operand].users_left]
        for operand in open_operands:
            known[operand].waiting.append(value)
        if shape_bytes(value.shape) > known[value].source_bytes or value.opcode not in opcodes:
            continue
        if open_operands:
            blocked[value] = len(open_operands)
        else:
            moved.append(value)
    return moved


def _unblocked(waiting: list[HloInstruction], blocked: dict[HloInstruction, int]) -> list[HloInstruction]:
    """Return the instructions that waited for the users of one operand only."""
    free: list[HloInstruction] = []
    for value in waiting:
        if value in blocked:
            blocked[value] -= 1
            if not blocked[value]:
                del blocked[value]
                free.append(value)
    waiting.clear()
    return free
