"""The Interpreter platform: the numpy reference as a platform of its own; it takes the module, not the executable."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.backends.literals import Literal
from hlo_run.hlo.feeds import NO_FEEDS, Feeds
from hlo_run.hlo.graph import HloModule
from hlo_run.reference.evaluate.devices import DeviceGrid
from hlo_run.reference.evaluate.evaluate import Reference


class InterpreterBackend:
    """Runs modules as they were written, no pass before and no kernel behind, on a grid of simulated devices."""

    name = "Interpreter"

    def __init__(self, grid: DeviceGrid | None = None) -> None:
        self._grid = grid or DeviceGrid()
        self.outfeed: list[list[Literal]] = []  # what outfeeds gave in the last run, a list per device

    @property
    def description(self) -> str:
        return "numpy" if self._grid.size == 1 else f"numpy, {self._grid}"

    def run_module(
        self,
        module: HloModule,
        arguments: Sequence[Literal],
        seed: int = 42,
        precision: str = "native",
        feeds: Feeds = NO_FEEDS,
    ) -> Literal:
        """Run with one literal per entry parameter and return the result; raises Unsupported.

        `seed` is the module's, `precision` and `feeds` as in `Reference`. Several devices: see `DeviceGrid`.
        """
        grid = self._grid
        reference = Reference(module, precision)
        results = reference.run(grid.split(arguments), grid.replicas, grid.partitions, seed, feeds)
        self.outfeed = reference.outfeed
        return grid.join(results)
