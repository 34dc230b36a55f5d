"""Expand powers of integers to squares and products.

    %y = math.ipowi %x, %n : i32   =>   %s1 = arith.muli %x, %x : i32
                                        %r1 = %n & 1 ? %x : 1, and so on for six bits of %n

A negative exponent gives 1 for base 1, 1 or -1 for base -1, else 0. Only the low six bits of the exponent count, as in XLA.
It is not a row of the kernel table, because our emitters write the expansion. Mirrors XLA's pass `expand-integer-power`.
"""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects import math
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block
from xdsl.passes import ModulePass

from hlo_run.codegen.elemental.builder import IrBuilder
from hlo_run.codegen.elemental.integer import power
from hlo_run.dialects.editing.rewriting import ops_in, replace_op
from hlo_run.dialects.types import is_vector


class IntegerPower(ModulePass):
    """Replaces `math.ipowi` by arithmetic."""

    name = "integer-power"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Expand every power of scalars in the module."""
        for inner in ops_in(op):
            if type(inner) is math.IPowIOp and not is_vector(inner.result.type):
                _expand(inner)


def _expand(op: math.IPowIOp) -> None:
    # The builder appends to a block, whose ops then move before the op.
    block = Block()
    builder = IrBuilder(block, index_bits=32)
    result = power(builder, op.lhs, op.rhs)
    anchor = op.parent_block()
    assert anchor is not None, "an op of a module is in a block"
    for added in [*block.ops]:
        added.detach()
        anchor.insert_op_before(added, op)
    replace_op(op, [result])
