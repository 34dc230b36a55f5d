"""`hlo-opt`: passes by name, the stages of XLA's tool, several modules in a file, and usage errors."""

from __future__ import annotations

from pathlib import Path

import pytest

import hlo_run
from hlo_run.cli import run, run_opt
from hlo_run.hlo.printer import module_to_string
from hlo_run.options import Options
from hlo_run.pass_support.print_options import dump_options

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


LOOP = """HloModule m
body { s = (s32[], f32[]) parameter(0) i = s32[] get-tuple-element(s), index=0 x = f32[] get-tuple-element(s), index=1
  one = s32[] constant(1) j = s32[] add(i, one) y = f32[] multiply(x, x) ROOT t = (s32[], f32[]) tuple(j, y) }
condition { s = (s32[], f32[]) parameter(0) i = s32[] get-tuple-element(s), index=0 n = s32[] constant(3)
  ROOT l = pred[] compare(i, n), direction=LT }
ENTRY e { p = f32[] parameter(0) z = s32[] constant(0) t = (s32[], f32[]) tuple(z, p)
  w = (s32[], f32[]) while(t), condition=condition, body=body ROOT r = f32[] get-tuple-element(w), index=1 }
"""


def test_passes_take_options_in_braces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "loop.hlo"
    path.write_text(LOOP)
    assert "while(" not in _output(capsys, "--passes=while_loop_unroller,dce", str(path))
    text = _output(capsys, "--passes=while_loop_unroller{wrap_in_trivial_loop=true},dce", str(path))
    assert text.count("multiply(") == 3
    assert "while(" in text
    text = _output(capsys, "--passes=while_loop_unroller{trip_count_threshold=2, wrap_in_trivial_loop},dce", str(path))
    assert text.count("multiply(") == 1


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("while_loop_unroller{factor=2}", "pass while_loop_unroller has no option 'factor'"),
        ("dce{all=true}", "pass dce has no option 'all'"),
        ("while_loop_unroller{trip_count_threshold=many}", "takes a int, got 'many'"),
        ("while_loop_unroller{", "cannot read the pass"),
    ],
)
def test_bad_options_of_passes_are_refused(file: str, capsys: pytest.CaptureFixture[str], asked: str, message: str) -> None:
    assert run_opt([f"--passes={asked}", file]) == 2
    assert message in capsys.readouterr().err


def _result_of(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, *arguments: str) -> str:
    path = tmp_path / "m.hlo"
    path.write_text(text)
    return _output(capsys, *arguments, str(path))


def test_a_module_without_a_header_is_read_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = _result_of(capsys, tmp_path, "e {\n  p = f32[4] parameter(0)\n  ROOT r = f32[4] exponential(p)\n}\n", "--passes=dce")
    assert text.startswith("HloModule module_e")
    assert "fusion" not in text
    assert "ENTRY %e (" in text


def test_passes_from_before_layout_assignment_need_not_keep_layouts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """HloModule m
ENTRY e {
  a = f32[8,4]{0,1} parameter(0)
  b = f32[8,4]{1,0} parameter(1)
  c = f32[4,8]{1,0} parameter(2)
  x = f32[8,8]{1,0} dot(a, c), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  y = f32[8,8]{1,0} dot(b, c), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT t = (f32[8,8]{1,0}, f32[8,8]{1,0}) tuple(x, y)
}
"""
    assert "concatenate(" in _result_of(capsys, tmp_path, text, "--passes=dot-merger", "--verify=every")


def test_passes_take_floats_of_several_widths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "HloModule m\nENTRY e { x = f16[] parameter(0)\n y = f32[] constant(-inf)\n ROOT m = f32[] maximum(x, y) }"
    assert "maximum(" in _result_of(capsys, tmp_path, text, "--passes=algsimp", "--verify=every"), "x is no f32"


def test_a_pass_is_all_rows_that_share_its_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """HloModule m
ENTRY e {
  a = bf16[33,65] parameter(0)
  b = bf16[65,37] parameter(1)
  ROOT x = bf16[33,37] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
    assert "dot(%pad" in _result_of(capsys, tmp_path, text, "--passes=cublas-pad-for-gemms")
    assert "pad(" not in _result_of(capsys, tmp_path, text, "--passes=cublas-pad-for-gemms-2"), "that row is for f16"
    assert "dot(%pad" in _result_of(capsys, tmp_path, text, "--passes=cublas_pad_for_gemms-3")


def test_rows_that_do_not_exist_are_a_warning(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_opt(["--split-input-file", "--xla_disable_hlo_passes=rematerialization", file]) == 0
    assert "warning: --xla_disable_hlo_passes: no HLO row is called 'rematerialization'" in capsys.readouterr().err
    assert run_opt(["--split-input-file", "--xla_enable_hlo_passes_only=cse,tse", file]) == 0
    assert "no HLO row is called 'tse'; did you mean cse?" in capsys.readouterr().err


def test_a_scheduled_module_comes_from_the_backend_stage_only(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    optimized = _output(capsys, "--split-input-file", "--platform=gpu", file)
    assert optimized.count("HloModule") == 2
    assert "is_scheduled" not in optimized
    backend = _output(capsys, "--split-input-file", "--platform=CUDA", "--stage=hlo-backend", file)
    assert backend.count("is_scheduled=true") == 2
    assert "fusion(" in backend


def test_copies_are_inserted_before_the_module_is_scheduled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "same.hlo"
    path.write_text("HloModule same\nENTRY e {\n  ROOT p = f32[4] parameter(0)\n}\n")
    optimized = _output(capsys, "--platform=gpu", str(path))
    assert "ROOT %copy" in optimized
    assert "is_scheduled" not in optimized


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
        ("llvm-before-optimizations", "define ptx_kernel void @input_reduce_fusion"),
        ("llvm", "define ptx_kernel void @input_reduce_fusion"),
        ("ptx", "// GPU Executable\n"),
        ("buffer-assignment", "allocation 0: size 128"),
        ("html", "input_reduce_fusion</td>"),
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


def test_dumps_of_passes_have_the_names_of_the_tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, one = tmp_path / "dumps", tmp_path / "one.hlo"
    one.write_text(ONE, encoding="utf-8")
    _output(capsys, "--passes=tuple-simplifier,dce", f"--xla_dump_to={folder}", "--xla_dump_hlo_pass_re=.*", str(one))
    assert sorted(path.name for path in folder.iterdir()) == [
        "module_0000.one.0000.transforms_pipeline.after_pipeline-start.before_tuple-simplifier.txt",
        "module_0000.one.0001.transforms_pipeline.after_tuple-simplifier.before_dce.txt",
        "module_0000.one.0002.transforms_pipeline.after_dce.before_pipeline-end.txt",
        "module_0000.one.after_optimization.txt",
        "module_0000.one.before_optimization.txt",
        "module_0000.one.debug_options",
    ]


def test_a_proto_is_written_before_any_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "one.hlo"
    file.write_text(ONE)
    assert run_opt(["--emit_proto", "--passes=no-such-pass", str(file)]) == 0
    assert 'name: "one"' in capsys.readouterr().out
