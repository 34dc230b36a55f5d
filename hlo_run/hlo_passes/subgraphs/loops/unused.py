"""Removes elements of a loop's state that nothing needs."""

from __future__ import annotations

from hlo_run.analysis.loop_state import LoopState
from hlo_run.hlo.edit import Editor, has_side_effect, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.values.shape import Shape


def drop_unused_elements(state: LoopState) -> None:
    """Remove elements of the state that neither the result, the condition, an effect nor a needed element depends on."""
    loop, body = state.loop, state.body
    if loop.is_root or any(user.opcode != "get-tuple-element" for user in loop.users) or loop.backend_config:
        return
    if any(i.control_predecessors for c in (body, state.condition) for i in c.instructions):
        return
    needed = needed_elements(state, {user.tuple_index for user in loop.users})
    if len(needed) == len(state.init.operands):
        return
    numbers = {old: new for new, old in enumerate(needed)}
    shape = Shape.make_tuple(tuple(state.init.operands[n].shape for n in needed))
    root = body.root
    body.root = Editor(root).add("tuple", shape, [root.operands[n] for n in needed])
    for computation in (body, state.condition):
        remove_unused([i for i in computation.instructions if not i.users and not i.is_root])
        (parameter,) = computation.parameters
        parameter.shape = shape
        _renumber(parameter, numbers)
    loop.operands = [Editor(state.init).add("tuple", shape, [state.init.operands[n] for n in needed])]
    loop.shape = shape
    _renumber(loop, numbers)
    remove_unused([state.init])


def _renumber(value: HloInstruction, numbers: dict[int, int]) -> None:
    for element in value.users:
        element.attrs["index"] = numbers[element.tuple_index]


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
