"""Compile the core of the package to native code: `python scripts/compiled_core/build.py FOLDER`.

FOLDER/package gets a copy of `hlo_run` with an extension module beside each file that `files.txt` lists. A second call does only
what changed: it copies changed files, and compiles again if a listed file, this folder, Python or mypy changed. The source tree
is not touched, so a checkout stays pure Python.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LIST = HERE / "files.txt"
# The library that holds all compiled modules; beside each file is a small module that initialises its part.
LIBRARY = "hlo_run_core"
_CONFIGURATION = HERE / "mypy.ini"
_NOT_COPIED = {"__pycache__"}


class BuildError(Exception):
    """The core cannot be compiled."""


def listed_files(root: Path = ROOT) -> list[str]:
    """Return the listed files, as paths from the root; a pattern stands for its files. Raises BuildError."""
    files: list[str] = []
    for line in LIST.read_text(encoding="utf-8").splitlines():
        pattern = line.partition("#")[0].strip()
        if not pattern:
            continue
        found = sorted(path for path in (root / "hlo_run").glob(pattern) if path.suffix == ".py")
        if not found:
            raise BuildError(f"{LIST.name}: no file matches {pattern}")
        files += [path.relative_to(root).as_posix() for path in found]
    return list(dict.fromkeys(files))


def build(folder: Path, root: Path = ROOT) -> bool:
    """Bring `folder`/package up to date with the sources below `root`. Returns whether it compiled. Raises BuildError."""
    package, stamp = folder / "package", folder / "stamp"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = _digest(root)
    is_new = not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted
    if is_new:
        # Without a stamp nothing takes the folder for complete if this run ends early.
        stamp.unlink(missing_ok=True)
        _remove_modules(package)
    _copy(root / "hlo_run", package / "hlo_run", keep=_is_module)
    if is_new:
        compile_into(package, extensions(folder, root))
        stamp.write_text(wanted, encoding="utf-8")
    return is_new


def extensions(folder: Path, root: Path = ROOT) -> list[Any]:
    """Return the extension modules of the listed files, as C in `folder`. Raises BuildError."""
    from compiled_core.records import NotCompilable, rewrite
    from mypyc.build import mypycify

    source = folder / "source"
    files = listed_files(root)
    _copy(root / "hlo_run", source / "hlo_run", keep=lambda path: False)
    for file in files:
        text = (root / file).read_text(encoding="utf-8")
        try:
            (source / file).write_text(rewrite(text, file), encoding="utf-8")
        except NotCompilable as error:
            raise BuildError(str(error)) from None
    # mypyc takes the names of modules from paths below the working directory.
    before = Path.cwd()
    os.chdir(source)
    try:
        found = mypycify(
            [f"--config-file={_CONFIGURATION}", f"--cache-dir={folder / 'mypy_cache'}", *files],
            opt_level="2",
            debug_level="0",
            multi_file=True,
            target_dir=str(folder / "c"),
            group_name=LIBRARY,
        )
    except SystemExit as end:
        raise BuildError(f"mypyc ended with {end.code}") from None
    finally:
        os.chdir(before)
    return found


def compile_into(package: Path, modules: list[Any]) -> None:
    """Compile extension modules into the folder `package`."""
    from compiled_core.build_ext import ParallelBuildExt
    from setuptools import Distribution

    command = ParallelBuildExt(Distribution({"ext_modules": modules}))
    command.build_lib = str(package)
    command.build_temp = str(package.parent / "objects")
    command.force = True
    command.ensure_finalized()
    command.run()


def _digest(root: Path) -> str:
    """Return a digest of whatever the extension modules depend on."""
    parts = [sys.version, importlib.metadata.version("mypy")]
    paths = [*listed_files(root), *(str(path) for path in sorted(HERE.iterdir()) if path.is_file())]
    made = hashlib.sha256("\n".join(parts).encode())
    for path in paths:
        made.update(path.encode() + b"\0" + (root / path).read_bytes())
    return made.hexdigest()


def _is_module(path: Path) -> bool:
    return path.suffix in (".so", ".pyd")


def _remove_modules(package: Path) -> None:
    for path in [p for p in package.rglob("*") if _is_module(p)]:
        path.unlink()


def _copy(source: Path, target: Path, keep: Callable[[Path], bool]) -> None:
    """Make `target` the same tree as `source`; files of which `keep` is true stay."""
    wanted = {path.relative_to(source): path for path in _files(source)}
    for path in list(_files(target)):
        if path.relative_to(target) not in wanted and not keep(path):
            path.unlink()
    for name, path in wanted.items():
        copied = target / name
        if copied.exists() and copied.read_bytes() == path.read_bytes():
            continue
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copied)


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and not _NOT_COPIED & set(path.parts):
            yield path


def main() -> int:
    """Return the exit code of the command."""
    if len(sys.argv) != 2:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    try:
        build(Path(sys.argv[1]).resolve())
    except BuildError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
