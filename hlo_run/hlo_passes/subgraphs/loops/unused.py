"""Removes unneeded elements of a loop's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hlo_run.analysis.loop_state import LoopState
from hlo_run.hlo.edit import DETACHED, Editor, copy_instruction, has_order, has_side_effect, remove_replaced
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.subgraphs.loops.cloning import cloned


def drop_unused_elements(state: LoopState) -> bool:
    """Remove elements of the state that neither the result, the condition, an effect nor a needed element depends on.

    Also those that the result needs but the body returns unchanged, if nothing else joins them with other elements. Another
    loop replaces the loop, as in XLA; return True if so.
    """
    needed = _needed_elements(state)
    if len(needed) == len(state.init.operands) or not may_narrow(state):
        return False
    replace_loop(state, needed)
    return True


def may_narrow(state: LoopState) -> bool:
    """True if a loop with fewer elements may replace the loop: no order refers to it, and no record to an element."""
    if "known_induction_variable" in state.loop.backend_config or has_order(state.loop):
        return False
    return not any(i.control_predecessors for c in (state.body, state.condition) for i in c.instructions)


def replace_loop(state: LoopState, needed: Sequence[int], equals: Mapping[int, int] | None = None) -> HloInstruction:
    """Replace the loop by one with only the needed elements, and by a tuple of all, in XLA's steps; return the tuple.

    In the tuple the other elements are those of the initial state, or with `equals` the needed ones that they equal. XLA copies
    condition and body, so all their instructions take new names. `tuple-simplifier` removes the tuple.
    """
    loop = state.loop
    assert loop.parent is not None, "the loop is in a computation"
    module = loop.parent.module
    assert module is not None, "the loop is in a module"
    numbers = {old: new for new, old in enumerate(needed)}
    shape = Shape.make_tuple(tuple(state.init.operands[n].shape for n in needed))
    plain = Editor(loop, derives=False)
    init = plain.add("tuple", shape, [state.init.operands[n] for n in needed])
    condition = module.add_computation(_narrowed(state.condition, shape, numbers))
    body = module.add_computation(_narrowed(state.body, shape, numbers))
    made = copy_instruction(loop, [init], shape, loop.opcode)
    made.called = {"condition": (condition,), "body": (body,)}
    plain.computation.add(made)
    elements: list[HloInstruction] = []
    for number, old in enumerate(state.init.operands):
        new = numbers.get(number, None if equals is None else numbers.get(equals.get(number, number)))
        whole, index = (state.init, number) if new is None else (made, new)
        elements.append(plain.add("get-tuple-element", old.shape, [whole], index=index))
    module.replace(loop, plain.tuple(elements))
    remove_replaced(loop)
    return made


def _narrowed(old: HloComputation, shape: Shape, numbers: dict[int, int]) -> HloComputation:
    """Return a copy of the condition or the body for a state of the given shape; `numbers` has the new numbers of elements."""
    (parameter,) = old.parameters
    replacements: dict[HloInstruction, HloInstruction | None] = {parameter: DETACHED.parameter(0, shape, parameter.name)}
    for user in list(parameter.users):
        new = numbers.get(user.tuple_index)
        replacements[user] = None if new is None else DETACHED.add("get-tuple-element", user.shape, [parameter], index=new)
    for instruction in old.post_order():
        gone = any(operand in replacements and replacements[operand] is None for operand in instruction.operands)
        if gone and not instruction.is_root:
            replacements[instruction] = None
    if old.root.shape.is_tuple:
        replacements[old.root] = DETACHED.add("tuple", shape, [old.root.operands[n] for n in numbers])
    return cloned(old, replacements)


def _needed_elements(state: LoopState) -> list[int]:
    """Return the indices of the needed elements of the state, ascending, as XLA finds them."""
    loop, root = state.loop, state.body.root
    every = set(range(len(root.operands)))
    used = {user.tuple_index for user in loop.users if user.opcode == "get-tuple-element"}
    if loop.is_root or any(user.opcode != "get-tuple-element" for user in loop.users):
        used = every
    joined = _Joined()
    reads: dict[HloInstruction, frozenset[int]] = {}
    held: set[int] = set()
    for computation in (state.body, state.condition):
        (parameter,) = computation.parameters
        for instruction in computation.post_order():
            if instruction is parameter or instruction is root:
                continue
            if parameter in instruction.operands:
                reads[instruction] = frozenset((instruction.tuple_index,))
                joined.join(root.operands[instruction.tuple_index], instruction)
            else:
                parts = {reads[operand] for operand in instruction.operands}
                reads[instruction] = next(iter(parts)) if len(parts) == 1 else frozenset[int]().union(*parts)
                for operand in instruction.operands:
                    joined.join(operand, instruction)
            if has_side_effect(instruction) or instruction is state.condition.root:
                held |= reads[instruction]
    affecting = {index for number, value in enumerate(root.operands) for index in reads[value] if index != number}
    unneeded = every - affecting - used - held
    groups: dict[HloInstruction, set[int]] = {}
    for number, value in enumerate(root.operands):
        groups.setdefault(joined.name(value), set()).add(number)
    for computation in (state.body, state.condition):
        for element in computation.parameters[0].users:
            groups.setdefault(joined.name(element), set()).add(element.tuple_index)
    stay = held | used.difference(state.unchanged)
    for group in groups.values():
        if not group & stay:
            unneeded |= group
    return sorted(every - unneeded)


class _Joined:
    """Sets of instructions that grow together."""

    def __init__(self) -> None:
        self._above: dict[HloInstruction, HloInstruction] = {}

    def name(self, one: HloInstruction) -> HloInstruction:
        """Return the only instruction of a set."""
        while (above := self._above.get(one, one)) is not one:
            self._above[one] = self._above.get(above, above)
            one = above
        return one

    def join(self, one: HloInstruction, other: HloInstruction) -> None:
        """Unite the sets of two instructions."""
        self._above[self.name(other)] = self.name(one)
