"""The release of XLA that hlo-run mirrors, for tests that hold its text against the real one."""

from __future__ import annotations

import re

import pytest

from hlo_run.formats.spelling import FIRST_WITH_ALL, installed_release


def needs_released_xla() -> None:
    """Skip the test without jaxlib, or with an older one, as on Python 3.11."""
    pytest.importorskip("jaxlib")
    if installed_release() < FIRST_WITH_ALL:
        pytest.skip("text is held against the release that hlo-run mirrors, which needs Python 3.12 or newer")


def as_installed_mlir_reads(text: str) -> str:
    """Return generic IR as the MLIR of the jaxlib at hand reads it.

    xDSL and our printer spell attributes of these dialects as before jaxlib 0.12, and launches have an operand less.
    """
    if installed_release() < FIRST_WITH_ALL:
        return text
    text = re.sub(r"#(gpu|nvvm)<(\w+) (\w+)>", r"#\1.\2<\3>", text)
    return re.sub(r'("gpu\.launch"\(.*operandSegmentSizes = array<i32: (?:\d+, ){10}\d+)>', r"\1, 0>", text)
