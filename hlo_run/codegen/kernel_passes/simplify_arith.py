"""Simplify arithmetic by value ranges: decide comparisons, minima and maxima, tighten indexing maps, and fold branches.

    %th = gpu.thread_id  x {xla.range = [0 : index, 127 : index]}
    %0 = arith.cmpi sle, %th, %c127 : index        =>   true
    %1 = arith.maxsi %th, %c0 : index              =>   %th

The pass adds `xla.range` to sums, products, minima, maxima, casts and absolute values if the operands' ranges bound them.
It has further rules of XLA: and/or of truncated values become the truncation of the wide op, a truncation moves after a
shuffle (for reductions of predicates), and atan2(x, 1) becomes atan(x). Unsigned comparisons are decided if both ranges are
non-negative. One walk in program order is enough, since ranges propagate from operands to users.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from xdsl.context import Context
from xdsl.dialects import arith, math, scf
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, ModuleOp, i32
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from hlo_run.dialects import gpu
from hlo_run.dialects.arith_extra import IndexCastUIOp
from hlo_run.dialects.editing.folding import fold
from hlo_run.dialects.editing.functions import functions
from hlo_run.dialects.editing.loops import hand_on_origin
from hlo_run.dialects.editing.rewriting import erase_dead_ops, ops_in, replace_op, unlimited
from hlo_run.dialects.editing.scf_folding import simplify_for, simplify_if
from hlo_run.dialects.editing.value_ranges import range_attribute, range_of, set_range
from hlo_run.dialects.types import constant_int, is_integer
from hlo_run.dialects.xla_gpu import ApplyIndexingOp, IndexingMapAttr
from hlo_run.indexing.interval import MAX, MIN, Comparison, Interval
from hlo_run.indexing.variable import Variable
from hlo_run.records import replace

# By predicate number; from 6 on unsigned.
_COMPARISONS: tuple[Comparison, ...] = ("eq", "ne", "lt", "le", "gt", "ge", "lt", "le", "gt", "ge")
_FIRST_UNSIGNED = 6
_SGE = 5


@dataclass(frozen=True)
class SimplifyArith(ModulePass):
    """Simplifies arithmetic by the value ranges of its operands. `take` returns False if no more may be simplified."""

    name = "simplify-arith"
    take: Callable[[], bool] = unlimited

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Simplify all ops in order, then branches and loops from the inside out, and erase dead ops."""
        for inner in ops_in(op):
            _simplify(inner, self.take)
        for inner in ops_in(op)[::-1]:  # inner ops before the op around them
            if type(inner) is scf.IfOp and self.take():
                simplify_if(inner)
            elif type(inner) is scf.ForOp and self.take():
                simplify_for(inner)
        for function in functions(op):
            erase_dead_ops(function.body)


def _simplify(op: Operation, take: Callable[[], bool]) -> None:
    folded = fold(op) if len(op.results) == 1 else None
    rule = _RULES.get(type(op))
    if (folded is None and rule is None) or not take():
        return
    if isinstance(folded, SSAValue):
        replace_op(op, (folded,))
    elif folded is not None:
        _replace_by_constant(op, folded)
    elif rule is not None:
        rule(op)


def _replace_by_constant(op: Operation, value: Attribute) -> None:
    constant = arith.ConstantOp.create(result_types=[op.results[0].type], properties={"value": value})
    Rewriter.insert_op(hand_on_origin(op, constant), InsertPoint.before(op))
    replace_op(op, constant.results)


def _insert(op: Operation, new: Operation) -> SSAValue:
    Rewriter.insert_op(hand_on_origin(op, new), InsertPoint.before(op))
    return new.results[0]


# Ranges.


def _type_range(type_: Attribute) -> Interval:
    """Return the range of a type's signed values. It is unbounded for index: index arithmetic must not overflow."""
    if not is_integer(type_):
        return Interval.unbounded()
    half = 1 << (type_.width.data - 1)
    return Interval(-half, half - 1)


def _known_or_all(value: SSAValue) -> Interval:
    known = range_of(value)
    return _type_range(value.type) if known is None else known


def _note_range(op: Operation, interval: Interval) -> None:
    """Set `xla.range`, unless the op has one, the interval is the type's whole range, or the type cannot hold it."""
    limits = _type_range(op.results[0].type)
    if range_attribute(op.attributes) is None and interval != limits and limits.encloses(interval):
        set_range(op, interval)


def _sum_or_product(op: arith.AddiOp | arith.MuliOp) -> None:
    lhs, rhs = _known_or_all(op.lhs), _known_or_all(op.rhs)
    _note_range(op, lhs + rhs if isinstance(op, arith.AddiOp) else lhs * rhs)


