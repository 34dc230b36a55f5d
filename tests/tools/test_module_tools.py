"""The small tools that print or cut modules: cost, signature, extract, convert, expand, print-indexing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hlo_run
from hlo_run.tool import run_tool

_MODULE = """HloModule m

fused {
  p0 = s32[1024]{0} parameter(0)
  p1 = s32[] parameter(1)
  p2 = s32[1024]{0} parameter(2)
  b = s32[1024]{0} broadcast(p1), dimensions={}
  mul = s32[1024]{0} multiply(p0, b)
  add = s32[1024]{0} add(mul, p2)
  ROOT t = (s32[1024]{0}, s32[1024]{0}) tuple(mul, add)
}

ENTRY main {
  a = s32[1024]{0} parameter(0)
  s = s32[] parameter(1)
  c = s32[1024]{0} parameter(2)
  d = s32[1024]{0} negate(a)
  ROOT f = (s32[1024]{0}, s32[1024]{0}) fusion(d, s, c), kind=kLoop, calls=fused
}
"""
_RANDOM = """HloModule m
ENTRY e { s = u64[2]{0} parameter(0) ROOT r = (u64[2]{0}, u32[8]{0}) rng-bit-generator(s), algorithm=rng_philox }
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "m.hlo"
    path.write_text(_MODULE)
    return str(path)


def test_cost_of_each_instruction(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tool(["cost", "--all", file]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["%f", "fusion", "2,048", "0", "16,388"] in lines
    assert lines[-1] == "m: 3,072 flops, 0 transcendentals, 24,580 bytes accessed".split()
    assert run_tool(["cost", "--format=json", file]) == 0
    assert json.loads(capsys.readouterr().out)["properties"]["flops"] == 3072


def test_signature(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tool(["signature", file]) == 0
    result = "(s32[1024]{0}, s32[1024]{0})"
    assert capsys.readouterr().out == f"{file}: m :: (a: s32[1024]{{0}}, s: s32[], c: s32[1024]{{0}}) -> {result}\n"


def test_extract_takes_what_an_instruction_needs(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tool(["extract", "--instruction=%mul", file]) == 0
    module = hlo_run.parse(capsys.readouterr().out, "extracted")
    assert module.name == "mul"
    assert [i.name for i in module.entry.parameters] == ["p0", "p1"]
    assert [i.name for i in module.entry.root.operands] == ["p0", "b"]
    assert run_tool(["extract", "--instruction=mul", "--height=0", file]) == 0
    module = hlo_run.parse(capsys.readouterr().out, "extracted")
    assert [i.name for i in module.entry.parameters] == ["p0", "b"]
    assert run_tool(["extract", "--instruction=mull", file]) == 2
    assert "did you mean mul?" in capsys.readouterr().err


def test_convert_writes_the_format_of_the_ending(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tool(["convert", file]) == 0
    assert hlo_run.parse(capsys.readouterr().out, "m").entry.root.name == "f"
    assert run_tool(["convert", file, "--format=pb"]) == 2
    assert run_tool(["convert", file, "-o", str(tmp_path / "m.docx")]) == 2
    pytest.importorskip("jaxlib", reason="needs hlo-run[xla]")
    proto = str(tmp_path / "m.pb")
    assert run_tool(["convert", file, "-o", proto]) == 0
    capsys.readouterr()
    assert run_tool(["signature", proto]) == 0
    assert "m :: (a: s32[1024]{0}" in capsys.readouterr().out


def test_expand_replaces_what_the_flags_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.hlo"
    path.write_text(_RANDOM)
    assert run_tool(["expand", str(path)]) == 2
    assert "no expander is chosen" in capsys.readouterr().err
    assert run_tool(["expand", "--cholesky_expander", str(path)]) == 0
    assert "rng-bit-generator(" in capsys.readouterr().out
    assert run_tool(["expand", "--rng_bit_generator_expander", "--verify_hlo", str(path)]) == 0
    assert "rng-bit-generator(" not in capsys.readouterr().out


def test_indexing_maps_of_a_fusion(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tool(["print-indexing", file]) == 0
    whole, scalar = "(d0) -> (d0), domain: d0 in [0, 1023]", "(d0) -> (), domain: d0 in [0, 1023]"
    expected = [(0, 0, whole), (0, 1, scalar), (1, 0, whole), (1, 1, scalar), (1, 2, whole)]
    lines = [line for output, operand, text in expected for line in (f"Output {output} operand {operand}:", text)]
    assert capsys.readouterr().out.splitlines() == lines
    assert run_tool(["print-indexing", "--output_id=2", file]) == 2
