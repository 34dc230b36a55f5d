"""The pictures that scripts draw of the tree are current, and do not change with what they do not show."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(autouse=True)
def _importable_scripts() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]  # a fixture
    sys.path.insert(0, str(ROOT / "scripts"))
    yield
    sys.path.remove(str(ROOT / "scripts"))


@pytest.mark.parametrize("script", ["draw_rooms", "draw_figures"])
def test_the_picture_is_current(script: str) -> None:
    module: Any = importlib.import_module(script)
    text = module.PICTURE.read_text(encoding="utf-8")
    assert text == module.picture(), f"python3 scripts/venv.py python scripts/{script}.py draws it again"


def test_the_picture_of_the_rooms_shows_which_room_imports_which_and_no_counts(tmp_path: Path) -> None:
    rooms: Any = importlib.import_module("draw_rooms")
    rows = "| 0 | `low` `errors` | w |\n| 1 | `high.part` | w |\n| 2 | `high` | w |\n"
    document = f"# A\n\n## Layers\n\n| | a | b |\n| --- | --- | --- |\n{rows}\n## End\n| 3 | `no` | w |\n"
    levels = rooms.layers(document)
    assert levels == [("low", "errors"), ("high.part",), ("high",)]
    for name, text in {
        "low/x.py": "import os\n",
        "errors.py": "",
        "__init__.py": "from hlo_run.high.top import z\n",
        "high/part/y.py": "from hlo_run.low.x import (  # both\n    a,\n    b,\n)\nfrom hlo_run.high.part.other import c\n",
        "high/part/other.py": "",
        "high/top.py": "def f():\n    from hlo_run import errors\n    from hlo_run.high import part\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "high" / "part" / "__init__.py").touch()
    edges = rooms.imports(tmp_path, frozenset(room for level in levels for room in level))
    assert edges == {("high.part", "low"), ("high", "errors"), ("high", "high.part")}
    before = rooms.draw(levels, edges)
    more = "from hlo_run.errors import e\nfrom hlo_run.high.part.y import a\n"
    (tmp_path / "high" / "more.py").write_text(more, encoding="utf-8")
    assert rooms.draw(levels, rooms.imports(tmp_path, frozenset(room for level in levels for room in level))) == before


def test_the_picture_of_figures_reads_the_page_and_the_files_that_it_names(tmp_path: Path) -> None:
    figures: Any = importlib.import_module("draw_figures")
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "runs.tsv").write_text("module\tratio\na\t0.5\nb\t3\n", encoding="utf-8")
    head = "| measured | beside | ratio | programs | all figures |\n| --- | --- | ---: | ---: | --- |\n"
    rows = "| runs | XLA:CPU | 1.20 | 2 | [table](figures/runs.tsv) |\n| bytes | XLA:GPU | 0.9 | 70 | |\n"
    page = f"# A\n\n## Ours beside XLA's\n\n{head}{rows}\n## Other\n| no | row | 1 | 2 | |\n"
    found = figures.figures(page, tmp_path)
    assert [(row.what, row.ratio, row.programs, row.each) for row in found] == [
        ("runs", "1.20", 2, (0.5, 3.0)),
        ("bytes", "0.9", 70, ()),
    ]
    assert figures.draw(found).count("<circle") == 2
