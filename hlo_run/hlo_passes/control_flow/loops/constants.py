"""Sink constants of a loop's state into its body and condition: a helper of the passes that sink and unroll."""

from __future__ import annotations

from msgspec import Struct

from hlo_run.analysis.loop_state import LoopState, loop_state
from hlo_run.hlo.edit import clone_with_fusions, copy_instruction, remove_uncalled, remove_unused
from hlo_run.hlo.fused_names import clone_name
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.walks import walk


class ConstantSinking(Struct, frozen=True):
    """The constants that sink: see the pass `while-loop-constant-sinking`."""

    broadcasts: bool = False
    only_scalars: bool = False

    def run(self, module: HloModule) -> None:
        """Edit in place, outer loops before inner ones: the inner loops are then in the copies of their outer loop's body."""
        if not module.instructions_of("while"):
            return
        version = module.version
        for computation in walk([module.entry], _callees):
            for instruction in computation.instructions:
                if instruction.opcode == "while":
                    self._sink_into(module, instruction)
        if module.version != version:
            remove_uncalled(module)

    def _sink_into(self, module: HloModule, loop: HloInstruction) -> None:
        if self._sinks(loop):
            for name in ("body", "condition"):
                if len(loop.called[name][0].callers) > 1:
                    _copied(module, loop, name)
        state = loop_state(loop)
        if state is not None:
            self._sink(module, state)

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

    def _sink(self, module: HloModule, state: LoopState) -> None:
        """Sink into copies of body and condition, which XLA makes where a constant is read."""
        loop, copied = state.loop, set[str]()
        for number in state.unchanged:
            value = state.init.operands[number]
            for name in ("body", "condition") if self._may_sink(value) else ():
                if not _is_read(loop.called[name][0], number):
                    continue
                if name not in copied:
                    copied.add(name)
                    _copied(module, loop, name)
                _replace_element(loop.called[name][0], number, value)


def _copied(module: HloModule, loop: HloInstruction, name: str) -> None:
    """Give the loop a copy of its body or condition, called `NAME.sunk`."""
    (old,) = loop.called[name]
    loop.called = {**loop.called, name: (clone_with_fusions(module, old, "sunk"),)}
    if not old.callers:
        module.remove_computation(old)


def _elements(computation: HloComputation, number: int) -> list[HloInstruction]:
    return [user for user in computation.parameters[0].users if user.tuple_index == number]


def _readers(computation: HloComputation, element: HloInstruction) -> list[HloInstruction]:
    """Return the users of an element, without the root tuple that returns it."""
    root = computation.root
    return [user for user in element.users if user is not root or root.opcode != "tuple"]


def _is_read(computation: HloComputation, number: int) -> bool:
    return any(_readers(computation, element) or element.is_root for element in _elements(computation, number))


def _replace_element(computation: HloComputation, number: int, constant: HloInstruction) -> None:
    """Let all users except the root tuple use a copy of the constant."""
    for element in _elements(computation, number):
        users = _readers(computation, element)
        if not users and not element.is_root:
            continue
        copy = _copy(computation, constant)
        for user in users:
            user.operands = tuple([copy if operand is element else operand for operand in user.operands])
        if element.is_root:
            computation.root = copy
        remove_unused([element])


def _copy(computation: HloComputation, value: HloInstruction) -> HloInstruction:
    """Add a copy of a constant, or of a broadcast and its constant, with XLA's names."""
    operands = [_copy(computation, operand) for operand in value.operands]
    # XLA adds a dot and the suffix `.sunk`.
    name = clone_name(value.name, "..sunk") if value.opcode == "constant" else value.name
    return computation.add(copy_instruction(value, operands, name=name))


def _callees(computation: HloComputation) -> list[HloComputation]:
    return [called for instruction in computation.instructions for called in instruction.called_computations]
