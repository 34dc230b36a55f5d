"""Prepares a process to load the modules of a command.

Ctrl-C ends it quietly, where Python would print a traceback, and the garbage collector runs seldom. A command imports this
module first, and calls `loaded` when it has imported the others.
"""

from __future__ import annotations

import signal
from contextlib import suppress

from hlo_run.garbage_collection import collect_seldom

_is_ours = False
collect_seldom()

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
