"""Run an executable on one device or on a grid of replicas x partitions."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.artifact import Executable
from hlo_run.backends import Backend
from hlo_run.backends.literals import Literal
from hlo_run.backends.tiles import join_results, split_arguments
from hlo_run.hlo.feeds import NO_FEEDS, Feeds, of_replicas
from hlo_run.reference.evaluate.devices import DeviceGrid


def run_on_grid(
    backend: Backend,
    executable: Executable,
    arguments: Sequence[Literal],
    grid: DeviceGrid,
    seed: int = 42,
    feeds: Feeds = NO_FEEDS,
) -> Literal:
    """Run with the arguments of all devices in one list and return their results together, in `DeviceGrid`'s order.

    Partitions of a module that was divided between them get their tiles of the whole arguments and infeeds, and their results are
    joined.
    Raises DeviceError, and Unsupported on a platform that has one device only.
    """
    if grid.size == 1:
        return backend.run(executable, arguments, seed, feeds)
    of_devices = grid.split(arguments)
    if executable.divided is not None:
        of_devices = split_arguments(executable.divided, of_devices, grid.partitions)
        feeds = of_replicas(feeds, grid.partitions)
    results = backend.run_devices(executable, of_devices, grid.replicas, grid.partitions, seed, feeds)
    if executable.divided is not None:
        results = join_results(executable.divided, results, grid.partitions)
    return grid.join(results)
