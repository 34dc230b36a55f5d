"""Prints a mismatch, or a comparison with XLA, to a terminal as coloured tables and bars."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hlo_run.analysis.cost.side_by_side import XlaDiff, headline, ratio_text, side_cells
from hlo_run.colours import has_colours
from hlo_run.errors import escaped
from hlo_run.hlo.values.dtype import DType
from hlo_run.reference.compare.element_text import element_text, precise_text
from hlo_run.reference.compare.findings import ERROR_BOUNDS, MAGNITUDE_BOUNDS, Findings, Histograms, LeafFindings, TopMismatch
from hlo_run.reference.compare.leaf_comparison import LeafComparison
from hlo_run.reference.compare.report import error_text, join, report, worst_errors

_TOP = 10
_MAX_DETAILED = 4
_MAX_LISTED = 30
_BAR_CELLS = 40
# A value above XLA's times this factor is red.
_MUCH_MORE = 1.05


def show_mismatch(findings: Findings) -> None:
    """Print the findings to stdout; as plain text if the terminal supports only ASCII."""
    console = _console()
    console.print(_text(report(findings)) if console.options.ascii_only else mismatch_view(findings))


def show_xla_diff(diff: XlaDiff) -> None:
    """Print a comparison with XLA to stdout."""
    _console().print(xla_diff_view(diff))


def _console() -> Console:
    # Without colours rich would still print bold and dim text.
    return Console(highlight=False, color_system="auto" if has_colours(sys.stdout) else None)


def xla_diff_view(diff: XlaDiff) -> RenderableType:
    """Return the totals and a table with a row for each piece of work that differs."""
    totals = _table(headline(diff))
    totals.add_column("")
    for name in ("ours", "XLA", "ours/XLA"):
        totals.add_column(name, justify="right")
    for name, ours, xla in diff.totals:
        style = "red" if ours > xla * _MUCH_MORE else "green" if ours < xla else ""
        totals.add_row(name, str(ours), str(xla), Text(ratio_text(ours, xla), style=style))
    different = diff.different
    alike = Text(f"{len(diff.pairs) - len(different)} alike on both sides, {len(different)} not")
    if not different:
        return Group(totals, Text(""), alike)
    table = _table()
    for name in ("ours", "bytes", "XLA", "bytes", "ours computes", "XLA computes"):
        table.add_column(name, justify="right" if name == "bytes" else "left", overflow="fold")
    for pair in different[:_MAX_LISTED]:
        contents = ("" if work is None else work.contents for work in (pair.ours, pair.xla))
        table.add_row(*map(_text, (*side_cells(pair.ours), *side_cells(pair.xla), *contents)))
    if len(different) > _MAX_LISTED:
        table.caption = f"the {_MAX_LISTED} that move most bytes, of {len(different)}; --report_json=FILE lists all"
    return Group(totals, Text(""), alike, Text(""), table)


def mismatch_view(findings: Findings) -> RenderableType:
    """Return an overview if the result has several arrays, then the details of each array that differs."""
    if findings.problem:
        return _text(findings.problem, style="bold red")
    parts: list[RenderableType] = []
    if len(findings.compared) > 1:
        parts += [_overview(findings.compared), *_bullets(findings.patterns)]
    several = len(findings.compared) > 1
    parts += [_leaf_view(found, several) for found in findings.leaves[:_MAX_DETAILED]]
    left = len(findings.leaves) - _MAX_DETAILED
    if left > 0:
        parts.append(Text(f"{left} more arrays differ; --report_json=FILE lists all of them", style="dim"))
    return Group(*parts)


def _overview(leaves: tuple[LeafComparison, ...]) -> Table:
    """Return a table with one row per array. Of many arrays it lists only those that differ, and counts the others."""
    table = _table("Arrays of the result")
    table.add_column("")
    table.add_column("array")
    table.add_column("shape")
    for name in ("differ", "of", "worst abs", "worst rel", "worst ulp"):
        table.add_column(name, justify="right")
    shown = leaves if len(leaves) <= _MAX_LISTED else [leaf for leaf in leaves if not leaf.ok][:_MAX_LISTED]
    for leaf in shown:
        worst = {name: error_text(found.error, name) for name, found in worst_errors(leaf)}
        table.add_row(
            Text("✓", style="green") if leaf.ok else Text("✗", style="bold red"),
            f"{{{join(leaf.path)}}}",
            Text(leaf.shape.to_string(layout=False)),
            Text(str(leaf.mismatches), style="" if leaf.ok else "bold red"),
            str(leaf.shape.element_count),
            *(worst.get(name, "") for name in ("abs", "rel", "ulp")),
        )
    if len(shown) < len(leaves):
        table.caption = f"{len(leaves) - len(shown)} more of {len(leaves)} arrays"
    return table


def _leaf_view(found: LeafFindings, several: bool) -> RenderableType:
    leaf = found.leaf
    name = f"array {{{join(leaf.path)}}} " if several else ""
    shape = leaf.shape.to_string(layout=False)
    if leaf.problem:
        return _text(f"{name}{shape}: {leaf.problem}", style="bold red")
    total = leaf.shape.element_count
    share = 100 * leaf.mismatches / total
    title = Text(f"{name}{shape}: {leaf.mismatches} of {total} elements differ ({share:.4g} %)", style="bold red")
    parts: list[RenderableType] = [_top_table(found)]
    if found.histograms is not None:
        parts += [_magnitude_table(found.histograms), _error_table(found.histograms)]
    parts += _bullets(_sentences(found))
    return Group(Text(""), title, Padding(Group(*parts), (0, 0, 0, 1)))


def _top_table(found: LeafFindings) -> Table:
    """Return the table of the worst mismatches. The side nearer to the float64 value is green, the other side red."""
    dtype = found.leaf.shape.dtype
    table = _table()
    names = ["index", "expected", "actual"]
    if found.precise is not None:
        names.append("float64")
    if dtype.kind != "pred":
        names.append("abs error")
    if found.leaf.is_near:
        names += ["rel error", "ulp"]
    for name in names:
        table.add_column(name, justify="left" if name == "index" else "right", overflow="fold")
    for mismatch in found.top[:_TOP]:
        cells = [Text(f"{{{join(mismatch.index)}}}"), *_side_cells(mismatch, dtype)]
        if found.precise is not None:
            cells.append(Text(precise_text(mismatch.precise, dtype, 10), style="cyan"))
        errors = (("abs", mismatch.abs_error), ("rel", mismatch.rel_error), ("ulp", mismatch.ulp_error))
        cells += [Text(error_text(error, name)) for name, error in errors[: len(names) - len(cells)]]
        table.add_row(*cells)
    if len(found.top) > _TOP:
        table.caption = f"largest relative errors, {_TOP} of {found.leaf.mismatches}"
    return table


def _side_cells(mismatch: TopMismatch, dtype: DType) -> list[Text]:
    expected, actual = Text(element_text(mismatch.expected, dtype)), Text(element_text(mismatch.actual, dtype))
    nearer = mismatch.nearer
    if nearer:
        expected.stylize("green" if nearer == "expected" else "red")
        actual.stylize("green" if nearer == "actual" else "red")
    return [expected, actual]


def _magnitude_table(histograms: Histograms) -> Table:
    """Return a histogram of the magnitudes of actual values, one bar per range."""
    table = _table()
    table.add_column("|actual|")
    table.add_column("elements", justify="right")
    table.add_column("differ", justify="right")
    table.add_column("")
    largest = max(1, int(histograms.magnitudes.max()))
    for row, (low, high) in enumerate(pairwise(MAGNITUDE_BOUNDS)):
        count, wrong = int(histograms.magnitudes[row]), int(histograms.wrong_magnitudes[row])
        table.add_row(f"{low:g} to {high:g}", str(count), str(wrong), _bar(count, wrong, largest))
    return table


def _error_table(histograms: Histograms) -> Table:
    """Return the numbers of elements with errors of at least each bound: one column per bound of XLA's breakdowns."""
    table = _table()
    table.add_column("errors")
    for name in ("any", *(f">={bound:g}" for bound in ERROR_BOUNDS)):
        table.add_column(name, justify="right")
    for name, total, counts in (
        ("rel, where abs is over its bound", histograms.exceeding_abs, histograms.rel_of_exceeding_abs),
        ("abs, where rel is over its bound", histograms.exceeding_rel, histograms.abs_of_exceeding_rel),
    ):
        table.add_row(name, str(total), *(str(int(count)) for count in counts))
    return table


