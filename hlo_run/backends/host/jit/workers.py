"""Run a launch's code: workers with their own memory, and the threads that run them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hlo_run.arrays import Array
from hlo_run.backends.host.emulator.lanes import Launch
from hlo_run.backends.host.emulator.memory import LOCAL_NUMBER, SHARED_NUMBER
from hlo_run.backends.host.jit import llvm
from hlo_run.backends.host.jit.body import CANCELLED
from hlo_run.backends.host.jit.plan import (
    CANCEL,
    CHOSEN,
    FAULT,
    FIRST_REGION,
    LOCAL,
    PLACES,
    ROW_WORDS,
    SHARED,
    SLOTS,
    TABLE,
    Plan,
    RegionSpec,
)
from hlo_run.containment.board import Blame, native
from hlo_run.parallel import available_cores
from hlo_run.target import WARP_THREADS

Bytes = NDArray[np.uint8]

_CHUNKS_PER_WORKER = 8
FAULT_BYTES = 16
"""Bytes of a fault record: the line (4), unused (4), the block (8)."""


@dataclass(frozen=True, slots=True)
class JitFault(Exception):
    """A fault in native code: the PTX line and the linear block number."""

    line: int
    block: int


def address_of(array: Array) -> int:
    """Return the address of an array's data."""
    return int(array.__array_interface__["data"][0])


def aligned(size: int) -> Bytes:
    """Return zeroed memory whose address is a multiple of 64 bytes."""
    memory = np.zeros(size + 64 + 64, np.uint8)
    start = -address_of(memory) % 64
    return memory[start : start + size + 64]


class WorkerGroup:
    """Workers for one shape of launches, and the word that stops them."""

    def __init__(self, plan: Plan, size: int) -> None:
        self._cancel = aligned(4)
        self.workers = [Worker(plan, self._cancel) for _ in range(size)]

    def aim(self, bases: Sequence[int]) -> None:
        """Set the addresses of the arguments for all workers."""
        for worker in self.workers:
            worker.aim(bases)

    def stop(self) -> None:
        """Tell the workers to stop."""
        self._cancel[:4].view(np.int32)[0] = 1


class Worker:
    """The memory of one worker: shared and local memory of a block, slots of its threads, the table of regions."""

    def __init__(self, plan: Plan, cancel: Bytes) -> None:
        fault = aligned(FAULT_BYTES)
        self._fault = fault
        self._arrays = {index: aligned(size) for index, size in scratch_bytes(plan).items()}
        self._arrays |= {FAULT: fault, CANCEL: cancel}
        own = {SHARED_NUMBER: address_of(self._arrays[SHARED]), LOCAL_NUMBER: address_of(self._arrays[LOCAL])}
        self._table = np.array(table_rows(plan, own), np.int64)
        self._state = np.zeros(plan.state_words, np.uint64)
        for index, array in self._arrays.items():
            self._state[index] = address_of(array)
        self._state[TABLE] = address_of(self._table)
        self._place = address_of(self._state)

    def aim(self, bases: Sequence[int]) -> None:
        """Set the addresses of the launch's regions, in the order of their numbers."""
        self._state[FIRST_REGION : FIRST_REGION + len(bases)] = bases
        self._table[: len(bases), 0] = bases

    def run(self, code: llvm.Loaded, first: int, last: int) -> tuple[int, int]:
        """Run blocks without the interpreter's lock. Return (line, block) of a fault; line 0 means none."""
        code.run(first, last, self._place)
        return read_fault(self._fault)


def read_fault(fault: Bytes) -> tuple[int, int]:
    """Return (line, block) of a fault; line 0 means none."""
    return fault[:4].view(np.int32).item(), fault[8:16].view(np.int64).item()


