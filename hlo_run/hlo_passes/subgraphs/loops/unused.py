"""Removes elements of a loop's state that nothing needs."""

from __future__ import annotations

from hlo_run.analysis.loop_state import LoopState
from hlo_run.hlo.edit import Editor, copy_instruction, has_order, has_side_effect, remove_replaced, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.values.shape import Shape


def drop_unused_elements(state: LoopState, in_place: bool = False) -> None:
    """Remove elements of the state that neither the result, the condition, an effect nor a needed element depends on.

    With `in_place` the loop and its computations stay, else others replace them, as in XLA.
    """
    loop, body = state.loop, state.body
    if loop.is_root or any(user.opcode != "get-tuple-element" for user in loop.users) or loop.backend_config:
        return
    if any(i.control_predecessors for c in (body, state.condition) for i in c.instructions) or has_order(loop):
        return
    needed = needed_elements(state, {user.tuple_index for user in loop.users})
    if len(needed) < len(state.init.operands):
        (_narrow_loop if in_place else _replace_loop)(state, needed)


def _narrow_loop(state: LoopState, needed: list[int]) -> None:
    numbers = {old: new for new, old in enumerate(needed)}
    shape = Shape.make_tuple(tuple(state.init.operands[n].shape for n in needed))
    root = state.body.root
    state.body.root = Editor(root).add("tuple", shape, [root.operands[n] for n in needed])
    for computation in (state.body, state.condition):
        remove_unused([i for i in computation.instructions if not i.users and not i.is_root])
        (parameter,) = computation.parameters
        parameter.shape = shape
        _renumber(parameter, numbers)
    state.loop.operands = [Editor(state.init).add("tuple", shape, [state.init.operands[n] for n in needed])]
    state.loop.shape = shape
    _renumber(state.loop, numbers)
    remove_unused([state.init])


def _renumber(value: HloInstruction, numbers: dict[int, int]) -> None:
    for element in value.users:
        element.attrs["index"] = numbers[element.tuple_index]


def _replace_loop(state: LoopState, needed: list[int]) -> None:
    """Replace the loop by one whose state has only the needed elements, and by a tuple that has all, in XLA's steps.

    XLA copies condition and body, so all their instructions take new names. `tuple-simplifier` removes the tuple.
    """
    loop, module = state.loop, state.loop.parent and state.loop.parent.module
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
    elements = [
        plain.element(made, numbers[n]) if n in numbers else plain.add("get-tuple-element", old.shape, [state.init], index=n)
        for n, old in enumerate(state.init.operands)
    ]
    module.replace(loop, plain.tuple(elements))
    remove_replaced(loop)


def _narrowed(old: HloComputation, shape: Shape, numbers: dict[int, int]) -> HloComputation:
    """Return a copy of the condition or the body for a state of the given shape; `numbers` has the new numbers of elements."""
    new = HloComputation(f"{old.name}.clone", old.where)
    new.execution_thread = old.execution_thread
    (parameter,) = old.parameters
    sources = _sources(old, parameter, numbers)
    copies: dict[HloInstruction, HloInstruction] = {}
    for instruction in _copying_order(old, sources):
        operands = [copies[operand] for operand in sources[instruction]]
        if instruction is parameter:
            copy = HloInstruction(parameter.name, "parameter", shape, attrs={"parameter_number": 0}, where=parameter.where)
        elif parameter in instruction.operands:
            index = numbers[instruction.tuple_index]
            copy = HloInstruction("get-tuple-element", "get-tuple-element", instruction.shape, operands, {"index": index})
            copy.where = instruction.where
        elif instruction is old.root and instruction.shape.is_tuple:
            copy = HloInstruction("tuple", "tuple", shape, operands, where=instruction.where)
        else:
            copy = copy_instruction(instruction, operands)
        copies[instruction] = copy
    for instruction in old.instructions:
        if instruction in copies:
            new.add(copies[instruction])
    new.root = copies[old.root]
    return new


def _sources(
    computation: HloComputation, parameter: HloInstruction, numbers: dict[int, int]
) -> dict[HloInstruction, list[HloInstruction]]:
    """Return the operands of the instructions that depend on no element that goes; of a root tuple, the elements that stay."""
    found: dict[HloInstruction, list[HloInstruction]] = {}
    for instruction in computation.post_order():
        reads = parameter in instruction.operands and instruction.opcode == "get-tuple-element"
        if instruction.is_root and instruction.shape.is_tuple:
            found[instruction] = [instruction.operands[n] for n in numbers]
        elif instruction.tuple_index in numbers if reads else all(operand in found for operand in instruction.operands):
            found[instruction] = list(instruction.operands)
    return found


def _copying_order(computation: HloComputation, sources: dict[HloInstruction, list[HloInstruction]]) -> list[HloInstruction]:
    """Return the instructions, operands before users, in the order in which XLA copies a computation: last operands first."""
    order: dict[HloInstruction, None] = {}
    met: set[HloInstruction] = set()
    for start in computation.instructions:
        stack = [start] if start in sources else []
        while stack:
            top = stack[-1]
            if top in met:
                order.setdefault(stack.pop())
                continue
            met.add(top)
            stack += sources[top]
    return list(order)


def needed_elements(state: LoopState, used: set[int]) -> list[int]:
    """Return the indices of the needed elements of the state, ascending; `used` are those of the result."""
    needed = set(used)
    needed |= {element.tuple_index for element in state.condition.parameters[0].users}
    reads = _reads(state.body)
    effects: set[int] = set()
    for instruction in state.body.instructions:
        if has_side_effect(instruction):
            effects |= reads[instruction]
    needed |= effects
    waiting = list(needed)
    while waiting:
        fresh = reads[state.body.root.operands[waiting.pop()]] - needed
        needed |= fresh
        waiting += fresh
    return sorted(needed)


def _reads(body: HloComputation) -> dict[HloInstruction, frozenset[int]]:
    """Return for each instruction the elements of the state that it depends on."""
    reads: dict[HloInstruction, frozenset[int]] = {}
    known: dict[frozenset[int], frozenset[int]] = {}
    for instruction in body.post_order():
        if instruction.opcode == "get-tuple-element" and instruction.operands[0].opcode == "parameter":
            found = frozenset((instruction.tuple_index,))
        else:
            parts = {reads[o] for o in (*instruction.operands, *instruction.control_predecessors)}
            found = next(iter(parts)) if len(parts) == 1 else frozenset[int]().union(*parts)
        reads[instruction] = known.setdefault(found, found)
    return reads
