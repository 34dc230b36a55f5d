"""--xla_dump_hlo_snapshots and --xla_dump_hlo_unoptimized_snapshots: every execution as a file that runs again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hlo_run.cli import run
from hlo_run.formats.protos import message_types

pytest.importorskip("jaxlib")
MODULE = """HloModule small
ENTRY e { a = f32[8] parameter(0)
  b = f32[8] exponential(a)
  ROOT c = f32[8] add(b, a) }
"""
DEVICES = """HloModule two, replica_count=2
ENTRY e { a = s32[2] parameter(0)
  r = u32[] replica-id()
  s = s32[] convert(r)
  b = s32[2] broadcast(s), dimensions={}
  ROOT c = s32[2] add(a, b) }
"""


@pytest.fixture(autouse=True)
def no_flags_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)


def dumped(tmp_path: Path, text: str, *flags: str) -> dict[str, Path]:
    """Run a module and return the snapshots by name."""
    file, folder = tmp_path / "m.hlo", tmp_path / "d"
    file.write_text(text, encoding="utf-8")
    assert run([str(file), f"--xla_dump_to={folder}", "--reference_platform=", *flags]) == 0
    return {path.name: path for path in folder.iterdir() if "snapshot" in path.name}


def test_a_snapshot_has_the_module_that_ran(tmp_path: Path) -> None:
    (path,) = dumped(tmp_path, MODULE, "--platform=Host", "--xla_dump_hlo_snapshots").values()
    assert path.name.startswith("module_small.execution_")
    message = message_types("a test")("xla.HloSnapshot").FromString(path.read_bytes())
    assert message.execution_platform == "Host"
    entry = next(c for c in message.hlo.hlo_module.computations if c.id == message.hlo.hlo_module.entry_computation_id)
    assert [i.opcode for i in entry.instructions] == ["parameter", "fusion"]
    argument = np.array(message.arguments[0].f32s, np.float32)
    np.testing.assert_allclose(np.array(message.result.f32s), np.exp(argument) + argument, rtol=1e-5)
    assert run(["--platform=Host", str(path)]) == 0


def test_every_repeat_is_an_execution(tmp_path: Path) -> None:
    names = dumped(tmp_path, MODULE, "--platform=Interpreter", "--xla_dump_hlo_unoptimized_snapshots", "--num_repeats=2")
    assert sorted(names) == [f"module_0000.small.execution_000{n}.hlo_unoptimized_snapshot.pb" for n in (0, 1)]


def test_unoptimized_snapshots_have_the_arguments_of_each_device(tmp_path: Path) -> None:
    flags = ("--xla_dump_hlo_unoptimized_snapshots", "--xla_dump_hlo_as_text", "--platform=Host")
    (path,) = dumped(tmp_path, DEVICES, *flags).values()
    assert path.name == "module_0000.two.execution_0000.hlo_unoptimized_snapshot.txt"
    assert sorted(other.name for other in path.parent.iterdir() if other != path) == ["module_0000.two.config.pbtxt"]
    text = path.read_text(encoding="utf-8")
    assert text.count("partitions {") == 2
    assert 'opcode: "replica-id"' in text


def test_snapshots_need_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "m.hlo"
    file.write_text(MODULE, encoding="utf-8")
    assert run([str(file), "--platform=Interpreter", "--xla_dump_hlo_snapshots"]) == 2
    assert "--xla_dump_to=DIR" in capsys.readouterr().err
