"""Add a second dimension of size 1 to one-dimensional windows.

    reduce-window(f32[10] p, zero), window={size=3}
        =>   reshape f32[8] (reduce-window(reshape f32[10,1] (p), zero), window={size=3x1})

XLA's `ReduceWindowResizer`; its backends tile two dimensions.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.reductions.windows import has_one_dim, with_two_dims
from hlo_run.hlo_passes.subgraphs.expansion import expand
from hlo_run.pass_support.hlo_pass import PassContext


class ReduceWindowResizer(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "reduce-window-resizer"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        expand(module, ("reduce-window",), with_two_dims, has_one_dim, inherits=False)
