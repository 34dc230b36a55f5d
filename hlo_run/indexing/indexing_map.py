"""Indexing maps: functions from dimensions and symbols to indices, defined on a domain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import force_setattr

from hlo_run.indexing.compiled import CompiledMap, compile_map
from hlo_run.indexing.domain import Domain, bounds_of
from hlo_run.indexing.expr import ZERO, Expr, dim, symbol
from hlo_run.indexing.interval import Interval
from hlo_run.indexing.printer import map_to_string
from hlo_run.indexing.ranges import RangeEvaluator
from hlo_run.indexing.simplify import simplifier_for
from hlo_run.indexing.substitute import Substitution
from hlo_run.indexing.variable import Variable
from hlo_run.records import replace

Constraint: TypeAlias = tuple[Expr, Interval]


class IndexingMap(Struct, frozen=True, eq=False, dict=True):
    """Result expressions over dimensions and symbols, on a domain: the box of all bounds, cut by the constraints.

    `dims` are the map's inputs (output index, thread ids), `ranges` are loop variables, `rts` are values known at run
    time only. Symbols are numbered ranges first, then rts. Intervals are closed. A map with an infeasible domain
    becomes *known empty* when it is made: results 0, dims and ranges [0, -1], no constraints. Maps are equal if
    variables' bounds, results and the set of constraints are equal as written; names do not count. None represents the
    undefined map: nothing is known.
    """

    dims: tuple[Variable, ...]
    ranges: tuple[Variable, ...]
    rts: tuple[Variable, ...]
    results: tuple[Expr, ...]
    constraints: tuple[Constraint, ...] = ()
    is_known_empty: bool = False

    def __post_init__(self) -> None:
        if self.is_known_empty or not self._is_feasible():
            nothing = Interval(0, -1)
            force_setattr(self, "dims", tuple(Variable(nothing, v.name) for v in self.dims))
            force_setattr(self, "ranges", tuple(Variable(nothing, v.name) for v in self.ranges))
            force_setattr(self, "results", (ZERO,) * len(self.results))
            force_setattr(self, "constraints", ())
            force_setattr(self, "is_known_empty", True)

    def _is_feasible(self) -> bool:
        return all(v.bounds.is_feasible for v in (*self.dims, *self.ranges, *self.rts)) and all(
            interval.is_feasible for _, interval in self.constraints
        )

    @staticmethod
    def from_sizes(results: Iterable[Expr], dim_sizes: Sequence[int], range_sizes: Sequence[int] = ()) -> IndexingMap:
        """Return the map with nameless variables, each from 0 to its size - 1, and no constraints."""
        dims = tuple(Variable(Interval(0, size - 1)) for size in dim_sizes)
        ranges = tuple(Variable(Interval(0, size - 1)) for size in range_sizes)
        return IndexingMap(dims, ranges, (), tuple(results))

    @staticmethod
    def identity(sizes: Sequence[int]) -> IndexingMap:
        """Return (d0, d1, ..) -> (d0, d1, ..) on the box of these sizes."""
        return IndexingMap.from_sizes((dim(i) for i in range(len(sizes))), sizes)

    @property
    def symbols(self) -> tuple[Variable, ...]:
        """Range variables, then runtime variables: symbol i is symbols[i]."""
        return self.ranges + self.rts

    @cached_property
    def _key(self) -> tuple[object, ...]:
        return self.dims, self.ranges, self.rts, self.results, frozenset(self.constraints), self.is_known_empty

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, IndexingMap) and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return map_to_string(self)

    # Asking.

    @cached_property
    def range_evaluator(self) -> RangeEvaluator:
        """Evaluates ranges of expressions over this map's variables; constraints are ignored."""
        return RangeEvaluator(_bounds(self.dims), _bounds(self.symbols))

    def range_of(self, expr: Expr) -> Interval:
        """Return the closed interval of `expr` over this map's variables; constraints are ignored."""
        return self.range_evaluator.interval(expr)

    @cached_property
    def compiled(self) -> CompiledMap:
        """The map as Python functions that also take arrays."""
        return compile_map(self.results, self._domain_checks(), len(self.dims), len(self.symbols))

    def _domain_checks(self) -> tuple[Constraint, ...]:
        own = [(dim(i), v.bounds) for i, v in enumerate(self.dims)]
        own += [(symbol(i), v.bounds) for i, v in enumerate(self.symbols)]
        return (*own, *self.constraints)

    def evaluate(self, dims: Sequence[int], symbols: Sequence[int] = ()) -> tuple[int, ...]:
        """Return the results at one point; the domain is not checked."""
        return self.compiled.results(dims, symbols)

    def contains(self, dims: Sequence[int], symbols: Sequence[int] = ()) -> bool:
        """True if the point is in the domain: all bounds and constraints hold."""
        return not self.is_known_empty and bool(self.compiled.contains(dims, symbols))

    # Changing.

    def with_constraint(self, expr: Expr, interval: Interval) -> IndexingMap:
        """Return the map cut by `expr in interval`. If `expr` is a plain variable, its bounds are tightened instead."""
        return self.with_constraints(((expr, interval),))

    def with_constraints(self, constraints: Iterable[Constraint]) -> IndexingMap:
        """Return the map cut by each of `constraints`, in this order."""
        domain = self._domain()
        for expr, interval in constraints:
            domain.add(expr, interval)
        return self.with_domain(domain)

    def _domain(self) -> Domain:
        bounds, symbol_bounds = [v.bounds for v in self.dims], [v.bounds for v in self.symbols]
        return Domain(bounds, symbol_bounds, dict(self.constraints), self.is_known_empty)

    def with_domain(self, domain: Domain, results: tuple[Expr, ...] | None = None) -> IndexingMap:
        """Return the map with the bounds and constraints of `domain`, which has the same variables."""
        count = len(self.ranges)
        return IndexingMap(
            _rebound(self.dims, domain.dims),
            _rebound(self.ranges, domain.symbols[:count]),
            _rebound(self.rts, domain.symbols[count:]),
            self.results if results is None else results,
            tuple(domain.constraints.items()),
            domain.empty,
        )

    def with_results(self, results: Iterable[Expr]) -> IndexingMap:
        """Return the map with other results on the same domain."""
        return replace(self, results=tuple(results))

    def simplify(self, preserve_points: bool = False) -> IndexingMap:
        """Return the map with simplified constraints and results; variables keep their names and numbers.

        `preserve_points` keeps expressions that have one possible value, so that dimensions of size 1 stay visible.
        Reshape and bitcast maps need that.
        """
        return self._simplified_preserving if preserve_points else self._simplified

    @cached_property
    def _simplified(self) -> IndexingMap:
        return self._simplify(False)

    @cached_property
    def _simplified_preserving(self) -> IndexingMap:
        return self._simplify(True)

    def _simplify(self, preserve_points: bool) -> IndexingMap:
        if self.is_known_empty:
            return self
        dims, symbols = _intervals(self.dims), _intervals(self.symbols)
        domain, results = simplify_parts(dims, symbols, self.constraints, self.results, preserve_points)
        return self if domain is None else self.with_domain(domain, results)

    def substitute(self, dims: Sequence[Expr] = (), symbols: Sequence[Expr] = ()) -> IndexingMap:
        """Replace dimension i by dims[i] and symbol i by symbols[i] in results and constraints; keep all variables."""
        rewrite = Substitution(dims, symbols)
        constraints = tuple((rewrite(expr), interval) for expr, interval in self.constraints)
        bare = replace(self, results=tuple(map(rewrite, self.results)), constraints=())
        return bare.with_constraints(constraints)

    def with_dims(self, dims: Sequence[Variable], places: Sequence[int]) -> IndexingMap:
        """Return the map over other dimensions: old dimension i is `dims[places[i]]`, with the bounds of the latter."""
        symbols = [symbol(i) for i in range(len(self.symbols))]
        return self._rewritten(tuple(dims), self.ranges, self.rts, [dim(place) for place in places], symbols)

    def symbols_to_dims(self) -> IndexingMap:
        """Turn all symbols into dimensions, appended after the dimensions in order."""
        count = len(self.dims)
        symbols = tuple(dim(count + i) for i in range(len(self.symbols)))
        return self._rewritten((*self.dims, *self.symbols), (), (), (), symbols)

    def ranges_to_dims(self, ids: Sequence[int]) -> IndexingMap:
        """Turn the range variables with these numbers into dimensions, appended in the order of `ids`."""
        kept = [i for i in range(len(self.symbols)) if i not in ids]
        symbols = list[Expr]([ZERO] * len(self.symbols))
        for new, old in enumerate(kept):
            symbols[old] = symbol(new)
        for new, old in enumerate(ids):
            symbols[old] = dim(len(self.dims) + new)
        dims = self.dims + tuple(self.ranges[i] for i in ids)
        ranges = tuple(v for i, v in enumerate(self.ranges) if i not in ids)
        return self._rewritten(dims, ranges, self.rts, (), symbols)

    def remove_unused_symbols(self) -> tuple[IndexingMap, tuple[bool, ...]]:
        """Drop symbols that no result depends on, and the constraints between them.

        A symbol in a constraint with a dimension or with a kept symbol is kept. Returns the map and a flag for each
        old symbol: True if it is kept.
        """
        result, kept = self._remove_unused((1 << len(self.dims)) - 1)
        return result, kept[len(self.dims) :]

    def remove_unused_vars(self) -> tuple[IndexingMap, tuple[bool, ...]]:
        """Drop unused dimensions and symbols by the rule of `remove_unused_symbols`; flags are for dims, then symbols."""
        return self._remove_unused(0)

    def _remove_unused(self, used_dims: int) -> tuple[IndexingMap, tuple[bool, ...]]:
        if self.is_known_empty:
            return self, (True,) * (len(self.dims) + len(self.symbols))
        used_symbols = 0
        for expr in self.results:
            used_dims |= expr.dims_mask
            used_symbols |= expr.symbols_mask
        # A constraint with one used variable makes all its variables used, which may reach further constraints.
        for _ in self.constraints:
            for expr, _ in self.constraints:
                if expr.dims_mask & used_dims or expr.symbols_mask & used_symbols:
                    used_dims |= expr.dims_mask
                    used_symbols |= expr.symbols_mask
        kept_dims = tuple(bool(used_dims >> i & 1) for i in range(len(self.dims)))
        kept_symbols = tuple(bool(used_symbols >> i & 1) for i in range(len(self.symbols)))
        if all(kept_dims) and all(kept_symbols):
            return self, kept_dims + kept_symbols
        return self._keep(kept_dims, kept_symbols), kept_dims + kept_symbols

    def _keep(self, kept_dims: Sequence[bool], kept_symbols: Sequence[bool]) -> IndexingMap:
        dims = [dim(sum(kept_dims[:i])) if keep else ZERO for i, keep in enumerate(kept_dims)]
        symbols = [symbol(sum(kept_symbols[:i])) if keep else ZERO for i, keep in enumerate(kept_symbols)]
        # A constraint has either only kept variables or only dropped ones.
        dropped_dims = sum(1 << i for i, keep in enumerate(kept_dims) if not keep)
        dropped_symbols = sum(1 << i for i, keep in enumerate(kept_symbols) if not keep)
        constraints = tuple(
            c for c in self.constraints if not c[0].dims_mask & dropped_dims | c[0].symbols_mask & dropped_symbols
        )
        count = len(self.ranges)
        return replace(self, constraints=constraints)._rewritten(
            _where(self.dims, kept_dims),
            _where(self.ranges, kept_symbols[:count]),
            _where(self.rts, kept_symbols[count:]),
            dims,
            symbols,
        )

    def _rewritten(
        self,
        dims: tuple[Variable, ...],
        ranges: tuple[Variable, ...],
        rts: tuple[Variable, ...],
        dim_exprs: Sequence[Expr],
        symbol_exprs: Sequence[Expr],
    ) -> IndexingMap:
        """Return the map over new variables, with the old variables replaced by the given expressions."""
        rewrite = Substitution(dim_exprs, symbol_exprs)
        bare = IndexingMap(dims, ranges, rts, tuple(map(rewrite, self.results)), (), self.is_known_empty)
        return bare.with_constraints((rewrite(expr), interval) for expr, interval in self.constraints)

    def __reduce__(self) -> tuple[type[IndexingMap], tuple[object, ...]]:
        # Do not pickle the cached properties: compiled functions are among them.
        return IndexingMap, (self.dims, self.ranges, self.rts, self.results, self.constraints, self.is_known_empty)


