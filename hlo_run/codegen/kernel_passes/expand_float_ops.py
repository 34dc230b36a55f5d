"""Expand f32 tanh and erf to quotients of polynomials, and bf16 abs and floats of at most 8 bits to integer arithmetic.

    %y = math.tanh %x : f32   =>   %c = clamp %x to +-7.9988..
                                   %y = |%x| < 0.0004 ? %c : %c * P(%c * %c) / Q(%c * %c)

    %y = math.absf %x : bf16  =>   %y = bitcast (bitcast %x : i16 & 0x7fff) : bf16

    %y = arith.truncf %x : f32 to f8E3M4   =>   integer arithmetic (see `small_floats`); likewise extf, and cmpf by way of f32

tanh and erf of other types than f32 are left to libdevice. P and Q are evaluated by Horner's rule with fma, highest power
first. Mirrors XLA's ExpandFloatOps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct, field
from xdsl.context import Context
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, ModuleOp, bf16, f32, i16
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from hlo_run.dialects.editing.loops import hand_on_origin
from hlo_run.dialects.editing.rewriting import ops_in
from hlo_run.dialects.small_floats import extend, is_small_float, truncate

# Coefficients of powers of x², highest power first.
_TANH_LIMIT = 7.99881172180175781
_TANH_IS_X_BELOW = 0.0004
_TANH_NUMERATOR = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928875436e-04,
    4.89352455891786e-03,
)
_TANH_DENOMINATOR = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
_ERF_IS_ONE_FROM = 3.7439211627767994
_ERF_NUMERATOR = (
    0.00022905065861350646,
    0.0034082910107109506,
    0.050955695062380861,
    0.18520832239976145,
    1.128379143519084,
)
_ERF_DENOMINATOR = (
    -1.1791602954361697e-7,
    0.000023547966471313185,
    0.0010179625278914885,
    0.014070470171167667,
    0.11098505178285362,
    0.49746925110067538,
    1.0,
)
_BF16_MAGNITUDE = 0x7FFF


class ExpandFloatOps(ModulePass):
    """Expands f32 tanh and erf, bf16 abs, and ops on floats of at most 8 bits."""

    name = "expand-float-ops"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Replace each op that has an expansion for its type."""
        for each in ops_in(op):
            found = _EXPANSIONS.get(type(each))
            if found is not None:
                type_, expand = found
                if each.results[0].type == type_:
                    _replace(each, each.operands[0], expand)
            elif type(each) in _SMALL_FLOAT_OPS and any(is_small_float(v.type) for v in (each.operands[0], each.results[0])):
                _expand_small(each)


class _Formula(Struct):
    """Builds the ops of an expansion. Equal constants share one op."""

    ops: list[Operation] = field(default_factory=list[Operation])
    constants: dict[float, SSAValue] = field(default_factory=dict[float, SSAValue])

    def add(self, op: Operation) -> SSAValue:
        self.ops.append(op)
        return op.results[0]

    def constant(self, number: float) -> SSAValue:
        if number not in self.constants:
            self.constants[number] = self.add(arith.ConstantOp(FloatAttr(number, f32)))
        return self.constants[number]

    def polynomial(self, x: SSAValue, coefficients: Sequence[float]) -> SSAValue:
        """Return the value of a polynomial at x; coefficients are ordered from the highest power."""
        value = self.constant(coefficients[0])
        for coefficient in coefficients[1:]:
            value = self.add(math.FmaOp(value, x, self.constant(coefficient)))
        return value

    def odd_quotient(self, x: SSAValue, numerator: Sequence[float], denominator: Sequence[float]) -> SSAValue:
        """Return x * P(x * x) / Q(x * x)."""
        square = self.add(arith.MulfOp(x, x, flags=None))
        above = self.add(arith.MulfOp(x, self.polynomial(square, numerator), flags=None))
        return self.add(arith.DivfOp(above, self.polynomial(square, denominator), flags=None))

    def select(self, left: SSAValue, predicate: str, right: SSAValue, then: SSAValue, otherwise: SSAValue) -> SSAValue:
        """Return `left predicate right ? then : otherwise`."""
        return self.add(arith.SelectOp(self.add(arith.CmpfOp(left, right, predicate)), then, otherwise))


