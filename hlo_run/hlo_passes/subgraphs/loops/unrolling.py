"""Unroll a loop that counts from one constant to another: copies of the body, one for each iteration, replace it."""

from __future__ import annotations

from msgspec import Struct

from hlo_run.analysis.loop_counter import LoopCounter, find_counter
from hlo_run.hlo.edit import Editor, InstructionMaker, has_side_effect, remove_replaced, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import TRANSFER
from hlo_run.hlo_passes.subgraphs.loops.edits import copy_body


class UnrollLimits(Struct, frozen=True):
    """The most iterations, instructions of the body, and instructions of all copies of a loop that is unrolled."""

    trip_count: int = 64
    instructions: int = 800
    copies: int = 10000


def unroll(module: HloModule, loop: HloInstruction, limits: UnrollLimits, wraps: bool) -> bool:
    """Replace a loop by its iterations if their number is known and within the limits; True if it was.

    With `wraps`, the loop stays and runs once: its new body has all iterations.
    """
    _read_through(loop.operands[0])
    counter = _counter(loop, limits)
    if counter is None:
        return False
    _unrolled(module, loop, counter, wraps)
    return True


def may_unroll(loop: HloInstruction) -> bool:
    """True if nothing but the number of its iterations forbids to unroll a loop."""
    assert loop.parent is not None, "the loop is in a computation"
    condition = loop.while_condition
    if any(loop in other.control_predecessors for other in loop.parent.instructions):
        return False
    if any(i.opcode in TRANSFER for c in (loop.while_body, condition) for i in c.instructions):
        return False
    return loop.operands[0].opcode == "tuple" and not any(map(has_side_effect, condition.instructions))


def _counter(loop: HloInstruction, limits: UnrollLimits) -> LoopCounter | None:
    """Return the counter of a loop to unroll."""
    body = loop.while_body
    counter = find_counter(loop) if may_unroll(loop) else None
    count = None if counter is None else counter.trip_count
    if counter is None or count is None or not 0 < count <= limits.trip_count:
        return None
    size = len(body.instructions)
    fits = size <= limits.instructions and size * count <= limits.copies
    return counter if fits and body.root.opcode == "tuple" else None


def _read_through(init: HloInstruction) -> None:
    """Let a tuple have the operands of the tuple whose elements it reads."""
    if init.opcode != "tuple":
        return
    old = init.operands
    init.operands = tuple([o.operands[0].operands[o.tuple_index] if _reads_tuple(o) else o for o in old])
    remove_unused([o for o in old if not o.users])


def _reads_tuple(value: HloInstruction) -> bool:
    return value.opcode == "get-tuple-element" and value.operands[0].opcode == "tuple"


def _unrolled(module: HloModule, loop: HloInstruction, counter: LoopCounter, wraps: bool) -> None:
    body, count = loop.while_body, counter.trip_count
    assert count is not None, "the counter has a trip count"
    assert loop.parent is not None, "the loop is in a computation"
    if wraps:
        once = HloComputation(f"{body.name}.unrolled", body.where)
        state = InstructionMaker(once).parameter(0, loop.shape, "param")
        module.add_computation(once)
    else:
        once, state = loop.parent, loop.operands[0]
    for number in range(count):
        state = _copy(body, once, state, counter, number, reads_through=not wraps)
    if not wraps:
        module.replace(loop, state)
        remove_replaced(loop)
        _read_elements(module, state)
        return
    once.root = state
    test = HloComputation(f"{loop.while_condition.name}.unrolled", body.where)
    whole = InstructionMaker(test).parameter(0, loop.shape, "param")
    editor = Editor(whole)
    value = editor.element(whole, counter.index)
    direction = "LE" if counter.step > 0 else "GE"
    root = editor.compare(value, editor.constant(counter.init, value.shape.element_type), direction)
    test.root = root
    module.add_computation(test)
    loop.called = {**loop.called, "body": (once,), "condition": (test,)}
    loop.attrs.pop("backend_config", None)
    loop.touch()


def _copy(
    body: HloComputation, into: HloComputation, state: HloInstruction, counter: LoopCounter, number: int, reads_through: bool
) -> HloInstruction:
    """Add one iteration, and return the state after it. The counter is a constant, but for its increment, as in XLA.

    With `reads_through`, elements of a tuple are its operands.
    """
    made = copy_body(body, into, state)
    for old, new in made.items():
        if old.opcode != "get-tuple-element" or old.operands[0] is not body.parameters[0]:
            continue
        if old.tuple_index == counter.index:
            constant = Editor(new).constant(counter.init + number * counter.step, new.shape.element_type)
            for user in [user for user in new.users if not _is_increment(user, new)]:
                user.replace_operand(new, constant)
        if reads_through and state.opcode == "tuple":
            for user in list(new.users):
                user.replace_operand(new, state.operands[old.tuple_index])
    return made[body.root]


def _is_increment(user: HloInstruction, value: HloInstruction) -> bool:
    return user.opcode == "add" and user.operands[0] is value and user.operands[1].opcode == "constant"


def _read_elements(module: HloModule, state: HloInstruction) -> None:
    for user in [user for user in state.users if user.opcode == "get-tuple-element"]:
        module.replace(user, state.operands[user.tuple_index])
        remove_unused([user])
