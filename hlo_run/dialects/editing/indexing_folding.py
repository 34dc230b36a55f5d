"""Simplifies `apply_indexing` and the dims of `xla_gpu.loop`: folds constants and producing index maps into the map.

Mirrors the canonicalisation of XLA's `xla_ops.cc`, with two fixes for loops: folding a dim keeps the map's constraints,
and the folded dim's own interval stays as a constraint.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field
from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from hlo_run.dialects.editing.loops import hand_on_origin
from hlo_run.dialects.editing.rewriting import index_constant, replace_value
from hlo_run.dialects.editing.value_ranges import RANGE, range_of
from hlo_run.dialects.types import constant_int
from hlo_run.dialects.xla_gpu import ApplyIndexingOp, LoopOp
from hlo_run.indexing.expr import Expr, constant, dim
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.indexing.substitute import Substitution
from hlo_run.indexing.variable import Variable
from hlo_run.records import replace


class _Dims(Struct):
    """The dims of a map under construction. A value that occurs twice becomes one dim."""

    values: list[SSAValue] = field(default_factory=list[SSAValue])
    variables: list[Variable] = field(default_factory=list[Variable])

    def add(self, value: SSAValue, variable: Variable) -> Expr:
        if value in self.values:
            place = self.values.index(value)
            known = self.variables[place]
            self.variables[place] = Variable(known.bounds.intersect(variable.bounds), known.name)
            return dim(place)
        is_taken = bool(variable.name) and any(variable.name == other.name for other in self.variables)
        self.values.append(value)
        self.variables.append(Variable(variable.bounds, "") if is_taken else variable)
        return dim(len(self.values) - 1)


def simplify_apply_indexing(op: ApplyIndexingOp) -> ApplyIndexingOp | None:
    """Simplify one op whose operands are already simplified. Returns the op or its replacement, None if it is erased.

    Afterwards the map has no symbols, constant operands or unused variables. Every result is used, and is neither a
    constant nor a plain variable.
    """
    if op.map.is_known_empty:
        return op
    used_map, operands = _folded(op)
    results = used_map.results
    kept = [i for i, value in enumerate(op.res) if value.first_use is not None and not _is_trivial(results[i])]
    if used_map is op.map and len(kept) == len(results):
        return op
    for result, expr in zip(op.res, results, strict=True):
        if result.first_use is not None and _is_trivial(expr):
            replace_value(result, _trivial_value(op, expr, operands))
    return _rebuilt(op, used_map, operands, kept)


def _is_trivial(expr: Expr) -> bool:
    return expr.is_constant or expr.is_variable


def _trivial_value(op: ApplyIndexingOp, expr: Expr, operands: Sequence[SSAValue]) -> SSAValue:
    if expr.is_variable:
        return operands[expr.value]
    new = index_constant(expr.value)
    Rewriter.insert_op(hand_on_origin(op, new), InsertPoint.before(op))
    return new.result


def _rebuilt(
    op: ApplyIndexingOp, used_map: IndexingMap, operands: Sequence[SSAValue], kept: Sequence[int]
) -> ApplyIndexingOp | None:
    """Replace `op` by an op that computes the results numbered `kept`."""
    if not kept:
        Rewriter.erase_op(op)
        return None
    rest, used = used_map.with_results(used_map.results[i] for i in kept).remove_unused_vars()
    new = ApplyIndexingOp(rest, [value for value, keep in zip(operands, used, strict=True) if keep])
    hand_on_origin(op, new)
    if RANGE in op.attributes and len(op.res) == len(kept) == 1:
        new.attributes[RANGE] = op.attributes[RANGE]
    Rewriter.insert_op(new, InsertPoint.before(op))
    for number, result in zip(kept, new.res, strict=True):
        result.name_hint = op.res[number].name_hint
        replace_value(op.res[number], result)
    Rewriter.erase_op(op)
    return new


def _folded(op: ApplyIndexingOp) -> tuple[IndexingMap, Sequence[SSAValue]]:
    """Return the map with constants and producers folded into it, and its operands. Unchanged: the op's own map."""
    old = op.map.symbols_to_dims() if op.map.symbols else op.map
    plain, values = _with_operands_folded(op, old, fold_producers=False)
    producers = [value for value in values if _is_foldable(value)]
    # A producer with other users is computed anyway. Using its result is cheaper than computing it again.
    is_shared = any(not value.has_one_use() for value in producers)
    if not producers or (is_shared and not _simplifies(op, old)):
        return plain, values
    return _with_operands_folded(op, old, fold_producers=True)


def _is_foldable(value: SSAValue) -> bool:
    owner = value.owner
    return isinstance(owner, ApplyIndexingOp) and not owner.map.symbols and not owner.map.is_known_empty


