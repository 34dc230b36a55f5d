"""Simplify loops: inline those that run at most once, and remove unused elements of the state.

    w = (s32[], f32[8], f32[8]) while(t), ..   =>   w = (s32[], f32[8]) while(t'), ..   if element 2 of the result is unused

Users of an element that the body does not change read its initial value, and counters that are always equal are merged. XLA's
`WhileLoopSimplifier`, without its loops over nested tuples and its merging of counters with different inits or steps.
Handles loops whose state is a tuple and whose computations have no other caller.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from hlo_run.analysis.liveness import stays_whole
from hlo_run.analysis.loop_counter import find_counter
from hlo_run.analysis.loop_state import LoopState, doubled_elements, loop_state
from hlo_run.hlo.attributes.table import OpMetadata
from hlo_run.hlo.edit import Editor, copy_instruction, has_side_effect, remove_dead, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.hlo_passes.subgraphs.inlining import inline
from hlo_run.hlo_passes.subgraphs.loops.unused import drop_unused_elements, needed_elements

# A loop of one iteration with this attribute stays a loop.
_ONCE_STAYS = "skip-simplify-while-loops_trip-count-one"


class WhileLoopSimplifier(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "simplify-while-loops"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place, outer loops before inner ones."""
        del ctx
        version = module.version
        for loop in module.instructions_of("while"):
            if loop.parent is None or loop.parent.module is None or stays_whole(loop):
                continue
            has_effect = has_side_effect(loop)
            if has_effect or not _runs_once_at_most(module, loop):
                state = loop_state(loop)
                state = None if state is None else _settle_constants(state)
                if state is not None:
                    merged = not has_effect and _merge_doubled(module, state)
                    _split_users(module, state)
                    if _hand_past(module, state):
                        drop_unused_elements(state, in_place=merged)
        if module.version != version:
            remove_dead(module)


def _runs_once_at_most(module: HloModule, loop: HloInstruction) -> bool:
    """Replace a loop with trip count 0 by its initial state, and one with trip count 1 by its body; return True if replaced."""
    counter = find_counter(loop)
    count = counter.trip_count if counter is not None else None
    hints = loop.frontend_attributes
    stays = count == 1 and hints is not None and hints.get(_ONCE_STAYS) == "true"
    if count not in (0, 1) or stays:
        return False
    if count == 0:
        module.replace(loop, loop.operands[0])
    else:
        # As in XLA, the instructions get the loop's stack frame and not its name.
        metadata = loop.attrs.get("metadata")
        if isinstance(metadata, OpMetadata):
            loop.attrs["metadata"] = replace(metadata, op_name="")
        _put_constants(module, loop)
        inline(module, loop, loop.while_body)
    remove_unused([loop])
    return True


def _put_constants(module: HloModule, loop: HloInstruction) -> None:
    """Replace elements in the body that begin as a constant, and that it does not change, by the constant."""
    (init,), body = loop.operands, loop.while_body
    if init.opcode != "tuple" or body.root.opcode != "tuple" or len(body.callers) != 1:
        return
    parameter = body.parameters[0]
    for number, (begin, new) in enumerate(zip(init.operands, body.root.operands, strict=True)):
        reads = [user for user in parameter.users if user.opcode == "get-tuple-element" and user.tuple_index == number]
        if begin.opcode == "constant" and new in reads:
            constant = body.add(copy_instruction(begin, ()))
            for read in reads:
                module.replace(read, constant)
            remove_unused(reads)


def _settle_constants(state: LoopState) -> LoopState | None:
    """Let elements that begin as a constant, and that the body sets to the same constant, be unchanged and unread."""
    pairs = enumerate(zip(state.init.operands, state.body.root.operands, strict=True))
    settled = [n for n, (init, new) in pairs if _same_constant(init, new)]
    if not settled:
        return state
    root = state.body.root
    elements = list(root.operands)
    for number in settled:
        constant = state.init.operands[number]
        for computation in (state.body, state.condition):
            for read in [user for user in computation.parameters[0].users if user.tuple_index == number]:
                for user in [user for user in read.users if user is not root]:
                    user.replace_operand(read, computation.add(copy_instruction(constant, ())))
                if not read.users and not read.is_root:
                    remove_unused([read])
        elements[number] = Editor(state.body.parameters[0]).element(state.body.parameters[0], number)
    root.operands = elements
    return loop_state(state.loop)


def _same_constant(one: HloInstruction, two: HloInstruction) -> bool:
    if one.opcode != "constant" or two.opcode != "constant" or one.shape != two.shape or not one.shape.is_array:
        return False
    return one.constant_array.tobytes() == two.constant_array.tobytes()


def _split_users(module: HloModule, state: LoopState) -> None:
    """Let users of the whole result read its elements if an element then leaves the loop."""
    loop = state.loop
    whole = [user for user in loop.users if user.opcode != "get-tuple-element"]
    if (not whole and not loop.is_root) or loop.backend_config or not state.unchanged:
        return
    used = set(range(len(state.init.operands))) - set(state.unchanged)
    if len(needed_elements(state, used)) == len(state.init.operands):
        return
    editor = Editor(loop)
    elements = [
        state.init.operands[n] if n in state.unchanged else editor.element(loop, n) for n in range(len(state.init.operands))
    ]
    result = editor.add("tuple", loop.shape, elements)
    for user in whole:
        user.replace_operand(loop, result)
    if loop.is_root:
        editor.computation.root = result
    remove_unused([loop])


def _merge_doubled(module: HloModule, state: LoopState) -> bool:
    """Replace uses of an element that always equals an earlier element by that one; return True if there is one."""
    doubled = doubled_elements(state)
    if not doubled or any(user.opcode != "get-tuple-element" for user in state.loop.users):
        return False
    for whole in (state.loop, state.body.parameters[0], state.condition.parameters[0]):
        for element in [user for user in whole.users if user.tuple_index in doubled]:
            # The body returns both; the later one need not be computed from the earlier one.
            module.replace(element, Editor(element).element(whole, doubled[element.tuple_index]))
            remove_unused([element])
    return True


def _hand_past(module: HloModule, state: LoopState) -> bool:
    """Replace uses of unchanged elements by their initial values; return False if the loop then has no users and is removed."""
    for index in state.unchanged:
        for element in [user for user in state.loop.users if user.opcode == "get-tuple-element" and user.tuple_index == index]:
            module.replace(element, state.init.operands[index])
            remove_unused([element])
    return state.loop.parent is not None
