"""Lower complex arithmetic to arithmetic on real and imaginary parts.

    %z = complex.mul %x, %y   =>   %a = complex.re %x, .. ; %p = %a * %c - %b * %d; %q = %a * %d + %b * %c
                                   %z = complex.create %p, %q

Only complex.create, re, im and constant stay. Magnitudes are scaled if squares would overflow. Division handles infinities
as C's Annex G. Mirrors MLIR's ConvertComplexToStandard; the formulas are in `dialects/editing/complex_arithmetic.py`.
"""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from hlo_run.dialects.editing.complex_arithmetic import FUNCTIONS, Number, Parts
from hlo_run.dialects.editing.loops import hand_on_origin
from hlo_run.dialects.editing.rewriting import ops_in
from hlo_run.dialects.types import is_complex


class ConvertComplexToStandard(ModulePass):
    """Lowers complex ops to ops on real and imaginary parts."""

    name = "convert-complex-to-standard"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Replace the complex arithmetic and the selects of complex numbers."""
        for each in ops_in(op):
            if type(each) in FUNCTIONS:
                _replace(each)
            elif type(each) is arith.SelectOp and is_complex(each.result.type):
                _replace_select(each)


def _replace(op: Operation) -> None:
    parts = Parts.of(op.operands[0].type)
    result = FUNCTIONS[type(op)](parts, *(parts.split(operand) for operand in op.operands))
    value = parts.join(result) if isinstance(result, Number) else result
    for new in parts.ops:
        hand_on_origin(op, new)
    Rewriter.replace_op(op, parts.ops, [value])


def _replace_select(op: arith.SelectOp) -> None:
    parts = Parts.of(op.result.type)
    then, otherwise = parts.split(op.lhs), parts.split(op.rhs)
    value = parts.join(parts.choose(op.cond, then, otherwise))
    for new in parts.ops:
        hand_on_origin(op, new)
    Rewriter.replace_op(op, parts.ops, [value])
