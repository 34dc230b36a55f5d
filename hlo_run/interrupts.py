"""Ends the process at Ctrl-C while native code runs. Python sees Ctrl-C only after that code returns, which may be never."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager

# Time for Python to unwind before the process ends. Only the run itself may be incomplete then.
_GRACE_SECONDS = 1.5
_CODE = 130


@contextmanager
def ends_when_interrupted() -> Generator[None]:
    """End the process with code 130 if the main thread is still inside 1.5 s after SIGINT. In other threads: do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    left = threading.Event()
    before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reading, left), daemon=True, name="interrupts").start()
    try:
        yield
    finally:
        left.set()
        signal.set_wakeup_fd(before)
        writing.close()


def _watch(reading: socket.socket, left: threading.Event) -> None:
    with reading:
        while numbers := reading.recv(64):
            if signal.SIGINT in numbers and not left.wait(_GRACE_SECONDS):
                sys.stderr.write("interrupted\n")
                sys.stderr.flush()
                os._exit(_CODE)
