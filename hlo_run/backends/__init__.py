"""Define the interface of device backends and the table of backends by platform name. Backends are imported on demand."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from hlo_run.hlo.feeds import NO_FEEDS, Feeds
from hlo_run.target import TargetSpec

if TYPE_CHECKING:
    from hlo_run.artifact import Executable
    from hlo_run.backends.literals import Literal
    from hlo_run.backends.profile import Profile
    from hlo_run.backends.run_watch import RunWatch


class Backend(Protocol):
    """Runs executables. Between runs a backend keeps only caches, such as loaded kernels."""

    @property
    def name(self) -> str:
        """The platform's name, as `--platform` spells it."""
        ...

    @property
    def description(self) -> str:
        """Describe the device in one line; the command prints it."""
        ...

    @property
    def target(self) -> TargetSpec | None:
        """The device as a compile target; None if the backend runs code for any target."""
        ...

    def run(self, executable: Executable, arguments: Sequence[Literal], seed: int = 42, feeds: Feeds = NO_FEEDS) -> Literal:
        """Run with one literal per entry parameter and return the result.

        `seed` is the value of `GetRngSeed`; infeeds read from `feeds`. Raises DeviceError.
        """
        ...

    @property
    def profile(self) -> Profile | None:
        """The times of every thunk over all runs; None unless profiling is on."""
        ...

    @property
    def outfeed(self) -> list[list[Literal]]:
        """The literals that outfeeds produced in the last run, one list per device."""
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
        """Run on replicas x partitions devices, with one list of arguments per device. Return their results, replica-major.

        Raises DeviceError, and Unsupported on a platform that has one device only.
        """
        ...

    def watch_next_run(self, watch: RunWatch) -> None:
        """Call `watch` around the thunks in the next run of this process, on several devices its `on_device`."""
        ...

    def run_aside(self, executable: Executable, arguments: Sequence[Literal], seed: int = 42) -> Literal:
        """Run another executable on its own memory, perhaps in the middle of a run. Raises as `run` does."""
        ...

    def report(self) -> str:
        """Return remarks on the last run besides its result; usually empty."""
        ...

    def launch_records(self) -> list[dict[str, object]]:
        """Return one record of plain values per launch, with the facts that `report` gives as text (docs/report.md)."""
        ...


BACKENDS: dict[str, str] = {
    "CUDA": "hlo_run.backends.cuda.backend:CudaBackend",
    "Host": "hlo_run.backends.host.backend:HostBackend",
}
"""Platform name to `module:class`. The Interpreter is missing here because it runs the module, not the executable."""


def load_backend(platform: str) -> Callable[..., Backend]:
    """Import and return the backend class of `platform`, a key of `BACKENDS`."""
    module, attribute = BACKENDS[platform].split(":")
    return getattr(importlib.import_module(module), attribute)
