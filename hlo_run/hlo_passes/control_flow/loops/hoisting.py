"""Hoists instructions out of loop bodies: unchanging instructions, and copies of them before the loop."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.hlo.edit import clone_called, clone_with_fusions, copy_instruction, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.subgraphs.loops.edits import add_to_state
from hlo_run.walks import post_order

_PINNED_TARGETS = frozenset(("SPMDFullToShardShape", "SPMDShardShapeToFull", "MoveToHost", "MoveToDevice"))


def hoist(module: HloModule, loop: HloInstruction, moved: Sequence[HloInstruction]) -> None:
    """Compute instructions of the body, which must be the same in every iteration, before the loop, whose state gets them."""
    places = [loop.while_body.instructions.index(old) for old in moved]
    _make_own(module, loop)
    own = loop.while_body
    copies = _Copies(module, loop)
    values = [copies.of(own.instructions[place]) for place in places]
    olds = [own.instructions[place] for place in places]
    for old, new in zip(olds, add_to_state(module, loop, values), strict=True):
        module.replace(old, new)
    remove_unused(olds)


def ends_after_one(loop: HloInstruction) -> bool:
    """Return True if the condition compares with a constant an element that the body sets to another constant."""
    test = loop.while_condition.root
    if test.opcode != "compare" or test.comparison_direction != "EQ":
        return False
    for value, limit in (test.operands, test.operands[::-1]):
        if value.opcode == "get-tuple-element" and value.operands[0].opcode == "parameter" and limit.opcode == "constant":
            new = loop.while_body.root.operands[value.tuple_index]
            return new.opcode == "constant" and not new.shape.dims and bool(new.constant_array != limit.constant_array)
    return False


def is_pinned(body: HloComputation) -> bool:
    """True if a body has annotations whose place in the loop matters."""
    return any(
        i.opcode == "domain" or (i.opcode == "custom-call" and i.custom_call_target in _PINNED_TARGETS) for i in body.instructions
    )


def unchanged_elements(body: HloComputation) -> set[HloInstruction]:
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
            loop.called = {**loop.called, name: (clone_with_fusions(module, computation),)}


def shape_bytes(shape: Shape) -> int:
    """Return the bytes of the arrays of a shape."""
    if shape.is_tuple:
        return sum(shape_bytes(part) for part in shape.tuple_shapes)
    return shape.element_count * shape.dtype.bits // 8 if shape.is_array else 0


class _Copies:
    """Copies instructions of the body before the loop, each once."""

    def __init__(self, module: HloModule, loop: HloInstruction) -> None:
        self._module, self._loop = module, loop
        self._made: dict[HloInstruction, HloInstruction] = {}

    def of(self, old: HloInstruction) -> HloInstruction:
        """Return the copy of an instruction, whose operands are copied first."""
        for value in post_order(
            old, lambda value: () if value in self._made or self._is_state(value) else reversed(value.operands)
        ):
            if value not in self._made:
                self._made[value] = self._copy(value)
        return self._made[old]

    def _is_state(self, value: HloInstruction) -> bool:
        return value.opcode == "get-tuple-element" and value.operands[0].opcode == "parameter"

    def _copy(self, old: HloInstruction) -> HloInstruction:
        computation = self._loop.parent
        assert computation is not None, "the loop is in a computation"
        if not self._is_state(old):
            made = computation.add(copy_instruction(old, [self._made[operand] for operand in old.operands]))
            clone_called(self._module, made)
            return made
        (init,) = self._loop.operands
        if init.opcode == "tuple":
            return init.operands[old.tuple_index]
        return computation.add(copy_instruction(old, [init]))
