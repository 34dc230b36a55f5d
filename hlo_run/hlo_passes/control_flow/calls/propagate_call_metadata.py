"""Prefix the names of the framework's operations in called computations with the name of the call.

    call(x), to_apply=f, metadata={op_name="outer"}     f: tanh(p), metadata={op_name="tanh"}   =>   .. {op_name="outer/tanh"}

XLA's `PropagateCallMetadata`: outer calls come first. Stack frames are joined in the same way, and the instructions of loops and
branches in a called computation are named too.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.subgraphs.inlining import name_after
from hlo_run.pass_support.hlo_pass import PassContext


class PropagateCallMetadata(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "propagate-call-metadata"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        if not module.instructions_of("call"):
            return
        frames = module.stack_frames
        for computation in reversed(module.computations):
            for call in computation.post_order() if not computation.is_fusion else ():
                for inner in call.to_apply.post_order() if call.opcode == "call" else ():
                    name_after(inner, call, frames)
