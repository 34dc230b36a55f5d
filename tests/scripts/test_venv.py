"""scripts/venv.py finds the Python that is asked for, and keeps environments of several versions apart."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parent.parent.parent / "scripts" / "venv.py"
pytestmark = pytest.mark.skipif(os.name == "nt", reason="the stubs are shell scripts")


@pytest.fixture(name="venv")
def _venv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("venv_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PYENV_ROOT", raising=False)
    monkeypatch.delenv("UV_PYTHON_INSTALL_DIR", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    return module


def _interpreter(path: Path, version: str, code: int = 0, works: bool = True) -> str:
    """Write a stub that answers as an interpreter of this version, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {version} {int(works)}\nexit {code}\n")
    path.chmod(0o755)
    return str(path)


def test_without_a_name_it_is_the_newest_that_starts(venv: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 11, 7, "final", 0))
    assert venv.find_python("") == (sys.executable, (3, 11))
    managed = _interpreter(tmp_path / ".pyenv" / "versions" / "3.12.1" / "bin" / "python3", "3 12")
    _interpreter(tmp_path / "path" / "python3.14", "no version 3.14 is active", code=127)
    assert venv.find_python("") == (managed, (3, 12))
    newer = _interpreter(tmp_path / ".local/share/uv/python/cpython-3.13.2-linux/bin/python3", "3 13")
    assert venv.find_python("") == (newer, (3, 13))
    monkeypatch.setattr(sys, "version_info", (3, 13, 0, "final", 0))
    assert venv.find_python("") == (sys.executable, (3, 13))


def test_a_python_without_pip_is_passed_over(venv: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 11, 7, "final", 0))
    bare = _interpreter(tmp_path / "path" / "python3.13", "3 13", works=False)
    assert venv.find_python("") == (sys.executable, (3, 11))
    whole = _interpreter(tmp_path / ".pyenv" / "versions" / "3.13.0" / "bin" / "python3", "3 13")
    assert venv.find_python("") == (whole, (3, 13))
    assert venv.find_python("3.13") == (bare, (3, 13)), "as asked"


def test_the_newest_of_a_folder_that_a_variable_names(venv: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "other"))
    for version in ("3.13.2", "3.13.10", "3.1.4"):
        _interpreter(tmp_path / "other" / "versions" / version / "bin" / "python3", version.rpartition(".")[0].replace(".", " "))
    assert venv.find_python("3.13") == (str(tmp_path / "other/versions/3.13.10/bin/python3"), (3, 13))
    assert venv.find_python("3.1") == (str(tmp_path / "other/versions/3.1.4/bin/python3"), (3, 1))


def test_what_an_interpreter_says(venv: ModuleType) -> None:
    assert venv.version_of(sys.executable) == (sys.version_info[:2], True)


def test_a_version_is_found_on_the_path(venv: ModuleType, tmp_path: Path) -> None:
    python = _interpreter(tmp_path / "path" / "python3.12", "3 12")
    assert venv.find_python("3.12") == (python, (3, 12))
    assert venv.find_python("python3.12") == (python, (3, 12))
    assert venv.find_python("3.13") is None


def test_a_stub_that_does_not_start_is_passed_over(venv: ModuleType, tmp_path: Path) -> None:
    _interpreter(tmp_path / "path" / "python3.13", "no version 3.13 is active", code=127)
    python = _interpreter(tmp_path / ".pyenv" / "versions" / "3.13.0" / "bin" / "python3", "3 13")
    assert venv.find_python("3.13") == (python, (3, 13))


def test_an_environment_belongs_to_one_version(venv: ModuleType, tmp_path: Path) -> None:
    assert venv.environment_folder((3, 12)) == tmp_path / ".venv"
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.12.4\n")
    assert venv.environment_folder((3, 12)) == tmp_path / ".venv"
    assert venv.environment_folder((3, 13)) == tmp_path / ".venv-3.13"


def test_an_old_python_and_an_unknown_name_are_refused(
    venv: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = _interpreter(tmp_path / "old", "3 10")
    for name, message in ((old, "Python 3.11 or newer is needed, this is 3.10"), ("nowhere", "no Python 'nowhere' that starts")):
        monkeypatch.setattr(sys, "argv", ["venv.py", f"--python={name}", "pytest"])
        assert venv.main() == 2
        assert message in capsys.readouterr().err
