"""The patience of devices that wait for others: the error for devices that never arrive."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from hlo_run.backends.exchange.team import Wait
from hlo_run.errors import DeviceError, HloRunError

if TYPE_CHECKING:
    from hlo_run.backends.exchange.link import ProcessLink
    from hlo_run.processes.partners import Partners

DEFAULT_SECONDS = 30
"""The default of `--xla_gpu_executable_terminate_timeout_seconds`."""
_FLAG = "--xla_gpu_executable_terminate_timeout_seconds"


class Patience(Struct, frozen=True):
    """Judges the waits of a team, whose `watch` it is. `limit_seconds` is the longest wait (0 or less: no limit).

    At the default the time in which a device that is waited for computes does not count, since simulated devices are slow. With
    any other limit all time counts. `partners` and `link` lead to the devices of other processes.
    """

    limit_seconds: float
    partners: Partners | None = None
    link: ProcessLink | None = None

    @property
    def is_needed(self) -> bool:
        """True if a wait may be too long. Otherwise the team itself finds every deadlock."""
        return self.partners is not None or (self.limit_seconds > 0 and self.limit_seconds != DEFAULT_SECONDS)

    def __call__(self, waits: dict[int, Wait], turn: int) -> HloRunError | None:
        """Return why no device should go on. `turn` is the device of this process that works (-1: none)."""
        now = time.monotonic()
        if self.partners is not None and self.link is not None:
            for process in self.partners.others:
                problem = self.partners.problem(process)
                if problem is not None:
                    number = self.partners.culprit if self.partners.culprit >= 0 else process
                    problem.notes += (f"process {number} has {self.link.devices_of(number)}",)
                    return problem
        for device, wait in sorted(waits.items()):
            missing = wait.missing()
            waited = now - self._since(wait, missing, turn, now)
            if 0 < self.limit_seconds < waited:
                others = ", ".join(map(str, missing))
                message = f"device {device} waits for device {others}, which did not arrive within {self.limit_seconds:g} s"
                return DeviceError(message, hint=f"{_FLAG} sets the time")
        return None

    def _since(self, wait: Wait, missing: Sequence[int], turn: int, now: float) -> float:
        if self.limit_seconds != DEFAULT_SECONDS:
            return wait.began
        if turn in missing or (turn >= 0 and any(self._process_of(each) < 0 for each in missing)):
            return now
        assert self.partners is not None, "only other processes have devices that neither compute nor wait here"
        return max([wait.began, *map(self.partners.computed, self._processes(missing))])

    def _processes(self, devices: Sequence[int]) -> list[int]:
        """Return the other processes that have one of these devices."""
        return sorted({self._process_of(device) for device in devices} - {-1})

    def _process_of(self, device: int) -> int:
        """Return the other process that has a device; -1: this one has it."""
        return -1 if self.link is None or self.link.owns(device) else self.link.process_of(device)
