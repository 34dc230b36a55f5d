"""Basic rewrites that passes share: replace values and ops, inline blocks, erase dead ops."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, IntegerAttr, i1
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from hlo_run.dialects.editing.effects import is_pure


def ops_in(op: Operation) -> list[Operation]:
    """Return the op and all ops inside it, outer ops first. Faster than xDSL's `walk`, which many rows would use."""
    found = [op]
    if op.regions:
        _add_inner(op, found)
    return found


def _add_inner(op: Operation, found: list[Operation]) -> None:
    for region in op.regions:
        for block in region.blocks:
            inner = block.first_op
            while inner is not None:
                found.append(inner)
                if inner.regions:
                    _add_inner(inner, found)
                inner = inner.next_op


def unlimited() -> bool:
    """Allow a rewrite: the default of passes whose rewrites can be counted and limited."""
    return True


def replace_value(old: SSAValue, new: SSAValue) -> None:
    """Let all users of `old` use `new`. `new` keeps its name; xDSL would give it the name of `old`."""
    hint = new.name_hint
    old.replace_all_uses_with(new)
    new.name_hint = hint


def replace_op(op: Operation, values: Sequence[SSAValue]) -> None:
    """Replace the op's results by `values` in all users, and erase the op."""
    for result, value in zip(op.results, values, strict=True):
        replace_value(result, value)
    Rewriter.erase_op(op)


def inline_block(block: Block, before: Operation, arguments: Sequence[SSAValue]) -> Sequence[SSAValue]:
    """Move the block's ops before `before`, with `arguments` for its arguments. Returns the terminator's operands.

    The terminator is erased, and the block is left empty.
    """
    for old, new in zip(block.args, arguments, strict=True):
        replace_value(old, new)
    end = block.last_op
    assert end is not None, "a block ends in a terminator"
    values = tuple(end.operands)
    Rewriter.erase_op(end)
    ops = list(block.ops)
    for op in ops:
        op.detach()
    Rewriter.insert_op(ops, InsertPoint.before(before))
    return values


def copy_block(block: Block, before: Operation, arguments: Sequence[SSAValue]) -> tuple[list[Operation], list[SSAValue]]:
    """Insert copies of the block's ops before `before`, with `arguments` for its arguments.

    Returns the copies, and their values for the operands of the terminator, which is not copied. Values must be defined before
    their uses.
    """
    values: dict[SSAValue, SSAValue] = dict(zip(block.args, arguments, strict=True))
    blocks: dict[Block, Block] = {}
    *ops, end = block.ops
    copies = [_copy(op, values, blocks) for op in ops]
    Rewriter.insert_op(copies, InsertPoint.before(before))
    return copies, [values.get(value, value) for value in end.operands]


def _copy(op: Operation, values: dict[SSAValue, SSAValue], blocks: dict[Block, Block]) -> Operation:
    """Copy an op. xDSL's `clone` walks over nested ops twice, since uses may come before definitions: only blocks can do that."""
    if any(region.first_block is not region.last_block for region in op.regions):
        return op.clone(values, blocks)
    copy = op.clone_without_regions(values, blocks)
    for region, new in zip(op.regions, copy.regions, strict=True):
        for block in region.blocks:
            made = blocks[block] = Block()
            new.add_block(made)
            for number, argument in enumerate(block.args):
                values[argument] = made.insert_arg(argument.type, number, argument.location)
                values[argument].name_hint = argument.name_hint
            made.add_ops([_copy(inner, values, blocks) for inner in block.ops])
    return copy


def erase_dead_ops(region: Region) -> None:
    """Erase pure ops without users. Goes backwards, so that ops used only by erased ops are erased too."""
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
    """True if the op can be erased: it is pure and its results have no users."""
    return is_unused(op) and is_pure(op)


def is_unused(op: Operation) -> bool:
    """True if no result of the op has users."""
    for result in op.results:  # noqa: SIM110 - a loop is faster than a generator, and passes ask about forty times per op
        if result.first_use is not None:
            return False
    return True


def index_constant(value: int) -> arith.ConstantOp:
    """Return a constant of index type, which is not inserted."""
    return arith.ConstantOp(IntegerAttr(value, IndexType()))


def bool_constant(value: bool) -> arith.ConstantOp:
    """Return a constant of type i1, which is not inserted."""
    return arith.ConstantOp(IntegerAttr(-1 if value else 0, i1))
