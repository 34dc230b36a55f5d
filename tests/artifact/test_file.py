"""Saved executables: loading restores the executable; damaged, foreign or inconsistent files are rejected."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

import hlo_run
from hlo_run.artifact import BufferSlice, CopyThunk, Executable
from hlo_run.artifact.file import load, save
from hlo_run.backends.host.backend import HostBackend
from hlo_run.cli import run
from hlo_run.errors import UsageError
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.records import replace
from hlo_run.target import preset

MODULE = """HloModule everything
less { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=LT }
condition { p = (s32[], f32[32,32]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT }
body { p = (s32[], f32[32,32]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[32,32] get-tuple-element(p), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  d = f32[32,32] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT t = (s32[], f32[32,32]) tuple(j, d) }
ENTRY e { x = f32[32,32] parameter(0)
  k = f32[3] constant({0.5, -1.25, 1e-3})
  z = s32[] constant(0)
  s = (s32[], f32[32,32]) tuple(z, x)
  w = (s32[], f32[32,32]) while(s), condition=condition, body=body
  v = f32[32,32] get-tuple-element(w), index=1
  o = f32[32,32] sort(v), dimensions={0}, to_apply=less
  ROOT t = (f32[32,32], f32[3]) tuple(o, k) }
"""
X = (0.2 * np.random.default_rng(1).standard_normal((32, 32))).astype(np.float32)


@pytest.fixture(scope="module")
def program() -> Executable:
    return compile_module(PassContext(preset("h100"), Options()), hlo_run.parse(MODULE))


def test_what_is_written_is_read(program: Executable) -> None:
    data = save(program)
    again = load(data, "m.hlox")
    assert again == program
    assert save(again) == data, "the same bytes for the same executable"
    one, two = HostBackend().run(program, [X]), HostBackend().run(again, [X])
    for first, second in zip(one, two, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("place", [0, 5, 30, 70, -1])
def test_a_changed_byte_is_seen(program: Executable, place: int) -> None:
    data = bytearray(save(program))
    data[place] ^= 1
    with pytest.raises(UsageError, match=r"not an executable|another version|damaged"):
        load(bytes(data), "m.hlox")


def test_files_that_end_early_or_are_none(program: Executable) -> None:
    data = save(program)
    for size in (0, 3, 40, len(data) - 1):
        with pytest.raises(UsageError, match=r"not an executable|damaged"):
            load(data[:size], "m.hlox")
    with pytest.raises(UsageError, match=r"'notes.txt' is not an executable of hlo-run"):
        load(b"HloModule m, and so on, and so on, and so on, and so on, and on", "notes.txt")


def _with_text(data: bytes, change: tuple[bytes, bytes]) -> bytes:
    """Return a file with changed records and a correct digest."""
    text_size = int.from_bytes(data[8:16], "little")
    text, blobs = data[56 : 56 + text_size].replace(*change, 1), data[56 + text_size :]
    digest = hashlib.sha256(text + blobs).digest()
    return data[:8] + len(text).to_bytes(8, "little") + data[16:24] + digest + text + blobs


def test_records_of_another_program(program: Executable) -> None:
    data = save(program)
    with pytest.raises(UsageError, match="another version"):
        load(_with_text(data, (b'"fields":"', b'"fields":"0')), "m.hlox")
    with pytest.raises(UsageError, match="not a valid executable"):
        load(_with_text(data, (b'["WhileThunk"', b'["UntilThunk"')), "m.hlox")
    with pytest.raises(UsageError, match="not a valid executable"):
        load(_with_text(data, (b'["KernelThunk",', b'["KernelThunk",7,')), "m.hlox")


def test_slices_and_kernels_must_be_there(program: Executable) -> None:
    outside = CopyThunk("c", BufferSlice(0, 0, 8), BufferSlice(0, program.allocations[0].size_bytes, 8))
    with pytest.raises(UsageError, match="not inside its allocation"):
        load(save(replace(program, thunks=(*program.thunks, outside))), "m.hlox")
    with pytest.raises(UsageError, match="is missing"):
        load(save(replace(program, kernels=program.kernels[1:])), "m.hlox")


def test_the_command_line_saves_and_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, saved = tmp_path / "m.hlo", tmp_path / "m.hlox"
    source.write_text(MODULE, encoding="utf-8")
    assert run([f"--output={saved}", str(source)]) == 0
    assert "everything for h100_sxm" in capsys.readouterr().err
    assert run(["--platform=Host", str(saved)]) == 0
    assert "close enough" in capsys.readouterr().err
    assert run(["--stage=hlo", str(saved)]) == 2
    assert run([f"--output={tmp_path / 'm.bin'}", str(source)]) == 2
    saved.write_bytes(saved.read_bytes()[:-1])
    assert run([str(saved)]) == 2
    assert "damaged" in capsys.readouterr().err
    assert run([str(tmp_path / "none.hlox")]) == 2
    assert list(tmp_path.glob("*.tmp")) == []
