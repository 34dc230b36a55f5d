"""Runs independent pieces of work in several processes. Threads would not be faster, because Python has a global lock."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from hlo_run.errors import HloRunError, InternalError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkProcess

T = TypeVar("T")


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def can_fork() -> bool:
    """True if this process can fork, so that the copies need not import and parse again.

    A fork has only the thread that made it. A lock that another thread of JAX or of a caller holds would never be released.
    """
    if "jaxlib" in sys.modules or threading.current_thread() is not threading.main_thread():
        return False
    import multiprocessing  # slow to import, and few runs need several processes

    return "fork" in multiprocessing.get_all_start_methods() and not multiprocessing.current_process().daemon


def run_in_processes(count: int, work: Callable[[int], T], workers: int) -> list[T]:
    """Return `work(0)` to `work(count - 1)`, computed by up to `workers` forks. Results must be picklable, `work` need not be.

    Raises the HloRunError of the first piece that failed, and InternalError if a process dies.
    """
    import multiprocessing

    context = multiprocessing.get_context("fork")
    next_piece = context.Value("i", 0)
    processes: dict[Connection, ForkProcess] = {}
    for _ in range(min(workers, count)):
        receive, send = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(send, next_piece, count, work), daemon=True)
        with warnings.catch_warnings():
            # From 3.12 on Python warns about other threads, such as the spinner's. The fork does not need their locks.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        send.close()
        processes[receive] = process
    done: dict[int, T | HloRunError] = {}
    try:
        _collect(set(processes), done)
    finally:
        for receive, process in processes.items():
            receive.close()
            process.terminate()
            process.join()
    results: list[T] = []
    for number in range(count):
        if number not in done:
            raise InternalError(
                f"a compile process died in kernel {number}", notes=("--compile_processes=1 compiles in one process",)
            )
        result = done[number]
        if isinstance(result, HloRunError):
            raise result
        results.append(result)
    return results


def _collect(receiving: set[Connection], done: dict[int, Any]) -> None:
    """Receive results until all processes have finished or died."""
    from multiprocessing.connection import Connection, wait

    while receiving:
        for connection in wait(list(receiving)):
            assert isinstance(connection, Connection)
            try:
                number, result = connection.recv()
            except EOFError:
                number, result = -1, None
            if number < 0:
                receiving.remove(connection)
            else:
                done[number] = result


def _work(send: Connection, next_piece: Any, count: int, work: Callable[[int], object]) -> None:
    """Work on pieces until none is left or one fails. Then all pieces before it are already taken."""
    while True:
        with next_piece.get_lock():
            number = next_piece.value
            next_piece.value += 1
        if number >= count:
            send.send((-1, None))
            return
        try:
            result = work(number)
        except HloRunError as error:
            with next_piece.get_lock():
                next_piece.value = count
            result = error
        send.send((number, result))
