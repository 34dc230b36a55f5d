"""What the emulator can watch beside faults: races in shared memory, bank conflicts, coalescing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlo_run.backends.host.lanes import Chunk, Lanes
from hlo_run.backends.host.memory import AccessObserver, Offsets, Region
from hlo_run.target import WARP_THREADS

ALWAYS_ON = frozenset(("bounds", "align", "barrier"))
"""What is checked whether it is named or not, by both engines."""
CHECKS = ALWAYS_ON | {"race", "statistics"}
"""What `--host_check` may name."""

_BANKS = 32
_BANK_BYTES = 4
_SECTOR_BYTES = 32
_NOBODY = -1
_SEVERAL = -2


@dataclass(slots=True)
class AccessStatistics:
    """The accesses of one kind at one PTX line, in requests of one warp each.

    `transactions` are what the requests cost: for shared memory passes over the banks, for global memory sectors of 32
    bytes. `ideal` is the least that the same bytes can cost, `worst` the most that one request did cost.
    """

    line: int
    space: str
    kind: str
    size_bytes: int
    requests: int = 0
    transactions: int = 0
    ideal: int = 0
    worst: int = 0

    @property
    def extra(self) -> int:
        """Transactions beyond the ideal: bank conflicts, or sectors fetched in vain."""
        return self.transactions - self.ideal


@dataclass(slots=True)
class KernelStatistics:
    """Memory accesses of one launch, by PTX line."""

    kernel: str
    accesses: dict[tuple[int, str], AccessStatistics] = field(default_factory=dict[tuple[int, str], AccessStatistics])

    def of(self, space: str, *kinds: str) -> list[AccessStatistics]:
        """Return the accesses to `space` (global or shared), of `kinds` (load, store, atomic) or of all, by line."""
        chosen = (item for item in self.accesses.values() if item.space == space and (not kinds or item.kind in kinds))
        return sorted(chosen, key=lambda item: (item.line, item.kind))

    @property
    def bank_conflicts(self) -> int:
        """Passes over the banks of shared memory that a layout without conflicts would save."""
        return sum(item.extra for item in self.of("shared"))

    def __str__(self) -> str:
        requests = sum(item.requests for item in self.of("global"))
        sectors = sum(item.transactions for item in self.of("global"))
        return (
            f"{self.kernel}: {requests} global requests of a warp, {sectors} sectors of 32 bytes, {self.wasted_sectors} of them "
            f"in vain; {self.bank_conflicts} shared-memory bank conflicts"
        )

    @property
    def wasted_sectors(self) -> int:
        """Sectors of global memory that fully coalesced accesses would save."""
        return sum(item.extra for item in self.of("global"))


def make_observer(checks: frozenset[str], statistics: KernelStatistics) -> AccessObserver | None:
    """Return what watches the accesses that `checks` ask for, or None; `statistics` is filled if they are asked for."""
    observers: list[AccessObserver] = []
    if "race" in checks:
        observers.append(RaceDetector())
    if "statistics" in checks:
        observers.append(_Counter(statistics))
    return _Observers(observers) if observers else None


class _Observers:
    def __init__(self, observers: list[AccessObserver]) -> None:
        self._observers = observers

    def access(
        self,
        lanes: Lanes,
        region: Region,
        addresses: Offsets,
        size_bytes: int,
        kind: str,
        line: int,
        values: NDArray[Any] | None,
    ) -> None:
        for observer in self._observers:
            observer.access(lanes, region, addresses, size_bytes, kind, line, values)

    def barrier(self, lanes: Lanes, scope: str) -> None:
        for observer in self._observers:
            observer.barrier(lanes, scope)


# ---- races ----------------------------------------------------------------------------------------------------------


class _Shadow:
    """Who wrote and who read each byte of a chunk's shared memory last, and in which epoch.

    A block's epoch grows at each of its barriers, a warp's at each `bar.warp.sync`. Accesses race if they are in the same
    epoch of the block and not ordered by their warp's.
    """

    def __init__(self, chunk: Chunk) -> None:
        size = chunk.shared.data.size
        self.chunk = chunk
        self.block_epoch = np.zeros(chunk.block_count, np.int64)
        self.warp_epoch = np.zeros(int(Lanes(chunk).warps[-1]) + 1, np.int64)
        self.writer = _Access(size)
        self.reader = _Access(size)


class _Access:
    """The last access of one kind to each byte: lane (or several), its warp, the epochs, the PTX line."""

    def __init__(self, size: int) -> None:
        self.lane = np.full(size, _NOBODY, np.int64)
        self.warp = np.full(size, _NOBODY, np.int64)
        self.block_epoch = np.full(size, -1, np.int64)
        self.warp_epoch = np.zeros(size, np.int64)
        self.line = np.zeros(size, np.int64)
        self.atomic = np.zeros(size, np.bool_)


@dataclass(slots=True)
class _Event:
    """One instruction's access, a row per byte and lane."""

    place: Offsets
    lane: Offsets
    warp: Offsets
    block_epoch: Offsets
    warp_epoch: Offsets
    line: int
    atomic: bool


