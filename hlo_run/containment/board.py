"""Notes about the native code that processes run, in memory that outlives them.

A supervisor or the parent of compile workers makes the board before it forks. Each process writes to its own row. After a process
has died, its parent reads the row: the row of the pass tables, the native step, the kernel, and the step's input.
"""

from __future__ import annotations

import marshal
import mmap
import os
import struct
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

# Memory that is never written takes no space. Longer inputs are cut off.
_ROW_BYTES = 2 << 20
_PLACE_BYTES = 512
_COUNT_BYTES = 128
_META_BYTES = 4096
_LENGTH = struct.Struct("<I")
_HEADER = struct.Struct("<II")
_SECONDS = struct.Struct("<d")
_PROGRESS = struct.Struct("<q")
_DEADLINE_AT = 0
_PROGRESS_AT = _SECONDS.size
_PLACE_AT = _PROGRESS_AT + _PROGRESS.size
_COUNT_AT = _PLACE_AT + _LENGTH.size + _PLACE_BYTES
_STEP_AT = _COUNT_AT + _LENGTH.size + _COUNT_BYTES
_META_AT = _STEP_AT + _HEADER.size
_DATA_AT = _META_AT + _META_BYTES
PLUGIN_PLACE = "the pass '"
"""How the place of a pass of another package begins."""
KERNELS_FILE = "kernels.txt"
"""The input of a step that runs many kernels: a line per kernel with a number and a name. The progress word has the number."""
INPUT_LIMIT_BYTES = _ROW_BYTES - _DATA_AT


class Blame(Enum):
    """The code at fault if a native step dies."""

    US = "hlo-run"
    """The input is our own."""
    KERNEL = "kernel"
    """The step executes a kernel."""
    FILE = "file"
    """The input is the user's file."""


@dataclass(frozen=True, slots=True)
class NativeStep:
    """A step in native code: the name of the stage, what it works on, whom to blame, and its input as a file.

    `user_file` is the path of the user's file that the input comes from, or "". `input` is cut off at INPUT_LIMIT_BYTES.
    """

    stage: str
    subject: str
    blame: Blame
    user_file: str
    input_name: str
    input: bytes
    since: float = 0.0
    """When it began (time.monotonic)."""


class Board:
    """Shared memory with one row per process, row 0 for the process that the supervisor starts."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        # The last row, which no process has, holds the input.
        self._memory = mmap.mmap(-1, (rows + 1) * _ROW_BYTES)

    def keep_input(self, data: bytes) -> None:
        """Keep what a process read from stdin, as it cannot be read again. More than INPUT_LIMIT_BYTES are cut off."""
        self.begin(self.rows, NativeStep("", "", Blame.US, "", "", data))

    def kept_input(self) -> bytes:
        """Return the bytes that `keep_input` kept last."""
        step = self.step(self.rows)
        return b"" if step is None else step.input

    def set_place(self, row: int, place: str) -> None:
        """Note which row of the pass tables, or which phase, runs."""
        self._set_text(row * _ROW_BYTES + _PLACE_AT, place, _PLACE_BYTES)

    def place(self, row: int) -> str:
        """Return the place that `set_place` noted last."""
        return self._text(row * _ROW_BYTES + _PLACE_AT, _PLACE_BYTES)

    def set_count(self, row: int, count: str) -> None:
        """Note how much is done, as `iteration 3 of 10`."""
        self._set_text(row * _ROW_BYTES + _COUNT_AT, count, _COUNT_BYTES)

    def activity(self, row: int) -> str:
        """Return the notes of `set_count` and `set_place`."""
        count = self._text(row * _ROW_BYTES + _COUNT_AT, _COUNT_BYTES)
        return ", ".join(filter(None, (count, self.place(row))))

    def _set_text(self, at: int, text: str, most_bytes: int) -> None:
        data = text.encode(errors="replace")[:most_bytes]
        self._memory[at : at + _LENGTH.size + len(data)] = _LENGTH.pack(len(data)) + data

    def _text(self, at: int, most_bytes: int) -> str:
        (length,) = _LENGTH.unpack_from(self._memory, at)
        return self._memory[at + _LENGTH.size : at + _LENGTH.size + min(length, most_bytes)].decode(errors="replace")

    def set_deadline(self, row: int, deadline: float) -> None:
        """Note when the process must be ended (time.monotonic); 0: never."""
        _SECONDS.pack_into(self._memory, row * _ROW_BYTES + _DEADLINE_AT, deadline)

    def deadline(self, row: int) -> float:
        """Return the time that `set_deadline` noted last."""
        return _SECONDS.unpack_from(self._memory, row * _ROW_BYTES + _DEADLINE_AT)[0]

    def begin(self, row: int, step: NativeStep) -> None:
        """Note a native step."""
        at = row * _ROW_BYTES
        names = step.subject[:150], step.blame.value, step.user_file[:250], step.input_name[:150]
        meta = marshal.dumps((step.since, step.stage[:50], *names))  # at most 600 characters, so at most 2,400 bytes
        data = step.input[:INPUT_LIMIT_BYTES]
        memory = self._memory
        memory[at + _META_AT : at + _META_AT + len(meta)] = meta
        memory[at + _DATA_AT : at + _DATA_AT + len(data)] = data
        _HEADER.pack_into(memory, at + _STEP_AT, len(meta), len(data))

    def end(self, row: int) -> None:
        """Forget the native step."""
        _HEADER.pack_into(self._memory, row * _ROW_BYTES + _STEP_AT, 0, 0)

    def step(self, row: int) -> NativeStep | None:
        """Return the native step that the process is in; None outside of native code."""
        at = row * _ROW_BYTES
        meta_size, data_size = _HEADER.unpack_from(self._memory, at + _STEP_AT)
        if not meta_size:
            return None
        since, stage, subject, blame, file, name = marshal.loads(self._memory[at + _META_AT : at + _META_AT + meta_size])
        data = self._memory[at + _DATA_AT : at + _DATA_AT + data_size]
        if name == KERNELS_FILE:
            subject = self._kernel_of(row, data) or subject
        return NativeStep(stage, subject, Blame(blame), file, name, data, since)

    def _kernel_of(self, row: int, names: bytes) -> str:
        """Return the kernel that native code noted last; "" if the names lack it."""
        (number,) = _PROGRESS.unpack_from(self._memory, row * _ROW_BYTES + _PROGRESS_AT)
        found = (line.partition(" ") for line in names.decode(errors="replace").splitlines())
        return next((f"kernel '{kernel}'" for noted, _, kernel in found if noted == str(number)), "")

    def progress_address(self, row: int) -> int:
        """Return the address of the 64-bit word to which native code may write its progress."""
        import ctypes

        return ctypes.addressof(ctypes.c_char.from_buffer(self._memory, row * _ROW_BYTES + _PROGRESS_AT))

    def longest(self) -> NativeStep | None:
        """Return the native step of all processes that began first."""
        steps = [step for row in range(self.rows) if (step := self.step(row)) is not None]
        return min(steps, key=lambda step: step.since, default=None)

    def clear(self, row: int) -> None:
        """Forget everything about a process."""
        self.set_deadline(row, 0.0)
        self.set_place(row, "")
        self.set_count(row, "")
        self.end(row)


@dataclass(slots=True)
class _Here:
    """The board and the row of this process."""

    board: Board | None = None
    row: int = 0


_here = _Here()


def join_board(board: Board | None, row: int) -> None:
    """Write this process's notes to a row of `board`; None: write none."""
    _here.board, _here.row = board, row


