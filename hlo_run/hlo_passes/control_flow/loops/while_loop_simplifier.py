"""Simplify loops: inline loops that run at most once, and remove elements of the state that are not needed.

    w = (s32[], f32[8], f32[8]) while(t), ..   =>   w = (s32[], f32[8]) while(t'), ..   if element 2 of the result is unused

Elements are also not needed if they equal another one, or if they are constants. Tuples in the state become elements of their
own. Scalars that begin as a constant, and that the body does not change, are read as constants. Of several counters one is left;
the others become `start + steps * constant`. XLA's `WhileLoopSimplifier`. Like XLA's it changes a loop in one way, and the next
run goes on. Handles loops whose state is a tuple and whose computations have no other caller.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.computation_order import in_definition_order
from hlo_run.analysis.liveness import stays_whole
from hlo_run.analysis.loop_counter import find_counter
from hlo_run.analysis.loop_state import loop_state
from hlo_run.hlo.edit import copy_instruction, has_side_effect, remove_dead, remove_unused
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo_passes.control_flow.loops.counters import merge_counters
from hlo_run.hlo_passes.control_flow.loops.nested import flatten_state
from hlo_run.hlo_passes.control_flow.loops.repeated import drop_repeated_elements
from hlo_run.hlo_passes.control_flow.loops.settled import drop_settled_elements
from hlo_run.hlo_passes.subgraphs.inlining import inline
from hlo_run.hlo_passes.subgraphs.loops.unused import drop_unused_elements
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace

# A loop of one iteration with this attribute stays a loop.
_ONCE_STAYS = "skip-simplify-while-loops_trip-count-one"
# A loop with these in it keeps its state, which other programs may rely on.
_EXCHANGES: frozenset[Opcode] = frozenset(("send", "send-done", "recv", "recv-done"))
_COUNTER_TYPES = ("s8", "u8", "s32", "u32", "s64", "u64")


class WhileLoopSimplifier(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "simplify-while-loops"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        version = module.version
        for loop in in_definition_order(module, "while"):
            if loop.parent is None or loop.parent.module is None or stays_whole(loop):
                continue
            if len(loop.while_body.callers) == 1 and len(loop.while_condition.callers) == 1:
                _simplify(module, loop)
        if module.version != version:
            remove_dead(module)


def _simplify(module: HloModule, loop: HloInstruction) -> None:
    state = loop_state(loop)
    if state is not None and drop_repeated_elements(module, state):
        return
    if flatten_state(module, loop):
        return
    if state is not None and (drop_unused_elements(state) or drop_settled_elements(module, state)):
        return
    if any(i.opcode in _EXCHANGES for c in (loop.while_body, loop.while_condition) for i in c.instructions):
        return
    _put_constants(module, loop)
    if not has_side_effect(loop) and _runs_once_at_most(module, loop):
        return
    for element_type in _COUNTER_TYPES:
        state = loop_state(loop)
        if state is not None:
            loop = merge_counters(module, state, element_type) or loop


def _runs_once_at_most(module: HloModule, loop: HloInstruction) -> bool:
    """Replace a loop with trip count 0 by its initial state, and one with trip count 1 by its body; return True if replaced."""
    counter = find_counter(loop)
    count = counter.trip_count if counter is not None else None
    stays = count == 1 and frontend_attribute(loop, _ONCE_STAYS) == "true"
    if count not in (0, 1) or stays:
        return False
    if count == 0:
        module.replace(loop, loop.operands[0])
    else:
        # As in XLA, the instructions get the loop's stack frame and not its name.
        metadata = loop.metadata
        if metadata is not None:
            loop.attrs["metadata"] = replace(metadata, op_name="")
        inline(module, loop, loop.while_body)
    remove_unused([loop])
    return True


def _put_constants(module: HloModule, loop: HloInstruction) -> None:
    """Let body and condition read scalars that begin as a constant, and that the body does not change, as constants."""
    (init,), body = loop.operands, loop.while_body
    if init.opcode != "tuple" or body.root.opcode != "tuple":
        return
    (parameter,) = body.parameters
    constants: dict[int, HloInstruction] = {}
    for number, (begin, new) in enumerate(zip(init.operands, body.root.operands, strict=True)):
        is_same = new.opcode == "get-tuple-element" and new.operands[0] is parameter and new.tuple_index == number
        if is_same and begin.opcode == "constant" and not begin.shape.dims:
            constants[number] = begin
    for computation in (loop.while_condition, body):
        for read in list(computation.parameters[0].users):
            if read.opcode == "get-tuple-element" and read.tuple_index in constants:
                old = constants[read.tuple_index]
                module.replace_uses(read, computation.add(copy_instruction(old, (), name=f"{old.name}.clone")))
