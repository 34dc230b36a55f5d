"""--xla_gpu_detect_nan, --xla_gpu_detect_inf and --xla_gpu_log_minmax look at what each thunk writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlo_run.cli import run

# log(minimum(a, 0)) is NaN or -infinity everywhere; the sort and the loop come after it.
MODULE = """HloModule m
body { s = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  v = f32[8] get-tuple-element(s), index=1
  one = s32[] constant(1)
  n = s32[] add(i, one)
  w = f32[8] reverse(v), dimensions={0}
  ROOT t = (s32[], f32[8]) tuple(n, w) }
condition { s = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  k = s32[] constant(3)
  ROOT c = pred[] compare(i, k), direction=LT }
ENTRY e { a = f32[8] parameter(0)
  f = f32[8] constant({0, 0, 0, 0, -1, -1, -1, -1})
  l = f32[8] log(f)
  m = f32[8] minimum(l, a)
  z = s32[] constant(0)
  i = (s32[], f32[8]) tuple(z, m)
  ROOT w = (s32[], f32[8]) while(i), condition=condition, body=body }
"""


def _run(tmp_path: Path, *flags: str) -> int:
    file = tmp_path / "m.hlo"
    file.write_text(MODULE)
    passes = "--xla_disable_hlo_passes=constant_folding,while-loop-simplifier,algsimp"
    return run([str(file), "--platform=Host", "--reference_platform=", passes, *flags])


def test_an_instruction_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(tmp_path, "--xla_gpu_detect_nan=warning", "--xla_gpu_log_minmax") == 0
    found = capsys.readouterr().err.splitlines()
    reports = [line for line in found if line.startswith("found NaN in 4 of 8 elements")]
    assert len(reports) == len(set(reports)) > 1
    assert sum("reverse" in line and line.endswith("-inf to -inf") for line in found) == 3
    assert "infinity" not in "".join(found)


def test_fail_ends_with_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(tmp_path, "--xla_gpu_detect_inf=DETECTION_MODE_FAIL") == 5
    assert "device error: the check of floats failed: infinity in '" in capsys.readouterr().err


def test_unknown_modes_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(tmp_path, "--xla_gpu_detect_inf=sometimes") == 2
    assert _run(tmp_path, "--xla_gpu_detect_nan=dump") == 2
    assert "--localize writes a reproducer" in capsys.readouterr().err


REDUCTIONS = """HloModule m
sum { x = bf16[] parameter(0)
  y = bf16[] parameter(1)
  ROOT s = bf16[] add(x, y) }
most { x = bf16[] parameter(0)
  y = bf16[] parameter(1)
  ROOT s = bf16[] maximum(x, y) }
ENTRY e { a = bf16[4,8] parameter(0)
  z = bf16[] constant(0)
  r = bf16[4] reduce(a, z), dimensions={1}, to_apply=sum, metadata={op_name="jit(f)/sum"}
  m = bf16[4] reduce(a, z), dimensions={1}, to_apply=most
  ROOT t = (bf16[4], bf16[4]) tuple(r, m) }
"""


@pytest.mark.parametrize(
    ("flags", "code", "reports"),
    [
        ("--xla_detect_unstable_reductions=warning", 0, 1),
        ("--xla_detect_unstable_reductions=warning --xla_detect_unstable_reductions_post_optimizations=warning", 0, 2),
        ("--xla_detect_unstable_reductions_post_optimizations=fail", 0, 0),
        ("--xla_detect_unstable_reductions=fail", 4, 1),
    ],
)
def test_unstable_reductions(flags: str, code: int, reports: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "m.hlo"
    file.write_text(REDUCTIONS)
    assert run([str(file), "--stage=hlo", *flags.split()]) == code
    assert capsys.readouterr().err.count("warning: unstable reduction in bf16: %r") == reports
