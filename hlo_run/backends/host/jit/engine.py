"""Runs kernels as native code: compiles them at the first launch, and spreads their blocks over the processor's cores."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

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
from hlo_run.errors import Unsupported, UsageError
from hlo_run.target import WARP_THREADS

Bytes = NDArray[np.uint8]
_Key: TypeAlias = "tuple[object, ...]"

_SLICE_UNIT = 256
"""Offsets of slices in their allocations count modulo this: code is the same for all slices that are equally aligned."""
_CHUNKS_PER_WORKER = 8
GUESSED_TURNS = 32
"""How often a loop is taken to go round where launches are weighed."""
# Fewer instructions than these are done before a second worker has begun.
_WORTH_SPREADING = 2_000_000
_FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")


@dataclass(frozen=True, slots=True)
class JitFault(Exception):
    """A kernel did something forbidden: the PTX line and the block (linear)."""

    line: int
    block: int


@dataclass(slots=True)
class _Compiled:
    """Code for one shape of launches, and the teams of workers that are free."""

    code: llvm.Loaded
    plan: Plan
    idle: dict[int, list[_Team]] = field(default_factory=dict[int, "list[_Team]"])

    def team(self, size: int) -> _Team:
        """Return a team that nobody uses."""
        free = self.idle.get(size)
        return free.pop() if free else _Team(self.plan, size)

    def done(self, team: _Team) -> None:
        """Take a team back, whose memory the next launch uses again."""
        self.idle.setdefault(len(team.workers), []).append(team)


@dataclass(frozen=True, slots=True)
class _Request:
    """Code that is wanted: its LLVM IR, and where it will be looked for."""

    key: _Key
    text: str
    plan: Plan


@dataclass(frozen=True, slots=True)
class _Traits:
    """What a kernel's text says about how to launch it."""

    operations: int
    loops: bool
    is_ordered: bool


