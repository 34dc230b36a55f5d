"""Puts the sections of all files on one HTML page that loads nothing."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files

from hlo_run.report.markup import text

_HEAD = re.compile(r'<section class="file" data-file="([^"]*)" data-outcome="([^"]*)">')


def page(sections: Sequence[str]) -> str:
    """Return the page. `sections` are made by `file_section`; with several, a list of them comes first.

    The page's policy forbids the browser to load anything and to run any script but the page's own.
    """
    style, script = _static("page.css"), _static("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    heads = [match for section in sections if (match := _HEAD.match(section))]
    title = "hlo-run: " + (f"{heads[0][2]}: {heads[0][1]}" if len(heads) == 1 else f"{len(heads)} files")
    body: list[str] = []
    if len(sections) > 1:
        items = (f'<li><a href="#file-{n}">{head[2]}: {head[1]}</a></li>' for n, head in enumerate(heads))
        body.append(f'<nav><ol start="0">{"".join(items)}</ol></nav>')
    body += [_HEAD.sub(lambda match, n=n: f'<div id="file-{n}"></div>{match[0]}', s, count=1) for n, s in enumerate(sections)]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{text(policy)}">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>{title}</title>",
            f"<style>\n{style}</style></head><body>",
            *body,
            # Without a newline between the tags and the script, its digest is that of the file.
            f"<script>{script}</script>",
            "</body></html>",
            "",
        ]
    )


def _static(name: str) -> str:
    return files("hlo_run.report").joinpath("static", name).read_text(encoding="utf-8")
