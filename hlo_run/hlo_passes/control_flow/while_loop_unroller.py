"""Unroll loops that count from one constant to another: copies of the body, one for each iteration, replace the loop.

    w = while(tuple(0, x)), .. for i < 3   =>   x1 = body(x), i = 0; x2 = body(x1), i = 1; x3 = body(x2), i = 2

With `wrap_in_trivial_loop` the copies are the body of a loop that runs once. XLA's `WhileLoopUnroller`. Small loops alone are
unrolled; loops that send or receive are not. Constants of the state are sunk into the bodies first.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import remove_uncalled
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.hlo_passes.subgraphs.loops.constants import ConstantSinking
from hlo_run.hlo_passes.subgraphs.loops.unrolling import UnrollLimits, unroll


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
            if loop.parent is not None and loop.parent.module is not None:
                unroll(module, loop, limits, self.wrap_in_trivial_loop)
        if module.version != version:
            remove_uncalled(module)
