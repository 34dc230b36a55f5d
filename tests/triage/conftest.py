"""Trials of a search end when they have their answer: no time of a machine counts."""

from __future__ import annotations

import pytest

_LONG = 5000.0


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction] - pytest uses it
    for name in ("bisect._LEAST_SECONDS", "bisect._MOST_SECONDS", "reduce._LEAST_SECONDS", "reduce_kernel._LEAST_SECONDS"):
        monkeypatch.setattr(f"hlo_run.triage.{name}", _LONG)
