"""Makes HTML: escaped texts, tables, and data packed for the page's script."""

from __future__ import annotations

import base64
import html
import json
import zlib
from collections.abc import Iterable, Sequence

from hlo_run.errors import escaped


def text(value: object) -> str:
    """Return a value as text of a page or of an attribute: markup and control characters are escaped."""
    return html.escape(escaped(str(value)))


def table(head: Sequence[str], rows: Iterable[Sequence[object]], css: str = "") -> str:
    """Return a table. Cells are escaped; numbers are aligned to the right."""
    top = "".join(f"<th>{text(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>\n" for row in rows)
    return f'<table class="{text(css)}"><thead><tr>{top}</tr></thead><tbody>\n{body}</tbody></table>\n'


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f'<td class="number">{value:.6g}</td>'
    if isinstance(value, int) and not isinstance(value, bool):
        return f'<td class="number">{value:,}</td>'
    return f"<td>{text(value)}</td>"


def part(name: str, title: str, body: str) -> str:
    """Return one part of a file's section, which the reader can fold. The script draws into it by its `name`."""
    return f'<details class="part" data-part="{text(name)}" open><summary>{text(title)}</summary>\n{body}</details>\n'


def packed(name: str, value: object) -> str:
    """Return plain data for the script, deflated: it is unpacked when it is shown, and cannot contain markup."""
    data = base64.b64encode(zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 6)).decode()
    return f'<script type="text/plain" data-name="{text(name)}">{data}</script>\n'


def unpacked(data: str) -> object:
    """Return the value of the contents of a `packed` element."""
    return json.loads(zlib.decompress(base64.b64decode(data)))


def milliseconds(seconds: float) -> str:
    """Return seconds as milliseconds with three digits after the point."""
    return f"{seconds * 1e3:.3f}"