def scratch_bytes(plan: Plan) -> dict[int, int]:
    """Return the sizes of a worker's memory by position in its state. Launches do not depend on its contents."""
    padded = -(-plan.threads // WARP_THREADS) * WARP_THREADS
    return {
        SHARED: plan.shape.shared_bytes,
        LOCAL: plan.local_stride * plan.threads,
        SLOTS: plan.slot_bytes,
        PLACES: 4 * padded,
        CHOSEN: 4 * padded,
    }


def table_rows(plan: Plan, own: Mapping[int, int]) -> list[tuple[int, ...]]:
    """Return the table of regions. `own` maps region numbers to known base addresses. The last row matches no region."""
    rows = [_row(spec, own.get(number, 0)) for number, spec in plan.regions.items()]
    return [*rows, (0,) * ROW_WORDS]


def _row(spec: RegionSpec, base: int) -> tuple[int, ...]:
    return base, spec.low, spec.high, spec.word_low, spec.word_high, int(spec.writable)


# ---- workers --------------------------------------------------------------------------------------------------------


class Runner(Protocol):
    """A worker."""

    def run(self, code: llvm.Loaded, first: int, last: int) -> tuple[int, int]:
        """Run the blocks in [first, last). Return (line, block) of a fault; line 0 means none."""
        ...


class Crew(Protocol):
    """Workers that can be stopped."""

    @property
    def workers(self) -> Sequence[Runner]:
        """The workers."""
        ...

    def stop(self) -> None:
        """Tell the workers to stop."""
        ...


class Execution:
    """One launch in progress: its code and the team that runs it."""

    def __init__(self, code: llvm.Loaded, team: Crew, launch: Launch) -> None:
        self._code = code
        self._launch = launch
        self._team = team
        self._chunks = _chunks(launch.grid_blocks, len(team.workers))
        self._fault: tuple[int, int] = (0, 0)

    def run(self, deadline: float | None) -> None:
        """Run all blocks. Without a deadline the calling thread is one of the workers; with one it watches the time."""
        with native("native code", f"kernel '{self._launch.kernel.name}'", blame=Blame.KERNEL):
            self._run(deadline)
        line, block = self._fault
        if line == CANCELLED:
            self._launch.run_out_of_time()
        if line:
            raise JitFault(line, block)

    def _run(self, deadline: float | None) -> None:
        first, *others = self._team.workers
        if deadline is None:
            done = [_POOL.submit(lambda worker=worker: self._work(worker)) for worker in others]
            try:
                self._work(first)
            except BaseException:
                self._team.stop()
                raise
            # A task that has not begun by now would find no chunks left. On a busy machine, waiting for it would take long.
            self._wait([task for task in done if not task.cancel()], deadline)
        else:
            self._wait([_POOL.submit(lambda worker=worker: self._work(worker)) for worker in self._team.workers], deadline)

    def _work(self, worker: Runner) -> None:
        for first, last in self._chunks:
            line, block = worker.run(self._code, first, last)
            if line:
                if not self._fault[0]:  # a worker that was stopped reports nothing new
                    self._fault = (line, block)
                self._team.stop()
                return

    def _wait(self, tasks: list[_Task], deadline: float | None) -> None:
        try:
            for task in tasks:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not task.done.wait(left):
                    self._team.stop()
                    task.done.wait()
                    self._fault = (CANCELLED, 0)
        except BaseException:
            self._team.stop()
            raise


def _chunks(blocks: int, workers: int) -> Iterator[tuple[int, int]]:
    """Return the ranges of blocks in order, as an iterator that threads may share."""
    size = max(1, blocks // (workers * _CHUNKS_PER_WORKER)) if workers > 1 else blocks
    return iter([(first, min(first + size, blocks)) for first in range(0, blocks, size)])


class _Task:
    """Work that a thread does once, unless it is cancelled before."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._claim = threading.Lock()
        self.done = threading.Event()

    def run(self) -> None:
        """Do the work unless it was cancelled."""
        if self._claim.acquire(blocking=False):
            try:
                self._work()
            finally:
                self.done.set()

    def cancel(self) -> bool:
        """Return True if the work has not begun; then it never will."""
        return self._claim.acquire(blocking=False)


class _Pool:
    """Daemon threads that live as long as the process."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self._count = 0

    def submit(self, work: Callable[[], None]) -> _Task:
        """Queue work for a thread of the pool."""
        if self._count < available_cores():
            self._count += 1
            threading.Thread(target=self._loop, daemon=True, name=f"host-jit-{self._count}").start()
        task = _Task(work)
        self._tasks.put(task)
        return task

    def _loop(self) -> None:
        while True:
            self._tasks.get().run()


_POOL = _Pool()