def _replace(op: Operation, operand: SSAValue, expand: Callable[[_Formula, SSAValue], SSAValue]) -> None:
    formula = _Formula()
    result = expand(formula, operand)
    for new in formula.ops:
        hand_on_origin(op, new)
    Rewriter.replace_op(op, formula.ops, [result])


def _expand_small(op: Operation) -> None:
    """Replace a conversion or comparison of floats of at most 8 bits."""
    formula = _Formula()
    match op:
        case arith.ExtFOp():
            result = extend(formula.add, op.input, op.result.type)
        case arith.TruncFOp():
            result = truncate(formula.add, op.input, op.result.type)
        case arith.CmpfOp():
            left, right = (extend(formula.add, operand, f32) for operand in (op.lhs, op.rhs))
            result = formula.add(arith.CmpfOp(left, right, op.predicate.value.data))
        case arith.SIToFPOp() | arith.UIToFPOp():
            # As in XLA: an integer of more than 24 bits is rounded twice.
            result = truncate(formula.add, formula.add(type(op)(op.operands[0], f32)), op.results[0].type)
        case arith.FPToSIOp() | arith.FPToUIOp():
            target: Any = op.results[0].type  # an integer type, says the verifier
            result = formula.add(type(op)(extend(formula.add, op.operands[0], f32), target))
        case _:
            raise AssertionError(f"{op.name} is not an op of small floats")
    for new in formula.ops:
        hand_on_origin(op, new)
    Rewriter.replace_op(op, formula.ops, [result])


def _tanh(formula: _Formula, x: SSAValue) -> SSAValue:
    # Unordered comparisons keep NaN.
    high, low = formula.constant(_TANH_LIMIT), formula.constant(-_TANH_LIMIT)
    below = formula.select(x, "ult", high, x, high)
    clamped = formula.select(below, "ugt", low, below, low)
    magnitude = formula.add(math.AbsFOp(x))
    quotient = formula.odd_quotient(clamped, _TANH_NUMERATOR, _TANH_DENOMINATOR)
    return formula.select(magnitude, "olt", formula.constant(_TANH_IS_X_BELOW), clamped, quotient)


def _erf(formula: _Formula, x: SSAValue) -> SSAValue:
    limit = formula.constant(_ERF_IS_ONE_FROM)
    magnitude = formula.add(math.AbsFOp(x))
    one = formula.add(math.CopySignOp(formula.constant(1.0), x))
    above = formula.add(arith.MaximumfOp(x, formula.constant(-_ERF_IS_ONE_FROM), flags=None))
    clamped = formula.add(arith.MinimumfOp(above, limit, flags=None))
    quotient = formula.odd_quotient(clamped, _ERF_NUMERATOR, _ERF_DENOMINATOR)
    return formula.select(magnitude, "oge", limit, one, quotient)


def _absolute_bf16(formula: _Formula, x: SSAValue) -> SSAValue:
    bits = formula.add(arith.BitcastOp(x, i16))
    mask = formula.add(arith.ConstantOp(IntegerAttr(_BF16_MAGNITUDE, i16)))
    return formula.add(arith.BitcastOp(formula.add(arith.AndIOp(bits, mask)), bf16))


_SMALL_FLOAT_OPS = frozenset(
    (arith.ExtFOp, arith.TruncFOp, arith.CmpfOp, arith.SIToFPOp, arith.UIToFPOp, arith.FPToSIOp, arith.FPToUIOp)
)
_EXPANSIONS: dict[type[Operation], tuple[Attribute, Callable[[_Formula, SSAValue], SSAValue]]] = {
    math.TanhOp: (f32, _tanh),
    math.ErfOp: (f32, _erf),
    math.AbsFOp: (bf16, _absolute_bf16),
}
