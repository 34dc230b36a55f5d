"""The directory of reproducers has a limit, and only reproducers are removed from it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hlo_run.containment import crash
from hlo_run.containment.board import Blame, Board, NativeStep
from hlo_run.containment.crash import Crash, choose_crash_directory, crash_error, set_input_file, write_reproducer
from hlo_run.errors import DeviceError, InternalError, OutOfTime, ParseError


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    choose_crash_directory(str(tmp_path / "crashes"))
    yield tmp_path / "crashes"
    choose_crash_directory("")
    set_input_file("")


def test_the_oldest_are_removed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash, "FOLDERS_KEPT", 3)
    directory.mkdir()
    (directory / "notes.txt").write_text("mine")
    (directory / "20200101-000000-mine").mkdir()  # like a reproducer, but without versions
    made = [write_reproducer("k", {"k.ll": b"text"}) for _ in range(3)]
    for number, folder in enumerate(made):
        assert folder is not None
        os.utime(folder, (number, number))
    last = write_reproducer("k", {})
    assert made[0] is not None
    assert not made[0].exists()
    assert {path.name for path in directory.iterdir()} == {
        "notes.txt",
        "20200101-000000-mine",
        *(folder.name for folder in (*made[1:], last) if folder is not None),
    }


def test_names_of_files_stay_inside(directory: Path) -> None:
    folder = write_reproducer("../../k\n", {"../../evil": b"x"})
    assert folder is not None
    assert folder.parent == directory
    assert (folder / "evil").read_bytes() == b"x"


def test_without_a_writable_directory_the_temporary_folder_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("HLO_RUN_CRASH_DIR", str(tmp_path / "file" / "below"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = write_reproducer("k", {})
    assert folder is not None
    assert folder.parent.parent == tmp_path


def _step(blame: Blame, file: str = "") -> NativeStep:
    return NativeStep("LLVM", "kernel 'k'", blame, file, "k.ll", b"text")


@pytest.mark.parametrize(
    ("crash", "kind", "text"),
    [
        (Crash(-6, "", _step(Blame.US)), InternalError, "LLVM died with SIGABRT in kernel 'k'"),
        (Crash(-6, "", _step(Blame.FILE, "my.ll")), ParseError, "LLVM died with SIGABRT in kernel 'k'"),
        (Crash(-11, "", _step(Blame.KERNEL)), DeviceError, "LLVM died with SIGSEGV in kernel 'k'"),
        (Crash(-11, "row 'cse'"), InternalError, "the process died with SIGSEGV in row 'cse'"),
        (Crash(-9, "row 'cse'"), DeviceError, "the process died with SIGKILL in row 'cse'"),
        (Crash(3, ""), InternalError, "the process died with exit code 3 in Python"),
        (Crash(-9, "row 'cse'", limit_seconds=2), OutOfTime, "took longer than --timeout=2 s, in row 'cse'"),
    ],
)
def test_the_error_of_a_crash(crash: Crash, kind: type[Exception], text: str, directory: Path) -> None:
    error = crash_error(crash)
    assert type(error) is kind
    assert text in error.message
    assert any(str(directory) in note for note in error.notes)


def test_a_board_tells_what_was_noted() -> None:
    board = Board(3)
    assert board.step(1) is None
    step = NativeStep("LLVM", "kernel 'k'" * 40, Blame.FILE, "ü" * 500, "k.ll", b"x" * (3 << 20), 5.0)
    board.begin(1, step)
    board.begin(2, NativeStep("ptxas", "kernel 'j'", Blame.US, "", "j.ptx", b"", 4.0))
    board.set_place(1, "row 'ü'" * 200)
    found = board.step(1)
    assert found is not None
    assert (found.stage, found.blame, found.since) == ("LLVM", Blame.FILE, 5.0)
    assert step.subject.startswith(found.subject)
    assert 1 << 20 < len(found.input) < 3 << 20, "long inputs are cut off"
    longest = board.longest()
    assert longest is not None
    assert longest.stage == "ptxas"
    assert board.place(1).startswith("row 'ü'")
    board.end(2)
    assert board.step(2) is None
    assert board.longest() == found
    board.clear(1)
    assert (board.step(1), board.place(1)) == (None, "")
