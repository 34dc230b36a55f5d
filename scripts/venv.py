"""Make the project's virtual environment if needed, then run a tool in it: `python3 scripts/venv.py pytest`.

    python3 scripts/venv.py [--python=PYTHON] [--compiled] TOOL [ARGUMENT]..

PYTHON is a version (`3.13`), a name on PATH or a path. Without it the newest Python that works is used, of PATH, of pyenv and
of uv, up to 3.14: tests hold text against the newest XLA, which needs Python 3.12. Needs Python 3.11 or newer with pip, nothing
else. The environment holds the project (editable) with its `dev` extra, and is updated when
`pyproject.toml` changes. It is in `.venv` beside `pyproject.toml`. If `.venv` belongs to another version of Python, it is in
`.venv-3.13`, so that environments of several Pythons lie beside each other.

With `--compiled` the tool imports a copy of `hlo_run` whose core is compiled (docs/compiled_core.md). The copy is in
`build/compiled-3.11`, and is brought up to date with the sources before the tool starts.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
# What is looked for without a name, the newest first: Pythons for which there are wheels of the newest XLA.
PREFERRED = ("3.14", "3.13", "3.12")
# Folders where pyenv and uv keep their Pythons: the variable that names the folder, where it is below the user's
# home without the variable, and the place of an interpreter in it.
MANAGED = (
    ("PYENV_ROOT", ".pyenv", "versions/{}*/bin/python3"),
    ("UV_PYTHON_INSTALL_DIR", ".local/share/uv/python", "cpython-{}*/bin/python3"),
)
# What an interpreter says of itself: its version, and whether it can make an environment for which there are wheels. Builds
# without the global lock have none.
ASK = """
import sys, sysconfig
from importlib.util import find_spec
makes = find_spec("venv") and (find_spec("ensurepip") or find_spec("pip")) and not sysconfig.get_config_var("Py_GIL_DISABLED")
print(*sys.version_info[:2], int(bool(makes)))
"""


def main() -> int:
    """Return the exit code of the tool on the command line."""
    arguments = sys.argv[1:]
    wanted = ""
    if arguments and arguments[0].startswith("--python="):
        wanted = arguments.pop(0).removeprefix("--python=")
    is_compiled = arguments[:1] == ["--compiled"]
    if is_compiled:
        arguments.pop(0)
    if not arguments:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    found = find_python(wanted)
    if found is None:
        sys.stderr.write(f"no Python '{wanted}' that starts\n")
        return 2
    python, version = found
    if version < OLDEST:
        sys.stderr.write(f"Python {number(OLDEST)} or newer is needed, this is {number(version)}\n")
        return 2
    venv = environment_folder(version)
    ensure_environment(venv, python)
    tool = programs(venv) / (arguments[0] + (".exe" if os.name == "nt" else ""))
    if not tool.exists():
        sys.stderr.write(f"no tool '{arguments[0]}' in {programs(venv)}\n")
        return 2
    environment = {**os.environ, "VIRTUAL_ENV": str(venv)}
    if is_compiled:
        folder = ROOT / "build" / f"compiled-{number(version)}"
        build = [str(programs(venv) / "python"), str(ROOT / "scripts" / "compiled_core" / "build.py"), str(folder)]
        if code := subprocess.call(build, stdout=sys.stderr):
            return code
        paths = [str(folder / "package"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return subprocess.call([str(tool), *arguments[1:]], env=environment)


def number(version: tuple[int, int]) -> str:
    """Return the version as text: `3.11`."""
    return f"{version[0]}.{version[1]}"


def find_python(wanted: str) -> tuple[str, tuple[int, int]] | None:
    """Return the path and the version of the Python that `wanted` names; None if no such Python starts.

    Without a name it is the newest of `PREFERRED` that works, or the one that runs this file if that is as new.
    """
    if wanted:
        return next(candidates(wanted, must_work=False), None)
    own = sys.executable, (sys.version_info[0], sys.version_info[1])
    newer = (name for name in PREFERRED if tuple(map(int, name.split("."))) > own[1])
    return next((found for name in newer for found in candidates(name, must_work=True)), own)


def candidates(wanted: str, must_work: bool) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the Pythons of a name that start, with their versions: that on PATH, then the managed ones, the newest first.

    A name on PATH may be a version manager's stub that does not start, so each is asked for its version. A Python works if it can
    make an environment, too.
    """
    names = [wanted]
    if re.fullmatch(r"3\.\d+(\.\d+)?", wanted):
        names = [f"python{wanted}", *managed(wanted)]
    for name in names:
        path = shutil.which(name)
        found = None if path is None else version_of(path)
        if path is not None and found is not None and (found[1] or not must_work):
            yield path, found[0]


def managed(wanted: str) -> list[str]:
    """Return the interpreters of a version in the folders of version managers, the newest first."""
    found: list[Path] = []
    for variable, folder, place in MANAGED:
        root = Path(os.environ.get(variable) or Path.home() / folder)
        found += (path for path in root.glob(place.format(wanted)) if re.match(rf"{wanted}(?![0-9])", version_in(path)))
    return [str(path) for path in sorted(found, key=lambda path: [int(n) for n in version_in(path).split(".")], reverse=True)]


def version_in(path: Path) -> str:
    """Return the version in the name of the folder of a managed interpreter."""
    number = re.search(r"\d+(\.\d+)*", path.parent.parent.name)
    return "0" if number is None else number[0]


def version_of(python: str) -> tuple[tuple[int, int], bool] | None:
    """Return the version of an interpreter, and whether it can make an environment; None if it does not start."""
    try:
        done = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=False)
    except OSError:
        return None
    words = done.stdout.split()
    return ((int(words[0]), int(words[1])), words[2] == "1") if done.returncode == 0 and len(words) == 3 else None


def environment_folder(version: tuple[int, int]) -> Path:
    """Return `.venv` if it is of this version of Python or does not exist, `.venv-3.13` otherwise."""
    config = ROOT / ".venv" / "pyvenv.cfg"
    found = re.search(r"^version *= *(\d+)\.(\d+)", config.read_text(), re.MULTILINE) if config.exists() else None
    if found is None or (int(found[1]), int(found[2])) == version:
        return ROOT / ".venv"
    return ROOT / f".venv-{number(version)}"


def programs(venv: Path) -> Path:
    """Return the folder of the environment's programs."""
    return venv / ("Scripts" if os.name == "nt" else "bin")


def ensure_environment(venv: Path, base: str) -> None:
    """Create or update the virtual environment unless it matches `pyproject.toml`; `base` is the Python that makes it."""
    stamp = venv / "project.sha256"
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    python = programs(venv) / ("python.exe" if os.name == "nt" else "python")
    if not python.exists():
        sys.stderr.write(f"making {venv}\n")
        # Some systems ship Python without ensurepip. Their own pip can fill an environment from outside.
        has_ensurepip = subprocess.call([base, "-c", "import ensurepip"], stderr=subprocess.DEVNULL) == 0
        subprocess.check_call([base, "-m", "venv", *([] if has_ensurepip else ["--without-pip"]), str(venv)])
    has_pip = subprocess.call([str(python), "-c", "import pip"], stderr=subprocess.DEVNULL) == 0
    pip = [str(python), "-m", "pip"] if has_pip else [base, "-m", "pip", "--python", str(python)]
    subprocess.check_call([*pip, "install", "-q", "--disable-pip-version-check", "-e", f"{ROOT}[dev]"], stdout=sys.stderr)
    stamp.write_text(wanted)


if __name__ == "__main__":
    raise SystemExit(main())
