"""The description of a process that died: the error that users see, and the folder that reproduces it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hlo_run.cache import cache_directory
from hlo_run.containment.board import INPUT_LIMIT_BYTES, PLUGIN_PLACE, Blame, NativeStep, kept_input
from hlo_run.errors import DeviceError, HloRunError, InternalError, OutOfTime, ParseError, PluginError, Where
from hlo_run.version import VERSION

VARIABLE = "HLO_RUN_CRASH_DIR"
REPRODUCER = "reproducer: "
FOLDERS_KEPT = 32
"""The number of reproducers in a directory. A new one removes the oldest."""
_SHOWN_LINES = 6
_INPUT_LIMIT_BYTES = 64 << 20
_NAME = re.compile(r"\d{8}-\d{6}-")
_VERSIONS, _COMMAND, _WORDS = "versions.txt", "command.txt", "stderr.txt"
_PACKAGES = ("numpy", "xdsl", "llvmlite", "ml_dtypes", "jaxlib")


@dataclass(frozen=True, slots=True)
class Crash:
    """The end of a process that did not finish its work.

    `code` is the negative number of a signal, or an exit code. `place` is the row of the pass tables or the phase, `step` the
    step in native code, `words` what the process wrote to stderr. `limit_seconds` is not 0 if it was ended for taking too long.
    """

    code: int
    place: str = ""
    step: NativeStep | None = None
    words: str = ""
    limit_seconds: float = 0.0

    @property
    def how(self) -> str:
        """The signal's name, or the exit code."""
        return signal_name(-self.code) if self.code < 0 else f"exit code {self.code}"


def signal_name(number: int) -> str:
    """Return the name of a signal."""
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


@dataclass(slots=True)
class _Context:
    """The directory of reproducers, the file that runs, and the function that returns what native code wrote to stderr."""

    directory: str = ""
    file: str = ""
    words: Callable[[], str] = str


_context = _Context()


def choose_crash_directory(choice: str) -> None:
    """Set the directory of reproducers. Empty: HLO_RUN_CRASH_DIR, else a folder of the user's cache directory."""
    _context.directory = choice


def set_input_file(file: str) -> None:
    """Set the file that a reproducer copies."""
    _context.file = file


def captured_words() -> str:
    """Return what native code has written to stderr since the file began, if a supervisor keeps it."""
    return _context.words()


def set_words(words: Callable[[], str]) -> None:
    """Set the function behind `captured_words`."""
    _context.words = words


def crash_error(crash: Crash) -> HloRunError:
    """Write a reproducer, and return the error that describes the end of a process."""
    step = crash.step
    notes = [f"it wrote: {line}" for line in _last_lines(crash.words)]
    files = {_WORDS: crash.words.encode(errors="replace")} if crash.words else {}
    name = "crash"
    if step is not None:
        name = Path(step.input_name).stem or name
        if step.input:
            files[step.input_name] = step.input
        if len(step.input) >= INPUT_LIMIT_BYTES:
            notes.append(f"the reproducer's {step.input_name} has only the first {len(step.input)} bytes")
    return _error(crash, (*notes, *reproducer_notes(name, files)))


def _error(crash: Crash, notes: tuple[str, ...]) -> HloRunError:
    step = crash.step
    if crash.limit_seconds:
        where = _at(step.stage, step.subject) if step is not None else crash.place or "hlo-run"
        message = f"the compilation or the run took longer than --timeout={crash.limit_seconds:g} s, in {where}"
        return OutOfTime(message, hint="raise --timeout", notes=notes)
    if step is None:
        message = f"the process died with {crash.how} in {crash.place or 'Python'}"
        if crash.code == -signal.SIGKILL:
            return DeviceError(message, hint="the system kills processes when its memory is full", notes=notes)
        is_plugin = crash.place.startswith(PLUGIN_PLACE)
        return (PluginError if is_plugin else InternalError)(message, notes=notes)
    message = f"{step.stage} died with {crash.how}" + (f" in {step.subject}" if step.subject else "")
    match step.blame:
        case Blame.FILE:
            return ParseError(message, Where(step.user_file, 1, 1), notes=notes)
        case Blame.KERNEL:
            return DeviceError(message, notes=notes)
        case Blame.US:
            return InternalError(message, notes=notes)


