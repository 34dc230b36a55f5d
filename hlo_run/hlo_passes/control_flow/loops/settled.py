"""Removes elements of a loop's state that begin as a constant and stay that constant."""

from __future__ import annotations

from hlo_run.analysis.loop_state import LoopState
from hlo_run.hlo.edit import DETACHED, has_side_effect, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.subgraphs.loops.cloning import cloned, renamed_clone, replace_by_form
from hlo_run.hlo_passes.subgraphs.loops.unused import may_narrow


def drop_settled_elements(module: HloModule, state: LoopState) -> bool:
    """Remove elements that begin as a constant, and that the body sets to the same constant.

    Another loop replaces the loop, as in XLA, or the initial state if no element is left; return True if so.
    """
    loop, computation, init = state.loop, state.loop.parent, state.init
    assert computation is not None, "the loop is in a computation"
    values, results = init.operands, state.body.root.operands
    settled = {n for n, (value, result) in enumerate(zip(values, results, strict=True)) if _same_constant(value, result)}
    if not settled or not may_narrow(state):
        return False
    kept = [n for n in range(len(values)) if n not in settled]
    if not kept and has_side_effect(loop):
        return False
    if not kept:
        module.replace(loop, init)
        remove_unused([loop])
        return True

    def grown(whole: HloInstruction) -> HloInstruction:
        numbers = iter(range(len(kept)))
        return DETACHED.tuple(
            [value if n in settled else DETACHED.get_tuple_element(whole, next(numbers)) for n, value in enumerate(values)]
        )

    def shrunk(whole: HloInstruction) -> HloInstruction:
        return DETACHED.tuple([DETACHED.get_tuple_element(whole, n) for n in kept])

    new_init = shrunk(init)
    old = state.condition.parameters[0]
    condition = cloned(state.condition, {old: grown(DETACHED.parameter(0, new_init.shape, old.name))})
    old, root = state.body.parameters[0], state.body.root
    again = renamed_clone(root)
    body = cloned(state.body, {old: grown(DETACHED.parameter(0, new_init.shape, old.name)), root: shrunk(again)})
    replace_by_form(module, loop, condition, body, new_init, grown)
    return True


def _same_constant(one: HloInstruction, two: HloInstruction) -> bool:
    if one.opcode != "constant" or two.opcode != "constant" or one.shape != two.shape or not one.shape.is_array:
        return False
    return one.constant_array.tobytes() == two.constant_array.tobytes()
