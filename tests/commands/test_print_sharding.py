"""`--print_sharding`, and what a module for several partitions says that has one."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlo_run.cli import run

MODULE = """HloModule m{header}
ENTRY e {{
  x = f32[4,6] parameter(0), sharding={{devices=[2,1]<=[2]}}
  b = f32[6] parameter(1)
  w = f32[4,6] broadcast(b), dimensions={{1}}
  n = f32[4,6] add(x, w)
  ROOT r = f32[4,6] negate(n), sharding={{devices=[2,1]<=[2]}}
}}
"""
SHARDS = """HloModule m
ENTRY e {
  x = f32[8,4] parameter(0), sharding={devices=[4,1]<=[4]}
  s = f32[2,4] custom-call(x), custom_call_target="SPMDFullToShardShape", sharding={manual}
  ROOT w = f32[8,4] custom-call(s), custom_call_target="SPMDShardToFullShape", sharding={devices=[4,1]<=[4]}
}
"""
_ATTRIBUTES = (
    r'xla.sdy.in_shardings="#sdy.sharding_per_value<[<@mesh, [{\"x\"}]>]>",xla.sdy.manual_axes="#sdy<manual_axes{\"x\"}>"'
)
SHARDY = f"""HloModule m, frontend_attributes={{xla.sdy.meshes={{mesh = #sdy.mesh<["x"=4]>}}}}
ENTRY e {{
  x = f32[8] parameter(0)
  ROOT g = f32[2] custom-call(x), custom_call_target="xla.sdy.GlobalToLocalShape", frontend_attributes={{{_ATTRIBUTES}}}
}}
"""
ROWS = "    0:6\n      +-----+\n  0:2 | 0   |\n      +-----+\n  2:4 | 1   |"


def _file(folder: Path, text: str) -> str:
    path = folder / "m.hlo"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_parameters_and_result_are_drawn_after_the_propagation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = _file(tmp_path, MODULE.format(header=", num_partitions=2"))
    assert run(["--compile_only", "--print_sharding", file]) == 0
    out = capsys.readouterr().out
    assert "Shardings of m over 2 partitions\n" in out
    assert out.count(ROWS) == 2, "the parameter and the result"
    assert "parameter 1 %b f32[6], sharding={replicated}: every device has the whole array" in out
    assert "%n" not in out


def test_a_stage_is_alone_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = _file(tmp_path, MODULE.format(header=", replica_count=3"))
    flags = ["--stage=after_spmd_partitioner", "--print_sharding=all", "--num_partitions=2", file]
    assert run(flags) == 0
    out, err = capsys.readouterr()
    assert out.startswith("HloModule m")
    assert "Shardings" not in out
    assert "Shardings of m over 2 partitions of each of 3 replicas" in err
    assert "\n%n f32[4,6], sharding={devices=[2,1]" in err


@pytest.mark.parametrize("stage", ["hlo-input", "flatten-call-graph"])
def test_stages_before_the_propagation_show_what_is_known(stage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = _file(tmp_path, MODULE.format(header=""))
    assert run([f"--stage={stage}", "--print_sharding", "--num_partitions=2", file]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("HloModule m")
    assert err.count(ROWS) == 2
    assert "parameter 1 %b f32[6]: no sharding yet" in err


def test_without_shardings_devices_have_arrays_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = _file(tmp_path, "HloModule m, num_partitions=2\nENTRY e { x = f32[2] parameter(0)\n ROOT n = f32[2] negate(x) }")
    assert run(["--compile_only", "--print_sharding", file]) == 0
    assert capsys.readouterr().out.count("| 0 / 1 |") == 2


def test_it_says_that_it_draws_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--compile_only", "--disable=spmd-partitioning"]
    assert run([*flags, "--print_sharding", _file(tmp_path, MODULE.format(header=", num_partitions=2"))]) == 0
    out, err = capsys.readouterr()
    assert "Shardings" not in out + err
    assert "--print_sharding draws before the row spmd-partitioning, which did not run" in err


def test_one_partition_has_nothing_to_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--compile_only", "--print_sharding", _file(tmp_path, MODULE.format(header=""))]) == 2
    assert "hint: --num_partitions=2" in capsys.readouterr().err


@pytest.mark.parametrize("text", [SHARDS, SHARDY])
@pytest.mark.parametrize("mode", ["--platform=Interpreter", "--compile_only"])
def test_parts_need_partitions(text: str, mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([mode, _file(tmp_path, text)]) == 4
    err = capsys.readouterr().err
    assert "the module is for 4 partitions, but has 1" in err
    assert "hint: --num_partitions=4" in err


def test_a_run_on_one_partition_says_what_its_shardings_are_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--platform=Interpreter", _file(tmp_path, MODULE.format(header=""))]) == 0
    assert "--num_partitions=2 divides the work" in capsys.readouterr().err
    assert run(["--platform=Interpreter", "--num_partitions=2", _file(tmp_path, MODULE.format(header=""))]) == 0
    assert "divides the work" not in capsys.readouterr().err


def test_tiles_of_other_dimensions_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = MODULE.format(header=", num_partitions=2").replace("devices=[2,1]", "devices=[2]")
    assert run(["--compile_only", "--print_sharding", _file(tmp_path, text)]) == 3
    out, err = capsys.readouterr()
    assert "tiles of 1 dimensions, which do not fit" in out
    assert "the sharding {devices=[2]<=[2]} has 1 dimensions, the array f32[4,6] 2" in err


@pytest.mark.parametrize("flags", [["--compile_only"], ["--stage=hlo"], ["--platform=Interpreter"]])
@pytest.mark.parametrize(
    "header", ['frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["x"=2, "y"=3]>}}', 'frontend_attributes={other="1"}']
)
def test_every_mode_says_that_shardings_have_no_effect(
    flags: list[str], header: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "m.hlo"
    divided = "" if "sdy" in header else ", sharding={devices=[6,1]<=[6]}"
    file.write_text(f"HloModule m, {header}\nENTRY e {{ p = f32[6,6] parameter(0){divided}\n  ROOT n = f32[6,6] negate(p) }}\n")
    assert run([*flags, str(file)]) == 0
    assert capsys.readouterr().err.count("note: shardings over 6 partitions divide nothing on one; --num_partitions=6") == 1
