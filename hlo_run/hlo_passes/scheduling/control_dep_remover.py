"""Remove all control dependencies.

    b = f32[] negate(x), control-predecessors={a}   =>   b = f32[] negate(x)

XLA's `ControlDepRemover`. The order of instructions with side effects is then that of the text.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.subgraphs.despecializing import remove_control_dependencies
from hlo_run.pass_support.hlo_pass import PassContext


class ControlDepRemover(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "control-dep-remover"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit all computations in place."""
        del ctx
        remove_control_dependencies(module)
