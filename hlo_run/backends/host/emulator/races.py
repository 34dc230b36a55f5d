"""Detect races: unordered accesses of two threads to one address, at least one of them a write.

A barrier of the block, a `bar.warp.sync` of the warp, and the end of the launch order accesses. Strong accesses (atomics, relaxed
loads and stores) do not race with each other.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from hlo_run.arrays import Array
from hlo_run.backends.host.emulator.lanes import Access, Chunk, Lanes, distinct
from hlo_run.backends.host.emulator.origins import origin
from hlo_run.backends.host.ptx.control_flow import Block, KernelGraph
from hlo_run.backends.host.ptx.specs import Load, Store, Update
from hlo_run.target import WARP_THREADS

Line = Array

_NOBODY = -1
# The other threads of the recorded access: none, some of the same warp, of the same block, of other blocks.
_ALONE, _WARP, _BLOCK, _GRID = range(4)


def unit_bytes(graph: KernelGraph) -> dict[str, int]:
    """Return the kernel's smallest access to `shared` and `global` memory in bytes. Histories have one entry per such unit."""
    sizes = {"shared": 16, "global": 16}
    for block in graph.blocks:
        for operation in block.operations:
            spec = operation.spec
            if not isinstance(spec, Load | Store | Update):
                continue
            for space in [spec.space] if spec.space in sizes else sizes:
                sizes[space] = min(sizes[space], spec.size_bytes)
    return sizes


