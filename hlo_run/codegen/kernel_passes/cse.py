"""Merge ops that compute the same: of two equal pure ops the second goes, where the first is in sight of it.

    %0 = arith.addi %a, %b : i32            %0 = arith.addi %a, %b : i32
    %1 = arith.addi %b, %a : i32      =>
    use(%1)                                 use(%0)

An op sees what stands before it in its own block and around that. Equal means: same op, operands (in any order if the op
is commutative), properties, attributes and types; the HLO instruction an op comes from does not count. pure_call counts as
pure; allocate_shared, sync_threads, atomic_rmw and calls do not. Ops with regions are not merged, dead ops are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from hlo_run.dialects.editing.functions import functions
from hlo_run.dialects.editing.merging import merge_equal_ops


@dataclass(frozen=True)
class Cse(ModulePass):
    name = "cse"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in functions(op):
            merge_equal_ops(function.body)
