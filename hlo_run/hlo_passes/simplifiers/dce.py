"""Remove unused instructions and uncalled computations.

    a = f32[8] negate(p);  ROOT b = f32[8] abs(p)   =>   ROOT b = f32[8] abs(p)

Parameters, instructions with effects and those with control dependencies stay. XLA's `HloDCE`, without its removal of unused
results of fusions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hlo_run.hlo.edit import remove_dead
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.hlo_pass import PassContext


@dataclass(frozen=True)
class Dce:
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "dce"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit all computations in place."""
        del ctx
        remove_dead(module)
