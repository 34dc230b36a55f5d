"""The examples of docs/python.md run, in order, and print what the page says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parent.parent / "docs" / "python.md"
_BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_examples_print_what_the_page_says() -> None:
    pytest.importorskip("jax")
    text = PAGE.read_text()
    blocks = [(found[1], found[2], text.count("\n", 0, found.start()) + 2) for found in _BLOCK.finditer(text)]
    assert sum(kind == "python" for kind, _, _ in blocks) > 8, "the page's blocks are found"
    names: dict[str, object] = {"__name__": "python_docs"}
    printed, compared = "", 0
    for kind, content, line in blocks:
        if kind == "text":
            assert printed == content, f"{PAGE.name}:{line}"
            compared += 1
            continue
        output = io.StringIO()
        # Blank lines before the code, so that errors and tracebacks name the page's own lines.
        code = compile("\n" * (line - 1) + content, str(PAGE), "exec")
        with contextlib.redirect_stdout(output):
            exec(code, names)
        printed = output.getvalue()
    assert compared > 6