class _Event(Struct, frozen=True):
    """One instruction's access, with one row per unit and lane: the unit, the thread of the launch, and its epochs."""

    access: Access
    place: Line
    thread: Line
    block_epoch: Line
    warp_epoch: Line
    block_threads: int

    def blocks(self, thread: Line) -> Line:
        """Return the block of each thread."""
        return thread // self.block_threads

    def warps(self, thread: Line) -> Line:
        """Return the warp of each thread, numbered over the whole launch."""
        return self.blocks(thread) * -(-self.block_threads // WARP_THREADS) + thread % self.block_threads // WARP_THREADS


class _History:
    """The last access of one sort (read or write) to every unit of a memory: thread, other threads, epochs, PTX line."""

    def __init__(self, units: int, sort: str) -> None:
        self.sort = sort
        self.thread = np.full(units, _NOBODY, np.int32)
        self.others = np.zeros(units, np.uint8)
        self.block_epoch = np.zeros(units, np.int32)
        self.warp_epoch = np.zeros(units, np.int32)
        self.line = np.zeros(units, np.int32)
        self.strong = np.zeros(units, np.bool_)

    def races(self, event: _Event) -> Line:
        """Return, per row of an event, whether it is unordered with the last access."""
        place = event.place
        thread, others = self.thread[place], self.others[place]
        known = thread != _NOBODY
        if not known.any():
            return known
        same_thread = (thread == event.thread) & (others == _ALONE)
        return known & ~same_thread & ~self._ordered(event, thread, others)

    def _ordered(self, event: _Event, thread: Line, others: Line) -> Line:
        """Return, per row, whether a barrier orders the last access before the event. All last accesses are known."""
        place = event.place
        same_block = (event.blocks(thread) == event.blocks(event.thread)) & (others < _GRID)
        same_warp = (event.warps(thread) == event.warps(event.thread)) & (others < _BLOCK)
        by_block = same_block & (self.block_epoch[place] < event.block_epoch)
        return by_block | (same_warp & (self.warp_epoch[place] < event.warp_epoch))

    def record(self, event: _Event) -> None:
        """Record an event. Of several threads at one unit, keep one thread and the distance of the others."""
        place = event.place
        thread, others = self.thread[place], self.others[place]
        apart = np.zeros(place.size, np.uint8)
        known = thread != _NOBODY
        if known.any():
            concurrent = known & ~self._ordered(event, thread, others)
            apart = np.where(concurrent, np.maximum(others, _distance(event, thread)), apart)
        self.thread[place] = event.thread
        self.others[place] = _ALONE
        remembered = self.thread[place]
        if (remembered != event.thread).any():
            apart = np.maximum(apart, _distance(event, remembered))
        if apart.any():
            for level in (_WARP, _BLOCK, _GRID):
                self.others[place[apart == level]] = level
        self.block_epoch[place] = event.block_epoch
        self.warp_epoch[place] = event.warp_epoch
        self.line[place] = event.access.line
        self.strong[place] = event.access.strong


def _distance(event: _Event, thread: Line) -> Line:
    """Return the distance of threads from the threads of the event: same thread, same warp, same block or other."""
    near = np.where(event.warps(thread) == event.warps(event.thread), _WARP, _BLOCK)
    apart = np.where(event.blocks(thread) == event.blocks(event.thread), near, _GRID)
    return np.where(thread == event.thread, _ALONE, apart)


class _Epochs:
    """The number of barriers that each block and warp of a chunk has passed."""

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self.blocks = np.zeros(chunk.block_count, np.int32)
        self.warps = np.zeros(int(Lanes(chunk).warps[-1]) + 1, np.int32)


class _Memory:
    """The last write and the last read of each unit. Reads are recorded from the first one on."""

    def __init__(self, size_bytes: int, unit: int) -> None:
        self._units = -(-size_bytes // unit)
        self.unit = unit
        self.writes = _History(self._units, "write")
        self.reads: _History | None = None

    def readers(self) -> _History:
        if self.reads is None:
            self.reads = _History(self._units, "read")
        return self.reads


class RaceDetector:
    """Raises DeviceError for unordered accesses of two threads to one address. One detector serves one launch.

    Shared memory: lanes of one store may write the same value to one address. Global memory: no thread may write an address that
    another thread writes. A plain load may be unordered with atomics, as at the start of a compare-and-swap loop.
    """

    def __init__(self, units: Mapping[str, int]) -> None:
        self._units = units
        self._epochs: _Epochs | None = None
        self._shared: _Memory | None = None
        self._global: dict[int, _Memory] | None = None

    def access(self, access: Access) -> None:
        """Compare an access with the recorded ones, then record it."""
        memory = self._memory(access)
        if memory is None:
            return
        event = self._event(access, memory.unit)
        if access.kind == "load":
            self._check(event, memory.writes, memory.unit)
            memory.readers().record(event)
            return
        if memory.reads is not None:
            self._check(event, memory.reads, memory.unit)
        self._check(event, memory.writes, memory.unit)
        memory.writes.record(event)
        if not access.strong:
            _check_one_instruction(event, memory)

    def barrier(self, lanes: Lanes, scope: str, line: int) -> None:
        """Begin a new epoch of the blocks or warps that have met."""
        del line
        epochs = self._epochs_of(lanes.chunk)
        if scope == "block":
            epochs.blocks[distinct(lanes.rows.reshape(-1))] += 1
        else:
            epochs.warps[distinct(lanes.warps)] += 1

    def step(self, lanes: Lanes, block: Block, decision: Line | None) -> None:
        """Do nothing."""

    # ---- memory -------------------------------------------------------------------------------------------------

    def _memory(self, access: Access) -> _Memory | None:
        """Return the history of the accessed memory; None for memory without possible races."""
        region = access.region
        if region.space == "shared":
            self._epochs_of(access.lanes.chunk)  # a new chunk has a new shared memory
            if self._shared is None:
                self._shared = _Memory(region.data.size, self._units["shared"])
            return self._shared
        if region.space != "global":
            return None
        if self._global is None:
            regions = access.lanes.launch.regions.values()
            written = {id(item.data): item.data.size for item in regions if item.space == "global" and item.writable}
            self._global = {key: _Memory(size, self._units["global"]) for key, size in written.items()}
        return self._global.get(id(region.data))

    def _epochs_of(self, chunk: Chunk) -> _Epochs:
        if self._epochs is None or self._epochs.chunk is not chunk:
            self._epochs = _Epochs(chunk)
            self._shared = None
        return self._epochs

    def _event(self, access: Access, unit: int) -> _Event:
        lanes, count = access.lanes, max(1, access.size_bytes // unit)
        epochs = self._epochs_of(lanes.chunk)
        place = (access.addresses[:, None] // unit + np.arange(count)).reshape(-1)
        rows = lanes.flat(lanes.rows)
        per_lane = (lanes.flat_ids + lanes.chunk.first_thread, epochs.blocks[rows], epochs.warps[lanes.warps])
        thread, block_epoch, warp_epoch = (np.repeat(line, count) if count > 1 else line for line in per_lane)
        return _Event(access, place, thread, block_epoch, warp_epoch, lanes.chunk.threads)

    # ---- faults -------------------------------------------------------------------------------------------------

    def _check(self, event: _Event, history: _History, unit: int) -> None:
        """Raise if `event` races with the last access in `history`."""
        access = event.access
        racing = history.races(event)
        if not racing.any():
            return
        met = history.strong[event.place]
        reads = access.kind == "load" or history.sort == "read"
        if reads and access.region.space == "global":
            racing &= ~met if access.kind == "load" else not access.strong
        else:
            racing &= ~(met & access.strong)
        if racing.any():
            _fail(event, history, unit, int(np.argmax(racing)))


def _fail(event: _Event, history: _History, unit: int, row: int) -> None:
    access, launch = event.access, event.access.lanes.launch
    place, line = int(event.place[row]), int(history.line[event.place[row]])
    who = launch.describe(int(history.thread[place]))
    if history.others[place] != _ALONE:
        who = f"several threads, among them {who}"
    source = origin(launch.source_lines, line)
    note = f"the {history.sort} was at PTX line {line}, {who}" + (f", from {source}" if source else "")
    between = "without a barrier after" if access.region.space == "shared" else "not in order with another thread's"
    before = f"a {history.sort}" if access.region.space == "shared" else history.sort
    message = f"{_what(event, place * unit)} {between} {before}"
    launch.fail(message, access.line, access.lanes.describe(row * access.lanes.count // event.place.size), note)


def _what(event: _Event, offset: int) -> str:
    region = event.access.region
    if region.space == "shared":
        return f"race in shared memory: {event.access.kind} of byte {offset % region.copy_bytes}"
    return f"race in global memory: {event.access.kind} of byte {offset - region.low} of {region.name}"


def _check_one_instruction(event: _Event, memory: _Memory) -> None:
    """Raise if several lanes of one store, already recorded, write to one address."""
    access = event.access
    other = memory.writes.thread[event.place]
    clash = other != event.thread
    if not clash.any():
        return
    if access.region.space == "shared":
        _check_values(access)
        return
    row = int(np.flatnonzero(clash)[0])
    message = f"{_what(event, int(event.place[row]) * memory.unit)}, which another thread writes with the same instruction"
    launch = access.lanes.launch
    note = f"so does {launch.describe(int(other[row]))}"
    launch.fail(message, access.line, access.lanes.describe(row * access.lanes.count // event.place.size), note)


def _check_values(access: Access) -> None:
    """Raise if lanes of one store write different values to one address. The order of these writes is undefined."""
    order = np.argsort(access.addresses, kind="stable")
    same = access.addresses[order][1:] == access.addresses[order][:-1]
    if access.values is not None:
        same &= (access.values[order][1:] != access.values[order][:-1]).any(axis=1)
    if same.any():
        index = int(order[1:][same][0])
        message = "race in shared memory: threads write different values to one place with one instruction"
        access.lanes.launch.fail(message, access.line, access.lanes.describe(index))
