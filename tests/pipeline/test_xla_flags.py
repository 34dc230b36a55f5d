"""XLA's flags that change single passes or the making of machine code."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hlo_run.cli import run
from hlo_run.pipeline import ptxas_check

DOTS = """HloModule dots
ENTRY e { a = f32[64,32] parameter(0)
  b = f32[32,48] parameter(1)
  c = f32[32,48] parameter(2)
  d = f32[64,48] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  g = f32[64,48] dot(a, c), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT t = (f32[64,48], f32[64,48]) tuple(d, g) }
"""
SORT = """HloModule sorts
less { x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT l = pred[] compare(x, y), direction=LT }
ENTRY e { a = f32[100000] parameter(0)
  ROOT s = f32[100000] sort(a), dimensions={0}, to_apply=less }
"""
SCATTER = """HloModule scatters
add { x = TYPE[] parameter(0)
  y = TYPE[] parameter(1)
  ROOT s = TYPE[] add(x, y) }
ENTRY e { a = TYPE[8] parameter(0)
  i = s32[5,1] parameter(1)
  u = TYPE[5] parameter(2)
  ROOT s = TYPE[8] scatter(a, i, u), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0},
    index_vector_dim=1, to_apply=add }
"""
RUNNING = """HloModule running
add { x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y) }
ENTRY e { a = f32[200] parameter(0)
  z = f32[] constant(0)
  ROOT s = f32[200] reduce-window(a, z), window={size=200 pad=199_0}, to_apply=add }
