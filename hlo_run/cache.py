"""What costs time to make again, kept in files of the user's cache directory: by the digest of what it was made from.

A file is written whole or not at all, and says its contents' own digest: several processes may share the directory, and a
file that was damaged is made anew. What is found stays there longest. `--cache=off|DIR` or `HLO_RUN_CACHE` choose.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

OFF = "off"
VARIABLE = "HLO_RUN_CACHE"
LIMIT_BYTES = 512 << 20
# What is left when files were removed, so that not every file that is written removes another.
_AFTER_CLEANING = 0.8
_DIGEST_CHARACTERS = 64
# What compiled code depends on beside this package.
_PACKAGES = ("xdsl", "llvmlite", "numpy")
_chosen = ""


def choose_cache(choice: str) -> None:
    """Let this process use the directory `choice`, none for `off`, and for nothing what the environment says."""
    global _chosen
    _chosen = choice


def open_cache(kind: str) -> FileCache | None:
    """Return the cache of one kind of file, which need not exist; None if it is off, or there is no home to put it in."""
    choice = _chosen or os.environ.get(VARIABLE, "")
    if choice == OFF:
        return None
    if choice:
        return FileCache(Path(choice), kind)
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return FileCache((Path(base) if base else Path.home() / ".cache") / "hlo-run", kind)
    except RuntimeError:
        return None


def digest(*parts: str) -> str:
    """Return the key of what is made from these texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@functools.cache
def compiler_digest(*parts: str) -> str:
    """Return what tells these folders of this package from others: versions, and every source file's size and time.

    Files that lie beside the folders count always; without folders all of the package does.
    """
    root = Path(__file__).parent
    folders = [root / part for part in parts] if parts else [folder for folder in root.iterdir() if folder.is_dir()]
    files = [*root.glob("*.py"), *(file for folder in folders for file in folder.rglob("*.py"))]
    stats = [(file.relative_to(root).as_posix(), file.stat()) for file in sorted(files)]
    sources = (f"{name} {status.st_size} {status.st_mtime_ns}" for name, status in stats)
    return digest(*(f"{name} {_version(name)}" for name in _PACKAGES), *sources)


def _version(package: str) -> str:
    """Return the version of an installed package, which is not imported: its metadata lies beside it, the version in its name."""
    spec = find_spec(package)
    if spec is not None and spec.origin is not None:
        found = sorted(path.name for path in Path(spec.origin).parent.parent.glob(f"{package}-*.dist-info"))
        if len(found) == 1:
            return found[0]
    from importlib.metadata import version  # slow to import

    return version(package)


@dataclass(frozen=True)
class FileCache:
    """Files of one kind in `root`, all kinds of which together are kept below `limit_bytes`."""

    root: Path
    kind: str
    limit_bytes: int = LIMIT_BYTES

    def get(self, key: str) -> bytes | None:
        """Return what was put there under a digest; None if there is nothing, or it is damaged."""
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
        """Keep `data`; a directory that cannot be written only costs time."""
        file = self._file(key)
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            import tempfile  # a run that finds what it needs makes no file

            handle, part = tempfile.mkstemp(suffix=".part", dir=file.parent)
            try:
                with os.fdopen(handle, "wb") as stream:
                    stream.write(_seal(key, data) + data)
                # Readers see the old state or the whole file, never half of it.
                os.replace(part, file)
            except OSError:
                os.unlink(part)
                raise

    def clean(self) -> None:
        """Remove the files that were not asked for longest, of every kind, if all together are more than the limit."""
        files: list[tuple[float, int, Path]] = []
        for file in self.root.glob("*/*"):
            with contextlib.suppress(OSError):
                status = file.stat()
                files.append((status.st_mtime, status.st_size, file))
        total = sum(size for _, size, _ in files)
        if total <= self.limit_bytes:
            return
        for _, size, file in sorted(files):
            if total <= self.limit_bytes * _AFTER_CLEANING:
                return
            with contextlib.suppress(OSError):
                file.unlink()
            total -= size

    def _file(self, key: str) -> Path:
        return self.root / self.kind / key


def _seal(key: str, data: bytes) -> bytes:
    """Return what a file begins with: neither other data nor another file's contents have it."""
    return hashlib.sha256(key.encode() + data).hexdigest().encode()