def _table(title: str = "") -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 1, 0, 0), pad_edge=False, title=_text(title) if title else None)
    table.title_justify = "left"
    table.caption_justify = "left"
    return table


def _text(text: str, style: str = "") -> Text:
    """Return text that may hold words of the input: brackets are not markup, and control characters are escaped."""
    return Text(escaped(text), style=style)


def _bar(count: int, wrong: int, largest: int) -> Text:
    """Return a bar for a count, its wrong part in red. A count above 0 has at least one cell."""
    cells = -(-count * _BAR_CELLS // largest)
    red = min(cells, -(-wrong * _BAR_CELLS // largest))
    return Text("█" * red, style="red") + Text("█" * (cells - red), style="blue")


def _sentences(found: LeafFindings) -> Iterator[str]:
    yield from found.patterns
    if found.precise is not None:
        yield f"float64 is {found.precise.verdict}"
    if found.special is not None:
        yield from found.special.texts()
    if found.histograms is not None:
        options = " or ".join(f"abs {a:g} rel {r:g}" for a, r in found.bounds[:4])
        yield f"would pass with bounds {options}" if options else "no bounds would pass: a NaN or an infinity is on one side only"


def _bullets(sentences: tuple[str, ...] | Iterator[str]) -> list[RenderableType]:
    return [_text(f"• {sentence}") for sentence in sentences]
