"""Unroll short loops completely and longer loops in part.

    %r = scf.for %i = %c0 to %c2 step %c1 iter_args(%t = %a) {       %x = vector.extract %v[%c0]
      %x = vector.extract %v[%i]                                     %y = f(%x, %a)
      %y = f(%x, %t)                                            =>   %x_0 = vector.extract %v[%c1]
      scf.yield %y                                                   %r = f(%x_0, %y)
    }

The pass visits loops over 0, 1, .. up to a constant, inner loops first. It skips loops with calls, other loops, or inverse
trigonometric and hyperbolic functions, which become long code. A loop of up to `max_unroll_factor` steps is unrolled
completely. A longer loop is unrolled by the largest divisor of its trip count that keeps the body at 400 operations or
fewer; a math function counts as 20. Vector positions stay index values (`%c1`). Constants are inserted at the start of the
function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, func, math, scf, vector
from xdsl.dialects.builtin import AnyFloat, ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from hlo_run.dialects.editing.index_constants import IndexConstants
from hlo_run.dialects.editing.loops import counted_trips, yield_of
from hlo_run.dialects.editing.rewriting import unlimited
from hlo_run.dialects.types import is_vector
from hlo_run.dialects.xla_gpu import ApplyIndexingOp

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
    """Unrolls loops of few steps completely, and longer loops by up to `max_unroll_factor`. `take` allows to unroll."""

    name = "optimize-loops"
    max_unroll_factor: int = 4
    take: Callable[[], bool] = unlimited

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Unroll the loops of every function, inner loops first."""
        for function in op.body.block.ops:
            if isinstance(function, func.FuncOp) and (entry := function.body.blocks.first) is not None:
                self._unroll_loops(function, IndexConstants(entry))

    def _unroll_loops(self, function: func.FuncOp, constants: IndexConstants) -> None:
        overheads: dict[Operation, int] = {}
        for loop in [loop for loop in function.walk(region_first=True) if isinstance(loop, scf.ForOp)]:
            trips = counted_trips(loop)
            if trips is None:
                continue
            factor = self._factor(loop, trips, overheads.get(loop, 0))
            if (factor == trips or factor > 1) and not self.take():
                continue
            if factor == trips:
                around = _loop_around(loop)
                if around is not None:
                    overheads[around] = overheads.get(around, 0) + _overhead(trips, overheads.get(loop, 0))
                _unroll_wholly(loop, factor, constants)
            elif factor > 1:
                _unroll_in_part(loop, factor, constants)

    def _factor(self, loop: scf.ForOp, trips: int, overhead: int) -> int:
        """Return the unroll factor; 1 if the loop is not unrolled."""
        size = _body_size(loop)
        if size is None or trips < 1:
            return 1
        if trips <= self.max_unroll_factor:
            return trips
        factor = _largest_divisor(trips, _MAX_BODY_SIZE // (size + overhead))
        # XLA visits a loop that it did not unroll once more, and the overhead is gone then.
        return factor if factor > 1 else _largest_divisor(trips, _MAX_BODY_SIZE // size)


def _largest_divisor(number: int, limit: int) -> int:
    return next((divisor for divisor in range(min(number, limit), 1, -1) if number % divisor == 0), 1)


def _loop_around(loop: scf.ForOp) -> scf.ForOp | None:
    around = loop.parent_op()
    while around is not None and not isinstance(around, scf.ForOp):
        around = around.parent_op()
    return around


def _overhead(trips: int, inner: int) -> int:
    """Return the number of ops that an unrolled loop adds to the enclosing loop, besides the copies of its body.

    XLA counts the index arithmetic that its unrolling leaves: constant, product and sum for each copy except the first, and
    a new step. Most of these ops are dead, but they must count here too for the factors to be XLA's.
    """
    return inner * trips + 3 * (trips - 1) + 1


def _body_size(loop: scf.ForOp) -> int | None:
    """Return an estimate of the instructions in one step; None if the loop must not be unrolled."""
    size = 0
    for op in loop.body.walk():
        if isinstance(op, _NEVER_UNROLLED):
            return None
        size += _size(op)
    return size


def _size(op: Operation) -> int:
    if not op.results:
        return 1
    if isinstance(op, arith.ConstantOp):
        return 0
    if isinstance(op, ApplyIndexingOp):
        return _index_count(op)
    type_ = op.results[0].type
    element = type_.get_element_type() if is_vector(type_) else type_
    is_long = op.name.startswith("math.") and not isinstance(op, _SHORT_MATH) and isinstance(element, AnyFloat)
    return (_MATH_SIZE if is_long else 1) * (type_.element_count() if is_vector(type_) else 1)


def _index_count(op: ApplyIndexingOp) -> int:
    """Return the number of index ops that XLA has here: one per vector load or store, and one for all other users."""
    users = [use.operation for result in op.results for use in result.uses]
    vectors = sum(isinstance(user, vector.TransferReadOp | vector.TransferWriteOp) for user in users)
    return vectors + (vectors < len(users)) if users else 1


def _unroll_wholly(loop: scf.ForOp, trips: int, constants: IndexConstants) -> None:
    values: list[SSAValue] = list(loop.iter_args)
    copies: list[Operation] = []
    for number in range(trips):
        values = _copy_step(loop, copies, [constants.get(number), *values])
    Rewriter.insert_op(copies, InsertPoint.before(loop))
    for result, value in zip(loop.results, values, strict=True):
        result.name_hint = None  # the name is of the loop, not of the value of its last step
        result.replace_all_uses_with(value)
    Rewriter.erase_op(loop)


def _unroll_in_part(loop: scf.ForOp, factor: int, constants: IndexConstants) -> None:
    """Append `factor` - 1 copies of the step to the loop body, and set the loop's step to `factor`."""
    body = loop.body.block
    end = yield_of(body)
    values: list[SSAValue] = list(end.operands)
    copies: list[Operation] = []
    for number in range(1, factor):
        shifted = arith.AddiOp(body.args[0], constants.get(number))
        copies.append(shifted)
        values = _copy_step(loop, copies, [shifted.result, *values])
    Rewriter.insert_op(copies, InsertPoint.before(end))
    end.operands = values
    loop.operands[2] = constants.get(factor)


def _copy_step(loop: scf.ForOp, copies: list[Operation], arguments: list[SSAValue]) -> list[SSAValue]:
    """Append a copy of the loop's body with these block arguments to `copies`, and return the yielded values."""
    body = loop.body.block
    end = yield_of(body)
    mapping: dict[SSAValue, SSAValue] = dict(zip(body.args, arguments, strict=True))
    copies += [op.clone(mapping) for op in body.ops if op is not end]
    return [mapping.get(value, value) for value in end.operands]
