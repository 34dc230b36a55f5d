"""The project holds what belongs to it: its top level is fixed, and something names every script."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOP_LEVEL = frozenset(
    ".ci .gitignore LICENSE MANIFEST.in Makefile README.md benchmarks docs examples hlo_run pyproject.toml scripts setup.py "
    "tests".split()
)


@cache
def _tracked() -> tuple[str, ...]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("git lists the files of the project, and this is no checkout")
    return tuple(done.stdout.splitlines())


def test_the_top_level_is_fixed() -> None:
    assert {file.split("/")[0] for file in _tracked()} == TOP_LEVEL


def _has_word(text: str, word: str) -> bool:
    return word in text and re.search(rf"\b{word}\b", text) is not None


def test_every_script_is_named_by_another_file() -> None:
    texts = {
        file: (ROOT / file).read_text(encoding="utf-8")
        for file in _tracked()
        if file.endswith((".py", ".md", ".toml", "/run")) and (ROOT / file).exists()
    }
    unnamed = [
        script
        for script in _tracked()
        if re.fullmatch(r"(scripts|benchmarks)/.*\.py", script) and not script.endswith("__init__.py")
        if not any(_has_word(text, Path(script).stem) for file, text in texts.items() if file != script)
    ]
    assert unnamed == []
