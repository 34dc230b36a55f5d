"""`--isolate_fusion`: the isolated module, its operands, and that its files reproduce the run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hlo_run
from hlo_run.cli import run
from hlo_run.commands.isolate_fusion import find_fusion, operands_in_run
from hlo_run.errors import UsageError
from hlo_run.hlo.fingerprint import module_fingerprint
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.isolate import isolate_instruction
from hlo_run.hlo.printer import FULL
from hlo_run.options import Options
from hlo_run.target import DEFAULT_TARGET, preset

# The state with which the loop begins is the doubled argument.
LOOP = """HloModule looped
fused {
  p = f32[3,4]{0,1} parameter(0)
  q = f32[3,4]{0,1} parameter(1)
  ROOT m = f32[3,4]{0,1} multiply(p, q)
}
body {
  s = (s32[], f32[3,4]{0,1}) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[3,4]{0,1} get-tuple-element(s), index=1
  f.inner = f32[3,4]{0,1} fusion(x, x), kind=kLoop, calls=fused
  one = s32[] constant(1)
  j = s32[] add(i, one)
  ROOT t = (s32[], f32[3,4]{0,1}) tuple(j, f.inner)
}
cond {
  s = (s32[], f32[3,4]{0,1}) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT
}
on_true {
  v = f32[3,4]{0,1} parameter(0)
  ROOT n = f32[3,4]{0,1} negate(v)
}
on_false {
  v = f32[3,4]{0,1} parameter(0)
  ROOT e = f32[3,4]{0,1} exponential(v)
}
ENTRY e {
  p = f32[3,4]{0,1} parameter(0)
  k = pred[] parameter(1)
  z = s32[] constant(0)
  d = f32[3,4]{0,1} add(p, p)
  t = (s32[], f32[3,4]{0,1}) tuple(z, d)
  w1 = (s32[], f32[3,4]{0,1}) while(t), body=body, condition=cond
  x = f32[3,4]{0,1} get-tuple-element(w1), index=1
  b = f32[3,4]{0,1} conditional(k, x, d), true_computation=on_true, false_computation=on_false
  ROOT a = f32[3,4]{0,1} add(p, b)
}
"""
P = (np.arange(12, dtype=np.float32).reshape(3, 4) + 1) / 8
H100 = preset(DEFAULT_TARGET)
# Each instruction stays a fusion of its own, under its name.
UNFUSED = "priority-fusion,multi_output_fusion,rename_fusions,simplify-conditional"


def _find(name: str, text: str = LOOP) -> HloInstruction:
    # Normalised layouts would stand for those that the tests look for.
    return find_fusion(hlo_run.parse(text), name, H100, Options(xla_disable_hlo_passes=f"layout_normalization,{UNFUSED}"))


def test_operands_become_parameters_and_layouts_stay() -> None:
    module = isolate_instruction(_find("f.inner"))
    again = hlo_run.parse(module.to_string(FULL))
    assert again.name == "f.inner"
    assert [p.shape.to_string() for p in again.entry.parameters] == ["f32[3,4]{0,1}"]
    assert again.entry.root.operands == (again.entry.parameters[0],) * 2, "one operand read twice is one parameter"
    assert again.entry.root.shape.to_string() == "f32[3,4]{0,1}"
    assert [c.name for c in again.computations] == ["fused", "main"]
    assert module_fingerprint(again) == module_fingerprint(module)


def test_the_module_stays_as_it_is() -> None:
    module = hlo_run.parse(LOOP)
    before, version = module.to_string(FULL), module.version
    fusion = find_fusion(module, "wrapped_exponential", H100, Options(xla_disable_hlo_passes=UNFUSED))
    operands_in_run(fusion, [P, np.array(True)], 42)
    isolate_instruction(fusion)
    assert (module.to_string(FULL), module.version) == (before, version)


@pytest.mark.parametrize(
    ("name", "operands"),
    [
        ("f.inner", [P + P]),
        ("f_inner", [P + P]),
        ("%wrapped_add.2", [P, -((P + P) ** 8)]),
        ("wrapped_negate", [(P + P) ** 8]),
        ("wrapped_exponential", [P + P]),
    ],
)
def test_operands_are_those_of_the_run(name: str, operands: list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]) -> None:
    values = operands_in_run(_find(name), [P, np.array(True)], 42)
    assert len(values) == len(operands)
    for value, expected in zip(values, operands, strict=True):
        np.testing.assert_allclose(np.asarray(value), expected, rtol=1e-6)


def test_a_computation_that_leads_to_itself_through_another_call() -> None:
    """The fusion's operand in the second call comes from the first call of the same computation."""
    text = """HloModule twice
    square { v = f32[2] parameter(0)
      ROOT m = f32[2] multiply(v, v) }
    ENTRY e { p = f32[2] parameter(0)
      one = f32[2] call(p), to_apply=square
      two = f32[2] call(one), to_apply=square
      ROOT n = f32[2] negate(two) }"""
    p = np.array([2, 3], np.float32)
    (value,) = operands_in_run(_find("wrapped_negate", text), [p], 42)
    np.testing.assert_array_equal(np.asarray(value), p**4)
    (first,) = operands_in_run(_find("wrapped_multiply", text), [p], 42)
    np.testing.assert_array_equal(np.asarray(first), p)


