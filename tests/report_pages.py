"""Modules, and pages of `--report_html` about them, for the tests of the page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from hlo_run.cli import run
from hlo_run.report.markup import unpacked

MARKUP = "</script><script>alert(1)</script><b>&"
MODULE = """HloModule m

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY e {
  p = f32[40,96] parameter(0)
  q = f32[40,96] parameter(1)
  t = f32[40,96] tanh(p)
  m = f32[40,96] multiply(t, q)
  zero = f32[] constant(0)
  r = f32[40] reduce(m, zero), dimensions={1}, to_apply=sum
  s = f32[96,40] transpose(m), dimensions={1,0}
  ROOT o = (f32[40], f32[96,40]) tuple(r, s)
}
"""
# Tags without an end.
_VOID = {"meta", "col", "input", "br"}


def write_page(folder: Path, *flags: str, name: str = "m.hlo", code: int = 0) -> Path:
    """Run MODULE as the file `name`, and return the path of the page."""
    file, page = folder / name, folder / "page.html"
    file.write_text(MODULE, encoding="utf-8")
    assert run(["--platform=Host", "--profile", f"--report_html={page}", *flags, str(file)]) == code
    return page


def write_page_of_a_mismatch(folder: Path, name: str = "m.hlo") -> Path:
    """As `write_page`, with an expected result whose block {1}[8..15, 4..7] is wrong."""
    given, right, wrong = folder / "in.npz", folder / "right.npz", folder / "wrong.npz"
    write_page(folder, f"--save_inputs={given}", f"--save_outputs={right}", name=name)
    with np.load(right) as saved:
        arrays: dict[str, Any] = dict(saved)
    arrays["out1"][8:16, 4:8] += 1
    np.savez(wrong, **arrays)
    return write_page(folder, f"--inputs={given}", f"--expected_output={wrong}", name=name, code=1)


class Page(HTMLParser):
    """The elements of a page. Fails if tags are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.parts: dict[str, str] = {}
        self.data: dict[str, Any] = {}
        self._open: list[str] = []
        self._part = self._packed = ""
        self.feed(text)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.tags.append((tag, values))
        if tag not in _VOID:
            self._open.append(tag)
        if "data-part" in values:
            self._part = values["data-part"]
            self.parts[self._part] = ""
        self._packed = values.get("data-name", "") if tag == "script" else ""

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"</{tag}>"
        self._packed = ""

    def handle_data(self, data: str) -> None:
        if self._packed:
            self.data[self._packed] = unpacked(data)
        elif self._part:
            self.parts[self._part] += data


def references(text: str) -> list[str]:
    """Return what a page would load: the values of attributes and of CSS that name another resource."""
    loads = re.findall(r"""<[^>]+\s(?:src|href|srcset|action|data|poster)\s*=\s*["']?([^"'\s>]+)""", text)
    return [found for found in loads if not found.startswith("#")] + re.findall(r"url\(|@import|https?://", text)
