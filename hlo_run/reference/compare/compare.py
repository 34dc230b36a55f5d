"""XLA's comparison of two results: floats near each other, everything else equal; tuples leaf by leaf."""

from __future__ import annotations

from dataclasses import dataclass

from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.compare import report
from hlo_run.reference.compare.element_errors import ErrorSpec
from hlo_run.reference.compare.findings import Findings, PreciseSource, examine
from hlo_run.reference.compare.leaf_comparison import LeafComparison, compare_leaf, mismatch_mask
from hlo_run.reference.values import Array, Value, quiet

__all__ = ["Comparison", "ErrorSpec", "compare"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The verdict on a whole result. `problem` is set if the two have no arrays in common to compare."""

    shape: Shape
    spec: ErrorSpec
    leaves: tuple[LeafComparison, ...]
    problem: str = ""

    @property
    def ok(self) -> bool:
        return not self.problem and all(leaf.ok for leaf in self.leaves)

    @property
    def mismatches(self) -> int:
        """How many elements are wrong, over all arrays."""
        return sum(leaf.mismatches for leaf in self.leaves)

    def summary(self) -> str:
        """Return one line: how many elements are wrong and which is the first, and the worst errors in any case."""
        return self.problem or report.summary(self.leaves, self.spec)

    def examine(self, precise: PreciseSource | None = None) -> Findings:
        """Look closely at what differs; `precise` gives the float64 value of the result if it is asked."""
        return examine(self.leaves, self.shape, self.spec, self.problem, precise)

    def masks(self) -> list[Array]:
        """Return per leaf which elements are wrong."""
        with quiet():
            return [mismatch_mask(leaf, self.spec) for leaf in self.leaves]

    def report(self, verbosity: int = 0) -> str:
        """Return the detailed text in XLA's layout; from `verbosity` 2 on with literals of any size."""
        return report.report(self.examine(), verbosity)


def compare(expected: Value, actual: Value, shape: Shape, spec: ErrorSpec) -> Comparison:
    """Return what differs between the reference's value and the tested one, `shape` being the result's.

    Rules: XLA's literal_comparison.cc, `Near`. Layouts do not matter, tokens are equal.
    """
    with quiet():
        leaves, problem = _compare(expected, actual, shape, (), spec)
    return Comparison(shape, spec, tuple(leaves), problem)


def _compare(
    expected: Value, actual: Value, shape: Shape, path: tuple[int, ...], spec: ErrorSpec
) -> tuple[list[LeafComparison], str]:
    """Return the leaves' comparisons, or why the two have no leaves in common."""
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