def test_names_that_are_no_fusion() -> None:
    with pytest.raises(UsageError, match=r"no fusion of 'looped' is called 'f\.iner'") as caught:
        _find("f.iner")
    assert caught.value.hint == "did you mean f.inner?"
    with pytest.raises(UsageError, match="%w1 is not a fusion but a while"):
        _find("w1")


@pytest.fixture
def looped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "looped.hlo"
    file.write_text(LOOP)
    return str(file)


def test_the_command_line_runs_it_and_writes_what_runs_again(
    looped: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(
            [
                "--platform=Host",
                "--isolate_fusion=f.inner",
                f"--xla_disable_hlo_passes={UNFUSED}",
                "--save_outputs=first.npz",
                looped,
            ]
        )
        == 0
    )
    err = capsys.readouterr().err
    shown = f"hlo-run --platform=Host --inputs=looped.f.inner.npz --xla_disable_hlo_passes={UNFUSED} looped.f.inner.hlo"
    assert shown in err
    assert "close enough" in err
    command = ["--platform=Host", "--inputs=looped.f.inner.npz", "--save_outputs=again.npz", "looped.f.inner.hlo"]
    assert run(command) == 0
    with np.load(tmp_path / "first.npz") as first, np.load(tmp_path / "again.npz") as again:
        np.testing.assert_array_equal(first["out0"], again["out0"])
    # The whole module's arguments, from its own seed, doubled: the state with which the loop begins.
    assert run(["--platform=Interpreter", "--save_inputs=whole.npz", looped]) == 0
    with np.load(tmp_path / "whole.npz") as whole, np.load(tmp_path / "looped.f.inner.npz") as inner:
        np.testing.assert_array_equal(whole["arg0"] * 2, inner["arg0"])


def test_given_arguments_are_those_of_the_whole_module(looped: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "given.npz", arg0=P, arg1=np.array(False))
    command = ["--platform=Host", "--isolate_fusion=wrapped_exponential", "--inputs=given.npz", f"--xla_dump_to={tmp_path}/d"]
    assert run([*command, f"--xla_disable_hlo_passes={UNFUSED}", looped]) == 0
    with np.load(tmp_path / "d" / "looped.wrapped_exponential.npz") as data:
        np.testing.assert_array_equal(data["arg0"], P + P)


def test_a_stage_of_the_fusion_alone(looped: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--isolate_fusion=f.inner", f"--xla_disable_hlo_passes={UNFUSED}", "--stage=ptx", looped]) == 0
    out = capsys.readouterr().out
    assert out.count(".entry") == 1
    assert ".entry f_inner(" in out
    assert not (tmp_path / "looped.f.inner.hlo").exists(), "a stage writes no other files"


@pytest.mark.parametrize(
    ("header", "operand"), [("", 'custom-call(p), custom_call_target="nobody.knows"'), (", replica_count=2", "copy(p)")]
)
def test_operands_beyond_the_reference_are_random(
    header: str, operand: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of an unknown custom call, and those of several devices."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "opaque.hlo"
    file.write_text(f"""HloModule strange{header}
    ENTRY e {{ p = f32[8] parameter(0)
      c = f32[8] {operand}
      ROOT n = f32[8] negate(c) }}""")
    assert run(["--platform=Host", "--isolate_fusion=wrapped_negate", str(file)]) == 0
    assert "%wrapped_negate gets random operands" in capsys.readouterr().err
    with np.load(tmp_path / "strange.wrapped_negate.npz") as data:
        assert np.count_nonzero(data["arg0"]) == 8


def test_python_cuts_out_a_fusion() -> None:
    module = hlo_run.parse(LOOP)
    alone: HloModule = hlo_run.isolate(module, "loop_multiply_fusion")
    np.testing.assert_array_equal(np.asarray(hlo_run.run(alone, P, platform="Host")), P * P)
    alone, operands = hlo_run.isolate_in_run(module, "loop_multiply_fusion", P, True)
    np.testing.assert_allclose(np.asarray(hlo_run.evaluate(alone, *operands)), (P + P) ** 2, rtol=1e-6)
