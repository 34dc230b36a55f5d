"""Let a kernel wait for the kernels before it at its beginning, so that it can be launched before they have ended.

    func.func @k(%a: tensor<8xf32>) -> ..  {     =>    func.func @k(%a: tensor<8xf32>) -> .. {
                                                         xla_gpu.pdl_wait

Every public function is a kernel. A kernel that already waits stays as it is. Mirrors XLA's pass; its early launch of dependents
follows a matrix product of Triton, which our kernels do not have.
"""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from hlo_run.dialects.pdl import PdlWaitOp


class InsertPdl(ModulePass):
    """Inserts `xla_gpu.pdl_wait` at the beginning of kernels."""

    name = "insert-pdl"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Insert the wait in each public function with a body."""
        for function in op.body.block.ops:
            if not isinstance(function, func.FuncOp) or not function.body.blocks or _is_private(function):
                continue
            block = function.body.blocks[0]
            if not isinstance(block.first_op, PdlWaitOp):
                Rewriter.insert_op(PdlWaitOp(), InsertPoint.at_start(block))


def _is_private(function: func.FuncOp) -> bool:
    return function.sym_visibility is not None and function.sym_visibility.data == "private"
