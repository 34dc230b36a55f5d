"""Optimised texts, folded numbers and random numbers do not depend on the processor, on BLAS or on the number of threads.

Child processes with fewer features of the processor, and with BLAS kernels of other processors, print the same bytes as this one.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from machine_texts import texts

# numpy's list of the features that it chooses code by at run time, the least first.
_CORE: Any = importlib.import_module("numpy._core._multiarray_umath")
_FEATURES: list[str] = list(_CORE.__cpu_dispatch__)
_SETTINGS = (
    {"NPY_DISABLE_CPU_FEATURES": " ".join(_FEATURES[1:]), "OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_NUM_THREADS": "1"},
    {"NPY_DISABLE_CPU_FEATURES": " ".join(_FEATURES), "OPENBLAS_CORETYPE": "Nehalem", "OPENBLAS_NUM_THREADS": "2"},
    {"OPENBLAS_CORETYPE": "Zen", "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX2_Usable,-FMA_Usable"},
)


def test_texts_are_the_same_under_every_setting() -> None:
    script = Path(__file__).parent / "machine_texts.py"
    children = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(script)],
            env={**os.environ, **settings},
            cwd=script.parent.parent,
            stdout=subprocess.PIPE,
            text=True,
        )
        for settings in _SETTINGS
    ]
    wanted = texts()
    for settings, child in zip(_SETTINGS, children, strict=True):
        out, _ = child.communicate()
        assert child.returncode == 0
        found: dict[str, str] = json.loads(out)
        different = [name for name, text in wanted.items() if found[name] != text]
        assert not different, settings


def test_everything_in_the_texts_is_folded() -> None:
    """Otherwise the other test would compare nothing."""
    found = texts()
    for name in ("functions", "sums"):
        body = found[name].split("ENTRY", 1)[1]
        assert "constant(" in body
        assert "{...}" not in body
        assert not any(f" {opcode}(" in body for opcode in ("tanh", "power", "dot", "convolution", "reduce", "fusion"))
    assert "fusion(" in found["gelu"]
