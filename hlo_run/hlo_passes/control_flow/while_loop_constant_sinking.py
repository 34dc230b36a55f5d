"""Sink constants of a loop's state into its body and condition.

    w = while(tuple(i, constant(2))), body: .. get-tuple-element(s), index=1   =>   body: .. constant(2)

Only for elements that the body does not change. XLA's `WhileLoopConstantSinking`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hlo_run.analysis.loop_state import LoopState, loop_state
from hlo_run.hlo.edit import copy_instruction, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo_passes.hlo_pass import PassContext


@dataclass(frozen=True)
class WhileLoopConstantSinking:
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "while-loop-constant-sinking"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place, outer loops before inner ones."""
        del ctx
        for loop in module.instructions_of("while"):
            state = loop_state(loop)
            if state is not None:
                _sink(state)


def _sink(state: LoopState) -> None:
    for number in state.unchanged:
        constant = state.init.operands[number]
        if constant.opcode == "constant" and constant.shape.is_array:
            for computation in (state.body, state.condition):
                _replace_element(computation, number, constant)


def _replace_element(computation: HloComputation, number: int, constant: HloInstruction) -> None:
    """Let all users except the root tuple use a copy of the constant."""
    root = computation.root
    for element in [user for user in computation.parameters[0].users if user.tuple_index == number]:
        users = [user for user in element.users if user is not root or root.opcode != "tuple"]
        if not users and not element.is_root:
            continue
        copy = computation.add(copy_instruction(constant, ()))
        for user in users:
            user.operands = [copy if operand is element else operand for operand in user.operands]
        if element.is_root:
            computation.root = copy
        remove_unused([element])
