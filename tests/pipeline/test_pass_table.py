"""docs/passes.md agrees with the pass tables."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "scripts" / "pass_table.py"
PAGE = ROOT / "docs" / "passes.md"
RECORDED = ROOT / "tests" / "data" / "xla_pipelines.txt"


@pytest.fixture(scope="module")
def table() -> Any:
    spec = importlib.util.spec_from_file_location("pass_table", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(table: Any) -> None:
    assert table.page() == PAGE.read_text(encoding="utf-8"), "python3 scripts/venv.py python scripts/pass_table.py writes it anew"


def test_the_counts_are_those_of_the_recorded_passes() -> None:
    lines = RECORDED.read_text(encoding="utf-8").splitlines()
    names = {line.split("\t")[1] for line in lines}
    page = PAGE.read_text(encoding="utf-8")
    rows = [row for row in re.findall(r"^\| (\S+) \| (.*) \| (.*) \|$", page, re.MULTILINE) if row[0] != "---"]
    assert [row[0] for row in rows] == [line.split("\t")[1] for line in lines], "each pass of XLA has a row, in XLA's order"
    tested = {name for name, _, test in rows if test.strip()}
    unneeded = {name for name, text, _ in rows if text.startswith("not needed: ")}
    is_open = {name for name, text, _ in rows if text.startswith("open: ")}
    assert tested | unneeded | is_open == names
    counts = f"Of {len(names)} different passes {len(tested)} are there, {len(unneeded)} are not needed, {len(is_open)} are open."
    assert counts in page
    begin, end = (line.split("\t")[0] for line in (lines[0], lines[-1]))
    assert (begin, end) == ("annotate-host-compute", "pdl-launch-annotation"), "from the begin of a compilation to its end"
    assert {"rematerialization", "hoist-fused-bitcasts", "host-offloader"} <= is_open


def test_the_test_of_a_pass_names_it(table: Any) -> None:
    found: dict[str, str] = table.tests_of_passes()
    assert len(found) > 150
    for name, test in found.items():
        words = (ROOT / test).read_text(encoding="utf-8").replace("_", "").replace("-", "").lower()
        assert name.replace("_", "").replace("-", "") in words, f"{test} does not name {name}"


def test_no_reason_is_given_for_a_pass_that_is_there(table: Any) -> None:
    assert list(table.unknown_notes()) == []
