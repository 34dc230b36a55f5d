"""Compare two results as XLA does: floats must be near each other, other types equal; tuples leaf by leaf."""

from __future__ import annotations

from msgspec import Struct

from hlo_run.hlo.values.shape import Shape
from hlo_run.records import replace
from hlo_run.reference.compare import report
from hlo_run.reference.compare.decisions import judge_decisions
from hlo_run.reference.compare.detectability import Detectability, detectability
from hlo_run.reference.compare.element_errors import ErrorSpec
from hlo_run.reference.compare.findings import Findings, PreciseSource, examine
from hlo_run.reference.compare.leaf_comparison import LeafComparison, compare_leaf, mismatch_mask
from hlo_run.reference.compare.rounding import RoundingSamples, judge
from hlo_run.reference.values import Array, Value, quiet

__all__ = ["Comparison", "ErrorSpec", "compare"]


class Comparison(Struct, frozen=True):
    """The comparison of a whole result. `problem` is set if the two results have different tuple structures.

    `fixed_bounds` is false if rounding decides about elements in doubt; see `judged`.
    """

    shape: Shape
    spec: ErrorSpec
    leaves: tuple[LeafComparison, ...]
    problem: str = ""
    fixed_bounds: bool = True

    @property
    def ok(self) -> bool:
        """True if the structures are equal and all arrays agree."""
        return not self.problem and all(leaf.ok for leaf in self.leaves)

    @property
    def mismatches(self) -> int:
        """The number of wrong elements in all arrays."""
        return sum(leaf.mismatches for leaf in self.leaves)

    def summary(self) -> str:
        """Return one line: the number of wrong elements, the first one, and the worst errors (also if all agree)."""
        return self.problem or report.summary(self.leaves, self.spec)

    def lines(self) -> list[str]:
        """Return the summary as lines of a readable length: the verdict of rounding has a separate line."""
        if self.problem:
            return [self.problem]
        return [report.summary(self.leaves, self.spec, with_rounding=False), *report.rounding_parts(self.leaves)]

    def rounding(self) -> str:
        """Return the verdict of rounding without elements; empty if rounding decided nothing."""
        return ", ".join(report.rounding_parts(self.leaves, with_first=False))

    def counts(self) -> str:
        """Return how many elements differ, and in which arrays: `8 of 480 elements in 2 of 12 arrays: {0}, {7}`."""
        return self.problem or report.counts(self.leaves)

    def judged(self, samples: RoundingSamples, is_alone: bool = False) -> Comparison:
        """Return the comparison with the verdicts of `rounding.judge` and `judge_decisions` on elements in doubt."""
        if self.problem:
            return self
        leaves = judge_decisions(judge(self.leaves, self.spec, samples, is_alone), samples)
        return replace(self, leaves=leaves, fixed_bounds=False)

    def sights(self) -> list[Detectability]:
        """Return what the comparison of each leaf sees."""
        return [detectability(leaf, self.spec, self.fixed_bounds) for leaf in self.leaves]

    def examine(self, precise: PreciseSource | None = None) -> Findings:
        """Examine the leaves that differ. `precise`, called only if needed, returns the float64 value of the result."""
        return examine(self.leaves, self.shape, self.spec, self.problem, precise)

    def masks(self) -> list[Array]:
        """Return a mask of the wrong elements per leaf."""
        with quiet():
            return [mismatch_mask(leaf, self.spec) for leaf in self.leaves]

    def report(self, verbosity: int = 0) -> str:
        """Return the detailed report in XLA's layout; with `verbosity` >= 2 it prints literals of any size."""
        return report.report(self.examine(), verbosity)


def compare(expected: Value, actual: Value, shape: Shape, spec: ErrorSpec) -> Comparison:
    """Compare the tested value `actual` with the reference's value `expected`; both are results of shape `shape`.

    The rules are those of `Near` in XLA's literal_comparison.cc. Layouts do not matter, tokens are equal.
    """
    with quiet():
        leaves, problem = _compare(expected, actual, shape, (), spec)
    return Comparison(shape, spec, tuple(leaves), problem)


def _compare(
    expected: Value, actual: Value, shape: Shape, path: tuple[int, ...], spec: ErrorSpec
) -> tuple[list[LeafComparison], str]:
    """Return the comparisons of the leaves, or the difference of the tuple structures."""
    if not shape.is_tuple:
        return [compare_leaf(expected, actual, shape, path, spec)] if shape.is_array else [], ""
    want, got = _elements(expected), _elements(actual)
    if not len(want) == len(got) == len(shape.tuple_shapes):
        return [], f"want tuple element count: {len(want)} got tuple element count: {len(got)}"
    leaves: list[LeafComparison] = []
    for number, element in enumerate(shape.tuple_shapes):
        found, problem = _compare(want[number], got[number], element, (*path, number), spec)
        if problem:
            return [], problem
        leaves += found
    return leaves, ""


def _elements(value: Value) -> tuple[Value, ...]:
    return value if isinstance(value, tuple) else ()
