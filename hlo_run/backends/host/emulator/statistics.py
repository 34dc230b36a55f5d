"""Statistics of a launch: global memory sectors, shared memory bank conflicts, divergence, instructions by kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import assert_never

import numpy as np
from msgspec import Struct, field
from msgspec.structs import asdict
from numpy.typing import NDArray

from hlo_run.arrays import Array
from hlo_run.backends.host.emulator.lanes import Access, Lanes, changes, distinct
from hlo_run.backends.host.ptx.control_flow import Block, Branch, Exit, Invoke, Jump, Return, Switch
from hlo_run.backends.host.ptx.instruction_set import Operation
from hlo_run.backends.host.ptx.specs import Load, Store, Update
from hlo_run.target import WARP_THREADS

Offsets = NDArray[np.int64]

_BANKS = 32
_BANK_BYTES = 4
_SECTOR_BYTES = 32
_KINDS: Mapping[str, str] = {
    **dict.fromkeys(("bar", "barrier", "membar", "fence"), "barrier"),
    **dict.fromkeys(("shfl", "vote", "match", "redux", "elect", "activemask"), "warp"),
    **dict.fromkeys(("rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh"), "special"),
    **dict.fromkeys(("setp", "set", "selp", "slct", "testp"), "compare"),
    **dict.fromkeys(("mov", "cvta", "isspacep", "prmt"), "move"),
    **dict.fromkeys(("atom", "red"), "atomic"),
    "cvt": "convert",
}
_FLOATS: Mapping[str, str] = {
    **dict.fromkeys(("f16", "f16x2", "bf16", "bf16x2"), "f16"),
    **dict.fromkeys(("f32", "f32x2"), "f32"),
    "f64": "f64",
}
_MEMORY = {"ld": "load", "ldu": "load", "st": "store"}


class AccessStatistics(Struct):
    """The accesses of one kind at one PTX line. A request is one warp's access.

    `transactions` are passes over the banks for shared memory, and 32-byte sectors for global memory. `ideal` is the least number
    for the same bytes, `worst` the most for one request.
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
        """Transactions beyond the ideal: bank conflicts or wasted sectors."""
        return self.transactions - self.ideal


class KernelStatistics(Struct):
    """One launch: its memory accesses by PTX line, its instructions by kind, its branches.

    `thread_instructions` counts an instruction once per executing thread, `warp_instructions` once per warp with such a thread.
    `branches` counts the conditional branches of warps, `divergent` those at which the threads of a warp diverge.
    """

    kernel: str
    accesses: dict[tuple[int, str], AccessStatistics] = field(default_factory=dict[tuple[int, str], AccessStatistics])
    thread_instructions: Counter[str] = field(default_factory=Counter[str])
    warp_instructions: int = 0
    branches: int = 0
    divergent: int = 0

    def of(self, space: str, *kinds: str) -> list[AccessStatistics]:
        """Return the accesses to `space` (global or shared), by line. `kinds` (load, store, atomic) is a filter; () means all."""
        chosen = (item for item in self.accesses.values() if item.space == space and (not kinds or item.kind in kinds))
        return sorted(chosen, key=lambda item: (item.line, item.kind))

    @property
    def bank_conflicts(self) -> int:
        """Passes over the banks of shared memory that a conflict-free layout would save."""
        return sum(item.extra for item in self.of("shared"))

    @property
    def wasted_sectors(self) -> int:
        """Sectors of global memory that fully coalesced accesses would save."""
        return sum(item.extra for item in self.of("global"))

    @property
    def active_lanes(self) -> float:
        """The average number of threads of a warp that execute an instruction, at most 32."""
        return self.thread_instructions.total() / self.warp_instructions if self.warp_instructions else 0.0

    def record(self) -> dict[str, object]:
        """Return all statistics as plain values. They are equal for every run of the same launch."""
        spaces = {space: self.of(space) for space in ("global", "shared")}
        totals = {
            space: {name: sum(getattr(item, name) for item in items) for name in ("requests", "transactions", "ideal")}
            for space, items in spaces.items()
        }
        return {
            "kernel": self.kernel,
            **totals,
            "branches": self.branches,
            "divergent": self.divergent,
            "warp_instructions": self.warp_instructions,
            "active_lanes": self.active_lanes,
            "thread_instructions": [{"kind": kind, "count": count} for kind, count in _by_count(self.thread_instructions)],
            "accesses": [asdict(item) for items in spaces.values() for item in items],
        }

    def __str__(self) -> str:
        shared = self.of("shared")
        lines = [
            f"{self.kernel}: {_requests(self.of('global'), 'global', 'sectors')}, {self.wasted_sectors} of them wasted",
            f"  {_requests(shared, 'shared', 'passes')}, {self.bank_conflicts} bank conflicts" if shared else "",
            f"  {self.branches} branches of a warp, {self.divergent} divergent; {self.active_lanes:.1f} of 32 lanes active",
            f"  {self.thread_instructions.total()} thread-instructions: "
            + ", ".join(f"{kind} {count}" for kind, count in _by_count(self.thread_instructions)),
        ]
        return "\n".join(line for line in lines if line)


