"""The text of a comparison, in the layout of XLA's miscompare report: other tools parse its lines."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hlo_run.hlo.literal import literal_to_string
from hlo_run.hlo.shape import Shape
from hlo_run.reference.bits import FLOAT_FORMATS
from hlo_run.reference.element_errors import ErrorSpec, element_errors, float_distance_between
from hlo_run.reference.error_bounds import BoundFinder
from hlo_run.reference.leaf_comparison import LeafComparison, Worst, steps
from hlo_run.reference.values import Array, as_array, widen

TOP_MISMATCHES = 5
MAX_PRINTED_ELEMENTS = 1000
_MAGNITUDE_BOUNDS = (0.0, 1e-4, 1e-3, 1e-2, 0.1, 1.0, math.inf)
_ERROR_BOUNDS = (1e-4, 1e-3, 1e-2, 0.1, 1.0)


def summary(leaves: Sequence[LeafComparison], spec: ErrorSpec) -> str:
    """Return one line: what is wrong, or that nothing is; the bounds; the worst errors and where they are."""
    total = sum(leaf.shape.element_count for leaf in leaves)
    wrong = [leaf for leaf in leaves if not leaf.ok]
    if wrong and wrong[0].problem:
        return _at(wrong[0], len(leaves)) + wrong[0].problem
    parts = [f"{sum(leaf.mismatches for leaf in leaves)} of {total} elements differ"] if wrong else [f"{total} elements agree"]
    if wrong and wrong[0].first:
        first = wrong[0].first
        parts.append(
            f"first {_at(wrong[0], len(leaves))}at {{{_join(first.index)}}}: actual {_plain(wrong[0], first.actual)}, "
            f"expected {_plain(wrong[0], first.expected)}"
        )
    parts.append(f"bounds abs {spec.abs:g} rel {spec.rel:g}")
    for name in ("worst_abs", "worst_rel"):
        found = [(leaf, worst) for leaf in leaves if (worst := getattr(leaf, name)) is not None]
        if found:
            leaf, worst = max(found, key=lambda pair: pair[1].error)
            place = f" {_at(leaf, len(leaves))}at {{{_join(worst.index)}}}" if worst.error else ""
            parts.append(f"worst {name[6:]} error {worst.error:.3g}{place}")
    return ", ".join(parts)


def report(leaves: Sequence[LeafComparison], shape: Shape, spec: ErrorSpec, verbosity: int) -> str:
    """Return the detailed report on every leaf that differs, tuples with the place of each leaf; empty if none does."""
    texts = [(leaf, _leaf_report(leaf, spec, verbosity)) for leaf in leaves if not leaf.ok]
    if not texts:
        return ""
    if not shape.is_tuple:
        return texts[0][1]
    total = sum(leaf.element_count for _, leaf in shape.leaves() if leaf.is_array)
    lines = [f"Mismatches in shape {shape.to_string(layout=False)} ({total} elements):"]
    lines += [f"Array at shape index {{{_join(leaf.path)}}}, {text}" for leaf, text in texts]
    return "\n".join(lines)


def _leaf_report(leaf: LeafComparison, spec: ErrorSpec, verbosity: int) -> str:
    if leaf.problem:
        return leaf.problem
    is_float = leaf.shape.dtype.kind in ("float", "complex")
    lines = _float_report(leaf, spec) if is_float else _exact_report(leaf)
    for name, literal in (("Expected", leaf.expected), ("Actual", leaf.actual)):
        lines.append(f"{name} literal:")
        if leaf.shape.element_count >= MAX_PRINTED_ELEMENTS and verbosity < 2:
            lines.append(f"[TRUNCATED, Literal with more than {MAX_PRINTED_ELEMENTS} values]")
        else:
            lines.append(literal_to_string(literal, leaf.shape))
    return "\n".join(lines)


def _exact_report(leaf: LeafComparison) -> list[str]:
    total = leaf.shape.element_count
    assert leaf.first is not None, "a leaf that differs has a first wrong element"
    return [
        f"Mismatch count {_share(leaf.mismatches, total)} in shape {leaf.shape.to_string(layout=False)} ({total} elements)",
        f"first mismatch at array index {{{_join(leaf.first.index)}}}:",
        f"  expected value: {_plain(leaf, leaf.first.expected)}",
        f"  actual value:   {_plain(leaf, leaf.first.actual)}",
    ]


def _float_report(leaf: LeafComparison, spec: ErrorSpec) -> list[str]:
    total, shape = leaf.shape.element_count, leaf.shape.to_string(layout=False)
    found = _Statistics(leaf, spec)
    lines = [
        f"Mismatch count {_share(leaf.mismatches, total)} in shape {shape} ({total} elements), "
        f"abs bound {spec.abs:g}, rel bound {spec.rel:g}"
    ]
    if leaf.nan_mismatches:
        lines.append(f"nan mismatches {leaf.nan_mismatches}")
    lines.append("Top relative error mismatches:")
    lines += [f"  {_mismatch_line(leaf, worst, abs_error, spec)}" for worst, abs_error in found.top()]
    lines.append("Absolute magnitude breakdown of actual values:")
    for low, high, count, wrong in zip(
        _MAGNITUDE_BOUNDS[:-1], _MAGNITUDE_BOUNDS[1:], found.magnitudes, found.wrong_magnitudes, strict=True
    ):
        lines.append(f"  {low:<6g} <= x < {high:<6g} : {int(count):7d} ({_percent(int(count), total)}), mismatches {int(wrong)}")
    lines += _breakdown("abs", spec.abs, "Relative", found.exceeding_abs, found.rel_of_exceeding_abs, total)
    lines += _breakdown("rel", spec.rel, "Absolute", found.exceeding_rel, found.abs_of_exceeding_rel, total)
    lines.append(f"Current ErrorSpec: ErrorSpec{{{spec.abs:g}, {spec.rel:g}}}")
    lines.append("Suggested ErrorSpec adjustments to make this test pass:")
    options = found.bounds.options()
    lines += [f"  Option {number}: ErrorSpec{{{a:g}, {r:g}}}" for number, (a, r) in enumerate(options, 1)]
    return lines if options else [*lines, "  none: a NaN or an infinity is on one side only"]


def _breakdown(name: str, bound: float, other: str, exceeding: int, counts: Array, total: int) -> list[str]:
    """Return the block on the elements that exceed one bound: how their other error is distributed, cumulatively."""
    lines = [f"Elements exceeding {name} error bound {bound:g}: {_share(exceeding, total)}"]
    lines.append(f"{other} error breakdown of elements exceeding {name} error bound:")
    below = exceeding - int(counts[0])
    for sign, limit, count in (
        ("< ", _ERROR_BOUNDS[0], below),
        *((">=", b, int(c)) for b, c in zip(_ERROR_BOUNDS, counts, strict=True)),
    ):
        lines.append(f"  {sign} {limit:<6g} : {count:7d} ({_percent(count, exceeding)})")
    return lines


def _mismatch_line(leaf: LeafComparison, worst: Worst, abs_error: float, spec: ErrorSpec) -> str:
    text = (
        f"actual {_value(leaf, worst.actual)}, expected {_value(leaf, worst.expected)}, index {{{_join(worst.index)}}}, "
        f"rel error {worst.error:8.3g}, abs error {abs_error:8.3g}"
    )
    if spec.low_precision and leaf.shape.dtype.is_float:
        text += f", float distance {float_distance_between(worst.actual, worst.expected, spec.low_precision[0])}"
    return text


@dataclass(slots=True)
class _Statistics:
    """What a second walk over two float arrays counts for the report."""

    leaf: LeafComparison
    spec: ErrorSpec
    magnitudes: Array = field(default_factory=lambda: np.zeros(len(_MAGNITUDE_BOUNDS) - 1, np.int64))
    wrong_magnitudes: Array = field(default_factory=lambda: np.zeros(len(_MAGNITUDE_BOUNDS) - 1, np.int64))
    exceeding_abs: int = 0
    exceeding_rel: int = 0
    rel_of_exceeding_abs: Array = field(default_factory=lambda: np.zeros(len(_ERROR_BOUNDS), np.int64))
    abs_of_exceeding_rel: Array = field(default_factory=lambda: np.zeros(len(_ERROR_BOUNDS), np.int64))
    bounds: BoundFinder = field(default_factory=BoundFinder)
    _top: list[tuple[float, int, float]] = field(default_factory=list[tuple[float, int, float]])

    def __post_init__(self) -> None:
        for start, want, got in steps(as_array(self.leaf.expected), as_array(self.leaf.actual)):
            self._add(start, want, got)

    def _add(self, start: int, want: Array, got: Array) -> None:
        dtype = self.leaf.shape.dtype
        errors = element_errors(want, got, dtype, self.spec)
        magnitude = np.abs(widen(got, dtype)).astype(np.float64)
        self.magnitudes += np.histogram(magnitude[np.isfinite(magnitude)], _MAGNITUDE_BOUNDS)[0]
        wrong = magnitude[errors.mismatch]
        self.wrong_magnitudes += np.histogram(wrong[np.isfinite(wrong)], _MAGNITUDE_BOUNDS)[0]
        over_abs, over_rel = errors.abs_error > self.spec.abs, errors.rel_error > self.spec.rel
        self.exceeding_abs += int(np.count_nonzero(over_abs))
        self.exceeding_rel += int(np.count_nonzero(over_rel))
        self.rel_of_exceeding_abs += [np.count_nonzero(errors.rel_error[over_abs] >= bound) for bound in _ERROR_BOUNDS]
        self.abs_of_exceeding_rel += [np.count_nonzero(errors.abs_error[over_rel] >= bound) for bound in _ERROR_BOUNDS]
        self.bounds.add(errors.abs_error, errors.rel_error)
        places = np.flatnonzero(errors.mismatch)
        if places.size:
            worst = places[np.argsort(-errors.rel_error[places], kind="stable")[:TOP_MISMATCHES]]
            self._top += [(float(errors.rel_error[p]), -(start + int(p)), float(errors.abs_error[p])) for p in worst]
            self._top = heapq.nlargest(TOP_MISMATCHES, self._top)

    def top(self) -> list[tuple[Worst, float]]:
        """Return the mismatches of largest relative error with their absolute errors; of equals the first elements."""
        expected, actual = as_array(self.leaf.expected), as_array(self.leaf.actual)
        found: list[tuple[Worst, float]] = []
        for rel_error, place, abs_error in self._top:
            index = tuple(int(i) for i in np.unravel_index(-place, expected.shape)) if expected.ndim else ()
            found.append((Worst(rel_error, index, expected[index], actual[index]), abs_error))
        return found


def _share(count: int, total: int) -> str:
    return f"{count} ({_percent(count, total)})"


def _percent(count: int, total: int) -> str:
    return f"{100 * count / total if total else 0:.4f}%"


def _join(index: Sequence[int]) -> str:
    return ",".join(map(str, index))


def _at(leaf: LeafComparison, leaves: int) -> str:
    return f"array {{{_join(leaf.path)}}} " if leaves > 1 else ""


def _value(leaf: LeafComparison, value: object) -> str:
    """Return a float with the digits that tell it from its neighbours, in a column."""
    digits = _digits(leaf)
    if leaf.shape.dtype.is_complex:
        number = np.asarray(value).astype(np.complex128).item()
        return f"({number.real:>{digits + 7}.{digits}g}, {number.imag:>{digits + 7}.{digits}g})"
    return f"{float(np.asarray(value).astype(np.float64)):>{digits + 7}.{digits}g}"


def _plain(leaf: LeafComparison, value: object) -> str:
    """Return one element without a column's blanks."""
    dtype = leaf.shape.dtype
    if dtype.kind == "pred":
        return "true" if value else "false"
    if dtype.is_integer:
        return str(int(np.asarray(value).astype(np.uint64 if dtype.is_unsigned else np.int64)))
    return " ".join(_value(leaf, value).replace("(", "").replace(")", "").split()) if dtype.is_float else _value(leaf, value)


def _digits(leaf: LeafComparison) -> int:
    """Decimal digits that are enough to tell any two numbers of the type apart (C++'s max_digits10)."""
    name = {"c64": "f32", "c128": "f64"}.get(leaf.shape.element_type, leaf.shape.element_type)
    return math.ceil(1 + (FLOAT_FORMATS[name][1] + 1) * math.log10(2))