def board_for(workers: int) -> Board:
    """Return a board with rows 1 to `workers` for children: this process's board if it is large enough, else a new one."""
    board = _here.board
    if board is not None and _here.row == 0 and board.rows > workers:
        return board
    return Board(workers + 1)


def rows_wanted() -> int:
    """Return the number of rows for this machine: one more than the number of compile workers that are usual."""
    return 2 + min(os.cpu_count() or 1, 128)


def progress_address() -> int:
    """Return the address of this process's word for the progress of native code; 0 if it has no board."""
    return _here.board.progress_address(_here.row) if _here.board is not None else 0


def keep_input(data: bytes) -> None:
    """Keep the bytes that this process read from stdin for a reproducer."""
    if _here.board is not None:
        _here.board.keep_input(data)


def kept_input() -> bytes:
    """Return the bytes that this process, or the one before it, read from stdin; b"" if neither did."""
    return _here.board.kept_input() if _here.board is not None else b""


def at_place(place: str) -> None:
    """Note which row of the pass tables, or which phase, this process is in."""
    if _here.board is not None:
        _here.board.set_place(_here.row, place)


def counted(count: str) -> None:
    """Note how much this process has done, as `iteration 3 of 10`, for the line of progress. "": nothing is counted."""
    if _here.board is not None:
        _here.board.set_count(_here.row, count)


@contextmanager
def busy(what: str) -> Generator[None]:
    """Note the phase `what` while the block runs, and return to the phase before it."""
    board, row = _here.board, _here.row
    if board is None:
        yield
        return
    before = board.place(row)
    board.set_place(row, what)
    try:
        yield
    finally:
        board.set_place(row, before)


@contextmanager
def native(
    stage: str,
    subject: str = "",
    *,
    blame: Blame = Blame.US,
    user_file: str = "",
    input_name: str = "",
    text: str = "",
) -> Generator[None]:
    """Mark a step in native code. If the process dies inside, its parent names the step and keeps the input `text`.

    Steps do not nest.
    """
    board, row = _here.board, _here.row
    if board is None:
        yield
        return
    data = text.encode(errors="replace")
    board.begin(row, NativeStep(stage, subject, blame, user_file, input_name, data, time.monotonic()))
    try:
        yield
    finally:
        board.end(row)


@contextmanager
def limited(seconds: float) -> Generator[None]:
    """Let the supervisor end this process if the block takes longer than `seconds` (0: no limit).

    The limit has no effect without a supervisor. A block with a limit must not contain another one.
    """
    board, row = _here.board, _here.row
    if board is None or not seconds:
        yield
        return
    board.set_deadline(row, time.monotonic() + seconds)
    try:
        yield
    finally:
        board.set_deadline(row, 0.0)