class RaceDetector:
    """Raises a DeviceError for two accesses to a byte of shared memory, one a write, that no barrier separates.

    Two lanes that write the same value with one instruction do not count, nor do atomics among themselves.
    """

    def __init__(self) -> None:
        self._shadow: _Shadow | None = None

    def access(
        self,
        lanes: Lanes,
        region: Region,
        addresses: Offsets,
        size_bytes: int,
        kind: str,
        line: int,
        values: NDArray[Any] | None,
    ) -> None:
        if region.space != "shared":
            return
        shadow = self._shadow
        if shadow is None or shadow.chunk is not lanes.chunk:
            shadow = self._shadow = _Shadow(lanes.chunk)
        event = _event(shadow, lanes, addresses, size_bytes, line, kind == "atomic")
        if kind != "load":
            self._against(shadow, event, shadow.reader, lanes, kind, "read")
        self._against(shadow, event, shadow.writer, lanes, kind, "write")
        if kind == "load":
            _record_reads(shadow.reader, event)
            return
        if kind == "store":
            _check_same_instruction(lanes, addresses, values, line)
        _record(shadow.writer, event)

    def barrier(self, lanes: Lanes, scope: str) -> None:
        shadow = self._shadow
        if shadow is None or shadow.chunk is not lanes.chunk:
            return
        if scope == "block":
            shadow.block_epoch[np.unique(lanes.rows)] += 1
        else:
            shadow.warp_epoch[np.unique(lanes.warps)] += 1

    def _against(self, shadow: _Shadow, event: _Event, other: _Access, lanes: Lanes, kind: str, other_kind: str) -> None:
        """Raise if `event` races with the last access of the other kind."""
        place = event.place
        same_epoch = other.block_epoch[place] == event.block_epoch
        if not same_epoch.any():
            return
        ordered = (other.warp[place] == event.warp) & (other.warp_epoch[place] < event.warp_epoch)
        racing = same_epoch & (other.lane[place] != event.lane) & ~ordered & ~(other.atomic[place] & event.atomic)
        if not racing.any():
            return
        index = int(np.flatnonzero(racing)[0])
        lane = index * lanes.count // place.size
        offset = int(place[index]) % shadow.chunk.shared.copy_bytes
        first = int(other.lane[place[index]])
        who = "several threads" if first == _SEVERAL else Lanes(shadow.chunk).describe(first)
        message = f"race in shared memory: {kind} of byte {offset} without a barrier after a {other_kind}"
        note = f"the {other_kind} was at PTX line {int(other.line[place[index]])}, {who}"
        shadow.chunk.launch.fail(message, event.line, lanes.describe(lane), note)


def _event(shadow: _Shadow, lanes: Lanes, addresses: Offsets, size_bytes: int, line: int, atomic: bool) -> _Event:
    place = (addresses[:, None] + np.arange(size_bytes)).reshape(-1)
    lane = np.repeat(lanes.flat_ids, size_bytes)
    warp = np.repeat(lanes.warps, size_bytes)
    block_epoch = shadow.block_epoch[np.repeat(lanes.flat(lanes.rows), size_bytes)]
    return _Event(place, lane, warp, block_epoch, shadow.warp_epoch[warp], line, atomic)


def _record(access: _Access, event: _Event) -> None:
    place = event.place
    access.lane[place] = event.lane
    access.warp[place] = event.warp
    access.block_epoch[place] = event.block_epoch
    access.warp_epoch[place] = event.warp_epoch
    access.line[place] = event.line
    access.atomic[place] = event.atomic


