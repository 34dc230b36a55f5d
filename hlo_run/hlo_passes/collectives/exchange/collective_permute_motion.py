"""Move a collective-permute at the end of a loop's body to its beginning, where later passes can run it beside other work.

    body: .. e = tuple(i + 1, collective-permute(f(x)))
        =>   body: x' = select(i == first, x, collective-permute(x)), .. e = tuple(i + 1, f(x'))

The element must be unused after the loop, which ends before the last permute. Elementwise instructions with constants of the loop
move along. XLA's `CollectivePermuteMotion`.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.hlo.edit import Editor, copy_instruction, has_side_effect, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.walks import walk

_MOST_MOVED = 8
# What a body computes from constants of the loop with these, and elementwise, is one, too.
_KEEPS_CONSTANT: tuple[Opcode, ...] = ("broadcast", "reduce", "reshape", "dynamic-slice", "transpose")
_CONSTANT: tuple[Opcode, ...] = ("constant", "iota", "replica-id", "partition-id")


class CollectivePermuteMotion(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "collective-permute-motion"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        loops = module.in_post_order("while") if module.instructions_of("collective-permute") else ()
        bodies = Counter(loop.while_body for loop in loops)
        for loop in loops:
            counter = _counter(loop) if bodies[loop.while_body] == 1 else None
            if counter is not None and not loop.is_root:
                _move_all(loop, counter)


class _Counter(Struct, frozen=True):
    """The scalar of the state that alone decides whether a loop runs on: in the body, and the constant that it begins as."""

    value: HloInstruction
    first: HloInstruction


def _counter(loop: HloInstruction) -> _Counter | None:
    """Return the counter, or None if it does not begin as a constant, or does not move by a constant."""
    (state,), root = loop.operands, loop.while_body.root
    index = _only_element(loop.while_condition)
    if index is None or root.opcode != "tuple" or state.opcode != "tuple" or state.operands[index].opcode != "constant":
        return None
    value, step = _elements(loop.while_body).get(index), root.operands[index]
    if value is None or value.shape.rank or step.opcode not in ("add", "subtract") or value not in step.operands:
        return None
    one, two = step.operands
    return _Counter(value, state.operands[index]) if (two if one is value else one).opcode == "constant" else None


def _only_element(condition: HloComputation) -> int | None:
    """Return the index of the only element of the state that a condition reads, if it is a scalar."""
    (state,) = condition.parameters
    found: set[int] = set()

    def is_element(value: HloInstruction) -> bool:
        return value.opcode == "get-tuple-element" and value.operands[0] is state

    for value in walk([condition.root], lambda value: () if is_element(value) else value.operands):
        if value is state or (is_element(value) and value.shape.rank):
            return None
        if is_element(value):
            found.add(value.tuple_index)
    return found.pop() if len(found) == 1 else None


def _elements(body: HloComputation) -> dict[int, HloInstruction]:
    """Return the elements of the state that one get-tuple-element of the body reads; none if the body uses the whole state."""
    (state,) = body.parameters
    if any(user.opcode != "get-tuple-element" for user in state.users):
        return {}
    counts = Counter(user.tuple_index for user in state.users)
    return {user.tuple_index: user for user in state.users if counts[user.tuple_index] == 1}


def _move_all(loop: HloInstruction, counter: _Counter) -> None:
    body, elements = loop.while_body, _elements(loop.while_body)
    if any(user.opcode != "get-tuple-element" for user in loop.users):
        return
    used = {user.tuple_index for user in loop.users}
    constants, counts = _loop_constants(body), Counter(body.root.operands)
    for index, end in enumerate(body.root.operands):
        moved = _movable(end, constants) if counts[end] == 1 and index not in used and index in elements else None
        if moved is not None and moved[-1].operands[0] is not elements[index]:
            _move(body, index, elements[index], moved, counter)


def _loop_constants(body: HloComputation) -> set[HloInstruction]:
    """Return the values that are the same in all iterations, as far as XLA looks."""
    constants: set[HloInstruction] = set()
    for index, end in enumerate(body.root.operands):
        while end.opcode in ("reshape", "copy"):
            end = end.operands[0]
        if end.opcode == "get-tuple-element" and end.tuple_index == index and end.operands[0] is body.parameters[0]:
            constants.add(end)
    for value in body.post_order():
        keeps = (is_elementwise(value) or value.opcode in _KEEPS_CONSTANT) and not has_side_effect(value)
        if value.opcode in _CONSTANT or (keeps and all(operand in constants for operand in value.operands)):
            constants.add(value)
    return constants


def _movable(end: HloInstruction, constants: set[HloInstruction]) -> list[HloInstruction] | None:
    """Return what to move, users before operands: elementwise instructions, and at last the permute that they are made of."""
    found: list[HloInstruction] = []
    permutes: list[HloInstruction] = []
    waiting = [end]
    for value in waiting:  # grows while we walk
        if len(found) + len(permutes) >= _MOST_MOVED or len(value.users) > 1:
            return None
        if value.opcode == "collective-permute" and len(value.operands) == 1 and not permutes:
            permutes.append(value)
        elif is_elementwise(value) and not has_side_effect(value):
            found.append(value)
            waiting += [operand for operand in value.operands if operand not in constants]
        else:
            return None
    return [*found, *permutes] if permutes else None


def _move(body: HloComputation, index: int, value: HloInstruction, moved: list[HloInstruction], counter: _Counter) -> None:
    """Apply the moved instructions to an element of the state in all iterations but the first one."""
    users, editor, permute = tuple(value.users), Editor(moved[0], derives=False), moved[-1]
    copies = {permute.operands[0]: value}
    for old in reversed(moved):
        copies[old] = body.add(copy_instruction(old, [copies.get(operand, operand) for operand in old.operands]))
    made = copies[moved[0]]
    first = body.add(copy_instruction(counter.first, []))
    is_first = editor.broadcast(editor.compare(counter.value, first, "EQ"), made.shape.dims)
    chosen = editor.select(is_first, value, made)
    for user in users:
        user.replace_operand(value, chosen)
    ends = list(body.root.operands)
    ends[index] = permute.operands[0]
    body.root.operands = tuple(ends)
    remove_unused([moved[0]])
