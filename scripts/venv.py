"""Make the project's virtual environment if needed, then run a tool in it: `python3 scripts/venv.py pytest`.

Needs Python 3.11 or newer with pip, nothing else. The environment is in `.venv` beside `pyproject.toml`. It holds the
project (editable) with its `dev` extra, and is updated when `pyproject.toml` changes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
STAMP = VENV / "project.sha256"


def main() -> int:
    """Return the exit code of the tool on the command line."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this file may be started by any Python
        sys.stderr.write(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}\n")
        return 2
    if len(sys.argv) < 2:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    ensure_environment()
    tool = BIN / (sys.argv[1] + (".exe" if os.name == "nt" else ""))
    if not tool.exists():
        sys.stderr.write(f"no tool '{sys.argv[1]}' in {BIN}\n")
        return 2
    return subprocess.call([str(tool), *sys.argv[2:]], env={**os.environ, "VIRTUAL_ENV": str(VENV)})


def ensure_environment() -> None:
    """Create or update the virtual environment unless it matches `pyproject.toml`."""
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    if STAMP.exists() and STAMP.read_text() == wanted:
        return
    python = BIN / ("python.exe" if os.name == "nt" else "python")
    if not python.exists():
        sys.stderr.write(f"making {VENV}\n")
        # Some systems ship Python without ensurepip. Their own pip can fill an environment from outside.
        has_ensurepip = importlib.util.find_spec("ensurepip") is not None
        subprocess.check_call([sys.executable, "-m", "venv", *([] if has_ensurepip else ["--without-pip"]), str(VENV)])
    has_pip = subprocess.call([str(python), "-c", "import pip"], stderr=subprocess.DEVNULL) == 0
    pip = [str(python), "-m", "pip"] if has_pip else [sys.executable, "-m", "pip", "--python", str(python)]
    subprocess.check_call([*pip, "install", "-q", "--disable-pip-version-check", "-e", f"{ROOT}[dev]"], stdout=sys.stderr)
    STAMP.write_text(wanted)


if __name__ == "__main__":
    raise SystemExit(main())
