"""Replace every fusion by the instructions of its computation.

    f = f32[8] fusion(x), calls=c   =>   t = f32[8] tanh(x); f = f32[8] negate(t)

XLA's `Defuser`. It lets a module that was compiled for one platform run on another.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.subgraphs.despecializing import defuse
from hlo_run.pass_support.hlo_pass import PassContext


class Defuser(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "defuser"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit all computations in place; a fusion inside a fusion ends in the computation of the outer one."""
        del ctx
        defuse(module)
