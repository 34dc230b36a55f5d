"""The print options of dumps and stages: XLA's defaults for dumps, and its flags that change them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlo_run.cli import run

_TEXT = """HloModule m
ENTRY e {
  p = (f32[4], f32[4]) parameter(0)
  b = f32[4] get-tuple-element(p), index=1
  a = f32[4] get-tuple-element(p), index=0
  s = ((f32[4]), f32[4], u32[]) negate-start(a)
  n = f32[4] negate-done(s)
  m = f32[4] add(b, n), metadata={op_name="x"}
  c = f32[11] constant({1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1})
  d = f32[4] slice(c), slice={[0:4]}
  ROOT r = (f32[4], f32[4]) tuple(m, d)
}
"""


def _printed(tmp_path: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    file = tmp_path / "m.hlo"
    file.write_text(_TEXT)
    assert run(["--stage=hlo-input", *flags, str(file)]) == 0
    return capsys.readouterr().out


def test_dumps_are_long_and_without_large_constants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = _printed(tmp_path, capsys)
    assert "ENTRY %e (p: (f32[4], f32[4])) -> (f32[4], f32[4]) {" in text
    assert '  %m = f32[4]{0} add(%p#1, %n), metadata={op_name="x"}' in text
    assert "get-tuple-element" not in text
    assert "%c = f32[11]{0} constant({...})" in text
    assert "async-start(%p#0), calls=%async_wrapped" in text


@pytest.mark.parametrize(
    ("flag", "line"),
    [
        ("--xla_dump_hlo_as_long_text=false", '  m = f32[4]{0} add(p#1, n), metadata={op_name="x"}'),
        ("--xla_dump_compact_gte=false", '  %m = f32[4]{0} add(%b, %n), metadata={op_name="x"}'),
        ("--xla_dump_disable_metadata", "  %m = f32[4]{0} add(%p#1, %n)"),
        ("--xla_dump_large_constants", "  %c = f32[11]{0} constant({1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1})"),
        ("--xla_syntax_sugar_async_ops", "  %s = ((f32[4]{0}), f32[4]{0}, u32[]) negate-start(%p#0)"),
    ],
)
def test_a_flag_changes_one_thing(flag: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert line not in _printed(tmp_path, capsys).splitlines()
    assert line in _printed(tmp_path, capsys, flag).splitlines()
