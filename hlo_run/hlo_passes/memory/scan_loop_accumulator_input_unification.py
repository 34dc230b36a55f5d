"""Let an inner loop write its results over the array that it reads, if the outer loop passes the results on as that array.

    outer body:  w = while(tuple(0, s, zeros, x)), ..     inner body: r = dynamic-slice(x, i); z' = dynamic-update-slice(z, u, i)
    =>           w = while(tuple(0, s, x)), ..            inner body: r = dynamic-slice(x, i); x' = dynamic-update-slice(x, u, i)

Iteration i of the inner loop reads row i and writes row i, and every row is written. The outer loop's next iteration reads the
results where this one read `x`, so that without the pass it would copy them. The pass needs the initial value of the results
to be made inside of the outer loop. XLA's `ScanLoopAccumulatorInputUnification`, which does not ask that a row is written whole,
and so changes values if it is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.loop_counter import LoopCounter, find_counter
from hlo_run.analysis.loop_state import LoopState, loop_state
from hlo_run.hlo.edit import remove_uncalled, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.subgraphs.loops.unused import drop_unused_elements
from hlo_run.hlo_passes.subgraphs.tuple_simplification import simplify_tuples
from hlo_run.pass_support.hlo_pass import PassContext


class ScanLoopAccumulatorInputUnification(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "scan_loop_accumulator_input_unification"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        changed = False
        for loop in module.instructions_of("while"):
            counter, state = find_counter(loop), loop_state(loop)
            if counter is None or state is None or counter.init or counter.step != 1 or not counter.trip_count:
                continue
            for results, read in _pairs(state, counter):
                module.replace_uses(read, results)
                remove_unused([read])
                init = state.init
                old = init.operands[results.tuple_index]
                init.operands = tuple(
                    [
                        init.operands[read.tuple_index] if n == results.tuple_index else operand
                        for n, operand in enumerate(init.operands)
                    ]
                )
                remove_unused([old])
                changed = True
            if changed:
                drop_unused_elements(state)
        if changed:
            simplify_tuples(module)
            remove_uncalled(module)


def _pairs(state: LoopState, counter: LoopCounter) -> list[tuple[HloInstruction, HloInstruction]]:
    """Return pairs of elements of the inner state: the results, and the array that is read."""
    outer = state.loop.parent
    assert outer is not None, "the loop is in a computation"
    if outer.root.opcode != "tuple" or not any(c.opcode == "while" and c.while_body is outer for c in outer.callers):
        return []
    pairs: list[tuple[HloInstruction, HloInstruction]] = []
    for results in _elements(state.body.parameters[0].users):
        update = results.users[0] if len(results.users) == 1 else None
        if update is None or not _goes_through(update, "dynamic-update-slice", results, counter):
            continue
        root = state.body.root
        if root.operands[results.tuple_index] is not update or len(update.users) != 1 or root.operands.count(update) != 1:
            continue
        read = _array_of(state, outer, results.tuple_index)
        if read is not None and read.shape == results.shape and _is_only_read(read, state.body, counter):
            init = state.init.operands[results.tuple_index]
            if init.opcode != "get-tuple-element" or init.operands[0].opcode != "parameter":
                pairs.append((results, read))
    return pairs


def _elements(values: Sequence[HloInstruction]) -> list[HloInstruction]:
    return [value for value in values if value.opcode == "get-tuple-element"]


def _array_of(state: LoopState, outer: HloComputation, number: int) -> HloInstruction | None:
    """Return the element of the inner state whose initial value is, in the next outer iteration, result `number`."""
    outputs = [e for e in state.loop.users if e.opcode == "get-tuple-element" and e.tuple_index == number]
    places = [n for n, operand in enumerate(outer.root.operands) if operand in outputs]
    if len(places) != 1:
        return None
    arrays = [e for e in _elements(outer.parameters[0].users) if e.tuple_index == places[0]]
    if len(arrays) != 1 or list(arrays[0].users) != [state.init] or state.init.operands.count(arrays[0]) != 1:
        return None
    inner = state.init.operands.index(arrays[0])
    if inner not in state.unchanged or any(_may_read(user, inner) for user in (*state.loop.users, *_readers(state))):
        return None
    found = [e for e in _elements(state.body.parameters[0].users) if e.tuple_index == inner]
    return found[0] if len(found) == 1 and not state.loop.is_root else None


def _readers(state: LoopState) -> Sequence[HloInstruction]:
    return state.condition.parameters[0].users


def _may_read(user: HloInstruction, number: int) -> bool:
    return user.opcode != "get-tuple-element" or user.tuple_index == number


def _is_only_read(read: HloInstruction, body: HloComputation, counter: LoopCounter) -> bool:
    slices = [user for user in read.users if user is not body.root]
    return len(slices) == 1 and _goes_through(slices[0], "dynamic-slice", read, counter) and len(read.users) == 2


def _goes_through(user: HloInstruction, opcode: Opcode, whole: HloInstruction, counter: LoopCounter) -> bool:
    """True if a slice takes or writes row i of an array in iteration i, and there is a row for each iteration."""
    if user.opcode != opcode or user.operands[0] is not whole or user.operands.count(whole) != 1:
        return False
    part: Shape = user.shape if opcode == "dynamic-slice" else user.operands[1].shape
    moving: list[int] = []
    for dim, index in enumerate(user.operands[1 if opcode == "dynamic-slice" else 2 :]):
        if index.opcode == "get-tuple-element" and index.operands[0].opcode == "parameter" and index.tuple_index == counter.index:
            moving.append(dim)
        elif part.dims[dim] != whole.shape.dims[dim]:
            return False
    if len(moving) != 1:
        return False
    return part.dims[moving[0]] == 1 and whole.shape.dims[moving[0]] == counter.trip_count