class JitEngine:
    """Keeps the code of all kernels it has run, by PTX text and launch shape.

    With `in_order`, blocks of kernels whose result depends on the order of their atomics run one after the other.
    """

    def __init__(self, in_order: bool = False) -> None:
        self._in_order = in_order
        self._traits: dict[tuple[str, str], _Traits] = {}
        self._compiled: dict[_Key, _Compiled] = {}
        self._code: dict[str, llvm.Loaded] = {}
        self._offered: dict[str, bytes] = {}
        self.compile_seconds = 0.0

    def run(self, graph: KernelGraph, launch: Launch, deadline: float | None = None) -> None:
        """Run all blocks; raises JitFault, DeviceError when `deadline` (time.monotonic) has passed, Unsupported."""
        workers = self._workers(graph, launch)
        compiled = self._compiled.get(self._key(launch, workers, deadline))
        if compiled is None:
            self._compile([self._request(graph, launch, workers, deadline)])
            compiled = self._compiled[self._key(launch, workers, deadline)]
        team = compiled.team(workers)
        places = _places(launch.regions)
        team.aim([places[number] + _shift(region) for number, region in sorted(launch.regions.items())])
        _Execution(compiled.code, team, launch).run(deadline)
        compiled.done(team)

    def prepare(self, launches: Iterable[tuple[KernelGraph, Launch]], deadline: float | None = None) -> None:
        """Compile what these launches will need, all at once; those that `run` will refuse are left to it."""
        requests: dict[_Key, _Request] = {}
        for graph, launch in launches:
            workers = self._workers(graph, launch)
            key = self._key(launch, workers, deadline)
            if key in self._compiled or key in requests:
                continue
            with suppress(Unsupported):
                requests[key] = self._request(graph, launch, workers, deadline)
        self._compile(list(requests.values()))

    def offer(self, objects: Mapping[str, bytes]) -> None:
        """Let these be used instead of compiling what has their digests; raises UsageError for what is no object code."""
        if not all(llvm.is_object_code(data) for data in objects.values()):
            raise UsageError("the executable's machine code is not this processor's", hint="compile the module again")
        self._offered |= objects

    def objects(self) -> dict[str, bytes]:
        """Return the object code of all that was compiled, by digest."""
        return {digest: code.data for digest, code in self._code.items()}

    def _key(self, launch: Launch, workers: int, deadline: float | None) -> _Key:
        kernel = launch.kernel
        key = (kernel.ptx, kernel.name, kernel.grid, kernel.block, kernel.shared_bytes, workers > 1, deadline is None)
        return (*key, *(value.item() for value in launch.parameters), *_signature(launch.regions))

    def _request(self, graph: KernelGraph, launch: Launch, workers: int, deadline: float | None) -> _Request:
        begin = time.perf_counter()
        shape = launch_shape(graph, launch, concurrent=workers > 1, interruptible=deadline is not None)
        text, plan = write_module(graph, shape)
        self.compile_seconds += time.perf_counter() - begin
        return _Request(self._key(launch, workers, deadline), text, plan)

    def _compile(self, requests: list[_Request]) -> None:
        """Make code for all of them; kernels that differ in their names alone have the same."""
        begin = time.perf_counter()
        digests = [llvm.digest_of(request.text) for request in requests]
        texts = {digest: request.text for digest, request in zip(digests, requests, strict=True) if digest not in self._code}
        objects = {digest: self._offered[digest] for digest in texts if digest in self._offered}
        objects |= llvm.cached_objects({digest: text for digest, text in texts.items() if digest not in objects})
        self._code |= {digest: llvm.Loaded(data) for digest, data in objects.items()}
        for digest, request in zip(digests, requests, strict=True):
            self._compiled[request.key] = _Compiled(self._code[digest], request.plan)
        self.compile_seconds += time.perf_counter() - begin

    def _workers(self, graph: KernelGraph, launch: Launch) -> int:
        key = (launch.kernel.ptx, launch.kernel.name)
        traits = self._traits.get(key)
        if traits is None:
            is_ordered = any(_depends_on_order(op) for block in graph.blocks for op in block.operations)
            count = sum(len(block.operations) for block in graph.blocks)
            traits = self._traits[key] = _Traits(count, has_loops(graph), is_ordered)
        if self._in_order and traits.is_ordered:
            return 1
        turns = GUESSED_TURNS if traits.loops else 1
        is_long = traits.operations * turns * launch.block_threads * launch.grid_blocks >= _WORTH_SPREADING
        return min(os.cpu_count() or 1, launch.grid_blocks) if is_long else 1


def has_loops(graph: KernelGraph) -> bool:
    """True if a kernel has a way back, so that its length cannot be told from its text."""
    return any(target <= block.index for block in graph.blocks for target in block.successors())


def _depends_on_order(op: Operation) -> bool:
    """True for atomics whose outcome may differ with the order in which blocks run."""
    return op.opcode == "atom" or (op.opcode == "red" and op.type in _FLOATS)


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


def _places(regions: dict[int, Region]) -> dict[int, int]:
    """Return where in this process the data of each region begins."""
    return {number: region.data.__array_interface__["data"][0] for number, region in regions.items()}


def _signature(regions: dict[int, Region]) -> list[object]:
    """Return what `launch_shape` makes of the regions, in a form that is quickly made."""
    found: list[object] = list(_aliases(regions).items())
    for region in regions.values():
        low = region.low % _SLICE_UNIT
        found += (low, region.high - region.low, region.word_high - region.low, region.writable)
    return found


def _aliases(regions: dict[int, Region]) -> dict[int, int]:
    """Number the regions so that those which overlap in memory have one number."""
    places = _places(regions)
    spans = sorted((places[number] + region.low, places[number] + region.high, number) for number, region in regions.items())
    aliases: dict[int, int] = {}
    end, alias = -1, 0
    for low, high, number in spans:
        alias += low >= end
        end = max(end, high)
        aliases[number] = alias
    names: dict[int, int] = {}
    return {number: names.setdefault(aliases[number], len(names)) for number in sorted(aliases)}


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _aligned(size: int) -> Bytes:
    """Return memory that begins at a multiple of 64 bytes."""
    memory = np.zeros(size + 64 + 64, np.uint8)
    start = -_address(memory) % 64
    return memory[start : start + size + 64]


