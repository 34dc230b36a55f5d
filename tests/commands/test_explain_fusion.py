"""`--explain=fusion`: every decision in order with its reason, narrowed to an instruction or a pair, and where they ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlo_run.cli import run

# One kernel takes exp and neg; the sum goes with neither since its rows end before the next begin.
MODULE = """HloModule m

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY e {
  p = f32[512,1024] parameter(0)
  q = f32[300] parameter(1)
  zero = f32[] constant(0)
  exp = f32[512,1024] exponential(p)
  neg = f32[512,1024] negate(exp)
  rows = f32[512] reduce(neg, zero), dimensions={1}, to_apply=sum
  whole = f32[] reduce(rows, zero), dimensions={0}, to_apply=sum
  call = f32[300] custom-call(q), custom_call_target="mine"
  cos = f32[300] cosine(call)
  sin = f32[300] sine(call)
  ROOT t = (f32[], f32[512,1024], f32[300], f32[300]) tuple(whole, neg, cos, sin)
}
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    path = tmp_path / "module.hlo"
    path.write_text(MODULE, encoding="utf-8")
    return str(path)


def _explain(module: str, names: str, capsys: pytest.CaptureFixture[str], *flags: str) -> list[str]:
    # The simplifiers would rename and regroup what the test talks about.
    assert run([f"--explain=fusion{names}", "--only=priority-fusion,multi_output_fusion,rename_fusions", *flags, module]) == 0
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()[2:]]


def test_every_decision_has_its_reason(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = _explain(module, "", capsys)
    assert lines[0] == "m for h100_sxm: decisions about its instructions by the fusion passes"
    begin, middle = lines.index("priority-fusion"), lines.index("multi_output_fusion")
    first, second = lines[begin + 1 : middle - 1], lines[middle + 1 :]
    (fused,) = [line for line in first if line.startswith("fused %exp -> %neg saves")]
    assert fused.endswith(" us together")
    assert "not fused %rows -> %whole both the producer and the consumer contain a reduce" in first
    assert "joined %sin + %cos both read %call" not in second, "single instructions are no fusions yet"
    assert any(line.startswith("joined %fusion -> %fusion.1 saves") for line in second)


def test_one_instruction(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = _explain(module, ":%exp", capsys)
    assert all("%exp" in line or "%fusion" in line for line in lines if " -> " in line)
    assert not any("%whole both" in line for line in lines)
    assert lines[-1].startswith("%exp (exponential) is computed in %input_")


def test_a_pair_that_shares_a_kernel(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = _explain(module, ":exp,neg", capsys)
    assert sum(" -> " in line for line in lines) == 1
    assert lines[-1] == "they share a kernel"


def test_a_pair_that_shares_none(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = _explain(module, ":rows,whole", capsys)
    assert "not fused %rows -> %whole both the producer and the consumer contain a reduce" in lines
    assert lines[-1] == "they share no kernel"
    strangers = _explain(module, ":exp,cos", capsys)
    assert strangers[-2] == "they share no kernel"
    assert strangers[-1].startswith("no decision concerns both")


def test_what_is_never_fused(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _explain(module, ":call", capsys)[-1] == "%call (custom-call) is never part of a fusion"
    assert _explain(module, ":p", capsys)[-1] == "%p is a parameter: no kernel computes it"


def test_slower_together_says_by_how_much(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Each element would be computed anew for each of the rows that read it.
    text = """HloModule slow

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY e {
  p = f32[4000] parameter(0)
  zero = f32[] constant(0)
  tanh = f32[4000] tanh(p)
  spread = f32[4000,4000] broadcast(tanh), dimensions={0}
  other = f32[4000,4000] broadcast(tanh), dimensions={1}
  both = f32[4000,4000] multiply(spread, other)
  ROOT rows = f32[4000] reduce(both, zero), dimensions={1}, to_apply=sum
}
"""
    path = tmp_path / "slow.hlo"
    path.write_text(text, encoding="utf-8")
    lines = _explain(str(path), ":tanh", capsys)
    found = [line for line in lines if line.startswith("not fused %tanh ->")]
    assert found
    assert "slower: " in found[-1]


def test_passes_that_do_not_run_say_nothing(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--explain=fusion", "--only=dce", module]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "m: no fusion pass ran"


def test_bad_questions(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--explain=fusion:expp", "--only=priority-fusion", module]) == 2
    assert "did you mean exp" in capsys.readouterr().err
    assert run(["--explain=layout", module]) == 2
    assert run(["--explain=fusion:a,b,c", module]) == 2
    assert run(["--explain=fusion", "--stage=hlo", module]) == 2
