"""Reduces runs of Python's garbage collector: none during work on a large graph, few in a command, small ones in forks."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

# Allocated objects between two collections. Python's default is 700. The modules of a run hold some 100,000 objects.
_COLLECT_AFTER = 250_000


def collect_seldom() -> None:
    """Let the collector run less often than by default: imports alone would cause some hundred collections of lasting objects."""
    gc.set_threshold(_COLLECT_AFTER)


def leave_to_parent() -> None:
    """Let the collector of this fork look past the objects of its parent.

    A collection writes to every object that it visits, so the system would copy all memory of the parent for each fork.
    """
    gc.freeze()


@contextmanager
def paused_collection() -> Generator[None, None, None]:
    """Disable the garbage collector until the end of the `with`.

    A growing graph has no garbage, but the collector would walk it again and again, in a quarter to a third of the time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
