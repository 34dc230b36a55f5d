"""Folds `scf.if` and `scf.for`: constant conditions, loops of zero or one step, unused or known results."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import arith, scf
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from hlo_run.dialects.editing.loops import hand_on_origin, yield_of
from hlo_run.dialects.editing.rewriting import inline_block, replace_op, replace_value
from hlo_run.dialects.types import constant_int, is_tensor


def simplify_if(op: scf.IfOp) -> scf.IfOp | None:
    """Simplify an `scf.if` whose regions are simplified. Returns the op or its replacement, None if it is erased.

    The ops of a branch that is always taken move to the position of the `scf.if`.
    """
    condition = constant_int(op.cond)
    if condition is not None:
        block = (op.true_region if condition else op.false_region).blocks.first
        replace_op(op, inline_block(block, op, ()) if block is not None else ())
        return None
    if not op.results:
        return op
    for result, left, right in zip(op.results, *_chosen(op), strict=True):
        if left is right:
            replace_value(result, left)  # both branches see it, so it is defined outside
    op = _without_unused_results(op)
    return None if _became_selects(op) else op


def _chosen(op: scf.IfOp) -> tuple[Sequence[SSAValue], Sequence[SSAValue]]:
    """Return the values that the two branches yield."""
    return yield_of(op.true_region.block).operands, yield_of(op.false_region.block).operands


def _without_unused_results(op: scf.IfOp) -> scf.IfOp:
    used = [result.first_use is not None for result in op.results]
    if all(used):
        return op
    for region in op.regions:
        end = yield_of(region.block)
        end.operands = _where(end.operands, used)
    kept = _where(op.results, used)
    then, other = op.detach_region(0), op.detach_region(0)
    new = scf.IfOp(op.cond, [result.type for result in kept], then, other, dict(op.attributes))
    _take_place(op, kept, new)
    return new


def _became_selects(op: scf.IfOp) -> bool:
    """Replace an `scf.if` with empty branches by selects. Tensors become buffers later and cannot be selected."""
    if not op.results or any(is_tensor(result.type) for result in op.results):
        return False
    if any(region.block.first_op is not region.block.last_op for region in op.regions):
        return False
    for result, left, right in zip(op.results, *_chosen(op), strict=True):
        select = arith.SelectOp(op.cond, left, right)
        Rewriter.insert_op(hand_on_origin(op, select), InsertPoint.before(op))
        select.result.name_hint = result.name_hint
        replace_value(result, select.result)
    Rewriter.erase_op(op)
    return True


def simplify_for(loop: scf.ForOp) -> scf.ForOp | None:
    """Simplify a loop. Returns the loop or its replacement, None if it is erased.

    The body of a loop of one step moves to the position of the loop.
    """
    trips = constant_trips(loop)
    if trips == 0:
        replace_op(loop, loop.iter_args)
        return None
    if trips == 1:
        replace_op(loop, inline_block(loop.body.block, loop, (loop.lb, *loop.iter_args)))
        return None
    return _without_idle_values(loop)


def constant_trips(loop: scf.ForOp) -> int | None:
    """Return the trip count of a loop with constant bounds and step; None for any other loop.

    If both bounds are the same value, the trip count is 0.
    """
    lower, upper, step = constant_int(loop.lb), constant_int(loop.ub), constant_int(loop.step)
    if lower is None or upper is None or step is None or step <= 0:
        return 0 if loop.lb is loop.ub else None
    return max(0, -((lower - upper) // step))


def _without_idle_values(loop: scf.ForOp) -> scf.ForOp:
    """Drop iteration values that no step changes, and unused iteration values."""
    body = loop.body.block
    end = yield_of(body)
    kept: list[bool] = []
    for arg, init, result, yielded in zip(body.args[1:], loop.iter_args, loop.results, end.operands, strict=True):
        if yielded is arg or yielded is init:
            replace_value(arg, init)
            replace_value(result, init)
        kept.append(arg.first_use is not None or result.first_use is not None)
    if all(kept):
        return loop
    end.operands = _where(end.operands, kept)
    for arg, keep in zip(body.args[:0:-1], kept[::-1], strict=True):
        if not keep:
            body.erase_arg(arg)
    results = _where(loop.results, kept)
    new = scf.ForOp(loop.lb, loop.ub, loop.step, _where(loop.iter_args, kept), loop.detach_region(0))
    new.attributes |= loop.attributes
    _take_place(loop, results, new)
    return new


def _where(values: Sequence[SSAValue], kept: Sequence[bool]) -> list[SSAValue]:
    return [value for value, keep in zip(values, kept, strict=True) if keep]


def _take_place(op: Operation, kept: Sequence[SSAValue], new: Operation) -> None:
    Rewriter.insert_op(new, InsertPoint.before(op))
    for old, result in zip(kept, new.results, strict=True):
        result.name_hint = old.name_hint
        replace_value(old, result)
    Rewriter.erase_op(op)
