"""Lower apply_indexing to arithmetic on index values.

    %d = xla_gpu.apply_indexing #xla_gpu.indexing_map<"(th_x, bl_x) -> (th_x * 4 + bl_x * 512), ..">(%th, %bl)
      =>
    %a = arith.muli %th, %c4 overflow<nsw> : index
    %b = arith.muli %bl, %c512 overflow<nsw> : index
    %d = arith.addi %a, %b overflow<nsw> : index

A division or mod of a non-negative value becomes an unsigned op. Other divisions become signed ops with a correction, since
floordiv and mod round to minus infinity. XLA leaves a map with such a division to MLIR's affine.apply and its lowering,
which gives the same arithmetic. Sums and products combine the terms of the outermost blocks first, so that these ops can be
hoisted out of loops, and constants last. Equal terms of maps in one block, or in blocks inside it, are computed once.
Constants are inserted at the start of the function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from xdsl.context import Context
from xdsl.dialects import arith, func
from xdsl.dialects.builtin import IndexType, ModuleOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from hlo_run.dialects.editing.index_constants import IndexConstants
from hlo_run.dialects.editing.loops import hand_on_origin
from hlo_run.dialects.xla_gpu import ApplyIndexingOp
from hlo_run.indexing.expr import ADD, CEILDIV, CONSTANT, DIM, FLOORDIV, MIN, MOD, MUL, SYMBOL, Expr, Kind, floor_div
from hlo_run.indexing.interval import MAX as UNBOUNDED_ABOVE
from hlo_run.indexing.interval import MIN as UNBOUNDED_BELOW
from hlo_run.indexing.ranges import RangeEvaluator

# Ops that are visible in a block: (op class, operands) to the result.
_Known: TypeAlias = dict[tuple[object, ...], SSAValue]

_INDEX = IndexType()
_NO_PROPERTIES: Mapping[str, Attribute] = {}
_WRAPS = {"overflowFlags": arith.IntegerOverflowAttr("none")}
_NSW = {"overflowFlags": arith.IntegerOverflowAttr([arith.IntegerOverflowFlag.NSW])}


class SimplifyAffine(ModulePass):
    """Lowers apply_indexing to arithmetic on index values."""

    name = "simplify-affine"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Lower every apply_indexing of every function."""
        for function in op.body.block.ops:
            if isinstance(function, func.FuncOp) and (entry := function.body.blocks.first) is not None:
                _FunctionLowering(entry).lower_block(entry, {})


class _FunctionLowering:
    def __init__(self, entry: Block) -> None:
        self.constants = IndexConstants(entry)
        self._depths: dict[Block, int] = {}

    def lower_block(self, block: Block, known: _Known) -> None:
        for op in block.ops:
            for region in op.regions:
                for inner in region.blocks:
                    self.lower_block(inner, dict(known))
            if isinstance(op, ApplyIndexingOp):
                _MapLowering(self, op, known).run()

    def depth(self, value: SSAValue) -> int:
        """Return the number of blocks around the definition of `value`."""
        owner = value.owner
        block = owner if isinstance(owner, Block) else owner.parent
        assert block is not None, "a used value is in a block"
        found = self._depths.get(block)
        if found is None:
            found, place = 0, block.parent_block()
            while place is not None:
                found, place = found + 1, place.parent_block()
            self._depths[block] = found
        return found


