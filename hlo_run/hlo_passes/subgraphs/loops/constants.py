"""Sink constants of a loop's state into its body and condition: a helper of the passes that sink and unroll."""

from __future__ import annotations

from msgspec import Struct

from hlo_run.analysis.loop_state import LoopState, loop_state
from hlo_run.hlo.edit import clone_computation, copy_instruction, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule


class ConstantSinking(Struct, frozen=True):
    """Which constants sink: see the pass `while-loop-constant-sinking`."""

    broadcasts: bool = False
    only_scalars: bool = False

    def run(self, module: HloModule) -> None:
        """Edit in place, outer loops before inner ones."""
        for loop in module.instructions_of("while"):
            if self._sinks(loop):
                _make_own(module, loop)
            state = loop_state(loop)
            if state is not None:
                self._sink(state)

    def _may_sink(self, value: HloInstruction) -> bool:
        if value.opcode == "broadcast" and self.broadcasts:
            return value.operands[0].opcode == "constant" and not value.operands[0].shape.dims
        is_scalar = value.shape.is_array and not value.shape.dims
        return value.opcode == "constant" and (is_scalar or not self.only_scalars)

    def _sinks(self, loop: HloInstruction) -> bool:
        """Return True if the loop shares its body, which does not change a constant of this loop's state."""
        init, root = loop.operands[0], loop.while_body.root
        if (
            init.opcode != "tuple"
            or root.opcode != "tuple"
            or max(len(c.callers) for c in (loop.while_body, loop.while_condition)) < 2
        ):
            return False
        (parameter,) = loop.while_body.parameters
        pairs = enumerate(zip(init.operands, root.operands, strict=True))
        return any(
            self._may_sink(value) and new.opcode == "get-tuple-element" and new.operands[0] is parameter and new.tuple_index == n
            for n, (value, new) in pairs
        )

    def _sink(self, state: LoopState) -> None:
        for number in state.unchanged:
            value = state.init.operands[number]
            if self._may_sink(value):
                for computation in (state.body, state.condition):
                    _replace_element(computation, number, value)


def _make_own(module: HloModule, loop: HloInstruction) -> None:
    """Give the loop its own body and condition if others call them, too."""
    for name in ("body", "condition"):
        (computation,) = loop.called[name]
        if len(computation.callers) > 1:
            loop.called = {**loop.called, name: (clone_computation(module, computation),)}


def _replace_element(computation: HloComputation, number: int, constant: HloInstruction) -> None:
    """Let all users except the root tuple use a copy of the constant."""
    root = computation.root
    for element in [user for user in computation.parameters[0].users if user.tuple_index == number]:
        users = [user for user in element.users if user is not root or root.opcode != "tuple"]
        if not users and not element.is_root:
            continue
        operands = [computation.add(copy_instruction(operand, ())) for operand in constant.operands]
        copy = computation.add(copy_instruction(constant, operands))
        for user in users:
            user.operands = [copy if operand is element else operand for operand in user.operands]
        if element.is_root:
            computation.root = copy
        remove_unused([element])