def _simplifies(op: ApplyIndexingOp, old: IndexingMap) -> bool:
    """Tell whether the map with its producers folded in can be simplified further."""
    dims, results = _substituted(op, old, fold_producers=True)
    raw = IndexingMap(tuple(dims.variables), (), (), results)
    return raw.simplify() is not raw


def _with_operands_folded(
    op: ApplyIndexingOp, old: IndexingMap, *, fold_producers: bool
) -> tuple[IndexingMap, Sequence[SSAValue]]:
    dims, results = _substituted(op, old, fold_producers=fold_producers)
    if len(dims.values) == len(op.arguments) and results == old.results and tuple(dims.variables) == old.dims:
        new = old.simplify()
    else:
        new = IndexingMap(tuple(dims.variables), (), (), results).simplify()
    rest, used = new.remove_unused_vars()
    return rest, [value for value, keep in zip(dims.values, used, strict=True) if keep]


def _substituted(op: ApplyIndexingOp, old: IndexingMap, *, fold_producers: bool) -> tuple[_Dims, tuple[Expr, ...]]:
    dims = _Dims()
    inner: list[Expr] = []
    for value, variable in zip(op.arguments, old.dims, strict=True):
        number, producer = constant_int(value), value.owner
        if number is not None:
            inner.append(constant(number))
        elif fold_producers and _is_foldable(value):
            assert isinstance(producer, ApplyIndexingOp), "asked just now"
            places = [dims.add(each, own) for each, own in zip(producer.arguments, producer.map.dims, strict=True)]
            inner.append(Substitution(places, ())(producer.map.results[producer.res.index(value)]))
        else:
            inner.append(dims.add(value, variable))
    rewrite = Substitution(inner, ())
    return dims, tuple(map(rewrite, old.results))


def simplify_loop_dims(loop: LoopOp) -> None:
    """Fold constants and index maps into a loop's map, and drop dims that it does not need. The body does not change.

    A constant outside of its dim's interval makes the loop empty; such a dim is not folded.
    """
    old, dims, inner = loop.map, _Dims(), list[Expr]()
    checks: list[tuple[Expr, Variable]] = []
    for value, variable in zip(loop.dims, old.dims, strict=True):
        known, producer = range_of(value), value.owner
        if known is not None and known.is_point and variable.bounds.encloses(known):
            inner.append(constant(known.lower))
        elif _is_foldable(value):
            assert isinstance(producer, ApplyIndexingOp), "asked just now"
            places = [dims.add(each, own) for each, own in zip(producer.arguments, producer.map.dims, strict=True)]
            inner.append(Substitution(places, ())(producer.map.results[producer.res.index(value)]))
            checks.append((inner[-1], variable))
        else:
            inner.append(dims.add(value, variable))
    new = old
    if len(dims.values) != len(loop.dims) or checks:
        new = _loop_map(old, dims, inner).with_constraints((expr, variable.bounds) for expr, variable in checks).simplify()
    _set_dims(loop, *_without_unused_dims(new, dims.values))


def _loop_map(old: IndexingMap, dims: _Dims, inner: Sequence[Expr]) -> IndexingMap:
    rewrite = Substitution(inner, ())
    bare = replace(old, dims=tuple(dims.variables), results=tuple(map(rewrite, old.results)), constraints=())
    return bare.with_constraints((rewrite(expr), interval) for expr, interval in old.constraints)


def _without_unused_dims(used_map: IndexingMap, values: Sequence[SSAValue]) -> tuple[IndexingMap, Sequence[SSAValue]]:
    """Drop dims that no result and no constraint uses, if their values are known to be in their intervals."""
    if used_map.is_known_empty:
        return used_map, values
    mask = 0
    for expr in (*used_map.results, *(expr for expr, _ in used_map.constraints)):
        mask |= expr.dims_mask
    kept = [bool(mask >> i & 1) or not _is_inside(value, used_map.dims[i]) for i, value in enumerate(values)]
    if all(kept):
        return used_map, values
    dims, inner = _Dims(), list[Expr]()
    for value, variable, keep in zip(values, used_map.dims, kept, strict=True):
        inner.append(dims.add(value, variable) if keep else constant(0))
    return _loop_map(used_map, dims, inner), dims.values


def _is_inside(value: SSAValue, variable: Variable) -> bool:
    known = range_of(value)
    return known is not None and variable.bounds.encloses(known)


def _set_dims(loop: LoopOp, used_map: IndexingMap, dims: Sequence[SSAValue]) -> None:
    if used_map is not loop.map:
        loop.set_dims(used_map, dims)
