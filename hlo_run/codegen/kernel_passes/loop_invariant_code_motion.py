"""Hoist loop-invariant ops: move ops whose operands do not change in a loop to before the loop.

    scf.for %i .. {                         %x = arith.muli %a, %b : index
      %x = arith.muli %a, %b : index   =>   scf.for %i .. {
      use %x, %i                              use %x, %i

The pass moves speculatable ops, including whole `scf.if` and `scf.for`. It visits inner loops first, so that an op can leave
several loops. `tensor.extract` stays: its index may be out of bounds if the loop does not run. Mirrors MLIR's pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import scf, tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass

from hlo_run.dialects.editing.effects import can_speculate
from hlo_run.dialects.editing.rewriting import unlimited


@dataclass(frozen=True)
class LoopInvariantCodeMotion(ModulePass):
    """Moves speculatable ops whose operands do not change in a loop to before the loop. `take` allows a move."""

    name = "loop-invariant-code-motion"
    take: Callable[[], bool] = unlimited

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Hoist from every `scf.for`, inner loops first."""
        for loop in op.walk(region_first=True):
            if isinstance(loop, scf.ForOp):
                _hoist_from(loop, self.take)


def _hoist_from(loop: scf.ForOp, take: Callable[[], bool]) -> None:
    """Hoist ops out of one loop. One pass in program order is enough, since operands are hoisted before their users."""
    body, target = loop.body.block, loop.parent
    assert target is not None, "a loop is in a block"
    for op in body.ops:
        # Test the operands first: most ops use values of the body, and the test for side effects is slow.
        if not _uses_values_of(op, body) and not _reads_elements(op) and can_speculate(op) and take():
            op.detach()
            target.insert_op_before(op, loop)


def _uses_values_of(op: Operation, body: Block) -> bool:
    """True if `op`, or an op inside it, has an operand that `body` itself defines."""
    if not op.regions:
        return any(_home(operand.owner) is body for operand in op.operands)
    return any(_home(operand.owner) is body for inner in op.walk() for operand in inner.operands)


def _reads_elements(op: Operation) -> bool:
    return isinstance(op, tensor.ExtractOp) or (bool(op.regions) and any(isinstance(i, tensor.ExtractOp) for i in op.walk()))


def _home(owner: Operation | Block) -> Block | None:
    return owner if isinstance(owner, Block) else owner.parent
