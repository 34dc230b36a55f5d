"""The checks of `--host_check`, and the observers that perform them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hlo_run.arrays import Array
from hlo_run.backends.host.emulator.lanes import Access, Lanes, Observer
from hlo_run.backends.host.emulator.memory import Region
from hlo_run.backends.host.emulator.races import RaceDetector, unit_bytes
from hlo_run.backends.host.emulator.statistics import KernelStatistics, StatisticsObserver
from hlo_run.backends.host.ptx.control_flow import Block, KernelGraph

ALWAYS_ON = frozenset(("bounds", "align"))
"""Both engines always check these. They also always detect a deadlock at a barrier."""
FAULTS = ALWAYS_ON | {"barrier", "init", "race"}
"""The checks that can find a fault."""
CHECKS = FAULTS | {"statistics"}
"""The values of `--host_check`. `all` selects all of them."""

_ALL_WRITTEN = {size: np.full(size, 1, np.uint8).view(f"u{size}")[0] for size in (1, 2, 4, 8)}


def make_observer(checks: frozenset[str], graph: KernelGraph, statistics: KernelStatistics) -> Observer | None:
    """Return the observer of a launch for `checks`, or None. With the check `statistics` it fills `statistics`."""
    observers: list[Observer] = []
    if "barrier" in checks:
        observers.append(BarrierCheck())
    if "init" in checks:
        observers.append(InitCheck())
    if "race" in checks:
        observers.append(RaceDetector(unit_bytes(graph)))
    if "statistics" in checks:
        observers.append(StatisticsObserver(statistics))
    return _Observers(observers) if observers else None


class BarrierCheck:
    """Raises DeviceError for a block barrier after some threads of the block ended. GPUs allow it; no emitter intends it."""

    def access(self, access: Access) -> None:
        """Do nothing."""

    def step(self, lanes: Lanes, block: Block, decision: Array | None) -> None:
        """Do nothing."""

    def barrier(self, lanes: Lanes, scope: str, line: int) -> None:
        """Raise DeviceError if a thread of a block that meets here has ended."""
        chunk = lanes.chunk
        if scope != "block" or lanes.ids is None:
            return
        present = np.bincount(lanes.ids // chunk.threads, minlength=chunk.block_count)
        incomplete = np.flatnonzero((present > 0) & (present < chunk.threads))
        if incomplete.size:
            block = int(incomplete[0])
            everybody = np.arange(block * chunk.threads, (block + 1) * chunk.threads)
            ended = int(np.setdiff1d(everybody, lanes.ids)[0])
            here = int(np.searchsorted(lanes.ids, block * chunk.threads))
            note = f"{chunk.launch.describe(chunk.first_thread + ended)} has ended"
            chunk.launch.fail("not all threads of the block reach the barrier", line, lanes.describe(here), note)


class InitCheck:
    """Raises DeviceError for a load or atomic of bytes that were never written. Records the written bytes."""

    def barrier(self, lanes: Lanes, scope: str, line: int) -> None:
        """Do nothing."""

    def step(self, lanes: Lanes, block: Block, decision: Array | None) -> None:
        """Do nothing."""

    def access(self, access: Access) -> None:
        """Raise DeviceError if the access reads unwritten bytes of checked memory; mark the bytes that it writes."""
        region = access.region
        if region.written is None:
            if region.space not in ("shared", "local"):
                return
            region.written = np.zeros(region.data.size, np.bool_)
        size = min(access.size_bytes, 8)
        written = region.written.view(np.uint8)[: region.data.size // size * size].view(f"u{size}")
        for part in range(access.size_bytes // size):
            place = access.addresses // size + part
            if access.reads and (bad := written[place] != _ALL_WRITTEN[size]).any():
                _fail_unwritten(access, region, int(np.flatnonzero(bad)[0]))
            if access.kind != "load":
                written[place] = _ALL_WRITTEN[size]


def _fail_unwritten(access: Access, region: Region, lane: int) -> None:
    assert region.written is not None, "the written bytes of the region are recorded"
    address = int(access.addresses[lane])
    bytes_of_lane = region.written[address : address + access.size_bytes]
    offset = address + int(np.argmin(bytes_of_lane))
    offset = offset % region.copy_bytes if region.copy_bytes else offset - region.low
    message = f"uninitialised {region.space} {access.kind}: nothing has written byte {offset} of {region.name}"
    access.lanes.launch.fail(message, access.line, access.lanes.describe(lane))


class _Observers:
    """Several observers as one."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = tuple(observers)

    def access(self, access: Access) -> None:
        for observer in self._observers:
            observer.access(access)

    def barrier(self, lanes: Lanes, scope: str, line: int) -> None:
        for observer in self._observers:
            observer.barrier(lanes, scope, line)

    def step(self, lanes: Lanes, block: Block, decision: Array | None) -> None:
        for observer in self._observers:
            observer.step(lanes, block, decision)
