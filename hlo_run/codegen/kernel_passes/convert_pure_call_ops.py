"""Convert pure calls to ordinary calls, after the last pass that merges equal calls.

%v = xla_gpu.pure_call @f(%a) : (index) -> f32   =>   %v = func.call @f(%a) : (index) -> f32
"""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from hlo_run.dialects.editing.rewriting import ops_in
from hlo_run.dialects.xla_gpu import PureCallOp


class ConvertPureCallOps(ModulePass):
    """Converts `xla_gpu.pure_call` to `func.call`."""

    name = "convert-pure-call-ops"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Replace every pure call; the new call keeps its attributes."""
        for call in ops_in(op):
            if type(call) is PureCallOp:
                plain = func.CallOp(call.callee, call.arguments, call.result_types)
                plain.attributes |= call.attributes
                Rewriter.replace_op(call, plain)