def _extremum(op: arith.MaxSIOp | arith.MinSIOp) -> None:
    lhs, rhs = _known_or_all(op.lhs), _known_or_all(op.rhs)
    low, high = (op.lhs, op.rhs) if lhs.compare("le", rhs) else (op.rhs, op.lhs)
    if lhs.compare("le", rhs) or rhs.compare("le", lhs):
        replace_op(op, (high if isinstance(op, arith.MaxSIOp) else low,))
        return
    _note_range(op, lhs.maximum(rhs) if isinstance(op, arith.MaxSIOp) else lhs.minimum(rhs))


def _cast(op: arith.IndexCastOp | IndexCastUIOp) -> None:
    known = range_of(op.input)
    if known is not None and (isinstance(op, arith.IndexCastOp) or known.lower >= 0):
        _note_range(op, known)


def _absolute(op: arith.SelectOp) -> None:
    """Set the range of `x >= 0 ? x : 0 - x`."""
    condition, negated = op.cond.owner, op.rhs.owner
    if not isinstance(condition, arith.CmpiOp) or not isinstance(negated, arith.SubiOp):
        return
    is_sign_test = condition.predicate.value.data == _SGE and condition.lhs is op.lhs and constant_int(condition.rhs) == 0
    if not is_sign_test or constant_int(negated.lhs) != 0 or negated.rhs is not op.lhs:
        return
    known = _known_or_all(op.lhs)
    _note_range(op, Interval(0, max(abs(known.lower), known.upper) if known.lower != MIN else MAX))


def _compare(op: arith.CmpiOp) -> None:
    lhs, rhs = range_of(op.lhs), range_of(op.rhs)
    predicate = op.predicate.value.data
    if lhs is None or rhs is None or (predicate >= _FIRST_UNSIGNED and min(lhs.lower, rhs.lower) < 0):
        return
    answer = lhs.compare(_COMPARISONS[predicate], rhs)
    if answer is not None:
        _replace_by_constant(op, IntegerAttr.from_bool(answer))


def _refine_map(op: ApplyIndexingOp) -> None:
    """Tighten the intervals of the map's variables to the ranges of its operands."""
    old = op.map
    count, tightened = (
        len(old.dims),
        [_tightened(v, value) for v, value in zip(old.dims + old.symbols, op.arguments, strict=True)],
    )
    if old.is_known_empty or tuple(tightened) == old.dims + old.symbols:
        return
    new = replace(old, dims=tuple(tightened[:count]), ranges=tuple(tightened[count:]))
    if not new.is_known_empty:
        op.indexing_map = IndexingMapAttr(new.simplify())


def _tightened(variable: Variable, value: SSAValue) -> Variable:
    known = range_of(value)
    if known is None or known.encloses(variable.bounds):
        return variable
    return Variable(variable.bounds.intersect(known), variable.name)


# Other rules.


def _bitwise(op: arith.AndIOp | arith.OrIOp) -> None:
    """and(trunc a, trunc b) => trunc(and(a, b))"""
    lhs, rhs = op.lhs.owner, op.rhs.owner
    if not isinstance(lhs, arith.TruncIOp) or not isinstance(rhs, arith.TruncIOp) or lhs.input.type != rhs.input.type:
        return
    wide = _insert(op, type(op)(lhs.input, rhs.input))
    assert is_integer(op.result.type), "a truncation gives an integer"
    replace_op(op, (_insert(op, arith.TruncIOp(wide, op.result.type)),))


def _shuffle(op: gpu.ShuffleOp) -> None:
    """shuffle(ext(trunc a)) => ext(trunc(shuffle a))"""
    extended = op.value.owner
    if not isinstance(extended, arith.ExtUIOp) or op.value.type != i32:
        return
    truncated = extended.input.owner
    if not isinstance(truncated, arith.TruncIOp) or truncated.input.type != i32:
        return
    assert is_integer(truncated.result.type), "a truncation gives an integer"
    new = gpu.ShuffleOp(op.mode.data, truncated.input, op.offset, op.width)
    narrow = arith.TruncIOp(_insert(op, new), truncated.result.type)
    _insert(op, narrow)
    replace_op(op, (_insert(op, arith.ExtUIOp(narrow, i32)), new.valid))


def _arc_tangent(op: math.Atan2Op) -> None:
    right = op.rhs.owner
    if isinstance(right, arith.ConstantOp) and isinstance(right.value, FloatAttr) and right.value.value.data == 1.0:
        replace_op(op, (_insert(op, math.AtanOp(op.lhs, op.fastmath)),))


_RULES: dict[type[Operation], Callable[[Any], None]] = {
    arith.AddiOp: _sum_or_product,
    arith.MuliOp: _sum_or_product,
    arith.MaxSIOp: _extremum,
    arith.MinSIOp: _extremum,
    arith.IndexCastOp: _cast,
    IndexCastUIOp: _cast,
    arith.SelectOp: _absolute,
    arith.CmpiOp: _compare,
    ApplyIndexingOp: _refine_map,
    arith.AndIOp: _bitwise,
    arith.OrIOp: _bitwise,
    gpu.ShuffleOp: _shuffle,
    math.Atan2Op: _arc_tangent,
}
