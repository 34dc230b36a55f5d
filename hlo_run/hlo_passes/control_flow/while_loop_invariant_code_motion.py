"""Move instructions out of loop bodies if all their operands are the same in every iteration.

    body: .. s = sine(get-tuple-element(state)) of an unchanged element   =>   s = sine(x), a new element of the loop's state

Instructions that are cheap or large (broadcasts, reshapes, constants, ..) move only with an instruction that uses them. XLA's
`WhileLoopInvariantCodeMotion`. Loops that run at most once are left alone.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.loop_counter import find_counter
from hlo_run.hlo.edit import clone_computation, copy_instruction, has_side_effect, remove_uncalled, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.hlo_passes.subgraphs.loop_edits import add_to_state

_MOVES_WITH_OTHERS = frozenset(("bitcast", "broadcast", "iota", "reverse", "slice", "transpose", "tuple"))
# Annotations whose place in the loop matters.
_PINNED_TARGETS = frozenset(("SPMDFullToShardShape", "SPMDShardShapeToFull", "MoveToHost", "MoveToDevice"))


class WhileLoopInvariantCodeMotion(Struct, frozen=True):
    """The pass; see the module's docstring.

    With `hoist_constants` or `hoist_reshapes` these move alone, too; without `hoist_other` nothing else moves. An instruction
    stays if its result is more than `hoist_size_inflation_ratio` times as large as its operands.
    """

    name: ClassVar[str] = "while-loop-invariant-code-motion"

    hoist_constants: bool = False
    hoist_reshapes: bool = False
    hoist_other: bool = True
    hoist_size_inflation_ratio: float | None = None

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place, inner loops before outer ones."""
        del ctx
        version = module.version
        for loop in reversed(module.instructions_of("while")):
            attributes = loop.attrs.get("frontend_attributes")
            if loop.parent is not None and "_xla_disable_loop_instr_hoisting" not in str(attributes or ""):
                self._hoist(module, loop)
        if module.version != version:
            remove_uncalled(module)

    def _hoist(self, module: HloModule, loop: HloInstruction) -> None:
        body = loop.while_body
        if not loop.shape.is_tuple or body.root.opcode != "tuple" or _is_pinned(body):
            return
        counter = find_counter(loop)
        if (counter is not None and counter.trip_count in (0, 1)) or _ends_after_one(loop):
            return
        known = _unchanged(body)
        if not known and not self.hoist_constants:
            return
        moved = self._moved(body, known)
        if not moved:
            return
        places = [body.instructions.index(old) for old in moved]
        _make_own(module, loop)
        own = loop.while_body
        copies = _Copies(loop)
        values = [copies.of(own.instructions[place]) for place in places]
        olds = [own.instructions[place] for place in places]
        for old, new in zip(olds, add_to_state(module, loop, values), strict=True):
            module.replace(old, new)
        remove_unused(olds)

    def _moved(self, body: HloComputation, known: set[HloInstruction]) -> list[HloInstruction]:
        """Return the instructions to move, operands first."""
        moved: list[HloInstruction] = []
        ordered = {p for i in body.instructions for p in i.control_predecessors}
        for old in body.post_order():
            if old in known or old.opcode in ("after-all", "parameter") or old.control_predecessors or old in ordered:
                continue
            if has_side_effect(old) or not self._may_move(old):
                continue
            if not all(operand in known or operand.opcode == "constant" for operand in old.operands):
                continue
            if not self._waits(old):
                moved.append(old)
            if old.opcode != "constant" or not self._waits(old):
                known.add(old)
        return moved

    def _may_move(self, old: HloInstruction) -> bool:
        if not self.hoist_other and old.opcode not in ("constant", "reshape"):
            return False
        if self.hoist_size_inflation_ratio is None or old.opcode == "constant":
            return True
        size = sum(_size_bytes(operand.shape) for operand in old.operands)
        return _size_bytes(old.shape) <= size * self.hoist_size_inflation_ratio

    def _waits(self, old: HloInstruction) -> bool:
        """Return True for an instruction that moves only with a user."""
        if old.opcode == "constant":
            return not self.hoist_constants
        if old.opcode == "reshape":
            return not self.hoist_reshapes
        return old.opcode in _MOVES_WITH_OTHERS or (old.opcode == "custom-call" and old.custom_call_target == "Sharding")


def _ends_after_one(loop: HloInstruction) -> bool:
    """Return True if the condition compares with a constant an element that the body sets to another constant."""
    test = loop.while_condition.root
    if test.opcode != "compare" or test.comparison_direction != "EQ":
        return False
    for value, limit in (test.operands, test.operands[::-1]):
        if value.opcode == "get-tuple-element" and value.operands[0].opcode == "parameter" and limit.opcode == "constant":
            new = loop.while_body.root.operands[value.tuple_index]
            return new.opcode == "constant" and not new.shape.dims and bool(new.constant_array != limit.constant_array)
    return False


def _is_pinned(body: HloComputation) -> bool:
    return any(
        i.opcode == "domain" or (i.opcode == "custom-call" and i.custom_call_target in _PINNED_TARGETS) for i in body.instructions
    )


def _unchanged(body: HloComputation) -> set[HloInstruction]:
    """Return the get-tuple-elements of arrays that the body returns as they are."""
    (parameter,) = body.parameters
    operands = enumerate(body.root.operands)
    same = {
        n
        for n, value in operands
        if value.opcode == "get-tuple-element" and value.operands[0] is parameter and value.tuple_index == n
    }
    return {
        user
        for user in parameter.users
        if user.opcode == "get-tuple-element" and user.tuple_index in same and user.shape.is_array
    }


def _make_own(module: HloModule, loop: HloInstruction) -> None:
    """Give the loop its own body and condition if it shares them."""
    for name in ("body", "condition"):
        (computation,) = loop.called[name]
        if len(computation.callers) > 1:
            loop.called = {**loop.called, name: (clone_computation(module, computation),)}


def _size_bytes(shape: Shape) -> int:
    if shape.is_tuple:
        return sum(_size_bytes(part) for part in shape.tuple_shapes)
    return shape.element_count * shape.dtype.bits // 8 if shape.is_array else 0


class _Copies:
    """Copies instructions of the body before the loop, each once."""

    def __init__(self, loop: HloInstruction) -> None:
        self._loop = loop
        self._made: dict[HloInstruction, HloInstruction] = {}

    def of(self, old: HloInstruction) -> HloInstruction:
        """Return the copy of an instruction, whose operands are copied first."""
        waiting = [old]
        while waiting:
            top = waiting[-1]
            missing = [operand for operand in top.operands if operand not in self._made and not self._is_state(top)]
            if top not in self._made and not missing:
                self._made[top] = self._copy(top)
            if missing:
                waiting += missing
            else:
                waiting.pop()
        return self._made[old]

    def _is_state(self, value: HloInstruction) -> bool:
        return value.opcode == "get-tuple-element" and value.operands[0].opcode == "parameter"

    def _copy(self, old: HloInstruction) -> HloInstruction:
        computation = self._loop.parent
        assert computation is not None, "the loop is in a computation"
        if not self._is_state(old):
            return computation.add(copy_instruction(old, [self._made[operand] for operand in old.operands]))
        (init,) = self._loop.operands
        if init.opcode == "tuple":
            return init.operands[old.tuple_index]
        return computation.add(copy_instruction(old, [init]))
