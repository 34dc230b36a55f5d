"""When Python's garbage collector runs: pauses for work on one large graph, and seldom in a command."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

# Objects that are allocated before the collector looks for cycles; Python's own number is 700.
_COLLECT_AFTER = 50_000


def collect_seldom() -> None:
    """Let the collector wait for more allocations: it would walk all modules some hundred times while they load."""
    gc.set_threshold(_COLLECT_AFTER)


@contextmanager
def paused_collection() -> Generator[None, None, None]:
    """Collect nothing until the end of the `with`.

    Nothing of a growing graph is garbage, yet the collector would walk it again and again: a quarter to a third of the time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
