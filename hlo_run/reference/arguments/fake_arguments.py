"""Make fake arguments: random values in the ranges of XLA's tools, within the constraints of the module's uses."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from hlo_run.hlo.feeds import Feed, Feeds
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.dtype import DTYPES, DType
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.arguments.constraints import Constraints, constraints_of
from hlo_run.reference.complex_functions import make_complex
from hlo_run.reference.random import HIGH, LOW, RandomEngine
from hlo_run.reference.values import TOKEN, Array, Value, narrow, out_of_memory, quiet, widen


class Draw(Struct, frozen=True):
    """How random arguments are drawn; the defaults are those of XLA's `MakeFakeArguments`.

    `floats` is their range, closed below and open above, or None: log-uniform over all exponents. `whole` rounds them down.
    `integers` is the closed range of integers that no use constrains; None: all of the type. `last_indices` makes every
    index that a use constrains the largest one in bounds, except those of scatters.
    """

    floats: tuple[float, float] | None = (LOW, HIGH)
    whole: bool = False
    integers: tuple[int, int] | None = None
    last_indices: bool = False

    def __str__(self) -> str:
        floats = "of any exponent" if self.floats is None else "in [{:g}, {:g})".format(*self.floats)
        whole = "whole " if self.whole else ""
        integers = "" if self.integers is None else ", integers in [{}, {}]".format(*self.integers)
        last = ", indices at the end" if self.last_indices else ""
        return f"{whole}floats {floats}{integers}{last}"


def make_fake_arguments(
    module: HloModule,
    engine: RandomEngine | int,
    use_large_float_range: bool = False,
    zero: bool = False,
    draw: Draw | None = None,
) -> list[Value]:
    """Return one value per entry parameter, in order, drawn from an engine (or from a new one with the seed `engine`).

    Pass the same engine again for other data. Without `draw`, numbers have the ranges of XLA's tools. With `zero` all values
    are 0 and nothing is drawn. Raises Unsupported if the uses of a parameter conflict, DeviceError if memory runs out.
    """
    engine = RandomEngine(engine) if isinstance(engine, int) else engine
    draw = draw or (Draw(floats=None) if use_large_float_range else Draw())
    found: list[Value] = []
    with quiet():
        for parameter in module.entry.parameters:
            try:
                found.append(_argument(parameter, engine, draw, zero))
            except MemoryError:
                raise out_of_memory(parameter) from None
    return found


def _argument(parameter: HloInstruction, engine: RandomEngine, draw: Draw, zero: bool) -> Value:
    def build(shape: Shape, path: tuple[int, ...]) -> Value:
        if shape.is_tuple:
            return tuple(build(element, (*path, number)) for number, element in enumerate(shape.tuple_shapes))
        if not shape.is_array:
            return TOKEN
        if zero:
            return np.zeros(shape.dims, shape.dtype.numpy)
        constraints = constraints_of(parameter, path)
        return _line(shape.dtype, shape.element_count, constraints, engine, draw).reshape(shape.dims)

    return build(parameter.shape, ())


def random_feeds(seed: int) -> Feeds:
    """Return infeed data: random values in the ranges of fake arguments, from an engine per device."""

    def feed_of(device: int) -> Feed:
        engine = RandomEngine(seed + ((device + 1) << 40))

        def feed(element_type: str, dims: tuple[int, ...]) -> Array:
            with quiet():
                return _line(DTYPES[element_type], math.prod(dims), Constraints(), engine, Draw()).reshape(dims)

        return feed

    return feed_of


def _line(dtype: DType, count: int, constraints: Constraints, engine: RandomEngine, draw: Draw) -> Array:
    """Return `count` values of one type."""
    if constraints.identity is not None:
        return np.full(count, constraints.identity).astype(dtype.numpy)
    if dtype.is_integer:
        return _integers(dtype, count, constraints, engine, draw)
    if dtype.kind == "pred":
        return engine.integers(dtype, 0, 1, count)
    if dtype.is_complex:
        part = _FLOAT_PARTS[dtype.name]
        real = _floats(part, count, engine, draw)
        return make_complex(real, _floats(part, count, engine, draw))
    return _floats(dtype, count, engine, draw)


_FLOAT_PARTS: dict[str, DType] = {
    "c64": Shape.array("f32", ()).dtype,
    "c128": Shape.array("f64", ()).dtype,
}


def _floats(dtype: DType, count: int, engine: RandomEngine, draw: Draw) -> Array:
    if dtype.bits == 4:
        return engine.patterns(dtype, count)
    if draw.floats is None:
        return engine.large_floats(dtype, count)
    values = engine.floats(dtype, count, *draw.floats)
    return narrow(np.floor(widen(values, dtype)), dtype) if draw.whole else values


def _integers(dtype: DType, count: int, constraints: Constraints, engine: RandomEngine, draw: Draw) -> Array:
    lowest = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
    highest = lowest + (1 << dtype.bits) - 1
    if constraints.no_duplicates and count < highest:
        first = count // 2 - count if dtype.is_signed else 0
        return narrow(engine.permutation(count) + first, dtype)
    if constraints.windows and (starts := _apart(constraints, count, engine)) is not None and starts.max(initial=0) <= highest:
        return narrow(starts, dtype)
    low, high = lowest, highest
    if draw.integers is not None:
        low = max(low, draw.integers[0])
        high = max(low, min(high, draw.integers[1]))
    if constraints.index_limit is not None:
        high = min(constraints.index_limit, highest)
        low = high if draw.last_indices and not constraints.scattered else 0
    values = engine.integers(dtype, low, high, count)
    return _sorted(values, dtype) if constraints.sorted_ else values


def _apart(constraints: Constraints, count: int, engine: RandomEngine) -> Array | None:
    """Return the starts of windows that do not overlap, or None if they do not all fit."""
    counts = [many for many, _ in constraints.windows]
    rows, room = count // len(counts), math.prod(counts)
    if rows > room or room >= 1 << 62:
        return None
    # Each row has a part of the windows to choose from.
    ends = np.array([row * room // rows for row in range(rows + 1)], np.int64)
    chosen = ends[:-1] + (engine.unit(rows) * np.diff(ends)).astype(np.int64)
    if not constraints.sorted_:
        chosen = chosen[engine.permutation(rows)]
    starts = np.stack(np.unravel_index(chosen, counts), -1) * [size for _, size in constraints.windows]
    return starts.reshape(-1)


def _sorted(values: Array, dtype: DType) -> Array:
    return narrow(np.sort(widen(values, dtype), kind="stable"), dtype)
