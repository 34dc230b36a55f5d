"""Lower the ops of dependent launches to PTX's `griddepcontrol`.

    xla_gpu.pdl_wait               =>   nvvm.griddepcontrol wait
    xla_gpu.pdl_launch_dependents  =>   nvvm.griddepcontrol launch_dependents

Mirrors XLA's pass.
"""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from hlo_run.dialects.editing.rewriting import ops_in
from hlo_run.dialects.nvvm import GridDependencyAction, GridDependencyOp
from hlo_run.dialects.pdl import PdlLaunchDependentsOp, PdlWaitOp


class LowerPdlWait(ModulePass):
    """Replaces `pdl_wait` and `pdl_launch_dependents` by `nvvm.griddepcontrol`."""

    name = "lower-pdl-wait"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Replace every op of a dependent launch in the module."""
        for inner in ops_in(op):
            if type(inner) is PdlWaitOp:
                Rewriter.replace_op(inner, GridDependencyOp(GridDependencyAction.WAIT))
            elif type(inner) is PdlLaunchDependentsOp:
                Rewriter.replace_op(inner, GridDependencyOp(GridDependencyAction.LAUNCH_DEPENDENTS))
