"""What the emulator tells those who watch a launch: accesses to memory, barriers, and which blocks of the program ran."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from hlo_run.backends.host.emulator.lanes import Lanes
    from hlo_run.backends.host.emulator.memory import Region
    from hlo_run.backends.host.ptx.control_flow import Block

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Access:
    """One instruction's access to a region by a group of lanes, within bounds; observers are told before it happens.

    `addresses` are flat, one per lane, offsets into the region's data. `kind` is load, store or atomic. `reads` says that the
    value before matters: not where an atomic sets single bits. `strong` accesses (atomics, and those that the PTX orders:
    relaxed, acquire, ..) may meet those of other threads. `values` are what a store writes, a row per lane and a column
    per item.
    """

    lanes: Lanes
    region: Region
    addresses: NDArray[np.int64]
    size_bytes: int
    kind: str
    line: int
    reads: bool
    strong: bool = False
    values: Array | None = None


class Observer(Protocol):
    """Is told what the threads of a launch do."""

    def access(self, access: Access) -> None:
        """An instruction is about to access memory."""
        ...

    def barrier(self, lanes: Lanes, scope: str, line: int) -> None:
        """All living threads of the blocks (or of the warps: `scope` says which) of `lanes` have met."""
        ...

    def step(self, lanes: Lanes, block: Block, decision: Array | None) -> None:
        """A basic block has run; `decision`, one value per lane or fewer, is what its branch decides by."""
        ...


class Observers:
    """Several as one."""

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