def _at(stage: str, subject: str) -> str:
    return f"{stage} of {subject}" if subject else stage


def _last_lines(words: str) -> list[str]:
    return [line.strip()[:300] for line in words.splitlines() if line.strip()][-_SHOWN_LINES:]


def reproducer_notes(name: str, files: Mapping[str, bytes]) -> tuple[str, ...]:
    """Write a reproducer and return the note that names it; see `write_reproducer`."""
    folder = write_reproducer(name, files)
    return () if folder is None else (f"{REPRODUCER}{folder}",)


# ---- reproducers ----------------------------------------------------------------------------------------------------


def write_reproducer(name: str, files: Mapping[str, bytes]) -> Path | None:
    """Write a folder with `files`, the input file, the command line and the versions, and return its path.

    The oldest folders are removed when there are more than FOLDERS_KEPT. Returns None if no directory can be written.
    """
    label = re.sub(r"[^\w.-]+", "_", name)[:60] or "crash"
    for directory in _directories():
        with contextlib.suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
            folder = _new_folder(directory, f"{time.strftime('%Y%m%d-%H%M%S')}-{label}")
            contents = {_COMMAND: _command_text().encode(errors="surrogateescape"), _VERSIONS: _versions_text().encode()}
            for file, data in {**_input_file(), **contents, **files}.items():
                (folder / (Path(file).name or "input")).write_bytes(data)
            _remove_oldest(directory)
            return folder
    return None


def _directories() -> list[Path]:
    """Return the directories for reproducers: the first that can be written is taken."""
    import tempfile

    chosen = _context.directory or os.environ.get(VARIABLE, "")
    first = Path(chosen) if chosen else cache_directory()
    temporary = Path(tempfile.gettempdir(), f"hlo-run-crashes-{os.getuid() if hasattr(os, 'getuid') else ''}")
    return [first if chosen else first / "crashes", temporary] if first is not None else [temporary]


def _new_folder(directory: Path, name: str) -> Path:
    for number in range(1000):
        folder = directory / (f"{name}-{number}" if number else name)
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise OSError(f"{directory} has a thousand folders of this second")


def _remove_oldest(directory: Path) -> None:
    """Remove the oldest reproducers over the limit. Other contents of the directory stay."""
    import shutil

    folders = [path for path in directory.iterdir() if _NAME.match(path.name) and (path / _VERSIONS).is_file()]
    for folder in sorted(folders, key=lambda path: (path.stat().st_mtime_ns, path.name))[:-FOLDERS_KEPT]:
        shutil.rmtree(folder, ignore_errors=True)


def _input_file() -> dict[str, bytes]:
    if _context.file == "-" and (data := kept_input()):
        return {"stdin.hlo": data}
    path = Path(_context.file)
    if not _context.file or not path.is_file() or path.stat().st_size > _INPUT_LIMIT_BYTES:
        return {}
    return {path.name: path.read_bytes()}


def _command_text() -> str:
    import shlex

    told = [name for name in os.environ if name == "XLA_FLAGS" or (name.startswith("HLO_RUN_") and not name.endswith("_SECRET"))]
    variables = " ".join(f"{name}={shlex.quote(os.environ[name])}" for name in sorted(told))
    program = Path(sys.argv[0]).name
    words = [program] if program.startswith("hlo-") else [sys.executable, sys.argv[0]]
    if program == "__main__.py":
        words = [sys.executable, "-m", "hlo_run"]
    command = shlex.join([*words, *sys.argv[1:]])
    lines = [f"cd {shlex.quote(os.getcwd())}", f"{variables} {command}" if variables else command, f"# file {_context.file}"]
    return "\n".join(lines) + "\n"


def _versions_text() -> str:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    lines = [f"hlo-run {VERSION}", f"Python {platform.python_version()}", platform.platform()]
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            lines.append(f"{package} {version(package)}")
    return "\n".join(lines) + "\n"
