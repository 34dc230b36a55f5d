"""Unroll loops that count from one constant to another: copies of the body, one for each iteration, replace the loop.

    w = while(tuple(0, x)), .. for i < 3   =>   x1 = body(x), i = 0; x2 = body(x1), i = 1; x3 = body(x2), i = 2

With `wrap_in_trivial_loop` the copies are the body of a loop that runs once. XLA's `WhileLoopUnroller`. Small loops alone are
unrolled; loops that send or receive are not. Constants of the state are sunk into the bodies first.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.loop_counter import LoopCounter, find_counter
from hlo_run.hlo.edit import Editor, has_side_effect, remove_uncalled, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import TRANSFER
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.hlo_passes.subgraphs.inlining import inline_call
from hlo_run.hlo_passes.subgraphs.loops.constants import ConstantSinking
from hlo_run.hlo_passes.subgraphs.loops.edits import copy_body


class WhileLoopUnroller(Struct, frozen=True):
    """The pass; see the module's docstring.

    Only the `unroll_factor` -1 (all iterations) does something. A loop is unrolled if it runs at most `trip_count_threshold`
    times, its body has at most `instruction_count_threshold` instructions, and the copies at most `expand_factor_threshold`.
    """

    name: ClassVar[str] = "while_loop_unroller"

    unroll_factor: int = -1
    wrap_in_trivial_loop: bool = False
    trip_count_threshold: int = 64
    instruction_count_threshold: int = 800
    expand_factor_threshold: int = 10000

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place, inner loops before outer ones."""
        del ctx
        if self.unroll_factor != -1:
            return
        ConstantSinking().run(module)
        version = module.version
        for loop in reversed(module.instructions_of("while")):
            if loop.parent is None or loop.parent.module is None:
                continue
            _read_through(loop.operands[0])
            counter = self._counter(module, loop)
            if counter is not None:
                _unroll(module, loop, counter, self.wrap_in_trivial_loop)
        if module.version != version:
            remove_uncalled(module)

    def _counter(self, module: HloModule, loop: HloInstruction) -> LoopCounter | None:
        """Return the counter of a loop to unroll."""
        assert loop.parent is not None, "the loop is in a computation"
        body, condition = loop.while_body, loop.while_condition
        if any(loop in other.control_predecessors for other in loop.parent.instructions):
            return None
        if any(i.opcode in TRANSFER for c in (body, condition) for i in c.instructions):
            return None
        if loop.operands[0].opcode != "tuple" or any(map(has_side_effect, condition.instructions)):
            return None
        counter = find_counter(loop) or _counter_of_inlined(module, loop)
        count = None if counter is None else counter.trip_count
        if counter is None or count is None or not 0 < count <= self.trip_count_threshold:
            return None
        size = len(body.instructions)
        fits = size <= self.instruction_count_threshold and size * count <= self.expand_factor_threshold
        return counter if fits and body.root.opcode == "tuple" else None


def _read_through(init: HloInstruction) -> None:
    """Let a tuple have the operands of the tuple whose elements it reads."""
    if init.opcode != "tuple":
        return
    old = init.operands
    init.operands = [o.operands[0].operands[o.tuple_index] if _reads_tuple(o) else o for o in old]
    remove_unused([o for o in old if not o.users])


def _reads_tuple(value: HloInstruction) -> bool:
    return value.opcode == "get-tuple-element" and value.operands[0].opcode == "tuple"


def _counter_of_inlined(module: HloModule, loop: HloInstruction) -> LoopCounter | None:
    """Inline the calls of scalars in body and condition, where the counter may be computed, and return the counter."""
    calls = [
        i
        for c in (loop.while_body, loop.while_condition)
        for i in c.instructions
        if i.opcode == "call" and not any(o.shape.is_array and o.shape.dims for o in i.operands)
    ]
    for call in calls:
        inline_call(module, call)
        remove_unused([call])
    return find_counter(loop) if calls else None


def _unroll(module: HloModule, loop: HloInstruction, counter: LoopCounter, wraps: bool) -> None:
    body, count = loop.while_body, counter.trip_count
    assert count is not None, "the counter has a trip count"
    assert loop.parent is not None, "the loop is in a computation"
    if wraps:
        once = HloComputation(f"{body.name}.unrolled", body.where)
        state = once.add(HloInstruction("param", "parameter", loop.shape, (), {"parameter_number": 0}))
        module.add_computation(once)
    else:
        once, state = loop.parent, loop.operands[0]
    for number in range(count):
        state = _copy(body, once, state, counter, number)
    if not wraps:
        module.replace(loop, state)
        remove_unused([loop])
        _read_elements(module, state)
        return
    once.root = state
    test = HloComputation(f"{loop.while_condition.name}.unrolled", body.where)
    whole = test.add(HloInstruction("param", "parameter", loop.shape, (), {"parameter_number": 0}))
    editor = Editor(whole)
    value = editor.element(whole, counter.index)
    root = editor.compare(value, editor.constant(counter.init, value.shape.element_type), "EQ")
    test.root = root
    module.add_computation(test)
    loop.called = {**loop.called, "body": (once,), "condition": (test,)}
    loop.attrs.pop("backend_config", None)
    loop.touch()


def _copy(body: HloComputation, into: HloComputation, state: HloInstruction, counter: LoopCounter, number: int) -> HloInstruction:
    """Add one iteration, in which the counter is a constant, and return the state after it."""
    made = copy_body(body, into, state)
    for old, new in made.items():
        if old.opcode == "get-tuple-element" and old.operands[0] is body.parameters[0]:
            is_counter = old.tuple_index == counter.index
            if is_counter:
                value = Editor(new).constant(counter.init + number * counter.step, new.shape.element_type)
            elif state.opcode == "tuple":
                value = state.operands[old.tuple_index]
            else:
                continue
            for user in list(new.users):
                user.replace_operand(new, value)
    return made[body.root]


def _read_elements(module: HloModule, state: HloInstruction) -> None:
    for user in [user for user in state.users if user.opcode == "get-tuple-element"]:
        module.replace(user, state.operands[user.tuple_index])
        remove_unused([user])
