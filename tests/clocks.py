"""Clocks for tests of limits of time. What such a test shows must not depend on how fast or how busy a machine is."""

from __future__ import annotations

import time

import pytest


class Clock:
    """Stands in for the module `time`. Its `monotonic` is `ahead` seconds ahead."""

    def __init__(self, ahead: float = 0.0) -> None:
        self.ahead = ahead
        self.sleep = time.sleep

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


class TickingClock(Clock):
    """Every look at this clock is `step` seconds after the one before."""

    def __init__(self, step: float = 1.0) -> None:
        super().__init__()
        self._step, self._now = step, time.monotonic()

    def monotonic(self) -> float:
        self._now += self._step
        return self._now


def use_clock(patch: pytest.MonkeyPatch, clock: Clock, *modules: str) -> None:
    """Let these modules of hlo_run see the time of a clock."""
    for module in modules:
        patch.setattr(f"hlo_run.{module}.time", clock)
