"""Runs kernels as native code: compiles them at the first launch, and spreads their blocks over the processor's cores."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hlo_run.backends.host.control_flow import KernelGraph
from hlo_run.backends.host.instruction_set import Operation
from hlo_run.backends.host.jit import llvm
from hlo_run.backends.host.jit.body import CANCELLED
from hlo_run.backends.host.jit.driver import write_module
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
    LaunchShape,
    Plan,
    RegionSpec,
)
from hlo_run.backends.host.lanes import Launch
from hlo_run.backends.host.memory import LOCAL_NUMBER, NUMBER_SHIFT, SHARED_NUMBER, Region
from hlo_run.target import WARP_THREADS

Bytes = NDArray[np.uint8]

_SLICE_UNIT = 256
"""Offsets of slices in their allocations count modulo this: code is the same for all slices that are equally aligned."""
_CHUNKS_PER_WORKER = 8
# Fewer instructions than these are done before a second worker has begun.
_WORTH_SPREADING = 2_000_000
_FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")


@dataclass(frozen=True, slots=True)
class JitFault(Exception):
    """A kernel did something forbidden: the PTX line and the block (linear)."""

    line: int
    block: int


@dataclass(frozen=True, slots=True)
class _Compiled:
    code: llvm.Loaded
    plan: Plan
    seconds: float


class JitEngine:
    """Keeps the code of all kernels it has run, by PTX text and launch shape.

    With `in_order`, blocks of kernels whose result depends on the order of their atomics run one after the other.
    """

    def __init__(self, in_order: bool = False) -> None:
        self._in_order = in_order
        self._compiled: dict[tuple[str, str, LaunchShape], _Compiled] = {}
        self.compile_seconds = 0.0

    def run(self, graph: KernelGraph, launch: Launch, deadline: float | None = None) -> None:
        """Run all blocks; raises JitFault, DeviceError when `deadline` (time.monotonic) has passed, Unsupported."""
        workers = self._workers(graph, launch)
        shape = launch_shape(graph, launch, concurrent=workers > 1, interruptible=deadline is not None)
        key = (launch.kernel.ptx, launch.kernel.name, shape)
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = _compile(graph, shape)
            self.compile_seconds += compiled.seconds
        _Execution(compiled, launch, workers).run(deadline)

    def _workers(self, graph: KernelGraph, launch: Launch) -> int:
        if self._in_order and any(_depends_on_order(op) for block in graph.blocks for op in block.operations):
            return 1
        size = sum(len(block.operations) for block in graph.blocks) * launch.block_threads * launch.grid_blocks
        is_long = size >= _WORTH_SPREADING or has_loops(graph)
        return min(os.cpu_count() or 1, launch.grid_blocks) if is_long else 1


def has_loops(graph: KernelGraph) -> bool:
    """True if a kernel has a way back, so that its length cannot be told from its text."""
    return any(target <= block.index for block in graph.blocks for target in block.successors())


def _depends_on_order(op: Operation) -> bool:
    """True for atomics whose outcome may differ with the order in which blocks run."""
    return op.opcode == "atom" or (op.opcode == "red" and op.type in _FLOATS)


def _compile(graph: KernelGraph, shape: LaunchShape) -> _Compiled:
    begin = time.perf_counter()
    text, plan = write_module(graph, shape)
    code = llvm.Loaded(llvm.cached_object(text))
    return _Compiled(code, plan, time.perf_counter() - begin)


# ---- memory ---------------------------------------------------------------------------------------------------------


def launch_shape(graph: KernelGraph, launch: Launch, *, concurrent: bool, interruptible: bool) -> LaunchShape:
    """Return what a launch's code depends on."""
    aliases = _aliases(launch.regions)
    regions = tuple(
        _region_spec(number, FIRST_REGION + index, region, aliases[number])
        for index, (number, region) in enumerate(sorted(launch.regions.items()))
    )
    parameters = tuple(_parameter(launch, int(value.reshape(-1)[0])) for value in launch.parameters)
    shared = max(graph.shared.size_bytes, launch.kernel.shared_bytes)
    return LaunchShape(launch.kernel.grid, launch.kernel.block, regions, parameters, shared, concurrent, interruptible)


def _shift(region: Region) -> int:
    return region.low - region.low % _SLICE_UNIT


def _region_spec(number: int, index: int, region: Region, alias: int) -> RegionSpec:
    shift = _shift(region)
    low, high = region.low - shift, region.high - shift
    return RegionSpec(number, index, low, high, region.word_low - shift, region.word_high - shift, region.writable, alias=alias)


def _parameter(launch: Launch, address: int) -> int:
    return address - _shift(launch.regions[address >> NUMBER_SHIFT])


def _aliases(regions: dict[int, Region]) -> dict[int, int]:
    """Number the regions so that those which overlap in memory have one number."""
    spans = sorted(
        (_address(region.data) + region.low, _address(region.data) + region.high, number) for number, region in regions.items()
    )
    aliases: dict[int, int] = {}
    end, alias = -1, 0
    for low, high, number in spans:
        alias += low >= end
        end = max(end, high)
        aliases[number] = alias
    names: dict[int, int] = {}
    return {number: names.setdefault(aliases[number], len(names)) for number in sorted(aliases)}


