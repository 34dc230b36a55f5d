"""What the emulator can watch beside faults: races in shared memory, bank conflicts, coalescing."""

from __future__ import annotations

from dataclasses import dataclass

from hlo_run.backends.host.memory import AccessObserver

CHECKS = frozenset(("bounds", "align", "barrier", "race", "statistics"))


@dataclass(slots=True)
class KernelStatistics:
    kernel: str


def make_observer(checks: frozenset[str], statistics: KernelStatistics) -> AccessObserver | None:
    return None
