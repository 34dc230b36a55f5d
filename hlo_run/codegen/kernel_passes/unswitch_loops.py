"""Unswitch loops: turn a loop around an `scf.if` with an invariant condition into an `scf.if` around two loops.

    scf.for %i .. iter_args(%t = %a) {          scf.if %c {
      %r = scf.if %c { A } else { B }      =>     scf.for %i .. iter_args(%t = %a) { A }
      scf.yield %r                              } else {
    }                                             scf.for %i .. iter_args(%t = %a) { B }

The `scf.if` must be the whole body, and its condition must be a value from outside that is not constant. A branch that only
passes the iteration values on becomes the loop's inits instead of a loop. The pass moves a thread's bounds check out of its
vector loop, so that the loop can be vectorised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from hlo_run.dialects.editing.loops import hand_on_origin, yield_of
from hlo_run.dialects.editing.rewriting import unlimited
from hlo_run.dialects.types import constant_int


@dataclass(frozen=True)
class UnswitchLoops(ModulePass):
    """Moves an invariant `scf.if` out of the loop around it. `take` allows a move."""

    name = "unswitch-loops"
    take: Callable[[], bool] = unlimited

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Unswitch every `scf.for`, inner loops first."""
        # Inner loops first: an unswitched loop can leave its scf.if as the whole body of the enclosing loop.
        pending = [loop for loop in op.walk(region_first=True) if type(loop) is scf.ForOp][::-1]
        while pending:
            pending += _unswitch(pending.pop(), self.take)


def _unswitch(loop: scf.ForOp, take: Callable[[], bool]) -> list[scf.ForOp]:
    """Unswitch one loop, and return the loops that replace it. Their bodies may be an `scf.if` again."""
    body = loop.body.block
    choice = body.first_op
    if not isinstance(choice, scf.IfOp) or choice.next_op is not body.last_op:
        return []
    if choice.cond.owner is body or constant_int(choice.cond) is not None or not take():
        return []
    other = _other_side(loop, choice)
    outer = scf.IfOp(choice.cond, [result.type for result in loop.results], Region(Block()), Region(Block()))
    hand_on_origin(choice, outer)
    Rewriter.insert_op(outer, InsertPoint.before(loop))
    for result, new in zip(loop.results, outer.results, strict=True):
        result.replace_all_uses_with(new)
        new.name_hint = None  # the loop keeps the name
    loop.detach()
    _keep_only(choice.true_region, choice)
    outer.true_region.block.add_ops([loop, scf.YieldOp(*loop.results)])
    if isinstance(other, scf.ForOp):
        outer.false_region.block.add_ops([other, scf.YieldOp(*other.results)])
        return [other, loop]
    outer.false_region.block.add_op(scf.YieldOp(*other))
    return [loop]


def _other_side(loop: scf.ForOp, choice: scf.IfOp) -> scf.ForOp | Sequence[SSAValue]:
    """Return the loop for a false condition, or the loop's inits if that branch only passes the iteration values on."""
    branch = choice.false_region.blocks.first
    chosen = yield_of(branch).operands if branch is not None else ()
    sides: dict[SSAValue, SSAValue] = dict(zip(choice.results, chosen, strict=True))
    yielded = [sides.get(value, value) for value in yield_of(loop.body.block).operands]
    if (branch is None or branch.first_op is branch.last_op) and yielded == [*loop.body.block.args[1:]]:
        return tuple(loop.iter_args)
    copy = Block(arg_types=[arg.type for arg in loop.body.block.args])
    mapping: dict[SSAValue, SSAValue] = dict(zip(loop.body.block.args, copy.args, strict=True))
    for old, new in mapping.items():
        new.name_hint = old.name_hint
    if branch is not None:
        copy.add_ops(op.clone(mapping) for op in branch.ops if op is not branch.last_op)
    copy.add_op(scf.YieldOp(*(mapping.get(value, value) for value in yielded)))
    other = scf.ForOp(loop.lb, loop.ub, loop.step, loop.iter_args, Region(copy))
    other.attributes |= loop.attributes
    return other


def _keep_only(region: Region, choice: scf.IfOp) -> None:
    """Replace an `scf.if` by the ops of one branch."""
    chosen = yield_of(region.block)
    results = tuple(chosen.operands)
    Rewriter.erase_op(chosen)
    Rewriter.inline_block(region.block, InsertPoint.before(choice))
    for result in choice.results:
        result.name_hint = None  # the name is of the scf.if, not of the yielded value
    Rewriter.replace_op(choice, [], results)
