"""Prepares a process to load the modules of a command.

Ctrl-C ends it quietly, where Python would print a traceback, and the garbage collector runs seldom. A command imports this
module first, and calls `loaded` when it has imported the others.
Threads of numpy's BLAS sleep when they have no work, where they would spin for 25 ms, each of them, when numpy is imported.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from hlo_run.garbage_collection import collect_seldom

# Cycles that an idle thread of OpenBLAS spins, as a power of 2 (by default 26): 0.4 ms.
_IDLE_CYCLES = "20"
_is_ours = False
collect_seldom()
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", _IDLE_CYCLES)

# Elsewhere than in the main thread signals cannot be set. A handler of the program that imports the command stays.
with suppress(ValueError):
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _is_ours = True


def loaded() -> None:
    """Make Ctrl-C raise KeyboardInterrupt again."""
    global _is_ours
    if _is_ours:
        _is_ours = False
        signal.signal(signal.SIGINT, signal.default_int_handler)
