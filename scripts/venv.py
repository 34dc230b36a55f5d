"""Make the project's virtual environment if needed, then run a tool in it: `python3 scripts/venv.py pytest`.

    python3 scripts/venv.py [--python=PYTHON] [--compiled] TOOL [ARGUMENT]..

PYTHON is a version (`3.13`), a name on PATH or a path. Without it the newest Python that starts is used, of PATH, of pyenv and
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
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
# What is looked for without a name, the newest first: Pythons for which there are wheels of the newest XLA.
PREFERRED = ("3.14", "3.13", "3.12")
# Folders where version managers keep their Pythons, below the user's home: pyenv's and uv's.
MANAGED = (".pyenv/versions/{}*/bin/python3", ".local/share/uv/python/cpython-{}*/bin/python3")


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

    Without a name it is the newest of `PREFERRED` that starts, or the one that runs this file if that is as new.
    A name on PATH may be a version manager's stub that does not start, so each candidate is asked for its version.
    """
    if not wanted:
        own = sys.executable, (sys.version_info[0], sys.version_info[1])
        newer = (find_python(name) for name in PREFERRED if tuple(map(int, name.split("."))) > own[1])
        return next((found for found in newer if found is not None), own)
    names = [wanted]
    if re.fullmatch(r"3\.\d+(\.\d+)?", wanted):
        found = [path for pattern in MANAGED for path in sorted(Path.home().glob(pattern.format(wanted)))]
        names = [f"python{wanted}", *(str(path) for path in found)]
    for name in names:
        path = shutil.which(name)
        version = None if path is None else version_of(path)
        if path is not None and version is not None:
            return path, version
    return None


def version_of(python: str) -> tuple[int, int] | None:
    """Return the version of an interpreter; None if it does not start."""
    code = "import sys; print(*sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return None
    words = done.stdout.split()
    return (int(words[0]), int(words[1])) if done.returncode == 0 and len(words) == 2 else None


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
