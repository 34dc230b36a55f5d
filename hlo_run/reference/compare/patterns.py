"""Find patterns of mismatches: where they are, and what the wrong values look like. Patterns are hints, not proofs.

Patterns of places are exact: they come from a mask of all mismatches. Patterns of values come from a sample: a wrong
value that equals the expected value of another element is hardly an accident.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hlo_run.hlo.values.braces import braces
from hlo_run.reference.compare.element_errors import ErrorSpec
from hlo_run.reference.compare.leaf_comparison import LeafComparison
from hlo_run.reference.compare.mismatch_places import place_patterns
from hlo_run.reference.compare.mismatch_values import agree, value_patterns
from hlo_run.reference.values import Array, as_array

_SAMPLES = 4096


class PatternFinder:
    """Collects the mismatches of one leaf in chunks, and then finds their patterns."""

    def __init__(self, leaf: LeafComparison, spec: ErrorSpec) -> None:
        self._leaf, self._spec = leaf, spec
        self._mask = np.zeros(leaf.shape.element_count, np.bool_)
        self._stride = max(1, leaf.mismatches // _SAMPLES)
        self._seen = 0
        self._places: list[Array] = []

    def add(self, start: int, mismatch: Array, places: Array) -> None:
        """Add the next elements; `places` are the indices where `mismatch` is true."""
        self._mask[start : start + mismatch.size] = mismatch
        self._places.append(start + places[(-self._seen) % self._stride :: self._stride])
        self._seen += places.size

    def found(self) -> tuple[str, ...]:
        """Return the patterns as sentences, places first."""
        leaf = self._leaf
        sample = np.concatenate(self._places) if self._places else np.zeros(0, np.int64)
        values = value_patterns(leaf, as_array(leaf.expected), as_array(leaf.actual), sample, self._spec)
        return (*place_patterns(self._mask.reshape(leaf.shape.dims)), *values)


def leaf_patterns(leaves: Sequence[LeafComparison], spec: ErrorSpec) -> tuple[str, ...]:
    """Return patterns over the leaves of a tuple: which ones differ, and whether two are swapped."""
    wrong = [leaf for leaf in leaves if not leaf.ok and not leaf.problem]
    found: list[str] = []
    if len(wrong) > 1 and len(wrong) == len(leaves):
        found.append(f"all {len(leaves)} arrays differ")
    elif wrong and len(leaves) > 1:
        right = len(leaves) - len(wrong)
        others = "the other one agrees" if right == 1 else f"the other {right} agree"
        found.append(f"{_names(wrong)} differ{'s' if len(wrong) == 1 else ''}, {others}")
    for number, one in enumerate(wrong):
        for other in wrong[number + 1 :]:
            if one.shape == other.shape and _holds(one, other, spec) and _holds(other, one, spec):
                found.append(f"{_names([one, other])} look swapped")
    return tuple(found)


def _holds(one: LeafComparison, other: LeafComparison, spec: ErrorSpec) -> bool:
    """True if the actual value of `one` is the expected value of `other`."""
    expected, actual = as_array(other.expected).reshape(-1), as_array(one.actual).reshape(-1)
    step = max(1, expected.size // _SAMPLES)
    return bool(agree(expected[::step], actual[::step], one.shape.dtype, spec).all())


def _names(leaves: Sequence[LeafComparison]) -> str:
    names = [braces(leaf.path) for leaf in leaves]
    shown = names if len(names) <= 4 else [*names[:4], f"{len(names) - 4} more"]
    return ("array " if len(names) == 1 else "arrays ") + ", ".join(shown)
