"""Lets Ctrl-C end the process quietly while a command loads its modules; Python would print a traceback.

A command imports this module first, and calls `loaded` when it has imported the others.
"""

from __future__ import annotations

import signal
from contextlib import suppress

_is_ours = False

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
