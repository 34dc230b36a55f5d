"""`hlo-opt`: passes by name, stages as XLA's tool means them, several modules in a file, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

import hlo_run
from hlo_run.cli import run, run_opt
from hlo_run.hlo.printer import module_to_string
from hlo_run.options import Options
from hlo_run.pipeline.print_options import dump_options

ONE = """HloModule one

ENTRY e {
  p = f32[4,8] parameter(0)
  t = (f32[4,8]) tuple(p)
  g = f32[4,8] get-tuple-element(t), index=0
  d = f32[4,8] negate(p)
  ROOT r = f32[4,8] exponential(g)
}
"""
TWO = """HloModule two

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y)
}

ENTRY e {
  p = f32[4,8] parameter(0)
  q = f32[4,8] tanh(p)
  z = f32[] constant(0)
  ROOT r = f32[4] reduce(q, z), dimensions={1}, to_apply=add
}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    path = tmp_path / "modules.hlo"
    path.write_text(f"{ONE}// -----\n{TWO}")
    return str(path)


def _output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run_opt(arguments) == 0
    return capsys.readouterr().out


def test_passes_run_in_the_order_given_and_alone(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = _output(capsys, "--split-input-file", "--passes=tuple-simplifier", file)
    assert "exponential(%p)" in text
    assert "negate(%p)" in text, "nobody asked for dce"
    text = _output(capsys, "--split-input-file", "--passes=tuple-simplifier,dce", file)
    assert "negate(" not in text
    assert "is_scheduled" not in text


def test_names_of_passes_take_dashes_and_underscores(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = _output(capsys, "--list-passes").strip().split(",")
    assert names == sorted(names)
    assert {"dce", "gather_simplifier", "layout-assignment"} <= set(names)
    for name in ("zero_sized_hlo_elimination", "zero-sized-hlo-elimination"):
        assert _output(capsys, "--split-input-file", f"--passes={name}", file)


def test_a_scheduled_module_comes_from_the_backend_stage_only(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    optimized = _output(capsys, "--split-input-file", "--platform=gpu", file)
    assert optimized.count("HloModule") == 2
    assert "is_scheduled" not in optimized
    backend = _output(capsys, "--split-input-file", "--platform=CUDA", "--stage=hlo-backend", file)
    assert backend.count("is_scheduled=true") == 2
    assert "fusion(" in backend


def test_a_module_that_is_scheduled_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "scheduled.hlo"
    path.write_text(ONE.replace("HloModule one", "HloModule one, is_scheduled=true"))
    assert "tuple(%p)" in _output(capsys, "--platform=gpu", str(path))


def test_the_transforms_platform_prints_what_was_read(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = _output(capsys, "--split-input-file", file)
    options = dump_options(Options())
    assert text == "".join(module_to_string(hlo_run.parse(module), options).rstrip() + "\n" for module in (ONE, TWO))


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ("llvm-before-optimizations", "define ptx_kernel void @wrapped_tanh"),
        ("llvm", "define ptx_kernel void @wrapped_reduce"),
        ("ptx", "// GPU Executable\n"),
        ("buffer-assignment", "allocation 0: size 128"),
    ],
)
def test_stages_of_the_gpu(stage: str, expected: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = _output(capsys, "--split-input-file", "--platform=gpu", f"--stage={stage}", file)
    assert expected in text
    if stage.startswith("llvm"):
        assert text.count("source_filename") == 2, "the kernels of a module are one LLVM module"


def test_the_target_is_a_flag(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = _output(capsys, "--split-input-file", "--platform=gpu", "--stage=ptx", "--target=v100", file)
    assert ".target sm_70" in text


def test_output_goes_to_a_file(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.txt"
    assert _output(capsys, "--split-input-file", f"-o={out}", file) == ""
    assert out.read_text() == _output(capsys, "--split-input-file", file)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--passes=tuple-simplifyer"], "Pass tuple-simplifyer not found."),
        (["--stage=ptx"], "no stage is called 'ptx'"),
        (["--platform=tpu"], "no platform is called 'tpu'"),
        (["--iterations=2"], "unknown flag --iterations=2"),
    ],
)
def test_refusals(arguments: list[str], message: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_opt([*arguments, "--split-input-file", file]) == 2
    assert message in capsys.readouterr().err


def test_one_file_and_no_more(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_opt([]) == 2
    assert run_opt([file, file]) == 2
    assert capsys.readouterr().err.count("Must specify a single input file") == 2


def test_a_separator_without_the_flag_is_refused_with_its_line(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_opt([file]) == 2
    assert f"{file}:10: a separator" in capsys.readouterr().err


def test_errors_point_into_the_whole_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wrong.hlo"
    path.write_text(f"{ONE}// -----\n{TWO.replace('tanh(p)', 'tanh(o)')}")
    assert run_opt(["--split-input-file", str(path)]) == 3
    assert f"{path}:21:" in capsys.readouterr().err


def test_hlo_run_does_not_know_its_flags(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--passes=dce", file]) == 2
    assert "unknown flag --passes=dce" in capsys.readouterr().err