"""
EXP = "HloModule x\nENTRY e { a = f32[64] parameter(0)\n  b = f32[64] multiply(a, a)\n  ROOT c = f32[64] exponential(b) }\n"


@pytest.fixture(autouse=True)
def no_flags_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)


def _stage(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, stage: str, *flags: str) -> str:
    file = tmp_path / "m.hlo"
    file.write_text(text)
    capsys.readouterr()
    assert run([f"--stage={stage}", *flags, str(file)]) == 0
    return capsys.readouterr().out


def test_products_are_merged_up_to_a_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _stage(tmp_path, capsys, DOTS, "dot-merger").count(" dot(") == 1
    assert _stage(tmp_path, capsys, DOTS, "dot-merger", "--xla_gpu_dot_merger_threshold_mb=0").count(" dot(") == 2


def test_small_products_are_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flag = "--xla_gpu_gemm_rewrite_size_threshold"
    assert "__cublas$lt$matmul" in _stage(tmp_path, capsys, DOTS, "hlo")
    assert "__cublas$lt$matmul" not in _stage(tmp_path, capsys, DOTS, "hlo", f"{flag}=100000000")


@pytest.mark.parametrize("flag", ["--xla_gpu_enable_cub_radix_sort=false", "--disable=sort-rewriter"])
def test_sorts_without_cub(flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert " custom-call(" in _stage(tmp_path, capsys, SORT, "hlo")
    assert " custom-call(" not in _stage(tmp_path, capsys, SORT, "hlo", flag)


@pytest.mark.parametrize(
    "flag",
    [
        "--xla_gpu_deterministic_ops",
        "--xla_gpu_exclude_nondeterministic_ops=true",
        "--xla_gpu_enable_scatter_determinism_expander",
    ],
)
def test_scatters_of_floats_combine_equal_indices_first_if_results_must_be_deterministic(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    floats, integers = SCATTER.replace("TYPE", "f32"), SCATTER.replace("TYPE", "s32")
    assert " sort(" not in _stage(tmp_path, capsys, floats, "hlo")
    assert " sort(" in _stage(tmp_path, capsys, floats, "hlo", flag)
    assert " while(" in _stage(tmp_path, capsys, floats.replace("add(x, y)", "subtract(x, y)"), "hlo", flag)
    assert " sort(" not in _stage(tmp_path, capsys, integers, "hlo", flag)
    assert run(["--platform=Host", flag, str(tmp_path / "m.hlo")]) == 0


def test_unknown_strategy_of_unrolling(tmp_path: Path) -> None:
    file = tmp_path / "m.hlo"
    file.write_text(LOOP)
    assert run(["--xla_gpu_enable_while_loop_unrolling=twice", "--compile_only", str(file)]) == 2


def test_the_block_of_running_reductions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flag = "--xla_reduce_window_rewrite_base_length"
    assert "f32[13,16]" in _stage(tmp_path, capsys, RUNNING, "reduce-window-rewriter")
    assert "f32[7,32]" in _stage(tmp_path, capsys, RUNNING, "reduce-window-rewriter", f"{flag}=32")
    assert run(["--platform=Host", f"{flag}=32", str(tmp_path / "m.hlo")]) == 0
    assert _stage(tmp_path, capsys, RUNNING, "hlo", f"{flag}=0").count(" reduce-window(") == 1


def test_denormal_numbers_are_flushed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "mul.rn.f32" in _stage(tmp_path, capsys, EXP, "ptx")
    flushed = _stage(tmp_path, capsys, EXP, "ptx", "--xla_gpu_ftz")
    assert "mul.rn.ftz.f32" in flushed
    # Those of libdevice's functions too, also beside other flags of the module.
    assert "fma.rn.f32" not in flushed
    assert "mul.rn.ftz.f32" in _stage(tmp_path, capsys, EXP, "ptx", "--xla_gpu_ftz", "--print_locations")


def test_flags_of_ptxas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "m.hlo"
    file.write_text(EXP)
    dump = ["--cache=off", f"--output={tmp_path}/m.hlox", str(file)]
    assert run(["--xla_gpu_ptx_compiler_extra_flags=--maxrregcount=32", "--xla_gpu_disable_gpuasm_optimizations", *dump]) == 0
    assert run(["--xla_gpu_ptx_compiler_extra_flags=--no-such-flag", *dump]) != 0
    assert "no-such-flag" in capsys.readouterr().err


@pytest.mark.skipif(os.name == "nt", reason="the ptxas of this test is a shell script")
def test_ptxas_checks_long_ptx_only_if_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "bin" / "ptxas"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\nexit 255\n", encoding="utf-8")
    tool.chmod(0o755)
    file = tmp_path / "m.hlo"
    file.write_text(EXP)
    arguments = ["--cache=off", f"--xla_gpu_cuda_data_dir={tmp_path}", f"--output={tmp_path}/m.hlox", str(file)]
    assert run(arguments) != 0
    monkeypatch.setattr(ptxas_check, "LONG_PTX", 1000)
    assert run(arguments) == 0
    assert run(["--ptxas_opt_level=1", *arguments]) != 0
    assert run(["--xla_gpu_fail_ptx_compilation_on_register_spilling", *arguments]) != 0


def test_statistics_of_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "m.hlo"
    file.write_text(EXP)
    assert run(["--stage=hlo", "--xla_gpu_print_compilation_stats", str(file)]) == 0
    assert "priority-fusion" in capsys.readouterr().err


LOOP = """HloModule loop
body { p = (s32[], f32[64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[64] get-tuple-element(p), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  c = f32[64] cosine(x)
  r = f32[64] reverse(c), dimensions={0}
  y = f32[64] add(r, c)
  ROOT t = (s32[], f32[64]) tuple(j, y) }
cond { p = (s32[], f32[64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(7)
  ROOT c = pred[] compare(i, n), direction=LT }
ENTRY e { x = f32[64] parameter(0)
  z = s32[] constant(0)
  t = (s32[], f32[64]) tuple(z, x)
  w = (s32[], f32[64]) while(t), condition=cond, body=body
  ROOT r = f32[64] get-tuple-element(w), index=1 }
"""
CONVOLUTION = """HloModule conv
ENTRY e { x = f32[2,16,16,8] parameter(0)
  k = f32[3,3,8,4] parameter(1)
  ROOT c = f32[2,16,16,4] convolution(x, k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f }
"""


@pytest.mark.parametrize(
    ("flag", "trips"),
    [
        ("--xla_gpu_enable_while_loop_unrolling=while_loop_unrolling_no_unroll", "7"),
        ("--xla_gpu_enable_while_loop_double_buffering", "3"),
        ("--xla_gpu_enable_while_loop_unrolling=WHILE_LOOP_UNROLLING_DOUBLE_BUFFER", "3"),
        ("--xla_gpu_enable_while_loop_unrolling=WHILE_LOOP_UNROLLING_FULL_UNROLL", "1"),
    ],
)
def test_loops_are_unrolled(flag: str, trips: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = _stage(tmp_path, capsys, LOOP, "hlo", flag)
    assert f'"known_trip_count":{{"n":"{trips}"}}' in text
    assert run(["--platform=Host", flag, str(tmp_path / "m.hlo")]) == 0


def test_layouts_of_convolutions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heuristic = _stage(tmp_path, capsys, CONVOLUTION, "hlo")
    innermost, outside = (
        _stage(tmp_path, capsys, CONVOLUTION, "hlo", f"--xla_gpu_force_conv_{name}") for name in ("nhwc", "nchw")
    )
    assert innermost == heuristic, "on an H100"
    assert "dim_labels=bf01_oi01->bf01" in outside


def test_products_are_rounded_by_a_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flag = "--xla_gpu_default_to_alg_dot_bf16_bf16_f32"
    assert "bf16[64,32]" not in _stage(tmp_path, capsys, DOTS, "hlo")
    assert "bf16[64,32]" in _stage(tmp_path, capsys, DOTS, "hlo", flag)
    precise = DOTS.replace("rhs_contracting_dims={0}", "rhs_contracting_dims={0}, operand_precision={highest,highest}")
    assert "bf16[64,32]" not in _stage(tmp_path, capsys, precise, "hlo", flag)
