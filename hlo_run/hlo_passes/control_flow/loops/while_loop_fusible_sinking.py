"""Compute values that a loop does not change inside its body if they come from broadcasts, iotas and scalars.

    w = while(tuple(i, x, broadcast(c)))   =>   body: .. broadcast(c)

The body can then fuse them instead of reading an array. With `sink_broadcast_of_constant`, an element that begins as a broadcast
constant, and that the body overwrites as a whole, begins as uninitialised memory: the body selects the constant in the first
iteration. XLA's `WhileLoopFusibleSinking`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.loop_counter import find_counter
from hlo_run.analysis.loop_state import LoopState, loop_state
from hlo_run.hlo.edit import Editor, copy_instruction, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import ELEMENTWISE
from hlo_run.hlo_passes.subgraphs.loops.edits import add_to_state
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.walks import walk

_SLICES: frozenset[Opcode] = frozenset(("dynamic-slice", "gather", "slice"))
# The maximum number of instructions of a value that is computed in every iteration.
_MOST = 100


class WhileLoopFusibleSinking(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "while-loop-fusible-sinking"

    sink_broadcast_of_constant: bool = True

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place, outer loops before inner ones."""
        del ctx
        for loop in module.instructions_of("while"):
            state = loop_state(loop)
            if state is not None:
                for number in state.unchanged:
                    _sink(module, state, number)
        if not self.sink_broadcast_of_constant:
            return
        for loop in module.instructions_of("while"):
            state = loop_state(loop)
            if state is not None and "sharding" not in loop.attrs:
                _begin_without_value(module, state)


def _expands(value: HloInstruction) -> bool:
    return value.opcode in ("broadcast", "iota") or (value.opcode == "constant" and value.shape.is_array and not value.shape.dims)


def _is_fusible(value: HloInstruction) -> bool:
    return value.opcode in ELEMENTWISE or value.opcode in ("reshape", "transpose")


def _parts(value: HloInstruction) -> list[HloInstruction] | None:
    """Return the instructions that compute a value from broadcasts, operands first; None if others take part."""
    found: set[HloInstruction] = set()
    for part in walk([value], lambda part: () if _expands(part) else part.operands):
        if len(found) == _MOST or not (_expands(part) or _is_fusible(part)):
            return None
        found.add(part)
    assert value.parent is not None, "the value is in a computation"
    return [i for i in value.parent.post_order() if i in found]


def _sink(module: HloModule, state: LoopState, number: int) -> None:
    body, loop = state.body, state.loop
    reads = [user for user in body.parameters[0].users if user.tuple_index == number]
    used = [user for read in reads for user in read.users if user is not body.root]
    if not used or any(user.opcode in _SLICES for user in used):
        return
    (init,) = loop.operands
    value = init.operands[number] if init.opcode == "tuple" else None
    parts = _parts(value) if value is not None else None
    if value is None or parts is None:
        return
    for element in [user for user in loop.users if user.opcode == "get-tuple-element" and user.tuple_index == number]:
        module.replace(element, value)
        remove_unused([element])
    if loop.parent is None:
        return
    outside = list(dict.fromkeys(o for part in parts for o in part.operands if o not in parts))
    made = dict(zip(outside, add_to_state(module, loop, outside), strict=True))
    for part in parts:
        made[part] = body.add(copy_instruction(part, [made[operand] for operand in part.operands]))
    for read in reads:
        for user in list(read.users):
            if user is not body.root:
                user.replace_operand(read, made[value])


def _begin_without_value(module: HloModule, state: LoopState) -> None:
    """Let elements that begin as broadcast constants, and are overwritten, begin as an `AllocateBuffer`."""
    counter = find_counter(state.loop)
    if counter is None or not counter.trip_count or state.body.root.operands[counter.index].opcode not in ("add", "subtract"):
        return
    numbers = [n for n in range(len(state.init.operands)) if _is_overwritten(state, n)]
    reads = {n: [user for user in state.body.parameters[0].users if user.tuple_index == n] for n in (*numbers, counter.index)}
    if not numbers or any(len(found) != 1 for found in reads.values()):
        return
    (first,) = add_to_state(module, state.loop, [state.init.operands[counter.index]])
    inside, outside = Editor(reads[counter.index][0]), Editor(state.loop)
    is_first = inside.compare(reads[counter.index][0], first, "EQ")
    for number in numbers:
        (init,) = state.loop.operands
        value, (read,) = init.operands[number], reads[number]
        buffer = outside.add("custom-call", value.shape, custom_call_target="AllocateBuffer")
        init.operands = tuple([buffer if n == number else operand for n, operand in enumerate(init.operands)])
        scalar = state.body.add(copy_instruction(value.operands[0], ()))
        begin = inside.add("broadcast", value.shape, [scalar], dimensions=())
        users = list(read.users)
        chosen = inside.select(inside.broadcast(is_first, value.shape.dims), begin, read)
        for user in users:
            user.replace_operand(read, chosen)
        remove_unused([value])


def _is_overwritten(state: LoopState, number: int) -> bool:
    """Return True if an element begins as a broadcast constant, the body computes every element, and the condition reads none."""
    value, new = state.init.operands[number], state.body.root.operands[number]
    if value.opcode != "broadcast" or value.operands[0].opcode != "constant" or value.operands[0].shape.dims:
        return False
    if any(user.tuple_index == number for user in state.condition.parameters[0].users):
        return False
    return len(state.init.users) == 1 and new.opcode in ELEMENTWISE and new.opcode != "clamp"
