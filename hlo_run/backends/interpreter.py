"""The Interpreter platform: run the module, not the executable, on the numpy reference."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.backends.literals import Literal
from hlo_run.backends.tiles import join_results, split_arguments
from hlo_run.hlo.feeds import NO_FEEDS, Feeds, of_replicas
from hlo_run.hlo.graph import HloModule
from hlo_run.reference.evaluate.devices import DeviceGrid, is_unpartitioned
from hlo_run.reference.evaluate.evaluate import Reference
from hlo_run.reference.evaluate.observed import Observer
from hlo_run.reference.numerics.precision import widen_module


class InterpreterBackend:
    """Runs unoptimised modules with the numpy reference, on a grid of simulated devices."""

    name = "Interpreter"

    def __init__(self, grid: DeviceGrid | None = None) -> None:
        self._grid = grid or DeviceGrid()
        self.in_tf32 = False  # random roundings are as large as on devices that multiply f32 in TF32
        # The last module that was evaluated in float64, its version, and its widened copy.
        self._widened: tuple[HloModule, int, HloModule] | None = None
        # By precision, the last module that was evaluated without roundings and observer, its version, and its evaluation.
        self._plain: dict[str, tuple[HloModule, int, Reference]] = {}
        self.outfeed: list[list[Literal]] = []  # the literals that outfeeds produced in the last run, one list per device

    @property
    def description(self) -> str:
        """The name of the reference, and the device grid if it has several devices."""
        return "numpy" if self._grid.size == 1 else f"numpy, {self._grid}"

    def run_module(
        self,
        module: HloModule,
        arguments: Sequence[Literal],
        seed: int = 42,
        precision: str = "native",
        feeds: Feeds = NO_FEEDS,
        roundings: int | None = None,
        observe: Observer | None = None,
    ) -> Literal:
        """Run with one literal per entry parameter and return the result; raises Unsupported.

        `seed` is the value of `GetRngSeed`. `precision`, `feeds`, `roundings` and `observe` have the meaning that `Reference`
        gives them.
        `DeviceGrid` describes the order of arguments and results for several devices. They are whole arrays, also those of a
        module that is divided between its partitions.
        """
        grid = self._grid
        reference = self._reference(module, precision, roundings, observe)
        of_devices = grid.split(arguments)
        if module.divided is not None:
            of_devices = split_arguments(module.divided, of_devices, grid.partitions)
        if module.divided is not None or is_unpartitioned(module):
            feeds = of_replicas(feeds, grid.partitions)
        results = reference.run(of_devices, grid.replicas, grid.partitions, seed, feeds)
        if module.divided is not None:
            results = join_results(module.divided, results, grid.partitions)
        self.outfeed = reference.outfeed
        return grid.join(results)

    def _reference(self, module: HloModule, precision: str, roundings: int | None, observe: Observer | None) -> Reference:
        """Return what evaluates the module. A run asks for many evaluations, which share the checks and the plan of one."""
        is_plain = roundings is None and observe is None
        known = self._plain.get(precision) if is_plain else None
        if known is not None and known[0] is module and known[1] == module.version:
            return known[2]
        widened = self._widened_module(module) if precision == "f64" else None
        reference = Reference(module, precision, roundings, self.in_tf32, observe, widened=widened)
        if is_plain:
            self._plain[precision] = module, module.version, reference
        return reference

    def _widened_module(self, module: HloModule) -> HloModule:
        """Return the module widened to float64, made once: a run asks for several evaluations."""
        known = self._widened
        if known is None or known[0] is not module or known[1] != module.version:
            known = self._widened = module, module.version, widen_module(module)
        return known[2]