class _Team:
    """Workers for one shape of launches, and the word that tells them to stop."""

    def __init__(self, plan: Plan, size: int) -> None:
        self._cancel = _aligned(4)
        self.workers = [_Worker(plan, self._cancel) for _ in range(size)]

    def aim(self, bases: list[int]) -> None:
        """Let the workers take their arguments from these places."""
        for worker in self.workers:
            worker.aim(bases)

    def stop(self) -> None:
        self._cancel[:4].view(np.int32)[0] = 1


class _Worker:
    """What one worker has for itself: shared and local memory of a block, slots of its threads, the table of regions."""

    def __init__(self, plan: Plan, cancel: Bytes) -> None:
        padded = -(-plan.threads // WARP_THREADS) * WARP_THREADS
        fault = _aligned(16)
        self._line, self._block = fault[:4].view(np.int32), fault[8:16].view(np.int64)
        sizes = {
            SHARED: plan.shape.shared_bytes,
            LOCAL: plan.local_stride * plan.threads,
            SLOTS: plan.slot_bytes,
            PLACES: 4 * padded,
            CHOSEN: 4 * padded,
        }
        self._arrays = {index: _aligned(size) for index, size in sizes.items()}
        self._arrays |= {FAULT: fault, CANCEL: cancel}
        own = {SHARED_NUMBER: _address(self._arrays[SHARED]), LOCAL_NUMBER: _address(self._arrays[LOCAL])}
        rows = [_row(plan.regions[number], own.get(number, 0)) for number in plan.regions]
        self._table = np.array([*rows, (0,) * ROW_WORDS], np.int64)
        self._state = np.zeros(plan.state_words, np.uint64)
        for index, array in self._arrays.items():
            self._state[index] = _address(array)
        self._state[TABLE] = _address(self._table)
        self._place = _address(self._state)

    def aim(self, bases: list[int]) -> None:
        """Take the launch's regions, in the order of their numbers, from these places."""
        self._state[FIRST_REGION : FIRST_REGION + len(bases)] = bases
        self._table[: len(bases), 0] = bases

    def run(self, code: llvm.Loaded, first: int, last: int) -> tuple[int, int]:
        """Run blocks; the interpreter's lock is free meanwhile. Return (line, block) of a fault; line 0 if there was none."""
        code.run(first, last, self._place)
        return self._line.item(), self._block.item()


def _row(spec: RegionSpec, base: int) -> tuple[int, ...]:
    return base, spec.low, spec.high, spec.word_low, spec.word_high, int(spec.writable)


# ---- workers --------------------------------------------------------------------------------------------------------


class _Execution:
    """One launch under way."""

    def __init__(self, code: llvm.Loaded, team: _Team, launch: Launch) -> None:
        self._code = code
        self._launch = launch
        self._team = team
        self._chunks = _chunks(launch.grid_blocks, len(team.workers))
        self._fault: tuple[int, int] = (0, 0)

    def run(self, deadline: float | None) -> None:
        """Run all blocks. Without a deadline this thread is one of the workers'; with one it keeps watch."""
        first, *others = self._team.workers
        if deadline is None:
            done = [_POOL.submit(lambda worker=worker: self._work(worker)) for worker in others]
            try:
                self._work(first)
            except BaseException:
                self._team.stop()
                raise
            self._wait(done, deadline)
        else:
            self._wait([_POOL.submit(lambda worker=worker: self._work(worker)) for worker in self._team.workers], deadline)
        line, block = self._fault
        if line == CANCELLED:
            self._launch.fail("the kernel ran out of time", 0)
        if line:
            raise JitFault(line, block)

    def _work(self, worker: _Worker) -> None:
        for first, last in self._chunks:
            line, block = worker.run(self._code, first, last)
            if line:
                self._fault = (line, block)
                self._team.stop()
                return

    def _wait(self, done: list[threading.Event], deadline: float | None) -> None:
        try:
            for event in done:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not event.wait(left):
                    self._team.stop()
                    event.wait()
                    self._fault = (CANCELLED, 0)
        except BaseException:
            self._team.stop()
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
