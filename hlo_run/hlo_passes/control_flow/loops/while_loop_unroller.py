"""Unroll loops that count from one constant to another: copies of the body, one for each iteration, replace the loop.

    w = while(tuple(0, x)), .. for i < 3   =>   x1 = body(x), i = 0; x2 = body(x1), i = 1; x3 = body(x2), i = 2

With `wrap_in_trivial_loop` the copies are the body of a loop that runs once. XLA's `WhileLoopUnroller`. Small loops alone are
unrolled; loops that send or receive are not. Constants of the state are sunk into the bodies first.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.loop_counter import find_counter
from hlo_run.hlo.edit import remove_replaced, remove_uncalled
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.control_flow.loops.constants import ConstantSinking
from hlo_run.hlo_passes.subgraphs.inlining import inline_call
from hlo_run.hlo_passes.subgraphs.loops.unrolling import UnrollLimits, may_unroll, unroll
from hlo_run.pass_support.hlo_pass import PassContext


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
        limits = UnrollLimits(self.trip_count_threshold, self.instruction_count_threshold, self.expand_factor_threshold)
        for loop in reversed(module.instructions_of("while")):
            if loop.parent is None or loop.parent.module is None:
                continue
            is_done = unroll(module, loop, limits, self.wrap_in_trivial_loop)
            if not is_done and may_unroll(loop) and find_counter(loop) is None and _inline_scalars(module, loop):
                unroll(module, loop, limits, self.wrap_in_trivial_loop)
        if module.version != version:
            remove_uncalled(module)


def _inline_scalars(module: HloModule, loop: HloInstruction) -> bool:
    """Inline the calls of scalars in body and condition, where the counter may be computed; True if there were any."""
    calls = [
        i
        for c in (loop.while_body, loop.while_condition)
        for i in c.instructions
        if i.opcode == "call" and not any(o.shape.is_array and o.shape.dims for o in i.operands)
    ]
    for call in calls:
        inline_call(module, call)
        remove_replaced(call)
    return bool(calls)
