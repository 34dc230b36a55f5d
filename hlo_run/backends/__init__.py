"""What every device backend offers, and the table of backends by platform name; none is imported before it is chosen."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hlo_run.artifact import Executable
from hlo_run.backends.literals import Literal
from hlo_run.backends.profile import Profile
from hlo_run.hlo.feeds import NO_FEEDS, Feeds
from hlo_run.target import TargetSpec


class Backend(Protocol):
    """Runs executables. A backend keeps nothing from one run to the next but what makes the next run faster."""

    @property
    def name(self) -> str:
        """The platform's name, as `--platform` spells it."""
        ...

    @property
    def description(self) -> str:
        """One line on the device, for the line that says where a run took place."""
        ...

    @property
    def target(self) -> TargetSpec | None:
        """The device as a compile target; None if any target will do."""
        ...

    def run(self, executable: Executable, arguments: Sequence[Literal], seed: int = 42, feeds: Feeds = NO_FEEDS) -> Literal:
        """Run with one literal per entry parameter and return the result; `seed` is what `GetRngSeed` says.

        `feeds` is what infeeds take. Raises DeviceError.
        """
        ...

    @property
    def profile(self) -> Profile | None:
        """How long every thunk of all runs took, if that was asked for."""
        ...

    @property
    def outfeed(self) -> list[list[Literal]]:
        """What outfeeds gave in the last run, a list per device."""
        ...

    def run_devices(
        self,
        executable: Executable,
        arguments: Sequence[Sequence[Literal]],
        replicas: int,
        partitions: int,
        seed: int = 42,
        feeds: Feeds = NO_FEEDS,
    ) -> list[Literal]:
        """Run on replicas x partitions devices with a list of literals each; return their results, replica-major.

        Raises DeviceError, Unsupported on a platform that has one device only.
        """
        ...

    def report(self) -> str:
        """Return what there is to say about the last run besides its result; mostly nothing."""
        ...

    def launch_records(self) -> list[dict[str, Any]]:
        """Return what `report` says of each launch as records of plain values (docs/report.md)."""
        ...


BACKENDS: dict[str, str] = {
    "CUDA": "hlo_run.backends.cuda.backend:CudaBackend",
    "Host": "hlo_run.backends.host.backend:HostBackend",
}
"""Platform name to `module:class`. The Interpreter is not here: it runs the module, not the executable."""


def load_backend(platform: str) -> Callable[..., Backend]:
    """Import and return the backend class of `platform`, a key of `BACKENDS`."""
    module, attribute = BACKENDS[platform].split(":")
    return getattr(importlib.import_module(module), attribute)
