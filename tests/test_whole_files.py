"""Files are written whole or not at all, and a symbolic link in the place of the temporary file is not followed."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import sys
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

import pytest

from hlo_run import whole_files
from hlo_run.cli import run
from hlo_run.whole_files import append_whole, whole_file, write_whole

MODULE = "HloModule a\nENTRY e { p = f32[4] parameter(0)\n ROOT r = f32[4] add(p, p) }\n"


@contextlib.contextmanager
def full_disk(size: int) -> Generator[None]:
    """In this context no file of this process may exceed `size` bytes.

    Python does not notice that its bytecode does not fit: what is imported here would be broken for all later tests.
    """
    writes_no_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = writes_no_bytecode


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_whole(str(path), b"one")
    path.chmod(0o640)
    write_whole(str(path), b"two")
    append_whole(str(path), b" three")
    assert path.read_bytes() == b"two three"
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["a.txt"]


def test_an_exception_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for old in ([], ["a.txt"]):
        with pytest.raises(KeyboardInterrupt):
            _interrupted(path)
        assert os.listdir(tmp_path) == old
        path.write_bytes(b"old")
    assert path.read_bytes() == b"old"


def _interrupted(path: Path) -> None:
    with whole_file(str(path)) as stream:
        stream.write(b"half")
        raise KeyboardInterrupt


def test_links_in_the_place_of_the_temporary_file_are_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first random name is taken by a link to a file of the user, the second is free."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"keep")
    (tmp_path / f".hlo-run-{b'A'.hex() * 8}.tmp").symlink_to(precious)
    letters = iter(b"AB")

    def letters_in_order(size: int) -> bytes:
        return bytes([next(letters)]) * size

    monkeypatch.setattr(whole_files.os, "urandom", letters_in_order)
    write_whole(str(tmp_path / "out"), b"new")
    assert (precious.read_bytes(), (tmp_path / "out").read_bytes()) == (b"keep", b"new")


def test_a_link_keeps_naming_its_file(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    write_whole(str(tmp_path / "link"), b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_devices_are_written_directly() -> None:
    write_whole("/dev/null", b"x")
    with pytest.raises(OSError, match="No space left"):
        write_whole("/dev/full", b"x")
    assert Path("/dev/null").is_char_device()


def test_a_file_in_a_directory_without_a_place_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is mounted alone, in a directory that is read-only."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"old and long")

    def refuse(folder: str) -> tuple[str, BinaryIO]:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), folder)

    monkeypatch.setattr(whole_files, "_new_file", refuse)
    write_whole(str(path), b"new")
    assert path.read_bytes() == b"new"
    with pytest.raises(OSError, match="Read-only"):
        write_whole(str(tmp_path / "b.txt"), b"new")


@pytest.mark.parametrize("size", [0, 60])
@pytest.mark.parametrize(
    "flag",
    [
        "--report_json=OUT/r.json",
        "--report_junit=OUT/r.xml",
        "--report_html=OUT/r.html",
        "--save_inputs=OUT/i.npz",
        "--save_outputs=OUT/o.npz",
        "--stage=hlo --output_file=OUT/m.hlo",
        "--stage=hlo --xla_dump_to=OUT",
        "--isolate_fusion=wrapped_add --xla_dump_to=OUT",
    ],
)
def test_a_full_disk_leaves_no_files(tmp_path: Path, flag: str, size: int, capsys: pytest.CaptureFixture[str]) -> None:
    """`size` bytes can be written to a file, then none."""
    source, folder = tmp_path / "a.hlo", tmp_path / "out"
    source.write_text(MODULE, encoding="utf-8")
    folder.mkdir()
    with full_disk(size):
        code = run(["--platform=Interpreter", "--cache=off", *flag.replace("OUT", str(folder)).split(), str(source)])
    assert (code, os.listdir(folder)) == (2, [])
    assert "File too large" in capsys.readouterr().err


def test_text_that_does_not_fit_behind_the_first_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_whole(str(path), b"one")
    with full_disk(4), pytest.raises(OSError, match="too large"):
        append_whole(str(path), b" two")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("place", ["/dev/null", "/dev/null/x", "/proc/none"])
def test_dumps_to_a_place_that_holds_no_files(tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "a.hlo"
    source.write_text(MODULE, encoding="utf-8")
    assert run([f"--xla_dump_to={place}", "--platform=Host", str(source)]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"usage error: --xla_dump_to={place}: ")
    assert message.count("\n") == 1
