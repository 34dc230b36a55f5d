"""Directories and patterns on the command line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hlo_run.errors import UsageError
from hlo_run.options.input_files import expand


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("b.hlo", "a.hlo", "notes.txt", "d/c.hlox", "d/e/f.mlir", "[1].hlo"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "empty").mkdir()


def test_a_directory_gives_its_modules_sorted() -> None:
    below = [os.path.join("d", "c.hlox"), os.path.join("d", "e", "f.mlir")]
    assert expand(["d"]) == tuple(below)
    assert expand(["."]) == tuple(os.path.join(".", name) for name in ("[1].hlo", "a.hlo", "b.hlo", *below))


def test_patterns_and_names() -> None:
    assert expand(["-", "[ab].hlo", "missing.hlo", "[1].hlo"]) == ("-", "a.hlo", "b.hlo", "missing.hlo", "[1].hlo")
    assert expand(["**/*.mlir"]) == (os.path.join("d", "e", "f.mlir"),)


@pytest.mark.parametrize(("name", "message"), [("empty", "holds no module"), ("*.pb", "no file matches")])
def test_nothing_found(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        expand([name])
