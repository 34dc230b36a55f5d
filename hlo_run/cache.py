"""Files of the user's cache directory, each under the digest of its inputs.

A file is written whole or not at all, so processes can share the directory. It begins with a digest of its contents, so a
damaged file counts as missing. When the cache is full, the least recently used files are removed. That visits all files, some
10 us each, so it happens once in some megabytes of new files. `--cache=off|DIR` or `HLO_RUN_CACHE` choose the directory.

The files hold kernels and object code that later runs execute, so a directory that others can write to is not used.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

OFF = "off"
VARIABLE = "HLO_RUN_CACHE"
LIMIT_BYTES = 512 << 20
# Cleaning goes down to this share of the limit, so that not every new file removes another.
_AFTER_CLEANING = 0.8
# So many times the cache is cleaned, in the mean, while as much as the limit is written.
_CLEANINGS = 64
_DIGEST_CHARACTERS = 64
_PRIVATE = 0o700
_SUPERUSER = 0
# Compiled code depends on the versions of these packages, too.
_PACKAGES = ("xdsl", "llvmlite", "numpy")
_chosen = ""


def choose_cache(choice: str) -> str:
    """Set this process's cache directory; `off`: no cache; empty: the choice of HLO_RUN_CACHE. Return a warning, or ""."""
    global _chosen
    _chosen = choice
    root = _root()
    return _problem(root) if root is not None else ""


def open_cache(kind: str) -> FileCache | None:
    """Return the cache of one kind of file; its directory need not exist.

    None if the cache is off, the user has no home, or others can write to the directory.
    """
    root = _root()
    return FileCache(root, kind) if root is not None and not _problem(root) else None


def _root() -> Path | None:
    return None if (_chosen or os.environ.get(VARIABLE, "")) == OFF else cache_directory()


def cache_directory() -> Path | None:
    """Return the directory of the cache, the user's directory if the cache is off. None if the user has no home."""
    choice = _chosen or os.environ.get(VARIABLE, "")
    return Path(choice) if choice not in ("", OFF) else _default_root()


def own_directory() -> Path | None:
    """Make the directory of the cache for this user alone, also if the cache is off, and return it.

    None if the user has no home, if it cannot be made, or if others can write to it.
    """
    root = cache_directory()
    if root is None or _problem(root):
        return None
    try:
        root.mkdir(_PRIVATE, parents=True, exist_ok=True)
    except OSError:
        return None
    return root


def _default_root() -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "hlo-run"
    except RuntimeError:
        return None


@functools.cache
def _problem(root: Path) -> str:
    """Return why the directory is not used; empty if it may be. Takes write permission of others from the default directory."""
    try:
        status = root.stat()
    except OSError:
        return ""  # it does not exist, or cannot be read or written
    if not hasattr(os, "geteuid"):
        return ""
    if status.st_uid not in (os.geteuid(), _SUPERUSER):
        return f"the cache directory '{root}' is not used: it belongs to another user"
    others = stat.S_IWOTH | (stat.S_IWGRP if root == _default_root() else 0)
    if not status.st_mode & others:
        return ""
    if root == _default_root():
        with contextlib.suppress(OSError):
            root.chmod(stat.S_IMODE(status.st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))
            return ""
    return f"the cache directory '{root}' is not used: every user can write to it"


