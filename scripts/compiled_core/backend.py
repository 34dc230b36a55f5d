"""The build backend of `pyproject.toml`: that of setuptools, which gets mypy for a wheel whose core is compiled."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "extension_modules",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
    "why_pure",
]

MYPY = "mypy==2.4.*"


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Return what setuptools asks for, and mypy if the core will be compiled."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *([] if why_pure() else [MYPY])]


def why_pure() -> str:
    """Return why a wheel made here is of pure Python; empty if its core is compiled."""
    if os.environ.get("HLO_RUN_PURE", "0") not in ("", "0"):
        return "HLO_RUN_PURE is set"
    if sys.implementation.name != "cpython" or os.name != "posix":
        return f"{sys.implementation.name} on {sys.platform}"
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"no C compiler '{compiler}'"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "no Python.h, which the development package of Python has"
    return ""


def extension_modules() -> list[Any]:
    """Return the extension modules for `setup.py`: the compiled core if setuptools makes a wheel, none otherwise."""
    if "bdist_wheel" not in sys.argv:
        return []
    reason = why_pure() or ("" if importlib.util.find_spec("mypyc") else f"{MYPY} is not installed")
    if reason:
        sys.stderr.write(f"hlo-run: a wheel of pure Python, because: {reason}\n")
        return []
    from compiled_core.build import extensions

    return extensions(Path("build").resolve() / "core")
