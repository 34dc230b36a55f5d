"""The part of the page about stages that are compared with their goldens."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.diff.texts import TextDiff, change_lines, figure_lines
from hlo_run.report.markup import table, text

_MOST_LINES = 2000


def goldens(diffs: Sequence[TextDiff]) -> str:
    """Return a table of the stages, then the differences of each one that differs."""
    made = table(("stage", "verdict", "what changed"), [(diff.name, _verdict(diff), _summary(diff)) for diff in diffs])
    return made + "".join(_differences(diff) for diff in diffs if diff.differs and not diff.missing)


def _verdict(diff: TextDiff) -> str:
    return "no golden" if diff.missing == "before" else "differs" if diff.differs else "same"


def _summary(diff: TextDiff) -> str:
    if diff.missing:
        return "" if diff.missing == "before" else "only the golden has this text"
    return "; ".join(filter(None, (diff.summary.removeprefix("same").removeprefix("; "), diff.because)))


def _differences(diff: TextDiff) -> str:
    lines = [*figure_lines(diff.figures), *change_lines(diff)]
    shown = "".join(map(_line, lines[:_MOST_LINES]))
    more = f"<p>{len(lines) - _MOST_LINES:,} more lines.</p>\n" if len(lines) > _MOST_LINES else ""
    return f'<h3>{text(diff.name)}</h3>\n<pre class="diff">{shown}</pre>\n{more}'


def _line(line: str) -> str:
    css = {"-": "gone", "+": "come"}.get(line[:1], "")
    return f'<span class="{css}">{text(line)}</span>\n' if css else f"{text(line)}\n"
