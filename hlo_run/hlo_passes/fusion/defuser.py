"""Replace every fusion by the instructions of its computation.

    f = f32[8] fusion(x), calls=c   =>   t = f32[8] tanh(x); f = f32[8] negate(t)

XLA's `Defuser`. It lets a module that was compiled for one platform run on another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hlo_run.hlo.edit import remove_uncalled, remove_unused
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.hlo_passes.subgraphs.inlining import inline


@dataclass(frozen=True)
class Defuser:
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "defuser"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit all computations in place; a fusion inside a fusion ends in the computation of the outer one."""
        del ctx
        version = module.version
        while fusions := [i for c in module.computations if not c.is_fusion for i in c.instructions if i.opcode == "fusion"]:
            for fusion in fusions:
                inline(module, fusion, fusion.fused_computation)
                fusion.control_predecessors = []
                users = list(fusion.users)
                assert not users, "the inlined root has the users"
                remove_unused([fusion])
                if fusion.parent is not None:
                    fusion.parent.remove(fusion)
            remove_uncalled(module)
        if module.version != version:
            remove_uncalled(module)
