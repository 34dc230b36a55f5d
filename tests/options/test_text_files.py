"""Files are read up to a bound."""

from __future__ import annotations

import io
import os
import sys
import threading
from pathlib import Path

import pytest

from hlo_run.cli import run
from hlo_run.errors import UsageError
from hlo_run.options import text_files
from hlo_run.options.text_files import read_bytes, read_stream, read_text

MODULE = b"HloModule m\nENTRY e { p = f32[4] parameter(0) ROOT n = f32[4] negate(p) }\n"
DEVICES = [["/dev/zero"], ["--debug_options_file=/dev/zero", "m.hlo"], ["--xla_gpu_ptx_file=/dev/zero", "m.hlo"]]


@pytest.fixture(autouse=True)
def few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "_MOST_BYTES_OF_FILE", 1000)
    monkeypatch.setattr(text_files, "_MOST_BYTES_OF_STREAM", 500)
    monkeypatch.setattr(text_files, "_CHUNK", 64)


def test_a_large_file_is_refused_by_its_size(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(1000))
    assert len(read_bytes(str(tmp_path / "a"), "'a'")) == 1000
    (tmp_path / "a").write_bytes(bytes(1001))
    with pytest.raises(UsageError, match="'a' is too large: 1001 bytes, the most is 1000"):
        read_bytes(str(tmp_path / "a"), "'a'")


def test_a_stream_without_a_size_is_read_to_its_bound() -> None:
    assert len(read_stream(io.BytesIO(bytes(500)), "it")) == 500
    with pytest.raises(UsageError, match="it is a pipe or device with more than 500 bytes"):
        read_stream(io.BytesIO(bytes(10**6)), "it")


def test_text_has_the_line_ends_of_python(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a\r\nb\rc\n")
    assert read_text(str(tmp_path / "a"), "--flag") == "a\nb\nc\n"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such device")
@pytest.mark.parametrize("flags", DEVICES)
def test_a_device_without_an_end_is_a_usage_error(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.hlo").write_bytes(MODULE)
    assert run(["--platform=Host", *flags]) == 2
    assert "/dev/zero' is a pipe or device with more than 500 bytes" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
@pytest.mark.parametrize("name", ["m.hlo", "63"])
def test_a_pipe_is_read_once(name: str, tmp_path: Path) -> None:
    pipe = tmp_path / name
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(MODULE))
    writer.start()
    assert run(["--platform=Interpreter", str(pipe)]) == 0
    writer.join()