def digest(*parts: str) -> str:
    """Return the SHA-256 key of a file whose inputs are these texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@functools.cache
def compiler_digest(*parts: str) -> str:
    """Return the digest of a compiler: the versions of packages, and size and time of each source file in the folders `parts`.

    Without `parts` all folders of this package count. Source files directly in the package always count.
    """
    root = Path(__file__).parent
    folders = [entry.name for entry in _entries(root) if entry.is_dir() and (not parts or entry.name in parts)]
    sources = [*_sources(root, ""), *(line for name in folders for line in _all_sources(root / name, f"{name}/"))]
    return digest(*(f"{name} {package_version(name)}" for name in _PACKAGES), *sorted(sources))


def _sources(folder: Path | os.DirEntry[str], prefix: str) -> Iterator[str]:
    """Yield name, size and time of each source file directly in a folder. Pathlib takes four times as long."""
    for entry in _entries(folder):
        if entry.name.endswith(".py"):
            status = entry.stat()
            yield f"{prefix}{entry.name} {status.st_size} {status.st_mtime_ns}"


def _all_sources(folder: Path | os.DirEntry[str], prefix: str) -> Iterator[str]:
    yield from _sources(folder, prefix)
    for entry in _entries(folder):
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _all_sources(entry, f"{prefix}{entry.name}/")


def package_version(package: str) -> str:
    """Return the version of an installed package without importing it, from the name of its metadata folder."""
    spec = find_spec(package)
    if spec is not None and spec.origin is not None:
        found = sorted(path.name for path in Path(spec.origin).parent.parent.glob(f"{package}-*.dist-info"))
        if len(found) == 1:
            return found[0].removeprefix(f"{package}-").removesuffix(".dist-info")
    from importlib.metadata import version  # slow to import

    return version(package)


class FileCache(Struct, frozen=True):
    """The files of one kind in `root`. `limit_bytes` bounds the files of all kinds together."""

    root: Path
    kind: str
    limit_bytes: int = LIMIT_BYTES

    def get(self, key: str) -> bytes | None:
        """Return the data that was put under a digest; None if the file is missing or damaged."""
        file = self._file(key)
        try:
            stored = file.read_bytes()
        except OSError:
            return None
        data = stored[_DIGEST_CHARACTERS:]
        if stored[:_DIGEST_CHARACTERS] != _seal(key, data):
            return None
        with contextlib.suppress(OSError):
            os.utime(file)
        return data

    def put(self, key: str, data: bytes) -> None:
        """Write `data` under a digest, and clean the cache if it is time. Ignores a directory that cannot be written."""
        file = self._file(key)
        with contextlib.suppress(OSError):
            self.root.parent.mkdir(parents=True, exist_ok=True)
            self.root.mkdir(_PRIVATE, exist_ok=True)
            file.parent.mkdir(_PRIVATE, exist_ok=True)
            import tempfile  # slow to import, and not needed after a hit

            handle, part = tempfile.mkstemp(suffix=".part", dir=file.parent)
            try:
                seal = _seal(key, data)
                with os.fdopen(handle, "wb") as stream:
                    stream.write(seal + data)
                # Atomic: readers see no half-written file.
                os.replace(part, file)
            except OSError:
                os.unlink(part)
                raise
            # The processes that share the cache need no count of what they write: the digest is as good as a die.
            if int(seal[:8], 16) / (1 << 32) * self.limit_bytes < len(data) * _CLEANINGS:
                self.clean()

    def clean(self) -> None:
        """Remove the least recently used files of all kinds if they exceed the limit together."""
        files: list[tuple[float, int, str]] = []
        for folder in _entries(self.root):
            for file in _entries(folder):
                with contextlib.suppress(OSError):
                    status = file.stat()
                    files.append((status.st_mtime, status.st_size, file.path))
        total = sum(size for _, size, _ in files)
        if total <= self.limit_bytes:
            return
        for _, size, file in sorted(files):
            if total <= self.limit_bytes * _AFTER_CLEANING:
                return
            with contextlib.suppress(OSError):
                os.unlink(file)
            total -= size

    def _file(self, key: str) -> Path:
        return self.root / self.kind / key


def _entries(folder: Path | os.DirEntry[str]) -> list[os.DirEntry[str]]:
    """Return the entries of a folder; nothing if it cannot be read or is none."""
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


def _seal(key: str, data: bytes) -> bytes:
    """Return the head of a file, a digest of its key and data that detects damage."""
    return hashlib.sha256(key.encode() + data).hexdigest().encode()
