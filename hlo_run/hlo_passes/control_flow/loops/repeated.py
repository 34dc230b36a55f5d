"""Removes elements of a loop's state that always equal an earlier element."""

from __future__ import annotations

from hlo_run.analysis.loop_state import LoopState, loop_state
from hlo_run.hlo.edit import Editor, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.subgraphs.loops.unused import may_narrow, replace_loop


def drop_repeated_elements(module: HloModule, state: LoopState) -> bool:
    """Remove elements that start as the same value, and that the body leaves as they are or updates with the same part.

    Another loop replaces the loop, as in XLA; return True if so.
    """
    if not may_narrow(state):
        return False
    unchanged = _equal(state, dict.fromkeys(state.unchanged, ()))
    if unchanged:
        state = _without(module, state, unchanged, past_loop=True)
    updates = {n: new.operands[1:] for n, new in enumerate(state.body.root.operands) if _updates(new, n)}
    updated = _equal(state, updates)
    if updated:
        _without(module, state, updated, past_loop=False)
    return bool(unchanged or updated)


def _updates(new: HloInstruction, number: int) -> bool:
    if new.opcode != "dynamic-update-slice":
        return False
    whole = new.operands[0]
    return whole.opcode == "get-tuple-element" and whole.operands[0].opcode == "parameter" and whole.tuple_index == number


def _equal(state: LoopState, changes: dict[int, tuple[HloInstruction, ...]]) -> dict[int, int]:
    """Return the elements with the same initial value and change as an earlier one, each with the number of the earlier one."""
    first: dict[tuple[HloInstruction, ...], int] = {}
    found: dict[int, int] = {}
    for number, change in changes.items():
        same = first.setdefault((state.init.operands[number], *change), number)
        if same != number:
            found[number] = same
    return found


def _without(module: HloModule, state: LoopState, equals: dict[int, int], past_loop: bool) -> LoopState:
    """Read the earlier element instead of each equal one, remove the latter from the state, and return the new loop's state."""
    for computation in (state.body, state.condition):
        (parameter,) = computation.parameters
        made: dict[int, HloInstruction] = {}
        for element in [user for user in parameter.users if user.tuple_index in equals]:
            number = equals[element.tuple_index]
            if number not in made:
                made[number] = Editor(element, derives=False).element(parameter, number)
            module.replace(element, made[number])
            remove_unused([element])
    needed = [n for n in range(len(state.init.operands)) if n not in equals]
    new = loop_state(replace_loop(state, needed, None if past_loop else equals))
    assert new is not None, "the new loop is built as the old one"
    return new
