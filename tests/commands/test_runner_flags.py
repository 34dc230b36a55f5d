"""The flags of XLA's hlo_runner_main: repeats, texts of results, loops that run N times, compilation alone, other names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hlo_run.cli import run
from hlo_run.options.parsing import read_flags

MODULE = """HloModule m, replica_count=2
ENTRY e {
  p = f32[3] parameter(0)
  q = bf16[2] parameter(1)
  n = f32[3] negate(p)
  ROOT t = (f32[3], bf16[2]) tuple(n, q)
}
"""
LOOP = """HloModule loop
body {
  p = (f32[2]) parameter(0)
  x = f32[2] get-tuple-element(p), index=0
  y = f32[2] add(x, x)
  ROOT t = (f32[2]) tuple(y)
}
condition {
  p = (f32[2]) parameter(0)
  ROOT c = pred[] constant(true)
}
ENTRY e {
  x = f32[2] constant({1, 2})
  t = (f32[2]) tuple(x)
  w = (f32[2]) while(t), condition=condition, body=body
  ROOT r = f32[2] get-tuple-element(w), index=0
}
"""
FEEDS = """HloModule feeds
ENTRY e {
  k = token[] after-all()
  i = (f32[2], token[]) infeed(k)
  x = f32[2] get-tuple-element(i), index=0
  l = token[] get-tuple-element(i), index=1
  o = token[] outfeed(x, l), outfeed_shape=f32[2]{0}
  ROOT r = f32[2] cosine(x)
}
"""
SHARDED = MODULE.replace("replica_count=2", "num_partitions=2")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    path = tmp_path / "m.hlo"
    path.write_text(MODULE, encoding="utf-8")
    return path


def test_repeats_and_their_times(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--platform=Host", "--num_repeats=3", "--profile_execution", "--cache=off", str(file)]) == 0
    out, err = capsys.readouterr()
    found = re.findall(rf"^## Execution time, file={re.escape(str(file))} repeat=(\d) duration=(\d+)ns$", out, re.MULTILINE)
    assert [repeat for repeat, _ in found] == ["0", "1", "2"]
    assert all(int(duration) > 0 for _, duration in found)
    assert err.count("... ran in") == 4, "three runs and the reference"
    assert "median ms" not in err, "--profile prints the table"


def test_texts_of_results(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = tmp_path / "out.txt"
    flags = ["--platform=Interpreter", "--hlo_argument_mode=use_device_id_as_input"]
    assert run([*flags, f"--dump_output_literal_to={texts}", "--log_output", str(file)]) == 0
    written = {path.name: path.read_text() for path in tmp_path.glob("out.*")}
    assert sorted(written) == [f"out.task_0.device_{d}.literal_{n}.txt" for d in (0, 1) for n in (0, 1)]
    assert written["out.task_0.device_1.literal_0.txt"] == "f32[3] {-1, -1, -1}"
    assert written["out.task_0.device_1.literal_1.txt"] == "bf16[2] {1, 1}"
    err = capsys.readouterr().err
    assert "device_id=1, input = bf16[2] {1, 1}" in err
    assert "Outputs for device_id: 1\nf32[3] {-1, -1, -1}\nbf16[2] {1, 1}" in err
    assert run([*flags, "--dump_output_literal_to=out.pb", str(file)]) == 2
    assert run([*flags, f"--dump_output_literal_to={texts}", str(file), str(file)]) == 2


def test_values_of_outfeeds_are_no_results(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(FEEDS, encoding="utf-8")
    assert run(["--platform=Interpreter", "--log_output", str(file)]) == 0
    assert capsys.readouterr().err.count("\nf32[2]") == 1
    assert run(["--platform=Interpreter", "--log_output", "--remove_infeed_outfeed", str(file)]) == 0
    assert "Outputs for device_id: 0\nf32[2] {1, 1}" in capsys.readouterr().err


@pytest.mark.parametrize("platform", ["Host", "Interpreter"])
def test_endless_loops_end(file: Path, platform: str, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(LOOP, encoding="utf-8")
    assert run([f"--platform={platform}", "--while_execution_count=3", "--print_literals", str(file)]) == 0
    assert capsys.readouterr().out.count("f32[2] {8, 16}") == 2


def test_compilation_alone(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dumps = tmp_path / "dumps"
    assert run(["--compile_only", f"--xla_dump_to={dumps}", str(file)]) == 0
    out, err = capsys.readouterr()
    assert f"** Compiling {file} **" in out
    assert "Running" not in out + err
    assert any(dumps.iterdir())
    assert run(["--compile_only", "--iterations=2", str(file)]) == 2
    assert "--iterations has no effect with --compile_only" in capsys.readouterr().err
    assert run(["--compile_only", "--stage=hlo", str(file)]) == 2


def test_flags_with_one_value(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--num_nodes=1", "--use_spmd_partitioning", "--platform=Interpreter", str(file)]) == 0
    assert run(["--num_nodes=2", str(file)]) == 2
    assert "--num_nodes=2 needs --task_id" in capsys.readouterr().err
    assert run(["--use_spmd_partitioning=false", "--platform=Interpreter", str(file)]) == 0
    file.write_text(SHARDED, encoding="utf-8")
    assert run(["--use_spmd_partitioning=false", "--platform=Interpreter", str(file)]) == 2


def test_the_backend_alone(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts: list[str] = []
    for flag in ("--run_xla_backend_only", "--run_test_hlo_passes=false", "--disable_all_hlo_passes"):
        assert run([flag, "--stage=hlo", "--cache=off", str(file)]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] == texts[2]


def test_other_names() -> None:
    raw = read_flags(["--random_seed=7", "--device_type=gpu", "--disable_all_hlo_passes", "--run=false", "m.hlo"], {})
    assert raw.given == {"seed": "7", "platform": "gpu", "xla_disable_all_hlo_passes": "true", "compile_only": "true"}
    assert read_flags(["--run", "m.hlo"], {}).given == {"compile_only": "false"}


def test_other_names_of_formats_and_numbers(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--platform=Interpreter", "--num_replicas=-1", "--num_partitions=-1", "--input_format=TEXT"]
    assert run([*flags, "--print_literals", str(file)]) == 0
    assert capsys.readouterr().out.count("** Argument ") == 4, "two replicas, as in the header"
    assert run(["--input_format=serialized_pjrt_executable", str(file)]) == 2
    assert "executables of PjRt have no module" in capsys.readouterr().err


def test_riegeli_is_refused(tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.riegeli"
    path.write_bytes(b"\x83\xaf\x70\xd1")
    for arguments in ([str(path)], ["--input_format=riegeli", str(file)]):
        assert run(arguments) == 2
        err = capsys.readouterr().err
        assert "riegeli files are not supported" in err
        assert "RecordReader" in err


DEVICES = """HloModule m, replica_count=2
ENTRY e {
  p = f32[3] parameter(0)
  r = u32[] replica-id()
  f = f32[] convert(r)
  b = f32[3] broadcast(f), dimensions={}
  ROOT s = f32[3] add(p, b)
}
"""


@pytest.fixture
def devices(file: Path) -> Path:
    file.write_text(DEVICES, encoding="utf-8")
    return file


def test_only_the_first_device_returns_its_result(devices: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts, saved = tmp_path / "out.txt", tmp_path / "out.npz"
    flags = ["--platform=Host", "--output_mode=return_device_0_outputs", "--hlo_argument_mode=use_zeros_as_input"]
    assert run([*flags, f"--dump_output_literal_to={texts}", f"--save_outputs={saved}", "--log_output", str(devices)]) == 0
    assert [path.name for path in tmp_path.glob("out.task*")] == ["out.task_0.device_0.literal_0.txt"]
    assert "are close enough" in capsys.readouterr().err
    # The saved result is that of one device, too.
    assert run([*flags, f"--expected_output={saved}", str(devices)]) == 0


def test_results_that_stay_on_the_devices(devices: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--platform=Host", "--output_mode=not_return_outputs", str(devices)]) == 0
    err = capsys.readouterr().err
    assert "The result stays on the device" in err
    assert "close enough" not in err
    assert "runs failed" not in err
    assert run(["--output_mode=not_return_outputs", "--save_outputs=x.npz", str(devices)]) == 2


def test_times_in_a_table(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other, table = tmp_path / "n.hlo", tmp_path / "times"
    other.write_text(MODULE, encoding="utf-8")
    flags = ["--platform=Host", "--profile_execution", "--num_repeats=3", f"--append_profile_to_csv_file={table}"]
    for _ in range(2):
        assert run([*flags, str(other), str(file)]) == 0
    rows = (tmp_path / "times.csv").read_text(encoding="utf-8").splitlines()
    assert rows[0] == "Datetime,m.hlo,n.hlo"
    assert len(rows) == 3
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(, [\d.e-]+ms){2}", row) for row in rows[1:])
    measured = re.findall(r"file=(\S+) repeat=(\d) duration=(\d+)ns", capsys.readouterr().out)
    counted = [int(duration) for name, repeat, duration in measured[6:] if name == str(file) and repeat != "0"]
    assert rows[2].split(", ")[1] == f"{sum(counted) / 2e6:.4g}ms", "the first repeat warms up"


def test_a_table_needs_times(file: Path) -> None:
    assert run(["--platform=Host", "--append_profile_to_csv_file=t", str(file)]) == 2


def test_mock_nccl_is_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--enable_mock_nccl", "--run_single_shard_id=0"):
        assert run([flag, str(file)]) == 2
        assert "hlo-run simulates all devices and their collectives" in capsys.readouterr().err


def test_partitioned_modules_run_no_passes(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(SHARDED, encoding="utf-8")
    assert run(["--is_spmd_partitioned_module", "--stage=hlo", str(file)]) == 0
    assert capsys.readouterr().out.count("parameter(0), sharding={manual}") == 1
    dump = str(file.parent / "dump")
    assert run(["--is_spmd_partitioned_module", f"--xla_dump_to={dump}", "--stage=ptx", str(file)]) == 0
    (before,) = Path(dump).glob("*before_optimizations.txt")
    assert "sharding={{manual}, {manual}}" in before.read_text(encoding="utf-8")
    assert run(["--is_spmd_partitioned_module", "--platform=Host", str(file)]) == 0


def test_through_stablehlo(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jaxlib")
    file.write_text(MODULE.replace(", replica_count=2", ""), encoding="utf-8")
    assert run(["--compile_as_stablehlo", "--platform=Interpreter", str(file)]) == 0
    assert "close enough" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "last", "later"),
    [
        ("xla_early_exit_with_layouts", ".layout_assignment.after_layout-assignment.", "layout_normalization"),
        (
            "xla_gpu_experimental_early_exit=EARLY_EXIT_POINT_AFTER_CONFIG_ASSIGNMENT",
            ".config-assigner.after_config-assigner.",
            "pre-scheduling-copy-insertion",
        ),
    ],
)
def test_a_compilation_may_end_early(
    flag: str, last: str, later: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "m.hlo"
    file.write_text("HloModule m\nENTRY e { x = f32[2,3] parameter(0)\n ROOT t = f32[3,2] transpose(x), dimensions={1,0} }")
    early = [f"--{flag}", str(file)]
    assert run(early) == 2
    assert "stops before it has made what could run" in capsys.readouterr().err
    dumps = tmp_path / "dumps"
    assert run(["--compile_only", f"--xla_dump_to={dumps}", "--xla_dump_hlo_pass_re=.*", *early]) == 0
    names = sorted(path.name for path in dumps.iterdir())
    assert any(last in name for name in names)
    assert not any("after_optimizations" in name or f".{later}." in name for name in names)
    capsys.readouterr()
    assert run(["--stage=ptx", *early]) == 0
    assert "stops m before ptx" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--task_id=1", "needs --num_nodes"),
        ("--address=h:1", "needs --num_nodes"),
        ("--gpu_client_mem_fraction=1.5", "between 0 and 1"),
        ("--force_auto_layout", "entry_computation_layout"),
        ("--execution_options_path=x.pbtxt", "does not read an ExecutionOptions message"),
    ],
)
def test_flags_of_the_runner_that_cannot_act_say_why(
    flag: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "m.hlo"
    file.write_text("HloModule m ENTRY e { ROOT p = f32[2] parameter(0) }")
    assert run([flag, str(file)]) == 2
    assert message in capsys.readouterr().err
    accepted = ["--task_id=0", "--gpu_client_mem_fraction=0.5", "--gpu_client_initialization_timeout_sec=9"]
    assert run([*accepted, "--use_layouts_from_hlo_module", "--stage=hlo-input", str(file)]) == 0
