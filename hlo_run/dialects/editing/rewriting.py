"""Small steps of rewriting that passes share."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, IntegerAttr, i1
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from hlo_run.dialects.editing.effects import is_pure


def replace_value(old: SSAValue, new: SSAValue) -> None:
    """Let all users of `old` use `new`, which keeps its own name: xDSL would pass on the old one's."""
    hint = new.name_hint
    old.replace_all_uses_with(new)
    new.name_hint = hint


def replace_op(op: Operation, values: Sequence[SSAValue]) -> None:
    """Let users take `values` instead of the op's results, and erase the op."""
    for result, value in zip(op.results, values, strict=True):
        replace_value(result, value)
    Rewriter.erase_op(op)


def inline_block(block: Block, before: Operation, arguments: Sequence[SSAValue]) -> Sequence[SSAValue]:
    """Move the block's ops in front of `before`, with `arguments` for its arguments; returns what its end hands on.

    The terminator is erased; the block is left empty.
    """
    for old, new in zip(block.args, arguments, strict=True):
        replace_value(old, new)
    end = block.last_op
    assert end is not None, "a block ends in a terminator"
    values = tuple(end.operands)
    Rewriter.erase_op(end)
    for op in list(block.ops):
        op.detach()
        Rewriter.insert_op(op, InsertPoint.before(before))
    return values


def erase_dead_ops(region: Region) -> None:
    """Erase pure ops without users, users first, so that what only they used goes too."""
    for block in region.blocks:
        op = block.last_op
        while op is not None:
            previous = op.prev_op
            if is_dead(op):
                Rewriter.erase_op(op)
            else:
                for nested in op.regions:
                    erase_dead_ops(nested)
            op = previous


def is_dead(op: Operation) -> bool:
    """Tell whether the op may go: pure, and nobody uses its results."""
    for result in op.results:  # no generator: every op of a kernel is asked some forty times
        if result.first_use is not None:
            return False
    return is_pure(op)


def index_constant(value: int) -> arith.ConstantOp:
    return arith.ConstantOp(IntegerAttr(value, IndexType()))


def bool_constant(value: bool) -> arith.ConstantOp:
    return arith.ConstantOp(IntegerAttr(-1 if value else 0, i1))
