"""Unroll short loops wholly and longer ones in part.

    %r = scf.for %i = %c0 to %c2 step %c1 iter_args(%t = %a) {       %x = vector.extract %v[%c0]
      %x = vector.extract %v[%i]                                     %y = f(%x, %a)
      %y = f(%x, %t)                                            =>   %x_0 = vector.extract %v[%c1]
      scf.yield %y                                                   %r = f(%x_0, %y)
    }

For loops 0, 1, .. up to a constant, inner ones first; not around calls, other loops or the inverse trigonometric and
hyperbolic functions, which become long code. Up to `max_unroll_factor` steps: wholly. More: by the largest divisor of
the number of steps that keeps the body under 400 operations, a function of math counting as 20. Positions stay index
values, `%c1`, as they were induction variables.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, func, math, scf
from xdsl.dialects.builtin import AnyFloat, IndexType, IntegerAttr, ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from hlo_run.dialects.loops import counted_trips, yield_of
from hlo_run.dialects.types import is_vector

_MAX_BODY_SIZE = 400
_MATH_SIZE = 20
_NEVER_UNROLLED = (
    func.CallOp,
    scf.ForOp,
    math.AcosOp,
    math.AcoshOp,
    math.AsinOp,
    math.AsinhOp,
    math.AtanhOp,
    math.SinhOp,
)
_SHORT_MATH = (
    math.AbsFOp,
    math.CeilOp,
    math.CopySignOp,
    math.FloorOp,
    math.FmaOp,
    math.RoundEvenOp,
    math.RoundOp,
    math.RsqrtOp,
    math.SqrtOp,
    math.TruncOp,
)


@dataclass(frozen=True)
class OptimizeLoops(ModulePass):
    name = "optimize-loops"
    max_unroll_factor: int = 4

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for loop in [loop for loop in op.walk(region_first=True) if isinstance(loop, scf.ForOp)]:
            trips = counted_trips(loop)
            factor = self._factor(loop, trips) if trips is not None else 1
            if factor == trips:
                _unroll_wholly(loop, factor)
            elif factor > 1:
                _unroll_in_part(loop, factor)

    def _factor(self, loop: scf.ForOp, trips: int) -> int:
        """Return how many steps shall become one; 1 to leave the loop as it is."""
        size = _body_size(loop)
        if size is None or trips < 1:
            return 1
        if trips <= self.max_unroll_factor:
            return trips
        factor = min(trips, _MAX_BODY_SIZE // size)
        while factor > 1 and trips % factor:
            factor -= 1
        return max(factor, 1)


def _body_size(loop: scf.ForOp) -> int | None:
    """Return an estimate of how many instructions one step is; None if the loop must not be unrolled."""
    size = 0
    for op in loop.body.walk():
        if isinstance(op, _NEVER_UNROLLED):
            return None
        size += _size(op)
    return size


def _size(op: Operation) -> int:
    if not op.results:
        return 1
    type_ = op.results[0].type
    element = type_.get_element_type() if is_vector(type_) else type_
    is_long = op.name.startswith("math.") and not isinstance(op, _SHORT_MATH) and isa(element, AnyFloat)
    return (_MATH_SIZE if is_long else 1) * (type_.element_count() if is_vector(type_) else 1)


def _unroll_wholly(loop: scf.ForOp, trips: int) -> None:
    values: list[SSAValue] = list(loop.iter_args)
    copies: list[Operation] = []
    for number in range(trips):
        values = _copy_step(loop, copies, [_constant(number, loop), *values])
    Rewriter.insert_op(copies, InsertPoint.before(loop))
    for result, value in zip(loop.results, values, strict=True):
        result.name_hint = None  # it names a loop, not the value of its last step
        result.replace_all_uses_with(value)
    Rewriter.erase_op(loop)


def _unroll_in_part(loop: scf.ForOp, factor: int) -> None:
    """Put `factor` steps into one, and let the loop go `factor` at a time."""
    body = loop.body.block
    end = yield_of(body)
    values: list[SSAValue] = list(end.operands)
    copies: list[Operation] = []
    for number in range(1, factor):
        shifted = arith.AddiOp(body.args[0], _constant(number, loop))
        copies.append(shifted)
        values = _copy_step(loop, copies, [shifted.result, *values])
    Rewriter.insert_op(copies, InsertPoint.before(end))
    end.operands = values
    loop.operands[2] = _constant(factor, loop)


def _copy_step(loop: scf.ForOp, copies: list[Operation], arguments: list[SSAValue]) -> list[SSAValue]:
    """Append a copy of the loop's body for these block arguments to `copies`; return what it yields."""
    body = loop.body.block
    end = yield_of(body)
    mapping: dict[SSAValue, SSAValue] = dict(zip(body.args, arguments, strict=True))
    copies += [op.clone(mapping) for op in body.ops if op is not end]
    return [mapping.get(value, value) for value in end.operands]


def _constant(number: int, loop: scf.ForOp) -> SSAValue:
    """Return the index constant, made in front of the loop."""
    if number == 0:
        return loop.lb
    if number == 1:
        return loop.step
    constant = arith.ConstantOp(IntegerAttr(number, IndexType()))
    Rewriter.insert_op(constant, InsertPoint.before(loop))
    return constant.result