class _MapLowering:
    """Lowers the map of one op. Equal subexpressions are one object, so each is built once."""

    def __init__(self, function: _FunctionLowering, op: ApplyIndexingOp, known: _Known) -> None:
        self._function = function
        self._op = op
        self._known = known
        self._map = op.map.simplify()
        self._range: RangeEvaluator = self._map.range_evaluator
        self._values = tuple(op.arguments)
        self._built: dict[Expr, SSAValue] = {}

    def run(self) -> None:
        results = [self._value(expr) for expr in self._map.results]
        Rewriter.replace_op(self._op, [], results)

    def _value(self, expr: Expr) -> SSAValue:
        found = self._built.get(expr)
        if found is None:
            found = self._built[expr] = self._build(expr)
        return found

    def _build(self, expr: Expr) -> SSAValue:
        kind = expr.kind
        if kind is CONSTANT:
            return self._function.constants.get(expr.value)
        if kind is DIM:
            return self._values[expr.value]
        if kind is SYMBOL:
            return self._values[len(self._map.dims) + expr.value]
        if kind is ADD or kind is MUL:
            return self._chain(expr, kind)
        if kind is CEILDIV:
            return self._value(floor_div(expr.left + (expr.right - 1), expr.right))
        left, right = self._value(expr.left), self._value(expr.right)
        if kind is MOD or kind is FLOORDIV:
            return self._division(expr, left, right)
        return self._emit(arith.MinSIOp if kind is MIN else arith.MaxSIOp, left, right)

    def _chain(self, expr: Expr, kind: Kind) -> SSAValue:
        """Build a sum or product of all terms."""
        terms = sorted(_terms(expr, kind), key=self._distance)
        op_class = arith.AddiOp if kind is ADD else arith.MuliOp
        lower, upper = self._range(expr)
        is_bounded = lower > UNBOUNDED_BELOW and upper < UNBOUNDED_ABOVE
        values = [self._value(term) for term in terms]
        total = values[0]
        for value in values[1:]:
            total = self._emit(op_class, total, value, _NSW if is_bounded else _WRAPS)
        return total

    def _distance(self, term: Expr) -> tuple[bool, int]:
        """Return the sort key of a term: terms of the outermost block first, constants last."""
        if term.kind is CONSTANT:
            return True, 0
        dims = len(self._map.dims)
        places = term.dims_mask | term.symbols_mask << dims
        return False, max(self._function.depth(v) for number, v in enumerate(self._values) if places >> number & 1)

    def _division(self, expr: Expr, left: SSAValue, right: SSAValue) -> SSAValue:
        """Build a quotient or remainder by a positive constant."""
        assert expr.right.kind is CONSTANT, "maps divide by constants only"
        assert expr.right.value > 0, "maps divide by positive numbers only"
        is_mod = expr.kind is MOD
        if self._range(expr.left)[0] >= 0:
            return self._emit(arith.RemUIOp if is_mod else arith.DivUIOp, left, right)
        zero = self._function.constants.get(0)
        if is_mod:
            remainder = self._emit(arith.RemSIOp, left, right)
            raised = self._emit(arith.AddiOp, remainder, right, _WRAPS)
            return self._select(self._is_less(remainder, zero), raised, remainder)
        # For x < 0: floor(x / d) = -1 - (-1 - x) / d, where the division is of non-negative numbers.
        minus_one = self._function.constants.get(-1)
        is_negative = self._is_less(left, zero)
        mirrored = self._select(is_negative, self._emit(arith.SubiOp, minus_one, left, _WRAPS), left)
        quotient = self._emit(arith.DivSIOp, mirrored, right)
        return self._select(is_negative, self._emit(arith.SubiOp, minus_one, quotient, _WRAPS), quotient)

    def _is_less(self, left: SSAValue, right: SSAValue) -> SSAValue:
        key = (arith.CmpiOp, left, right)
        if key not in self._known:
            self._known[key] = self._insert(arith.CmpiOp(left, right, "slt"))
        return self._known[key]

    def _select(self, condition: SSAValue, if_true: SSAValue, if_false: SSAValue) -> SSAValue:
        key = (arith.SelectOp, condition, if_true, if_false)
        if key not in self._known:
            self._known[key] = self._insert(arith.SelectOp(condition, if_true, if_false))
        return self._known[key]

    def _emit(
        self, op_class: type[Operation], left: SSAValue, right: SSAValue, properties: Mapping[str, Attribute] = _NO_PROPERTIES
    ) -> SSAValue:
        key = (op_class, left, right)
        found = self._known.get(key)
        if found is None:
            op = op_class.create(operands=[left, right], result_types=[_INDEX], properties=dict(properties))
            found = self._known[key] = self._insert(op)
        return found

    def _insert(self, op: Operation) -> SSAValue:
        Rewriter.insert_op(hand_on_origin(self._op, op), InsertPoint.before(self._op))
        return op.results[0]


def _terms(expr: Expr, kind: Kind) -> Sequence[Expr]:
    """Return the terms of nested sums or products, left to right."""
    return [*_terms(expr.left, kind), *_terms(expr.right, kind)] if expr.kind is kind else [expr]