def _record_reads(access: _Access, event: _Event) -> None:
    """Remember reads; bytes that several lanes read in one epoch are read by several (warps)."""
    place = event.place
    again = access.block_epoch[place] == event.block_epoch
    others = again & (access.lane[place] != event.lane)
    other_warps = again & (access.warp[place] != event.warp)
    _record(access, event)
    others |= access.lane[place] != event.lane
    other_warps |= access.warp[place] != event.warp
    access.lane[place[others]] = _SEVERAL
    access.warp[place[other_warps]] = _SEVERAL


def _check_same_instruction(lanes: Lanes, addresses: Offsets, values: NDArray[Any] | None, line: int) -> None:
    """Raise if lanes of one store write different values to one place; which one stays is not defined."""
    order = np.argsort(addresses, kind="stable")
    same = addresses[order][1:] == addresses[order][:-1]
    if values is not None:
        same &= (values[order][1:] != values[order][:-1]).any(axis=1)
    if same.any():
        index = int(order[1:][same][0])
        message = "race in shared memory: threads write different values to one place with one instruction"
        lanes.launch.fail(message, line, lanes.describe(index))


# ---- statistics -----------------------------------------------------------------------------------------------------


class _Counter:
    def __init__(self, statistics: KernelStatistics) -> None:
        self._statistics = statistics

    def access(
        self,
        lanes: Lanes,
        region: Region,
        addresses: Offsets,
        size_bytes: int,
        kind: str,
        line: int,
        values: NDArray[Any] | None,
    ) -> None:
        del values
        if region.space not in ("shared", "global"):
            return
        count = _bank_passes if region.space == "shared" else _sectors
        cost, ideal = count(lanes, addresses, size_bytes)
        key = (line, kind)
        item = self._statistics.accesses.get(key)
        if item is None:
            item = self._statistics.accesses[key] = AccessStatistics(line, region.space, kind, size_bytes)
        item.requests += cost.size
        item.transactions += int(cost.sum())
        item.ideal += int(ideal.sum())
        item.worst = max(item.worst, int(cost.max()))

    def barrier(self, lanes: Lanes, scope: str) -> None:
        del lanes, scope


def _sectors(lanes: Lanes, addresses: Offsets, size_bytes: int) -> tuple[Offsets, Offsets]:
    """Return, per warp, the 32-byte sectors its lanes touch, and how many their distinct bytes need at least."""
    request = _numbered(lanes.warps)
    cost = np.bincount(_distinct(request, addresses // _SECTOR_BYTES)[0])
    items = np.bincount(_distinct(request, addresses)[0])
    return cost, -(-items * size_bytes // _SECTOR_BYTES)


def _bank_passes(lanes: Lanes, addresses: Offsets, size_bytes: int) -> tuple[Offsets, Offsets]:
    """Return, per warp, the passes over the banks, and the least number for accesses of this width.

    Lanes that read one word share it. Accesses of 8 and 16 bytes go half-warp by half-warp, quarter by quarter.
    """
    request = _numbered(lanes.warps)
    words = max(1, size_bytes // _BANK_BYTES)
    lane = lanes.flat(lanes.threads) % WARP_THREADS
    phase = request * words + lane * words // WARP_THREADS
    word = (addresses[:, None] // _BANK_BYTES + np.arange(words)).reshape(-1)
    in_phase, distinct_word = _distinct(np.repeat(phase, words), word)
    phases = int(phase.max()) + 1
    bank_use = np.bincount(in_phase * _BANKS + distinct_word % _BANKS, minlength=phases * _BANKS)
    per_phase = bank_use.reshape(phases, _BANKS).max(axis=1)
    used = np.unique(phase)
    cost = np.bincount(used // words, weights=per_phase[used]).astype(np.int64)
    return cost, np.bincount(used // words)


def _distinct(group: Offsets, value: Offsets) -> tuple[Offsets, Offsets]:
    """Return the distinct pairs of a group and a value (not negative)."""
    span = int(value.max()) + 1
    pairs = np.unique(group * span + value)
    return pairs // span, pairs % span


def _numbered(warps: Offsets) -> Offsets:
    """Number the ascending warps that occur from 0."""
    changes = np.ones(warps.size, np.bool_)
    changes[1:] = warps[1:] != warps[:-1]
    return np.cumsum(changes) - 1
