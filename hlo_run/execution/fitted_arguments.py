"""Draw arguments, evaluate the module on them, and draw again with other ranges while values tell little."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from msgspec import Struct

from hlo_run.analysis.loop_counter import find_trip_count
from hlo_run.backends.interpreter import InterpreterBackend
from hlo_run.errors import DeviceError, Unsupported
from hlo_run.hlo.feeds import Feeds
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.literal import Literal
from hlo_run.reference.arguments.choices import Choices
from hlo_run.reference.arguments.observations import Observations
from hlo_run.reference.arguments.recipes import improved, is_relevant
from hlo_run.reference.evaluate.devices import DeviceGrid
from hlo_run.reference.evaluate.loop_limit import EndlessLoop, loops_end_within

# The third evaluation shows whether the second choice was right.
_MOST_EVALUATIONS = 3
# An evaluation ends if loops without a known number of iterations need longer.
_LOOP_SECONDS = 2.0


class Evaluated(Struct, frozen=True):
    """The values that the reference computed for some arguments, kept for later: the result, and the values of outfeeds."""

    arguments: Sequence[Literal]
    seed: int
    result: Literal
    outfeed: list[list[Literal]]
    seconds: float


class Fitter:
    """Evaluates a module, on a grid of devices with the module's seed, to choose ranges of floats."""

    def __init__(self, module: HloModule, grid: DeviceGrid) -> None:
        self._module, self._grid = module, grid
        loops = module.instructions_of("while")
        self._may_be_endless = any(find_trip_count(loop) is None for loop in loops)

    def fitted(
        self, make: Callable[[], list[Literal]], choices: Choices, seed: int, feeds: Feeds
    ) -> tuple[list[Literal], Evaluated | None]:
        """Return arguments that `make` makes with the recipes of `choices`, which change, and their evaluation.

        `make` must return the same for the same recipes. The evaluation is None if the reference cannot evaluate the module, or
        if a loop goes on.
        """
        best: tuple[int, list[Literal], Evaluated] | None = None
        recipes = chosen = choices.recipes
        for _ in range(_MOST_EVALUATIONS):
            choices.recipes = recipes
            arguments = make()
            observations = Observations()
            done = self._evaluated(arguments, seed, feeds, observations)
            if done is None:
                return arguments, None
            wants = [want for found in observations.found.values() for want in found if is_relevant(want)]
            if best is None or len(wants) < best[0]:
                best, chosen = (len(wants), arguments, done), recipes
            recipes = improved(choices.recipes, wants)
            if not wants or recipes == choices.recipes:
                break
        choices.recipes = chosen
        assert best is not None, "at least one evaluation"
        return best[1], best[2]

    def _evaluated(self, arguments: Sequence[Literal], seed: int, feeds: Feeds, observations: Observations) -> Evaluated | None:
        interpreter = InterpreterBackend(self._grid)
        begin = time.perf_counter()
        try:
            with loops_end_within(_LOOP_SECONDS) if self._may_be_endless else nullcontext():
                result = interpreter.run_module(self._module, arguments, seed, "native", feeds, None, observations)
        except (EndlessLoop, Unsupported, DeviceError, MemoryError):
            return None
        return Evaluated(arguments, seed, result, interpreter.outfeed, time.perf_counter() - begin)
