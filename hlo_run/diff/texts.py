"""Compares two texts: HLO modules by their graphs, all others by lines, where names may differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct, field

from hlo_run.columns import aligned
from hlo_run.diff.folded_names import diff_but_names
from hlo_run.diff.lines import Row, rows_of, unified
from hlo_run.diff.match import Matching
from hlo_run.diff.module_diff import Change, ModuleComparison, ModuleDiff
from hlo_run.diff.numbers import Figure
from hlo_run.errors import HloRunError
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.print_options import PrintOptions
from hlo_run.hlo.printer import computation_order, computation_to_string
from hlo_run.ops.parse import parse

_PRINTED = PrintOptions(percent=False, program_shape=False, operand_index_interval=0, metadata=False, async_sugar=False)


class TextDiff(Struct):
    """The comparison of two texts called `name`.

    `module` is set if both are HLO modules. `rows` are the lines side by side. `missing` names the side that lacks the text:
    `before`, `after`, or empty. `figures` are the figures that changed. `renamed` counts the names that are others after,
    in texts that are no modules. `because` says why the texts differ, if that is known. `whole` is the file with all differences.
    """

    name: str
    rows: list[Row] = field(default_factory=list[Row])
    module: ModuleDiff | None = None
    missing: str = ""
    figures: list[Figure] = field(default_factory=list[Figure])
    renamed: int = 0
    because: str = ""
    whole: str = ""

    @property
    def differs(self) -> bool:
        """True for any difference, except in the names of a module and within tolerances."""
        if self.missing or any(not figure.accepted for figure in self.figures):
            return True
        if self.module is not None:
            return bool(self.module.changes)
        return any(not row.same for row in self.rows)

    @property
    def summary(self) -> str:
        """The result in a few words."""
        if self.missing:
            return f"only {'after' if self.missing == 'before' else 'before'}"
        if self.module is not None:
            counts = ", ".join(f"{count} {kind}" for kind, count in self.module.counts.items())
            renamed = f"{self.module.renamed} of {self.module.matched} matched instructions have other names"
            return (counts or "same") + (f"; {renamed}" if self.module.renamed else "")
        removed = sum(row.before is not None for row in self.rows if not row.same)
        added = sum(row.after is not None for row in self.rows if not row.same)
        if removed or added:
            return f"{removed} line{'s' * (removed != 1)} removed, {added} added"
        changed = sum(not figure.accepted for figure in self.figures)
        if changed:
            return f"{changed} figure{'s' * (changed > 1)} changed"
        names = f"{self.renamed} name{'s' * (self.renamed > 1)}"
        return f"same; {names} differ{'s' * (self.renamed == 1)}" if self.renamed else "same"


def diff_texts(name: str, before: str | None, after: str | None) -> TextDiff:
    """Compare two texts. None: the side lacks the text. HLO that cannot be parsed is compared by lines."""
    if before is None or after is None:
        return TextDiff(name, missing="before" if before is None else "after")
    if before == after:
        return TextDiff(name)
    one, two = _module(before, f"{name} before"), _module(after, f"{name} after")
    if one is not None and two is not None:
        return diff_parsed(name, one, two)
    diff = diff_but_names(name, before, after)
    return TextDiff(name, diff.rows, renamed=diff.renamed)


def diff_parsed(name: str, one: HloModule, two: HloModule) -> TextDiff:
    """Compare two modules. Changes the names in `two`."""
    comparison = ModuleComparison(one, two)
    return TextDiff(name, _module_rows(one, two, comparison.matching), comparison.diff)


def _module(text: str, name: str) -> HloModule | None:
    """Return the module in a text; None if it is none, or cannot be parsed."""
    start = next((line for line in text.splitlines() if line.strip() and not line.startswith("//")), "")
    if not start.startswith("HloModule"):
        return None
    try:
        return parse(text, name, verified=False)
    except HloRunError:
        return None


def _module_rows(one: HloModule, two: HloModule, matching: Matching) -> list[Row]:
    """Return the lines of both modules side by side. Lines are equal if they are so with the names of matched instructions."""
    computations = dict(matching.computations)
    others = {two: one for one, two in matching.computations}
    order = computation_order(one)
    order_two = [computations[c] for c in order if c in computations]
    order_two += [c for c in computation_order(two) if c not in others]
    lines, lines_two = _lines(order), _lines(order_two)
    # The same text with the partners' names tells what is equal.
    for computation in order_two:
        computation.name = others[computation].name if computation in others else f"{computation.name} (new)"
    for instruction in two.instructions:
        instruction.name = _partner_name(instruction, matching)
    return rows_of(lines, lines_two, lines, _lines(order_two))


def _partner_name(instruction: HloInstruction, matching: Matching) -> str:
    partner = matching.back.get(instruction)
    return partner.name if partner is not None else f"{instruction.name} (new)"


def _lines(computations: Sequence[HloComputation]) -> list[str]:
    return [line for c in computations for line in (*computation_to_string(c, _PRINTED).splitlines(), "")]


def text_of(diff: TextDiff, limit: int = 0) -> Iterator[str]:
    """Yield the lines of a report: the summary, the figures, then the changes. At most `limit` lines of changes; 0: all.

    If it is known why the text differs, a limited report is one line.
    """
    head, lines = f"{diff.name}: {diff.summary}", change_lines(diff)
    if diff.because and limit:
        where = f"; all {len(lines)} lines: {diff.whole}" if diff.whole else ""
        yield f"{head}; {diff.because}{where}"
        return
    yield head
    yield from (f"  {line}" for line in figure_lines(diff.figures))
    shown = lines[:limit] if limit else lines
    yield from (f"  {line}" for line in shown)
    if len(shown) < len(lines):
        yield f"  .. {len(lines) - len(shown)} more lines" + (f"; all of them: {diff.whole}" if diff.whole else "")


def change_lines(diff: TextDiff) -> list[str]:
    """Return the changes of a module, or the lines that differ."""
    return list(_changes(diff.module.changes)) if diff.module is not None else unified(diff.rows)


def _changes(changes: Sequence[Change]) -> Iterator[str]:
    for change in changes:
        place = f"[{change.computation}] " if change.computation else ""
        yield f"{change.kind:8}{place}{change.after or change.before}"
        for detail in change.details:
            before, after = _cut(detail.before, detail.after)
            yield f"          {detail.what}: {before or '(none)'} -> {after or '(none)'}"


def _cut(before: str, after: str, most: int = 240, context: int = 60) -> tuple[str, str]:
    """Shorten long texts to the surroundings of their first difference."""
    if max(len(before), len(after)) <= most:
        return before, after
    place = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after)))
    start = max(0, place - context)
    end = start + most
    return tuple(f"{'..' if start else ''}{text[start:end]}{'..' if len(text) > end else ''}" for text in (before, after))  # pyright: ignore[reportReturnType] -- two texts give two


def figure_lines(figures: Sequence[Figure]) -> list[str]:
    """Return figures as a table: name, before, after, change, and whether the tolerance accepts it."""
    rows = [("figure", "before", "after", "change", "")] if figures else []
    for figure in figures:
        verdict = f"within {figure.tolerance}" if figure.accepted else ""
        cells = ["-" if value is None else str(value) for value in (figure.before, figure.after)]
        rows.append((figure.name, cells[0], cells[1], _change(figure), verdict))
    return aligned(rows, right=range(1, 4))


def _change(figure: Figure) -> str:
    if figure.before is None or figure.after is None:
        return "-"
    change = figure.after - figure.before
    return f"{change:+}" + (f" ({100 * change / figure.before:+.1f}%)" if figure.before else "")


def record_of(diff: TextDiff) -> dict[str, object]:
    """Return the whole comparison as data for JSON."""
    module = diff.module
    return {
        "name": diff.name,
        "differs": diff.differs,
        "summary": diff.summary,
        "missing": diff.missing,
        "because": diff.because,
        "whole": diff.whole,
        "figures": [
            {
                "name": figure.name,
                "before": figure.before,
                "after": figure.after,
                "tolerance": str(figure.tolerance),
                "accepted": figure.accepted,
            }
            for figure in diff.figures
        ],
        "module": module
        and {
            "instructions": list(module.instructions),
            "matched": module.matched,
            "renamed": module.renamed,
            "changes": [
                {
                    "kind": change.kind,
                    "computation": change.computation,
                    "before": change.before,
                    "after": change.after,
                    "details": [{"what": d.what, "before": d.before, "after": d.after} for d in change.details],
                }
                for change in module.changes
            ],
        },
        "lines": unified(diff.rows) if module is None else [],
    }
