"""`--v`: what the log shows as whole texts and as differences."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlo_run.cli import run

_TEXT = """HloModule m
ENTRY e {
  x = f32[8] parameter(0)
  y = f32[8] add(x, x)
  z = f32[8] add(x, x)
  ROOT r = f32[8] multiply(y, z)
}
"""


def _log(tmp_path: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    file = tmp_path / "m.hlo"
    file.write_text(_TEXT, encoding="utf-8")
    assert run(["--cache=off", "--stage=hlo", *flags, str(file)]) == 0
    return capsys.readouterr().err


def test_differences_show_the_changed_lines_and_an_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = _log(tmp_path, capsys, "--v=3", "--v_format=diff")
    part = log.split("// -----// Changed by cse //----- //\n")[1].split("//")[0]
    removed = [line for line in part.splitlines() if line.startswith("-")]
    assert removed == ["-  %z = f32[8]{0} add(%x, %x)", "-  ROOT %r = f32[8]{0} multiply(%y, %z)"]
    assert "rows changed something" in log
    assert "cse: 1 lines added, 2 removed" in log
    assert "IR Dump After" not in log


def test_whole_texts_are_the_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = _log(tmp_path, capsys, "--v=3")
    assert "// -----// IR Dump After cse //----- //" in log
    assert "rows changed something" not in log


def test_the_log_begins_with_the_module_and_folds_rows_without_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = _log(tmp_path, capsys, "--v=5", "--stage=thunks").splitlines()
    assert lines[0] == "// -----// the module as read //----- //"
    assert lines[1].startswith("HloModule m")
    # The fourth-level notes, each kernel and each changed row end a sequence.
    assert not any(", unchanged, " in line for line in lines)
    assert any(line.startswith("[hlo] buffer-remover .. ") and line.endswith(" rows, unchanged") for line in lines)
    assert not any("// constants" in line for line in lines)
    assert sum("the module as read" in line for line in lines) == 1
    # The names of all rows are what level 2 is for.
    assert "[hlo] buffer-remover, unchanged, 4 ops" in _log(tmp_path, capsys, "--v=2")


def test_constants_are_shown_if_there_are_some(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "HloModule m\nENTRY e {\n  ROOT c = f32[8] constant({1,2,3,4,5,6,7,8})\n}\n"
    file = tmp_path / "c.hlo"
    file.write_text(text, encoding="utf-8")
    assert run(["--cache=off", "--stage=thunks", "--v=4", str(file)]) == 0
    log = capsys.readouterr().err
    assert "// -----// constants //----- //" in log
    assert "// -----// constants-ptx //----- //" in log
