"""Expand divisions that round up or down to divisions that round towards zero.

    %q = arith.ceildivui %a, %b   =>   %t = arith.divui %a, %b;  %r = arith.muli %t, %b;  %q = %t + (%r != %a)

    %q = arith.floordivsi %a, %b  =>   %t = arith.divsi %a, %b;  %r = arith.remsi %a, %b
                                       %q = %t - (%r != 0 and the signs of %r and %b differ)

Mirrors MLIR's pass of this name.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, IntegerAttr, ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from hlo_run.dialects.editing.loops import hand_on_origin
from hlo_run.dialects.editing.rewriting import ops_in, replace_op
from hlo_run.dialects.types import is_integer


class ArithExpand(ModulePass):
    """Expands ceildivui, ceildivsi and floordivsi."""

    name = "arith-expand"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Expand every such division."""
        for inner in ops_in(op):
            if (expand := _EXPANDED.get(type(inner))) is not None:
                replace_op(inner, [expand(inner, *inner.operands)])


def _add(op: Operation, new: Operation) -> SSAValue:
    Rewriter.insert_op(hand_on_origin(op, new), InsertPoint.before(op))
    return new.results[0]


def _number(op: Operation, value: int) -> SSAValue:
    type_ = op.results[0].type
    assert is_integer(type_) or isinstance(type_, IndexType), "the division is of integers"
    return _add(op, arith.ConstantOp(IntegerAttr(value, type_)))


def _chosen(op: Operation, condition: SSAValue, quotient: SSAValue, step: int) -> SSAValue:
    """Return the quotient, with `step` added where the condition holds."""
    moved = _add(op, arith.AddiOp(quotient, _number(op, step)))
    return _add(op, arith.SelectOp(condition, moved, quotient))


def _unsigned_up(op: Operation, one: SSAValue, two: SSAValue) -> SSAValue:
    quotient = _add(op, arith.DivUIOp(one, two))
    whole = _add(op, arith.MuliOp(quotient, two))
    return _chosen(op, _add(op, arith.CmpiOp(whole, one, "ne")), quotient, 1)


def _signed(op: Operation, one: SSAValue, two: SSAValue, *, up: bool) -> SSAValue:
    quotient, rest = _add(op, arith.DivSIOp(one, two)), _add(op, arith.RemSIOp(one, two))
    zero = _number(op, 0)
    has_rest = _add(op, arith.CmpiOp(rest, zero, "ne"))
    of_rest, of_divisor = (_add(op, arith.CmpiOp(value, zero, "slt")) for value in (rest, two))
    differ = _add(op, arith.CmpiOp(of_rest, of_divisor, "eq" if up else "ne"))
    return _chosen(op, _add(op, arith.AndIOp(has_rest, differ)), quotient, 1 if up else -1)


_EXPANDED: dict[type[Operation], Callable[[Operation, SSAValue, SSAValue], SSAValue]] = {
    arith.CeilDivUIOp: _unsigned_up,
    arith.CeilDivSIOp: lambda op, one, two: _signed(op, one, two, up=True),
    arith.FloorDivSIOp: lambda op, one, two: _signed(op, one, two, up=False),
}
