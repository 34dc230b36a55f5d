"""The release of XLA that hlo-run mirrors, for tests that hold its text against the real one."""

from __future__ import annotations

import pytest

from hlo_run.formats.spelling import FIRST_WITH_ALL, installed_release


def needs_released_xla() -> None:
    """Skip the test without jaxlib, or with an older one, as on Python 3.11."""
    pytest.importorskip("jaxlib")
    if installed_release() < FIRST_WITH_ALL:
        pytest.skip("text is held against the release that hlo-run mirrors, which needs Python 3.12 or newer")
