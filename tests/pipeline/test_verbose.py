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
