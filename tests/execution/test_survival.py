"""Formats keep all of a module: conversions that lose a part of an instruction are errors that name it."""

from __future__ import annotations

from pathlib import Path

import pytest

import hlo_run
from hlo_run.errors import Unsupported
from hlo_run.execution.survival import check_survival
from hlo_run.hlo.print_options import FULL
from hlo_run.hlo.printer import module_to_string
from hlo_run.tool import run_tool

_ASYNC = """HloModule m
f { a = f32[4] parameter(0)
  ROOT n = f32[4] negate(a) }
ENTRY e { a = f32[4] parameter(0)
  begin = ((f32[4]), f32[4], u32[]) call-start(a), to_apply=f
  end = f32[4] call-done(begin)
  ROOT r = f32[4] add(end, a) }"""
_CALL = """HloModule m
ENTRY e { a = f32[1,4,4,2] parameter(0)
  k = f32[3,3,2,2] parameter(1)
  c = (f32[1,2,2,2], u8[0]) custom-call(a, k), custom_call_target="__cudnn$convForward", window={size=3x3},
    dim_labels=b01f_01io->b01f
  ROOT g = f32[1,2,2,2] get-tuple-element(c), index=0 }"""
_LOOP = """HloModule m
body { p = s32[<=4] parameter(0)
  n = s32[] get-dimension-size(p), dimensions={0}
  one = s32[] constant(1)
  k = s32[] subtract(n, one)
  ROOT o = s32[<=4] set-dimension-size(p, k), dimensions={0} }
cond { p = s32[<=4] parameter(0)
  n = s32[] get-dimension-size(p), dimensions={0}
  two = s32[] constant(2)
  ROOT gt = pred[] compare(n, two), direction=GT }
ENTRY e { y = s32[4] parameter(0)
  four = s32[] constant(4)
  x = s32[<=4] set-dimension-size(y, four), dimensions={0}
  w = s32[<=4] while(x), condition=cond, body=body
  ROOT s = s32[] get-dimension-size(w), dimensions={0} }"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_ASYNC, r"'begin' \(async-start\) in the format stablehlo cannot be read back"),
        (_CALL, r"'c' \(custom-call\) in the format stablehlo loses 'window'"),
        (_LOOP, r"'w' \(while\) in the format stablehlo cannot be read back: 'w' \(while\): Operand %x"),
    ],
)
def test_what_stablehlo_loses_is_named(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jaxlib", reason="needs hlo-run[xla]")
    module = hlo_run.parse(text)
    with pytest.raises(Unsupported, match=message):
        check_survival(module, b"", "stablehlo")


def test_a_failed_conversion_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jaxlib", reason="needs hlo-run[xla]")
    source, target = tmp_path / "m.hlo", tmp_path / "m.mlir"
    source.write_text(_CALL)
    assert run_tool(["convert", str(source), "-o", str(target)]) == 4
    assert "loses 'window'" in capsys.readouterr().err
    assert not target.exists()


def test_a_default_may_be_left_out() -> None:
    text = (
        "HloModule m\nENTRY e { a = f32[4] parameter(0)\n  ROOT s = f32[4] sort(a), dimensions={0}, is_stable=false, to_apply=f }"
    )
    order = "f { a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = pred[] compare(a, b), direction=LT }\n"
    text = text.replace("ENTRY", order + "ENTRY")
    check_survival(hlo_run.parse(text), text.replace(", is_stable=false", "").encode(), "hlo")


def test_text_is_compared_with_the_module() -> None:
    module = hlo_run.parse(_CALL)
    text = module_to_string(module, FULL)
    check_survival(module, text.encode(), "hlo")
    with pytest.raises(Unsupported, match=r"'c' .* in the format hlo loses 'window'"):
        check_survival(module, text.replace("window={size=3x3}, ", "").encode(), "hlo")
