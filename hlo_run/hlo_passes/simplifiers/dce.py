"""Remove unused instructions, unused results of fusions, and uncalled computations.

    a = f32[8] negate(p);  ROOT b = f32[8] abs(p)   =>   ROOT b = f32[8] abs(p)

Parameters, instructions with effects and those with control dependencies stay. A fusion of which one result is left returns that
result instead of a tuple. With `for_gspmd`, modules that Shardy divides stay as they are. XLA's `HloDCE`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import remove_dead
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.unread_results import remove_unread_results
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.sharding.analysis.shardy_attributes import has_shardy_attributes


class Dce(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "dce"
    for_gspmd: bool = False

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit all computations in place."""
        if self.for_gspmd and ctx.options.use_shardy_partitioner and has_shardy_attributes(module):
            return
        remove_dead(module)
        remove_unread_results(module)
        remove_dead(module)
