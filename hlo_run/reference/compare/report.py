"""Print a comparison: a summary of one line, and a report in XLA's layout, whose lines other tools parse.

Our additions to XLA's report (worst errors, special values, float64 values, patterns) are blocks after the suggested
bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hlo_run.hlo.values.dtype import DType
from hlo_run.hlo.values.literal import literal_to_string
from hlo_run.reference.compare.element_errors import ErrorSpec, float_distance_between
from hlo_run.reference.compare.element_text import column_text, element_text, precise_text
from hlo_run.reference.compare.findings import ERROR_BOUNDS, MAGNITUDE_BOUNDS, Findings, LeafFindings, TopMismatch
from hlo_run.reference.compare.leaf_comparison import Allowance, LeafComparison, Worst
from hlo_run.reference.values import Array

TOP_MISMATCHES = 5
MAX_PRINTED_ELEMENTS = 1000
_MOST_NAMED = 5
_WORST = (("abs", "worst_abs"), ("rel", "worst_rel"), ("ulp", "worst_ulp"))


def summary(leaves: Sequence[LeafComparison], spec: ErrorSpec, with_rounding: bool = True) -> str:
    """Return one line: the wrong elements, or that all agree; the bounds; the worst errors and where they are."""
    total = sum(leaf.shape.element_count for leaf in leaves)
    wrong = [leaf for leaf in leaves if not leaf.ok]
    if wrong and wrong[0].problem:
        return _at(wrong[0], len(leaves)) + wrong[0].problem
    parts = [f"{sum(leaf.mismatches for leaf in leaves)} of {total} elements differ"] if wrong else [f"{total} elements agree"]
    if len(wrong) and len(leaves) > 1:
        parts[0] += f" in {len(wrong)} of {len(leaves)} arrays"
    if wrong and wrong[0].first:
        first = wrong[0].first
        parts.append(
            f"first {_at(wrong[0], len(leaves))}at {{{join(first.index)}}}: actual {_text(wrong[0], first.actual)}, "
            f"expected {_text(wrong[0], first.expected)}"
        )
    if any(leaf.is_near for leaf in leaves):
        parts.append(f"bounds abs {spec.abs:g} rel {spec.rel:g}")
    parts += _worst_parts(leaves)
    if with_rounding:
        parts += rounding_parts(leaves)
    return ", ".join(parts)


def counts(leaves: Sequence[LeafComparison]) -> str:
    """Return how many elements differ, and in which arrays if there are several."""
    wrong = [leaf for leaf in leaves if not leaf.ok]
    text = f"{sum(leaf.mismatches for leaf in leaves)} of {sum(leaf.shape.element_count for leaf in leaves)} elements"
    if len(leaves) == 1:
        return text
    named = [f"{{{join(leaf.path)}}}" for leaf in wrong[:_MOST_NAMED]] + [".."] * (len(wrong) > _MOST_NAMED)
    return f"{text} in {len(wrong)} of {len(leaves)} arrays: {', '.join(named)}"


def rounding_parts(leaves: Sequence[LeafComparison], with_first: bool = True) -> Iterator[str]:
    """Yield the verdicts of rounding: what it explains, with the first such element, and what it does not."""
    judged = [(leaf, leaf.rounding) for leaf in leaves if leaf.rounding is not None]
    if explained := sum(verdict.explained for _, verdict in judged):
        largest = max(verdict.largest for _, verdict in judged)
        lost = sum(verdict.lost for _, verdict in judged)
        text = f"{explained} beyond the bounds are within the rounding of the module's types (here up to rel {largest:.2g}"
        text += f"; {lost} may be off by more than their value)" if lost else ")"
        leaf, first = next((leaf, verdict.first) for leaf, verdict in judged if verdict.first is not None)
        yield f"{text}, the first {_at(leaf, len(leaves))}{allowance_text(first, leaf.shape.dtype)}" if with_first else text
    if unexplained := sum(verdict.unexplained for _, verdict in judged):
        yield f"{unexplained} within the bounds are off by more than the rounding of the module's types"


def allowance_text(allowance: Allowance, dtype: DType) -> str:
    """Return the values of an element that rounding explains, the allowed error, and the reason."""
    values = (
        f"at {{{join(allowance.index)}}}: actual {element_text(allowance.actual, dtype)}, "
        f"expected {element_text(allowance.expected, dtype)}"
    )
    if allowance.precise is not None:
        values += f", float64 {precise_text(allowance.precise, dtype, 9)}"
    if allowance.in_steps:
        return f"{values}, allowed {allowance.allowed:.3g} numbers of its type"
    if allowance.is_jump:
        return f"{values}, allowed error {allowance.allowed:.3g} since rounding turns a decision"
    magnified = f"{allowance.roundings:.2g} roundings of its value" if allowance.roundings < np.inf else "its terms cancel"
    return f"{values}, allowed error {allowance.allowed:.3g} ({magnified})"


def _worst_parts(leaves: Sequence[LeafComparison]) -> Iterator[str]:
    for name, field in _WORST:
        found = [(leaf, worst) for leaf in leaves if (worst := getattr(leaf, field)) is not None]
        if found:
            leaf, worst = max(found, key=lambda pair: pair[1].error)
            place = f" {_at(leaf, len(leaves))}at {{{join(worst.index)}}}" if worst.error else ""
            yield f"worst {name} error {error_text(worst.error, name)}{place}"


def report(findings: Findings, verbosity: int = 0) -> str:
    """Return the detailed report on every leaf that differs, with shape indices if it is a tuple; empty if none does.

    With `verbosity` >= 2 literals of any size are printed.
    """
    if findings.problem or not findings.leaves:
        return findings.problem
    texts = [(found.leaf, _leaf_report(found, findings.spec, verbosity)) for found in findings.leaves]
    if not findings.shape.is_tuple:
        return texts[0][1]
    total = sum(leaf.shape.element_count for leaf in findings.compared)
    lines = [f"Mismatches in shape {findings.shape.to_string(layout=False)} ({total} elements):"]
    lines += [f"Array at shape index {{{join(leaf.path)}}}, {text}" for leaf, text in texts]
    lines += [f"Pattern: {pattern}" for pattern in findings.patterns]
    return "\n".join(lines)


def _leaf_report(found: LeafFindings, spec: ErrorSpec, verbosity: int) -> str:
    leaf = found.leaf
    if leaf.problem:
        return leaf.problem
    lines = _float_report(found, spec) if leaf.is_near else _exact_report(leaf)
    lines += _own_blocks(found)
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
        f"first mismatch at array index {{{join(leaf.first.index)}}}:",
        f"  expected value: {_text(leaf, leaf.first.expected)}",
        f"  actual value:   {_text(leaf, leaf.first.actual)}",
    ]


def _float_report(found: LeafFindings, spec: ErrorSpec) -> list[str]:
    leaf, histograms = found.leaf, found.histograms
    assert histograms is not None, "floats have histograms"
    total, shape = leaf.shape.element_count, leaf.shape.to_string(layout=False)
    lines = [
        f"Mismatch count {_share(leaf.mismatches, total)} in shape {shape} ({total} elements), "
        f"abs bound {spec.abs:g}, rel bound {spec.rel:g}"
    ]
    if leaf.nan_mismatches:
        lines.append(f"nan mismatches {leaf.nan_mismatches}")
    lines.append("Top relative error mismatches:")
    lines += [f"  {_mismatch_line(leaf, mismatch, spec)}" for mismatch in found.top[:TOP_MISMATCHES]]
    lines.append("Absolute magnitude breakdown of actual values:")
    for low, high, count, wrong in zip(
        MAGNITUDE_BOUNDS[:-1], MAGNITUDE_BOUNDS[1:], histograms.magnitudes, histograms.wrong_magnitudes, strict=True
    ):
        lines.append(f"  {low:<6g} <= x < {high:<6g} : {int(count):7d} ({percent(int(count), total)}), mismatches {int(wrong)}")
    lines += _breakdown("abs", spec.abs, "Relative", histograms.exceeding_abs, histograms.rel_of_exceeding_abs, total)
    lines += _breakdown("rel", spec.rel, "Absolute", histograms.exceeding_rel, histograms.abs_of_exceeding_rel, total)
    lines.append(f"Current ErrorSpec: ErrorSpec{{{spec.abs:g}, {spec.rel:g}}}")
    lines.append("Suggested ErrorSpec adjustments to make this test pass:")
    lines += [f"  Option {number}: ErrorSpec{{{a:g}, {r:g}}}" for number, (a, r) in enumerate(found.bounds, 1)]
    return lines if found.bounds else [*lines, "  none: a NaN or an infinity is on one side only"]


def _breakdown(name: str, bound: float, other: str, exceeding: int, counts: Array, total: int) -> list[str]:
    """Return the lines on elements that exceed one bound: the cumulative distribution of their other error."""
    lines = [f"Elements exceeding {name} error bound {bound:g}: {_share(exceeding, total)}"]
    lines.append(f"{other} error breakdown of elements exceeding {name} error bound:")
    below = exceeding - int(counts[0])
    for sign, limit, count in (
        ("< ", ERROR_BOUNDS[0], below),
        *((">=", b, int(c)) for b, c in zip(ERROR_BOUNDS, counts, strict=True)),
    ):
        lines.append(f"  {sign} {limit:<6g} : {count:7d} ({percent(count, exceeding)})")
    return lines


def _mismatch_line(leaf: LeafComparison, mismatch: TopMismatch, spec: ErrorSpec) -> str:
    dtype = leaf.shape.dtype
    text = (
        f"actual {column_text(mismatch.actual, dtype)}, expected {column_text(mismatch.expected, dtype)}, "
        f"index {{{join(mismatch.index)}}}, rel error {mismatch.rel_error:8.3g}, abs error {mismatch.abs_error:8.3g}"
    )
    if spec.low_precision and dtype.is_float:
        text += f", float distance {float_distance_between(mismatch.actual, mismatch.expected, spec.low_precision[0])}"
    return text


def _own_blocks(found: LeafFindings) -> Iterator[str]:
    """Yield the lines that XLA's report does not have."""
    leaf = found.leaf
    for name, worst in worst_errors(leaf):
        yield (
            f"Worst {name} error {error_text(worst.error, name)} at {{{join(worst.index)}}}: actual {_text(leaf, worst.actual)}, "
            f"expected {_text(leaf, worst.expected)}"
        )
    if found.special is not None and (texts := found.special.texts()):
        yield f"Special values: {', '.join(texts)}"
    if found.precise is not None:
        yield f"Float64 values: {found.precise.verdict}"
        for mismatch in found.top[:TOP_MISMATCHES]:
            yield f"  float64 {precise_text(mismatch.precise, leaf.shape.dtype)}, index {{{join(mismatch.index)}}}"
    for pattern in found.patterns:
        yield f"Pattern: {pattern}"


def worst_errors(leaf: LeafComparison) -> list[tuple[str, Worst]]:
    """Return (name, worst element) of every kind of error (abs, rel, ulp) that the leaf's type has."""
    return [(name, worst) for name, field in _WORST if (worst := getattr(leaf, field)) is not None]


def error_text(error: float, name: str) -> str:
    """Return the text of an error; an `ulp` error is a whole number."""
    return f"{error:.0f}" if name == "ulp" and error < 1e6 else f"{error:.3g}"


def percent(count: int, total: int) -> str:
    """Return count / total as a percentage, as XLA prints it."""
    return f"{100 * count / total if total else 0:.4f}%"


def join(index: Sequence[int]) -> str:
    """Return the text of an index, without braces."""
    return ",".join(map(str, index))


def _share(count: int, total: int) -> str:
    return f"{count} ({percent(count, total)})"


def _at(leaf: LeafComparison, leaves: int) -> str:
    return f"array {{{join(leaf.path)}}} " if leaves > 1 else ""


def _text(leaf: LeafComparison, element: object) -> str:
    return element_text(element, leaf.shape.dtype)
