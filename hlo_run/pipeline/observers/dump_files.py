"""Names and writes the files of `--xla_dump_to`."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from hlo_run.errors import UsageError
from hlo_run.options import ShowOptions
from hlo_run.pass_support.replacements import file_name
from hlo_run.whole_files import write_problem, write_whole

_FILE_NAME_LIMIT = 255
STDOUT = "-"
# XLA writes to this directory for these words.
_TEST_OUTPUTS = ("sponge", "test_undeclared_outputs_dir")
_TEST_OUTPUTS_VARIABLE = "TEST_UNDECLARED_OUTPUTS_DIR"


class DumpFiles:
    """The files of one module, which are named `module_NNNN.MODULE.SUFFIX`. `number` is the place of its file from 0.

    A file is written whole or not at all. The directory `-` prints texts through `write_stdout`; bytes need a directory.
    """

    def __init__(self, options: ShowOptions, module_name: str, number: int, write_stdout: Callable[[str], None]) -> None:
        self.prefix = f"module_{number:04d}.{file_name(module_name)}"
        self._short_prefix = f"module_{number:04d}"
        self._directory = _directory(options, module_name)
        self._timestamp = f"{time.time_ns() // 1000}." if options.xla_dump_include_timestamp else ""
        self._write_stdout = write_stdout

    @property
    def to_stdout(self) -> bool:
        """True if texts are printed."""
        return self._directory == STDOUT

    def text(self, suffix: str, text: str, timed: bool = False) -> str:
        """Write a text under `suffix`, and return its path. The name of a `timed` file may begin with the time."""
        name = self._name(suffix, timed)
        text = text if text.endswith("\n") or not text else text + "\n"
        if self.to_stdout:
            self._write_stdout(f"*** Begin {name} ***\n{text}*** End {name} ***")
            return ""
        return self._write(name, text.encode())

    def file(self, suffix: str, data: str | bytes, timed: bool = False) -> str:
        """Write a file that is not printed, and return its path; do nothing if dumps are printed."""
        if self.to_stdout:
            return ""
        if isinstance(data, str):
            data = data.encode(errors="surrogateescape")  # names of files need not be UTF-8
        return self._write(self._name(suffix, timed), data)

    def module_file(self, suffix: str, text: str) -> None:
        """Write a file that is named after the number of the module alone; do nothing if dumps are printed."""
        if not self.to_stdout:
            self._write(f"{self._short_prefix}.{suffix}", text.encode())

    def named_file(self, name: str, data: bytes) -> None:
        """Write a file of this name; do nothing if dumps are printed."""
        if not self.to_stdout:
            self._write(name, data)

    def _name(self, suffix: str, timed: bool) -> str:
        time_part = self._timestamp if timed else ""
        name = f"{time_part}{self.prefix}.{suffix}"
        return name if len(name) <= _FILE_NAME_LIMIT else f"{time_part}{self._short_prefix}.{suffix}"

    def _write(self, name: str, data: bytes) -> str:
        path = Path(self._directory) / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            problem = "it is not a directory" if path.parent.exists() else write_problem(error)
            raise UsageError(f"--xla_dump_to={self._directory}: {problem}") from None
        try:
            write_whole(str(path), data)
        except OSError as error:
            raise UsageError(f"--xla_dump_to: '{path}' cannot be written: {write_problem(error)}") from None
        return str(path)


def _directory(options: ShowOptions, module_name: str) -> str:
    """Return the directory of a module's dumps, or `-`. Raises UsageError for a directory that the environment lacks."""
    directory = options.dumps_to
    if directory.lower() in _TEST_OUTPUTS:
        found = os.environ.get(_TEST_OUTPUTS_VARIABLE, "")
        if not found:
            raise UsageError(f"--xla_dump_to={directory} needs {_TEST_OUTPUTS_VARIABLE} in the environment")
        directory = found
    if not options.xla_dump_hlo_to_subfolder or directory == STDOUT:
        return directory
    return str(Path(directory) / file_name(module_name) / file_name(f"{socket.gethostname()}_{os.getpid()}"))
