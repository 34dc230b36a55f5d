"""Draw the ratios of docs/performance.md, ours to XLA's: docs/images/performance.svg.

    python3 scripts/venv.py python scripts/draw_figures.py            # writes the picture
    python3 scripts/venv.py python scripts/draw_figures.py --check    # exit code 1 if the picture is not current

The source is the table under "Ours beside XLA's" of the page. Each row has a bar up to its ratio. A row that names a file of
docs/figures has a dot for each program too: the column `ratio` of that file.
"""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import NamedTuple

from current_pictures import write_or_check

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "performance.md"
PICTURE = DOCS / "images" / "performance.svg"

_ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| ([\d.]+) \| (\d+) \| ([^|]*)\|$", re.MULTILINE)
_LINK = re.compile(r"\((figures/[\w.]+)\)")

_LEFT, _TOP, _LINE, _WIDTH, _RIGHT = 300, 46, 26, 560, 120
_LEAST, _MOST = 0.05, 200.0
_TICKS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_BETTER, _WORSE, _DOT, _TEXT, _FAINT, _GRID = "#4ac26b", "#54aeff", "#57606a", "#1f2328", "#57606a", "#d0d7de"


class Figure(NamedTuple):
    """A row of the table: what was measured, beside which program, the mean ratio, and the ratio of each program if kept."""

    what: str
    beside: str
    ratio: str
    programs: int
    each: tuple[float, ...]


def figures(page: str, docs: Path) -> list[Figure]:
    """Return the rows of the page's table of ratios."""
    table = page.partition("\n## Ours beside XLA's\n")[2].partition("\n## ")[0]
    return [
        Figure(what, beside, ratio, int(programs), _each(docs / link[1]) if (link := _LINK.search(kept)) else ())
        for what, beside, ratio, programs, kept in _ROW.findall(table)
    ]


def _each(file: Path) -> tuple[float, ...]:
    """Return the column `ratio` of a table of tabs."""
    head, *rows = (line.split("\t") for line in file.read_text(encoding="utf-8").splitlines())
    column = head.index("ratio")
    return tuple(float(row[column]) for row in rows)


def _x(ratio: float) -> float:
    """Return the place of a ratio on the logarithmic axis."""
    share = math.log(min(max(ratio, _LEAST), _MOST) / _LEAST) / math.log(_MOST / _LEAST)
    return round(_LEFT + share * _WIDTH, 1)


def draw(rows: list[Figure]) -> str:
    """Return the picture of some figures, one line each."""
    bottom = _TOP + _LINE * len(rows)
    width, height = _LEFT + _WIDTH + _RIGHT, bottom + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="12">',
        "  <title>Figures of hlo-run, divided by those of XLA</title>",
        f'  <rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'  <text x="8" y="18" fill="{_TEXT}" font-size="13">hlo-run / XLA: less is better. Bars are geometric means of all '
        "programs, dots are single programs.</text>",
    ]
    for tick in _TICKS:
        colour = _TEXT if tick == 1 else _GRID
        lines += [
            f'  <path d="M{_x(tick)} {_TOP - 8}V{bottom}" stroke="{colour}"/>',
            f'  <text x="{_x(tick)}" y="{bottom + 18}" text-anchor="middle" fill="{_FAINT}">{tick:g}</text>',
        ]
    for number, row in enumerate(rows):
        y = _TOP + _LINE * number
        start, end = sorted((_x(1), _x(float(row.ratio))))
        colour = _BETTER if float(row.ratio) <= 1 else _WORSE
        lines += [
            f'  <text x="{_LEFT - 10}" y="{y + 13}" text-anchor="end" fill="{_TEXT}">{row.what}</text>',
            f'  <rect x="{start - 1:g}" y="{y}" width="{end - start + 2:.1f}" height="18" fill="{colour}"/>',
            *(f'  <circle cx="{_x(ratio)}" cy="{y + 9}" r="2.5" fill="{_DOT}" fill-opacity="0.5"/>' for ratio in row.each),
            f'  <text x="{_LEFT + _WIDTH + 10}" y="{y + 13}" fill="{_FAINT}">{row.ratio} of {row.beside}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


def picture() -> str:
    """Return the picture of the page as it is."""
    return draw(figures(PAGE.read_text(encoding="utf-8"), DOCS))


def main() -> int:
    """Write or check the picture. Return the exit code."""
    return write_or_check(__doc__, PICTURE, picture)


if __name__ == "__main__":
    sys.exit(main())
