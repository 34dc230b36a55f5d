"""A limit of processor time for the loops of an evaluation: a rewrite may have made a loop endless.

A busy machine does not change what ends in time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from contextlib import contextmanager

from msgspec import Struct

from hlo_run.errors import DeviceError


class EndlessLoop(DeviceError):
    """A loop went on after its limit of time."""


class _Limit(Struct):
    until: float = math.inf  # time.process_time()
    seconds: float = 0.0


_limit = _Limit()


@contextmanager
def loops_end_within(seconds: float) -> Generator[None]:
    """Let a `while` in an evaluation raise EndlessLoop if it begins an iteration after `seconds` more of processor time."""
    before = _limit.until, _limit.seconds
    _limit.until, _limit.seconds = time.process_time() + seconds, seconds
    try:
        yield
    finally:
        _limit.until, _limit.seconds = before


def check_limit(loop: str) -> None:
    """Raise EndlessLoop if the time of `loops_end_within` is over."""
    if _limit.until is not math.inf and time.process_time() > _limit.until:
        raise EndlessLoop(f"the loop %{loop} has not ended after {_limit.seconds:.0f} s of processor time")