def _address(array: Bytes) -> int:
    return int(array.ctypes.data)


def _aligned(size: int) -> Bytes:
    """Return memory that begins at a multiple of 64 bytes."""
    memory = np.zeros(size + 64 + 64, np.uint8)
    start = -_address(memory) % 64
    return memory[start : start + size + 64]


class _Worker:
    """What one worker has for itself: shared and local memory of a block, slots of its threads, the table of regions."""

    def __init__(self, plan: Plan, launch: Launch, cancel: Bytes) -> None:
        padded = -(-plan.threads // WARP_THREADS) * WARP_THREADS
        self.fault = _aligned(16)
        sizes = {
            SHARED: plan.shape.shared_bytes,
            LOCAL: plan.local_stride * plan.threads,
            SLOTS: plan.slot_bytes,
            PLACES: 4 * padded,
            CHOSEN: 4 * padded,
        }
        self._arrays = {index: _aligned(size) for index, size in sizes.items()}
        self._arrays |= {FAULT: self.fault, CANCEL: cancel}
        bases = {number: _address(region.data) + _shift(region) for number, region in launch.regions.items()}
        bases |= {SHARED_NUMBER: _address(self._arrays[SHARED]), LOCAL_NUMBER: _address(self._arrays[LOCAL])}
        rows = [_row(plan.regions[number], bases[number]) for number in plan.regions]
        self._table = np.array([*rows, (0,) * ROW_WORDS], np.int64)
        state = np.zeros(plan.state_words, np.uint64)
        for index, array in self._arrays.items():
            state[index] = _address(array)
        state[TABLE] = self._table.ctypes.data
        for number in launch.regions:
            state[plan.regions[number].index] = bases[number]
        self._state = state

    def run(self, code: llvm.Loaded, first: int, last: int) -> None:
        """Run blocks; the interpreter's lock is free meanwhile."""
        code.run(first, last, self._state.ctypes.data)

    def result(self) -> tuple[int, int]:
        """Return (line, block) of a fault; line 0 if there was none."""
        return int(self.fault[:4].view(np.int32)[0]), int(self.fault[8:16].view(np.int64)[0])


def _row(spec: RegionSpec, base: int) -> tuple[int, ...]:
    return base, spec.low, spec.high, spec.word_low, spec.word_high, int(spec.writable)


# ---- workers --------------------------------------------------------------------------------------------------------


class _Execution:
    """One launch under way."""

    def __init__(self, compiled: _Compiled, launch: Launch, workers: int) -> None:
        self._code = compiled.code
        self._launch = launch
        self._cancel = _aligned(4)
        self._workers = [_Worker(compiled.plan, launch, self._cancel) for _ in range(workers)]
        self._chunks = _chunks(launch.grid_blocks, workers)
        self._fault: tuple[int, int] = (0, 0)

    def run(self, deadline: float | None) -> None:
        if len(self._workers) == 1 and deadline is None:
            self._work(self._workers[0])
        else:
            done = [_POOL.submit(lambda worker=worker: self._work(worker)) for worker in self._workers]
            self._wait(done, deadline)
        line, block = self._fault
        if line == CANCELLED:
            self._launch.fail("the kernel ran out of time", 0)
        if line:
            raise JitFault(line, block)

    def _work(self, worker: _Worker) -> None:
        for first, last in self._chunks:
            worker.run(self._code, first, last)
            line, block = worker.result()
            if line:
                self._fault = (line, block)
                self._stop()
                return

    def _stop(self) -> None:
        self._cancel[:4].view(np.int32)[0] = 1

    def _wait(self, done: list[threading.Event], deadline: float | None) -> None:
        try:
            for event in done:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not event.wait(left):
                    self._stop()
                    event.wait()
                    self._fault = (CANCELLED, 0)
        except BaseException:
            self._stop()
            raise


def _chunks(blocks: int, workers: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of blocks, in order; safe to share among threads."""
    size = max(1, blocks // (workers * _CHUNKS_PER_WORKER)) if workers > 1 else blocks
    return iter([(first, min(first + size, blocks)) for first in range(0, blocks, size)])


class _Pool:
    """Threads that live as long as the process and do not keep it from ending."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[tuple[Callable[[], None], threading.Event]] = queue.SimpleQueue()
        self._count = 0

    def submit(self, task: Callable[[], None]) -> threading.Event:
        """Run a task soon; the event says when it is done."""
        if self._count < (os.cpu_count() or 1):
            self._count += 1
            threading.Thread(target=self._loop, daemon=True, name=f"host-jit-{self._count}").start()
        done = threading.Event()
        self._tasks.put((task, done))
        return done

    def _loop(self) -> None:
        while True:
            task, done = self._tasks.get()
            try:
                task()
            finally:
                done.set()


_POOL = _Pool()
