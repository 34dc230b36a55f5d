"""Remove optimization barriers, after the passes that they hold back.

    b = opt-barrier(x)   =>   x

XLA's `OptimizationBarrierExpander`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import remove_unused
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.hlo_pass import PassContext


class CseBarrierExpander(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "cse_barrier_expander"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        barriers = module.instructions_of("opt-barrier")
        for barrier in barriers:
            module.replace(barrier, barrier.operands[0])
        remove_unused(barriers)