@lru_cache(maxsize=8192)
def simplify_parts(
    dims: tuple[Interval, ...],
    symbols: tuple[Interval, ...],
    constraints: tuple[Constraint, ...],
    results: tuple[Expr, ...],
    preserve_points: bool,
) -> tuple[Domain | None, tuple[Expr, ...]]:
    """Return the simplified domain and results. The domain is None if nothing changed. Variables have no names here."""
    domain = Domain(list(dims), list(symbols), dict(constraints))
    domain.simplify(preserve_points)
    if domain.empty:
        return domain, results
    left = tuple(domain.constraints.items())
    simplify = simplifier_for(bounds_of(domain.dims), bounds_of(domain.symbols), left, preserve_points)
    new_results = tuple(map(simplify, results))
    same = (tuple(domain.dims), tuple(domain.symbols), left, new_results) == (dims, symbols, constraints, results)
    return None if same else domain, new_results


def _bounds(variables: Sequence[Variable]) -> tuple[tuple[int, int], ...]:
    return tuple((v.bounds.lower, v.bounds.upper) for v in variables)


def _intervals(variables: Sequence[Variable]) -> tuple[Interval, ...]:
    return tuple(v.bounds for v in variables)


def _rebound(variables: Sequence[Variable], bounds: Sequence[Interval]) -> tuple[Variable, ...]:
    return tuple(v if v.bounds == new else Variable(new, v.name) for v, new in zip(variables, bounds, strict=True))


def _where(variables: Sequence[Variable], kept: Sequence[bool]) -> tuple[Variable, ...]:
    return tuple(v for v, keep in zip(variables, kept, strict=True) if keep)
