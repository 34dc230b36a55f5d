"""Compares values by the rules of a run: by the bounds, and by rounding where the flags allow it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from hlo_run.hlo.feeds import NO_FEEDS, Feeds
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.compare.compare import Comparison, ErrorSpec, compare
from hlo_run.reference.evaluate.alone import judge_alone
from hlo_run.reference.values import Value


class Verdicts(Struct, frozen=True):
    """The rules of a run. With `fixed_bounds`, the bounds of `spec` alone decide. `seed` is the module's.

    `in_tf32`: the device may multiply f32 in TF32.
    """

    spec: ErrorSpec
    fixed_bounds: bool
    seed: int = 42
    in_tf32: bool = False

    def bounds(self, expected: Value, actual: Value, shape: Shape) -> Comparison:
        """Compare by the bounds alone."""
        return compare(expected, actual, shape, self.spec)

    def of_module(
        self,
        module: HloModule,
        arguments: Sequence[Value],
        expected: Value,
        actual: Value,
        feeds: Feeds = NO_FEEDS,
        shape: Shape | None = None,
        part: Callable[[Value], Value] = lambda value: value,
    ) -> Comparison:
        """Compare results of `module` on `arguments`.

        `part` maps a result to what is compared, which has `shape` (None: that of the result).
        """
        shape = module.entry.root.shape if shape is None else shape
        if self.fixed_bounds:
            return self.bounds(expected, actual, shape)
        return judge_alone(module, arguments, expected, actual, self.spec, shape, part, self.seed, feeds, self.in_tf32)
