"""`--input_literals_file`, `--output_literals_file`, `--force_fake_data` and `--hlo_argument_mode`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hlo_run.cli import run
from hlo_run.formats.run_literals import read_arguments
from hlo_run.ops.parse import parse
from hlo_run.reference.arguments.modes import device_id_arguments, normal_arguments
from hlo_run.reference.random import RandomEngine

MODULE = """HloModule m
ENTRY e {
  p = (f32[3], bf16[2]) parameter(0)
  q = s4[4] parameter(1)
  x = f32[3] get-tuple-element(p), index=0
  n = f32[3] negate(x)
  ROOT t = (f32[3], s4[4]) tuple(n, q)
}
"""
OTHER = "HloModule o\nENTRY e { p = f32[3] parameter(0)\n ROOT n = f32[3] negate(p) }"
PLATFORM = "--platform=Interpreter"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    path = tmp_path / "m.hlo"
    path.write_text(MODULE, encoding="utf-8")
    return path


def _message(path: Path) -> Any:
    from hlo_run.formats import run_literals

    types = run_literals._message_types("x")  # pyright: ignore[reportPrivateUsage]
    return types("RunHloModuleLiterals").FromString(path.read_bytes())


def test_iterations_go_out_and_in_again(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("google.protobuf")
    pytest.importorskip("jaxlib")
    one, two = tmp_path / "one.pb", tmp_path / "two.pb"
    assert run([PLATFORM, "--iterations=2", "--seed=9", f"--output_literals_file={one}", str(file)]) == 0
    written = _message(one)
    assert [len(iteration.arguments) for iteration in written.iterations] == [2, 2]
    assert written.iterations[0].result == written.iterations[0].reference_result
    assert written.iterations[0].arguments != written.iterations[1].arguments
    flags = [PLATFORM, f"--input_literals_file={one}", f"--output_literals_file={two}"]
    assert run([*flags, "--iterations=2", str(file)]) == 0
    assert one.read_bytes() == two.read_bytes()
    assert run([*flags, "--iterations=3", str(file)]) == 0
    again = _message(two)
    assert again.iterations[1] == written.iterations[1]
    assert len(again.iterations[2].arguments) == 2, "random ones, as in XLA"
    assert run([PLATFORM, "--reference_platform=", f"--output_literals_file={two}", str(file)]) == 0
    assert not _message(two).iterations[0].HasField("reference_result")


def test_arguments_that_do_not_fit(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("google.protobuf")
    pytest.importorskip("jaxlib")
    literals, other = tmp_path / "l.pbtxt", tmp_path / "o.hlo"
    assert run([PLATFORM, f"--output_literals_file={literals}", str(file)]) == 0
    assert literals.read_text().startswith("iterations {")
    other.write_text(OTHER, encoding="utf-8")
    assert run([PLATFORM, f"--input_literals_file={literals}", str(other)]) == 2
    assert f"'o' takes 1 arguments, but iteration 1 of '{literals}' gives 2" in capsys.readouterr().err
    other.write_text(MODULE.replace("s4[4]", "s4[5]"), encoding="utf-8")
    assert run([PLATFORM, f"--input_literals_file={literals}", str(other)]) == 2
    assert "has dimensions [4], but the parameter is s4[5]" in capsys.readouterr().err
    assert run([PLATFORM, f"--input_literals_file={literals}", "--force_fake_data", str(file)]) == 2
    assert "cannot be used together" in capsys.readouterr().err


def test_each_of_several_files_has_its_own(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("google.protobuf")
    pytest.importorskip("jaxlib")
    other = tmp_path / "o.hlo"
    other.write_text(OTHER, encoding="utf-8")
    assert run([PLATFORM, f"--output_literals_file={tmp_path / 'l.pb'}", str(file), str(other)]) == 0
    assert len(read_arguments(str(tmp_path / "l.0001.pb"), "f")[0]) == 1
    assert len(read_arguments(str(tmp_path / "l.0000.pb"), "f")[0]) == 2


def test_a_snapshot_can_be_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("google.protobuf")
    pytest.importorskip("jaxlib")
    from hlo_run.formats import xla
    from hlo_run.formats.proto_literals import fill_proto
    from hlo_run.formats.protos import message_types

    snapshot = message_types("x")("xla.HloSnapshot")()
    snapshot.hlo.hlo_module.ParseFromString(xla.text_to_proto(OTHER, "o.hlo"))
    fill_proto(snapshot.arguments.add(), np.array([7, 8, 9], np.float32), parse(OTHER, "o").entry.parameters[0].shape)
    path = tmp_path / "s.pb"
    path.write_bytes(snapshot.SerializeToString())
    assert run([PLATFORM, "--print_literals", str(path)]) == 0
    assert "f32[3] {7, 8, 9}" in capsys.readouterr().out
    assert run([PLATFORM, "--print_literals", "--force_fake_data", str(path)]) == 0
    assert "f32[3] {7, 8, 9}" not in capsys.readouterr().out


def test_modes_of_arguments(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = parse(MODULE.replace("bf16[2]", "bf16[<=2]"), "m.hlo")
    arguments: Any = device_id_arguments(module, 9)
    (first, second), third = arguments
    assert first.tolist() == [9, 9, 9]
    assert second.shape == (0,), "dynamic sizes are 0"
    assert third.tolist() == [1, 1, 1, 1], "9 in four bits with a sign"
    big = parse("HloModule b\nENTRY e { ROOT p = f32[100000] parameter(0) }", "b")
    (numbers,) = normal_arguments(big, RandomEngine(1))
    assert abs(float(np.mean(numbers))) < 0.02
    assert abs(float(np.std(numbers)) - 1) < 0.02
    two = MODULE.replace("HloModule m", "HloModule m, replica_count=2")
    file.write_text(two, encoding="utf-8")
    flags = [PLATFORM, "--print_literals", str(file)]
    assert run(["--hlo_argument_mode=use_device_id_as_input", *flags]) == 0
    out = capsys.readouterr().out
    assert "f32[3] {0, 0, 0}" in out
    assert "f32[3] {1, 1, 1}" in out
    for mode in ("use_zeros_as_input", "uninitialized"):
        assert run([f"--hlo_argument_mode={mode}", *flags]) == 0
        assert "f32[3] {1, 1, 1}" not in capsys.readouterr().out
    texts: dict[str, list[str]] = {}
    for mode in ("use_random_inputs", "use_shared_random_inputs", "use_random_normal_inputs"):
        assert run([f"--hlo_argument_mode={mode}", *flags]) == 0
        parts = capsys.readouterr().out.split("** Argument ")
        texts[mode] = [parts[1].partition("\n")[2], parts[3].partition("\n")[2]]
    assert texts["use_shared_random_inputs"][0] == texts["use_shared_random_inputs"][1]
    assert texts["use_random_inputs"][0] != texts["use_random_inputs"][1]
    assert texts["use_random_normal_inputs"][0] not in texts["use_random_inputs"]


def test_modes_without_a_meaning(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([PLATFORM, "--hlo_argument_mode=use_zeros_as_input", "--input_scale=2", str(file)]) == 2
    assert run([PLATFORM, "--hlo_argument_mode=use_zeros_as_input", "--random_init_input_literals=false", str(file)]) == 2
