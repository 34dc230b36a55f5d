"""Writes comparisons as one HTML page that needs no other file: a table of contents, the changes, and the texts side by side."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from hlo_run.diff.lines import Row
from hlo_run.diff.numbers import Figure
from hlo_run.diff.texts import TextDiff
from hlo_run.errors import escaped

_CONTEXT = 4
_STYLE = """
body{font:14px/1.4 system-ui,sans-serif;margin:1.5em;color:#222;background:#fff}
table{border-collapse:collapse;width:100%}
table.sides{table-layout:fixed;font:12px/1.4 ui-monospace,monospace;margin:.6em 0}
table.sides td{vertical-align:top;white-space:pre-wrap;overflow-wrap:anywhere;padding:0 .5em;width:50%}
table.list td,table.list th{border-bottom:1px solid #ddd;padding:.2em .6em;text-align:left;vertical-align:top}
table.list code{overflow-wrap:anywhere}
.old{background:#fdecea}.new{background:#e6f6e9}.old b{background:#f5b5ae}.new b{background:#a9deb4}
.none{background:#f4f4f4}.fold td{background:#eef3fa;color:#456;cursor:pointer;text-align:center}
.hidden{display:none}
@media (prefers-color-scheme:dark){body{color:#ddd;background:#1b1b1b}.old{background:#4a2320}.new{background:#1f3d26}
.old b{background:#8a3b34}.new b{background:#2f6b3d}.none{background:#262626}.fold td{background:#25303d;color:#9bd}
table.list td,table.list th{border-color:#444}a{color:#8bf}}
"""
_SCRIPT = """
document.addEventListener('click', function (event) {
  var fold = event.target.closest('tbody.fold');
  if (fold) { fold.nextElementSibling.classList.remove('hidden'); fold.remove(); }
});
"""


def page(title_before: str, title_after: str, diffs: Sequence[TextDiff]) -> str:
    """Return the page that compares `title_before` with `title_after`."""
    different = [diff for diff in diffs if diff.differs]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f"<title>{_text(title_before)} | {_text(title_after)}</title>",
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{len(different)} of {len(diffs)} differ</h1>",
        f"<p>Before: <code>{_text(title_before)}</code><br>After: <code>{_text(title_after)}</code></p>",
        '<table class="list"><tr><th>text</th><th>result</th></tr>',
    ]
    for number, diff in enumerate(diffs):
        name = f'<a href="#d{number}">{_text(diff.name)}</a>' if diff in different else _text(diff.name)
        parts.append(f"<tr><td>{name}</td><td>{_text(diff.summary)}</td></tr>")
    parts.append("</table>")
    for number, diff in enumerate(diffs):
        if diff.differs:
            parts += _section(number, diff)
    parts.append(f"<script>{_SCRIPT}</script></body></html>")
    return "\n".join(parts) + "\n"


def _section(number: int, diff: TextDiff) -> Iterator[str]:
    yield f'<h2 id="d{number}">{_text(diff.name)}</h2>'
    yield f"<p>{_text(diff.summary)}</p>"
    if diff.figures:
        yield from _figures(diff.figures)
    if diff.module is not None and diff.module.changes:
        yield '<table class="list"><tr><th>change</th><th>in</th><th>instruction</th><th>properties</th></tr>'
        for change in diff.module.changes:
            details = "<br>".join(
                f"{_text(d.what)}: <span class=old>{_text(d.before) or '(none)'}</span> "
                f"<span class=new>{_text(d.after) or '(none)'}</span>"
                for d in change.details
            )
            line = f"<code>{_text(change.after or change.before)}</code>"
            yield f"<tr><td>{change.kind}</td><td>{_text(change.computation)}</td><td>{line}</td><td>{details}</td></tr>"
        yield "</table>"
    if diff.rows:
        yield from _side_by_side(diff.rows)


def _figures(figures: Sequence[Figure]) -> Iterator[str]:
    yield '<table class="list"><tr><th>figure</th><th>before</th><th>after</th><th>tolerance</th></tr>'
    for figure in figures:
        before, after = ("-" if value is None else value for value in (figure.before, figure.after))
        verdict = f"within {figure.tolerance}" if figure.accepted else "exceeded"
        yield f"<tr><td>{_text(figure.name)}</td><td>{before}</td><td>{after}</td><td>{verdict}</td></tr>"
    yield "</table>"


def _side_by_side(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table. Equal rows far from a difference are folded away."""
    near: set[int] = set()
    for place, row in enumerate(rows):
        if not row.same:
            near.update(range(max(0, place - _CONTEXT), min(len(rows), place + _CONTEXT + 1)))
    yield '<table class="sides">'
    place = 0
    while place < len(rows):
        start, is_near = place, place in near
        while place < len(rows) and (place in near) == is_near:
            place += 1
        if not is_near:
            yield f'<tbody class="fold"><tr><td colspan="2">{place - start} equal lines</td></tr></tbody>'
        yield "<tbody>" if is_near else '<tbody class="hidden">'
        yield from (_row(row) for row in rows[start:place])
        yield "</tbody>"
    yield "</table>"


def _row(row: Row) -> str:
    if row.same:
        return f"<tr><td>{_text(row.before or '')}</td><td>{_text(row.after or '')}</td></tr>"
    if row.before is None or row.after is None:
        left = '<td class="none"></td>' if row.before is None else f'<td class="old">{_text(row.before)}</td>'
        right = '<td class="none"></td>' if row.after is None else f'<td class="new">{_text(row.after)}</td>'
        return f"<tr>{left}{right}</tr>"
    before, after = row.before, row.after
    start = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after)))
    most = min(len(before), len(after)) - start
    end = next((i for i in range(most) if before[-1 - i] != after[-1 - i]), most)
    return f'<tr><td class="old">{_marked(before, start, end)}</td><td class="new">{_marked(after, start, end)}</td></tr>'


def _marked(text: str, start: int, end: int) -> str:
    """Return a line with the part in bold that is not in the other line: all but `start` and `end` characters at its ends."""
    stop = len(text) - end
    return f"{_text(text[:start])}<b>{_text(text[start:stop])}</b>{_text(text[stop:])}"


def _text(text: str) -> str:
    return html.escape(escaped(text))