def _requests(items: list[AccessStatistics], space: str, unit: str) -> str:
    requests, transactions = sum(item.requests for item in items), sum(item.transactions for item in items)
    average = f" ({transactions / requests:.2f} a request)" if requests else ""
    return f"{requests} {space} requests of a warp, {transactions} {unit}{average}"


def _by_count(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


class StatisticsObserver:
    """Fills the statistics of one launch."""

    def __init__(self, statistics: KernelStatistics) -> None:
        self._statistics = statistics
        self._kinds: dict[int, Counter[str]] = {}

    def access(self, access: Access) -> None:
        """Count an access to global or shared memory."""
        space = access.region.space
        if space not in ("shared", "global"):
            return
        cost, ideal = (_bank_passes if space == "shared" else _sectors)(access.lanes, access.addresses, access.size_bytes)
        key = (access.line, access.kind)
        item = self._statistics.accesses.get(key)
        if item is None:
            item = AccessStatistics(access.line, space, access.kind, access.size_bytes)
            self._statistics.accesses[key] = item
        item.requests += cost.size
        item.transactions += int(cost.sum())
        item.ideal += int(ideal.sum())
        item.worst = max(item.worst, int(cost.max()))

    def barrier(self, lanes: Lanes, scope: str, line: int) -> None:
        """Count nothing."""
        del lanes, scope, line

    def step(self, lanes: Lanes, block: Block, decision: Array | None) -> None:
        """Count the instructions of a block, and whether its branch diverged."""
        statistics = self._statistics
        kinds = self._kinds.get(block.index)
        if kinds is None:
            kinds = self._kinds[block.index] = _instructions(block)
        warps = _numbered(lanes.warps)
        warp_count = int(warps[-1]) + 1
        for kind, count in kinds.items():
            statistics.thread_instructions[kind] += count * lanes.count
        statistics.warp_instructions += kinds.total() * warp_count
        if decision is not None and not (isinstance(block.terminator, Branch) and block.terminator.guards):
            statistics.branches += warp_count
            statistics.divergent += _divergent(warps, lanes.flat(decision))


def _instructions(block: Block) -> Counter[str]:
    """Return the instructions of a block by kind, including its final jump."""
    kinds = Counter(map(_kind, block.operations))
    match block.terminator:
        case Branch(guards=False) | Switch():
            kinds["branch"] += 1
        case Jump(target) if target != block.index + 1:
            kinds["branch"] += 1
        case Exit() | Invoke() | Return():
            kinds["branch"] += 1
        case Branch() | Jump():
            pass  # A guarded instruction and a fall-through do not jump.
        case _:
            assert_never(block.terminator)
    return kinds


def _kind(operation: Operation) -> str:
    opcode = operation.opcode
    if what := _MEMORY.get(opcode):
        space = operation.spec.space if isinstance(operation.spec, Load | Store | Update) else ""
        return "parameter" if space == "param" else f"{space if space in ('shared', 'local') else 'global'} {what}"
    if kind := _KINDS.get(opcode):
        return kind
    return next((_FLOATS[name] for name in operation.types if name in _FLOATS), "integer")


def _divergent(warps: Offsets, decision: Array) -> int:
    """Return the number of warps whose lanes decide differently. Warps are numbered from 0, ascending."""
    starts = np.flatnonzero(np.diff(warps, prepend=-1))
    return int(np.count_nonzero(np.minimum.reduceat(decision, starts) != np.maximum.reduceat(decision, starts)))


def _sectors(lanes: Lanes, addresses: Offsets, size_bytes: int) -> tuple[Offsets, Offsets]:
    """Return, per warp, the number of touched 32-byte sectors, and the least number for the distinct bytes."""
    request = _numbered(lanes.warps)
    cost = np.bincount(_distinct(request, addresses // _SECTOR_BYTES)[0])
    items = np.bincount(_distinct(request, addresses)[0])
    return cost, -(-items * size_bytes // _SECTOR_BYTES)


def _bank_passes(lanes: Lanes, addresses: Offsets, size_bytes: int) -> tuple[Offsets, Offsets]:
    """Return, per warp, the passes over the banks, and the least number for accesses of this width.

    Lanes that access the same word share it. Accesses of 8 bytes take one pass per half-warp, of 16 bytes one per quarter-warp.
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
    used = distinct(phase)
    cost = np.bincount(used // words, weights=per_phase[used]).astype(np.int64)
    return cost, np.bincount(used // words)


def _distinct(group: Offsets, value: Offsets) -> tuple[Offsets, Offsets]:
    """Return the distinct (group, value) pairs. Values are not negative."""
    span = int(value.max()) + 1
    pairs = distinct(group * span + value)
    return pairs // span, pairs % span


def _numbered(warps: Offsets) -> Offsets:
    """Renumber the ascending warps from 0 without gaps."""
    return np.cumsum(changes(warps)) - 1
