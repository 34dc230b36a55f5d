"""Lower structured control flow to blocks and branches.

    %r = scf.for %i = %lb to %ub step %s                cf.br ^header(%lb, %x)
             iter_args(%a = %x) -> (f32) {            ^header(%i, %a):
      body                                              %go = arith.cmpi slt, %i, %ub
      scf.yield %y                               =>     cf.cond_br %go, ^body, ^exit
    }                                                 ^body:
                                                        body;  %n = arith.addi %i, %s;  cf.br ^header(%n, %y)
                                                      ^exit:   uses of %r become uses of %a

An scf.if without else branch jumps directly to the following block. scf.while jumps between its regions. scf.index_switch
becomes cf.switch. New blocks are ordered so that definitions come before uses. Mirrors MLIR's convert-scf-to-cf.
"""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.context import Context
from xdsl.dialects import arith, cf, func, scf
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, ModuleOp, VectorType, i32
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from hlo_run.dialects.editing.loops import hand_on_origin, yield_of

_STRUCTURED = (scf.ForOp, scf.IfOp, scf.IndexSwitchOp, scf.WhileOp)


class ScfToCf(ModulePass):
    """Lowers structured control flow to blocks and branches."""

    name = "scf-to-cf"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Lower the body of every function."""
        for function in op.body.block.ops:
            if isinstance(function, func.FuncOp):
                _lower_region(function.body)


def _lower_region(region: Region) -> None:
    # New blocks are inserted after the current one, so this loop visits them too.
    block = region.blocks.first
    while block is not None:
        op = next((op for op in block.ops if isinstance(op, _STRUCTURED)), None)
        if op is None:
            block = block.next_block
        elif isinstance(op, scf.ForOp):
            _lower_for(op)
        elif isinstance(op, scf.IfOp):
            _lower_if(op)
        elif isinstance(op, scf.WhileOp):
            _lower_while(op)
        else:
            _lower_switch(op)


def _block_of(op: Operation) -> Block:
    block = op.parent
    assert block is not None, "the op is in a function"
    return block


def _split_behind(op: Operation) -> Block:
    """Move all ops after `op` to a new block, and return the new block."""
    following = op.next_op
    assert following is not None, "a block ends in a terminator, which is not an scf op"
    return _block_of(op).split_before(following)


def _results_to_arguments(op: Operation, block: Block) -> None:
    """Replace the results of `op` by new arguments of `block`."""
    for result in op.results:
        arg = block.insert_arg(result.type, len(block.args))
        arg.name_hint = result.name_hint
        result.replace_all_uses_with(arg)


def _move_before(region: Region, target: Block) -> None:
    if region.blocks:
        region.move_blocks_before(target)


def _end_with(block: Block, origin: Operation, *ops: Operation) -> None:
    """Append ops to a block without terminator."""
    block.add_ops([hand_on_origin(origin, op) for op in ops])


def _jump_from(block: Block, target: Block, origin: Operation) -> None:
    """Replace the yield at the end of `block` by a jump to `target` with the yielded values."""
    ended = yield_of(block)
    values = [*ended.operands]
    Rewriter.erase_op(ended)
    _end_with(block, origin, cf.BranchOp(target, *values))


def _lower_if(op: scf.IfOp) -> None:
    if all(_is_empty(region) for region in (op.true_region, op.false_region)):
        _select_results(op)
        return
    block = _block_of(op)
    after = _split_behind(op)
    condition, branches = op.cond, [op.true_region, op.false_region]
    targets: list[tuple[Block, list[SSAValue]]] = [_branch_target(region, after) for region in branches]
    _results_to_arguments(op, after)
    for region, (target, _) in zip(branches, targets, strict=True):
        if target is not after:
            _jump_from(target, after, op)
            _move_before(region, after)
    Rewriter.erase_op(op)
    (then_block, then_values), (else_block, else_values) = targets
    _end_with(block, op, cf.ConditionalBranchOp(condition, then_block, then_values, else_block, else_values))


def _is_empty(region: Region) -> bool:
    return not region.blocks or region.block.first_op is yield_of(region.block)


def _select_results(op: scf.IfOp) -> None:
    """Replace an scf.if with two empty branches by selects. LLVM does not allow two jumps to one block with other values."""
    results: list[SSAValue] = []
    if op.results:
        for lhs, rhs in zip(yield_of(op.true_region.block).operands, yield_of(op.false_region.block).operands, strict=True):
            select = arith.SelectOp(op.cond, lhs, rhs)
            Rewriter.insert_op(hand_on_origin(op, select), InsertPoint.before(op))
            results.append(select.result)
    Rewriter.replace_op(op, [], results)


def _branch_target(region: Region, after: Block) -> tuple[Block, list[SSAValue]]:
    """Return the target and the arguments of a branch: its own block, or `after` with the yielded values if it is empty."""
    if not region.blocks:
        return after, []
    block = region.block
    return (after, [*yield_of(block).operands]) if _is_empty(region) else (block, [])


def _lower_while(op: scf.WhileOp) -> None:
    """Lower scf.while: the first region ends in a jump to the second or to the following block, the second jumps back."""
    block = _block_of(op)
    after = _split_behind(op)
    before, body = op.before_region.block, op.after_region.block
    _results_to_arguments(op, after)
    condition = before.last_op
    assert isinstance(condition, scf.ConditionOp), "the first region of an scf.while ends in a condition"
    go, values = condition.condition, [*condition.args]
    Rewriter.erase_op(condition)
    _end_with(before, op, cf.ConditionalBranchOp(go, body, values, after, values))
    _jump_from(body, before, op)
    inits = [*op.arguments]
    _move_before(op.before_region, after)
    _move_before(op.after_region, after)
    Rewriter.erase_op(op)
    _end_with(block, op, cf.BranchOp(before, *inits))


def _lower_switch(op: scf.IndexSwitchOp) -> None:
    block = _block_of(op)
    after = _split_behind(op)
    _results_to_arguments(op, after)
    regions = [*op.regions]
    default, *cases = [region.block for region in regions]
    values = [int(value) for value in op.cases.get_values()]
    argument = op.arg
    for region in regions:
        _jump_from(region.block, after, op)
        _move_before(region, after)
    Rewriter.erase_op(op)
    flag = arith.IndexCastOp(argument, i32)
    attribute = DenseIntOrFPElementsAttr.from_list(VectorType(i32, [len(values)]), values) if values else None
    switch = cf.SwitchOp(flag.result, default, [], attribute, cases, [[] for _ in cases])
    _end_with(block, op, flag, switch)


def _lower_for(op: scf.ForOp) -> None:
    block = _block_of(op)
    after = _split_behind(op)
    body = op.body.block
    header = Block(arg_types=[arg.type for arg in body.args])
    for arg, new in zip(body.args, header.args, strict=True):
        new.name_hint = arg.name_hint
        arg.replace_all_uses_with(new)
    for arg in reversed(body.args):
        body.erase_arg(arg)
    counter, *carried = header.args
    for result, arg in zip(op.results, carried, strict=True):
        result.name_hint = None  # the value inside the loop keeps the name
        result.replace_all_uses_with(arg)
    bounds, inits = (op.lb, op.ub, op.step), [*op.iter_args]
    _close_loop(body, header, counter, bounds[2], op)
    _move_before(op.body, after)
    region = after.parent
    assert region is not None, "the block is in the function"
    region.insert_block_before(header, body)
    Rewriter.erase_op(op)
    _end_with(block, op, cf.BranchOp(header, bounds[0], *inits))
    more = arith.CmpiOp(counter, bounds[1], "slt")
    _end_with(header, op, more, cf.ConditionalBranchOp(more.result, body, [], after, []))


def _close_loop(body: Block, header: Block, counter: SSAValue, step: SSAValue, origin: Operation) -> None:
    ended = yield_of(body)
    values: Iterable[SSAValue] = [*ended.operands]
    Rewriter.erase_op(ended)
    following = arith.AddiOp(counter, step)
    _end_with(body, origin, following, cf.BranchOp(header, following.result, *values))
