"""Expand a scatter of one update to a loop of one iteration, which later passes simplify to slices and a select.

    s = f32[64,128] scatter(p, s32[1,1] i, f32[1,3,128] u), to_apply=add
        =>   while (n < 1): old = dynamic-slice(p, i, 0);  new = map(old, u), to_apply=add
                            p = dynamic-update-slice(p, select(0 <= i and i <= 61, new, old), i, 0)

XLA's `ScatterExpander`, in its mode for simple scatters; with `every` in its mode for all of them.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import replace_each
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.views.indexed import Indexed
from hlo_run.hlo_passes.indexed.scatter_loop import scatter_loop
from hlo_run.pass_support.hlo_pass import PassContext


class ScatterExpander(Struct, frozen=True):
    """The pass; see the module's docstring. With `every`, a scatter of several updates becomes a loop, too."""

    name: ClassVar[str] = "scatter_expander"

    every: bool = False

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        replaced = [
            scatter
            for scatter in module.in_post_order("scatter")
            if _has_one_update(scatter) or (self.every and not scatter.control_predecessors)
        ]
        replace_each(module, replaced, lambda scatter: scatter_loop(module, scatter))


def _has_one_update(scatter: HloInstruction) -> bool:
    return Indexed.of(scatter).row_count == 1 and not scatter.input_batching_dims and not scatter.control_predecessors
