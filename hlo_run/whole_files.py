"""Writes files whole or not at all. Every file that a command writes goes through this module.

The contents go to a new file with a random name in the same directory, which then replaces the old file. A full disk, an
error and Ctrl-C leave the old file as it was. The new file is created exclusively, so a symbolic link in its place is not
followed. A device, a pipe, and a file in a directory that is read-only are written directly.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from collections.abc import Generator
from typing import BinaryIO

# Errors of making a file in a directory, or of replacing one, that do not forbid writing to an existing file.
_NO_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


@contextlib.contextmanager
def whole_file(path: str) -> Generator[BinaryIO]:
    """Return a context with a stream whose contents become the file `path` at its end, or nothing if an exception leaves it.

    A symbolic link `path` stays, and the file that it names is replaced. An existing file keeps its permissions. Raises OSError
    if the file cannot be written; its old contents are then unchanged, unless it is a device or its directory is read-only.
    """
    old = _status(path)
    if old is not None and not _is_replaceable(path, old):
        contents = io.BytesIO()  # a device need not know its position, which writers of zip files ask for
        yield contents
        with open(path, "ab") as stream:
            stream.write(contents.getbuffer())
        return
    target = os.path.realpath(path)
    try:
        temporary, stream = _new_file(os.path.dirname(target))
    except OSError as error:
        if old is None or error.errno not in _NO_PLACE:
            raise
        with open(target, "wb") as stream:
            yield stream
        return
    try:
        with stream:
            yield stream
        if old is not None:
            os.chmod(temporary, stat.S_IMODE(old.st_mode))
        os.replace(temporary, target)
    except BaseException:  # an interrupt too leaves no temporary file
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write_whole(path: str, data: bytes) -> None:
    """Write `data` to the file `path` as `whole_file` does; raises OSError."""
    with whole_file(path) as stream:
        stream.write(data)


def append_whole(path: str, data: bytes) -> None:
    """Append to a file that this process has written. Raises OSError, and then removes the file, unless it is a device."""
    old = _status(path)
    try:
        with open(path, "ab") as stream:
            stream.write(data)
    except OSError:
        if old is not None and _is_replaceable(path, old):
            with contextlib.suppress(OSError):
                os.unlink(os.path.realpath(path))
        raise


def write_problem(error: OSError) -> str:
    """Return why a file could not be written, in a few words."""
    return os.strerror(error.errno) if error.errno else str(error)


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _is_replaceable(path: str, status: os.stat_result) -> bool:
    """False for devices, pipes, and the open files of a process, such as /dev/stdout, which others write to as well."""
    return stat.S_ISREG(status.st_mode) and not path.startswith(("/dev/", "/proc/"))


def _new_file(folder: str) -> tuple[str, BinaryIO]:
    """Return the path of a new, empty file in a directory, and the stream to it."""
    while True:
        path = os.path.join(folder, f".hlo-run-{os.urandom(8).hex()}.tmp")
        with contextlib.suppress(FileExistsError):
            return path, os.fdopen(os.open(path, _NEW, 0o666), "wb")
