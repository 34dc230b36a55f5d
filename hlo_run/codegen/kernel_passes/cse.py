"""Eliminate common subexpressions: replace a pure op by an equal earlier op that is visible to it.

    %0 = arith.addi %a, %b : i32            %0 = arith.addi %a, %b : i32
    %1 = arith.addi %b, %a : i32      =>
    use(%1)                                 use(%0)

Visible ops are those before the op in its block and in the enclosing blocks. Equal ops have the same name, operands (in any
order if the op is commutative), properties, attributes and types; the HLO instruction of origin does not count. pure_call
is pure; allocate_shared, sync_threads, atomic_rmw and calls are not. Ops with regions are not merged. Dead ops are erased.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from hlo_run.dialects.editing.functions import functions
from hlo_run.dialects.editing.merging import merge_equal_ops
from hlo_run.dialects.editing.rewriting import unlimited


@dataclass(frozen=True)
class Cse(ModulePass):
    """Replaces a pure op by an equal earlier op that is visible to it. `take` allows a rewrite."""

    name = "cse"
    take: Callable[[], bool] = unlimited

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Merge equal ops in every function."""
        for function in functions(op):
            merge_equal_ops(function.body, self.take)
