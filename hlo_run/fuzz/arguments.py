"""Makes the arguments of modules to check: in the ranges that the generator predicts with, or random ones for any module."""

from __future__ import annotations

import numpy as np

from hlo_run.arrays import Array
from hlo_run.execution.arguments import MODULE_SEED
from hlo_run.execution.fitted_arguments import Fitter
from hlo_run.fuzz.families.effects import FED
from hlo_run.fuzz.generate import RandomModule
from hlo_run.fuzz.program.values import TYPES, Range, Value
from hlo_run.hlo.feeds import Feed, Feeds
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.literal import Literal
from hlo_run.reference.arguments.choices import Choices
from hlo_run.reference.arguments.fake_arguments import Draw, make_fake_arguments
from hlo_run.reference.evaluate.devices import DeviceGrid

# How the arguments of modules without predictions are drawn: as XLA's tools do, whole numbers of both signs, and fractions.
DRAWS = (
    Draw(integers=(-8, 8)),
    Draw(floats=(-4.0, 5.0), whole=True, integers=(-3, 3)),
    Draw(floats=(-4.0, 4.0), integers=(0, 100)),
)


def draw_arguments(module: HloModule, seed: int, draw: int) -> list[Literal]:
    """Return one argument per parameter of any module, drawn as `DRAWS[draw]` says, in ranges that the module can use.

    Raises Unsupported, DeviceError.
    """
    choices = Choices(module)

    def make() -> list[Literal]:
        return list(make_fake_arguments(module, seed, draw=DRAWS[draw], choices=choices))

    return Fitter(module, DeviceGrid()).fitted(make, choices, MODULE_SEED, feeds_of(seed))[0]


def make_arguments(random_module: RandomModule) -> list[Literal]:
    """Return one argument per parameter, with numbers in the parameter's range; a seed gives the same arguments every time."""
    engine = np.random.default_rng(random_module.seed)

    def make(value: Value) -> Literal:
        if value.is_tuple:
            return tuple(make(part) for part in value.parts)
        return random_numbers(engine, value.type, value.dims, value.range)

    return [make(parameter) for parameter in random_module.parameters]


def random_numbers(engine: np.random.Generator, element_type: str, dims: tuple[int, ...], range_: Range) -> Array:
    """Return random multiples of 2**-grain in [-bound, bound]; in [0, bound] for unsigned types."""
    t, numpy_type = TYPES[element_type], DTYPES[element_type].numpy
    if t.kind == "pred":
        return engine.integers(0, 2, dims).astype(np.bool_)
    if t.is_integer:
        high = min(int(range_.bound), t.largest)
        return np.asarray(engine.integers(-high if t.kind == "signed" else 0, high, dims, endpoint=True)).astype(numpy_type)
    # The parts of a complex number have half the bound, so that its magnitude is within the bound.
    steps = int(range_.bound * 2**range_.grain) // (2 if t.kind == "complex" else 1)

    def numbers() -> Array:
        return np.asarray(engine.integers(-steps, steps, dims, endpoint=True)) * 2.0**-range_.grain

    if t.kind == "complex":
        return (numbers() + 1j * numbers()).astype(numpy_type)
    return numbers().astype(np.float32 if t.bits < 32 else np.float64).astype(numpy_type)


def feeds_of(seed: int) -> Feeds:
    """Return the source of infeed data for each device: random numbers in the range `FED`, the same in every run."""

    def feed_of(device: int) -> Feed:
        engine = np.random.default_rng([seed, device])

        def feed(element_type: str, dims: tuple[int, ...]) -> Array:
            return random_numbers(engine, element_type, dims, FED)

        return feed

    return feed_of
