"""Simplify IR: fold constants, indexing maps, `scf.if` and loops, and drop unused ops.

    %c = arith.cmpi sge, %c3, %c0 : index
    %r = scf.if %c -> (f32) { A } else { B }      =>   A
    %i = xla_gpu.apply_indexing #map(%th)[%c1]         %i = xla_gpu.apply_indexing #map1(%th)

The pass erases dead ops, walks each function once in program order, and erases dead ops again. Operands are simplified
before their users, so a second walk would find almost nothing. Each constant moves to the start of the function and occurs
once. Afterwards no apply_indexing has symbols. Mirrors MLIR's pass of this name for the ops of kernels, and XLA's patterns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Struct, field
from xdsl.context import Context
from xdsl.dialects import arith, func, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from hlo_run.dialects.editing.folding import fold
from hlo_run.dialects.editing.functions import functions
from hlo_run.dialects.editing.indexing_folding import simplify_apply_indexing, simplify_loop_dims
from hlo_run.dialects.editing.rewriting import erase_dead_ops, is_dead, replace_op, replace_value, unlimited
from hlo_run.dialects.editing.scf_folding import constant_trips, simplify_for, simplify_if
from hlo_run.dialects.types import constant_int
from hlo_run.dialects.xla_gpu import ApplyIndexingOp, LoopOp

# Most ops are in none of these classes. One lookup is faster than a test per class.
_SPECIAL = frozenset((arith.ConstantOp, scf.IfOp, scf.ForOp, ApplyIndexingOp, LoopOp))


@dataclass(frozen=True)
class Canonicalize(ModulePass):
    """Folds constants, indexing maps, `scf.if` and loops, and erases dead ops. `take` returns False if no more may be folded."""

    name = "canonicalize"
    take: Callable[[], bool] = unlimited

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Simplify every function that has a body."""
        for function in functions(op):
            if function.is_declaration:
                continue
            erase_dead_ops(function.body)
            _Walk(function, self.take).run()
            erase_dead_ops(function.body)


class _Walk(Struct):
    """The walk over one function. `constants` holds the constants at its start by value and type."""

    function: func.FuncOp
    take: Callable[[], bool]
    constants: dict[tuple[Attribute, Attribute], arith.ConstantOp] = field(
        default_factory=dict[tuple[Attribute, Attribute], arith.ConstantOp]
    )

    def run(self) -> None:
        for block in self.function.body.blocks:
            self._visit_block(block)

    def _visit_block(self, block: Block) -> None:
        op = block.first_op
        while op is not None:
            op = self._visit(op)

    def _visit(self, op: Operation) -> Operation | None:
        """Simplify one op, and return the next op to visit."""
        following = op.next_op
        if is_dead(op):
            Rewriter.erase_op(op)
            return following
        if type(op) not in _SPECIAL:
            self._visit_regions(op)
            self._fold(op)
            return following
        match op:
            case arith.ConstantOp():
                self._pool(op)
            case scf.IfOp() | scf.ForOp():
                return self._visit_structured(op)
            case ApplyIndexingOp():
                self._visit_indexing(op)
            case LoopOp():
                self._visit_regions(op)
                if self.take():
                    simplify_loop_dims(op)
            case _:
                raise AssertionError(f"{op.name} is special")
        return following

    def _visit_regions(self, op: Operation) -> None:
        for region in op.regions:
            for block in region.blocks:
                self._visit_block(block)

    def _visit_indexing(self, op: ApplyIndexingOp) -> None:
        """Simplify an apply_indexing. The constants of its constant results are inserted before it; pool them."""
        place, following = op.prev_op, op.next_op
        block = op.parent
        assert block is not None, "a visited op is in a block"
        if not self.take():
            return
        simplify_apply_indexing(op)
        new = block.first_op if place is None else place.next_op
        while new is not following:
            assert new is not None, "the op behind is still there"
            after = new.next_op
            if isinstance(new, arith.ConstantOp):
                self._pool(new)
            new = after

    def _visit_structured(self, op: scf.IfOp | scf.ForOp) -> Operation | None:
        """Simplify an `scf.if` or loop. If its ops move out of it, they are visited at their new position only."""
        previous, following = op.prev_op, op.next_op
        block = op.parent
        assert block is not None, "a visited op is in a block"
        if not _vanishes(op):
            self._visit_regions(op)
        if not self.take():
            return following
        left = simplify_if(op) if isinstance(op, scf.IfOp) else simplify_for(op)
        if left is not None:
            return following
        return block.first_op if previous is None else previous.next_op

    def _fold(self, op: Operation) -> None:
        if len(op.results) != 1:
            return
        folded = fold(op)
        if folded is None or not self.take():
            return
        replace_op(op, (folded if isinstance(folded, SSAValue) else self._constant(folded, op.results[0].type),))

    def _pool(self, op: arith.ConstantOp) -> None:
        """Move a constant to the start of the function, or replace it by an equal constant there."""
        known = self.constants.setdefault((op.value, op.result.type), op)
        if known is not op:
            replace_value(op.result, known.result)
            Rewriter.erase_op(op)
            return
        start, previous = self._start(), op.prev_op
        if op.parent is start and (previous is None or isinstance(previous, arith.ConstantOp)):
            return
        op.detach()
        Rewriter.insert_op(op, InsertPoint.at_start(start))

    def _constant(self, value: Attribute, type_: Attribute) -> SSAValue:
        known = self.constants.get((value, type_))
        if known is None:
            known = arith.ConstantOp.create(result_types=[type_], properties={"value": value})
            self.constants[value, type_] = known
            Rewriter.insert_op(known, InsertPoint.at_start(self._start()))
        return known.result

    def _start(self) -> Block:
        block = self.function.body.first_block
        assert block is not None, "a function with a body has a block"
        return block


def _vanishes(op: scf.IfOp | scf.ForOp) -> bool:
    """True if the op is erased for every body. Its body is then visited once, after it has moved out of the op."""
    return constant_int(op.cond) is not None if isinstance(op, scf.IfOp) else constant_trips(op) in (0, 1)
