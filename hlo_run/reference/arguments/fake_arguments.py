"""Make fake arguments: random values in the ranges of XLA's tools, within the constraints of the module's uses."""

from __future__ import annotations

import math

import numpy as np

from hlo_run.hlo.feeds import Feed, Feeds
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.dtype import DTYPES, DType
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.arguments.constraints import Constraints, constraints_of
from hlo_run.reference.complex_functions import make_complex
from hlo_run.reference.random import HIGH, LOW, RandomEngine
from hlo_run.reference.values import TOKEN, Array, Value, narrow, out_of_memory, quiet, widen


def make_fake_arguments(
    module: HloModule,
    engine: RandomEngine | int,
    use_large_float_range: bool = False,
    zero: bool = False,
    float_range: tuple[float, float] = (LOW, HIGH),
) -> list[Value]:
    """Return one value per entry parameter, in order, drawn from an engine (or from a new one with the seed `engine`).

    Pass the same engine again for other data. Floats are uniform in `float_range`, closed below and open above; XLA's
    tools have no other. With `zero` all values are 0 and nothing is drawn. Raises Unsupported if
    the uses of a parameter conflict, DeviceError if memory runs out.
    """
    engine = RandomEngine(engine) if isinstance(engine, int) else engine
    found: list[Value] = []
    with quiet():
        for parameter in module.entry.parameters:
            try:
                found.append(_argument(parameter, engine, None if use_large_float_range else float_range, zero))
            except MemoryError:
                raise out_of_memory(parameter) from None
    return found


def _argument(parameter: HloInstruction, engine: RandomEngine, floats: tuple[float, float] | None, zero: bool) -> Value:
    def build(shape: Shape, path: tuple[int, ...]) -> Value:
        if shape.is_tuple:
            return tuple(build(element, (*path, number)) for number, element in enumerate(shape.tuple_shapes))
        if not shape.is_array:
            return TOKEN
        if zero:
            return np.zeros(shape.dims, shape.dtype.numpy)
        constraints = constraints_of(parameter, path)
        return _line(shape.dtype, shape.element_count, constraints, engine, floats).reshape(shape.dims)

    return build(parameter.shape, ())


def random_feeds(seed: int) -> Feeds:
    """Return infeed data: random values in the ranges of fake arguments, from an engine per device."""

    def feed_of(device: int) -> Feed:
        engine = RandomEngine(seed + ((device + 1) << 40))

        def feed(element_type: str, dims: tuple[int, ...]) -> Array:
            with quiet():
                return _line(DTYPES[element_type], math.prod(dims), Constraints(), engine, (LOW, HIGH)).reshape(dims)

        return feed

    return feed_of


def _line(dtype: DType, count: int, constraints: Constraints, engine: RandomEngine, floats: tuple[float, float] | None) -> Array:
    """Return `count` values of one type; floats in a range, or (None) over all exponents."""
    if constraints.identity is not None:
        return np.full(count, constraints.identity).astype(dtype.numpy)
    if dtype.is_integer:
        return _integers(dtype, count, constraints, engine)
    if dtype.kind == "pred":
        return engine.integers(dtype, 0, 1, count)
    if dtype.is_complex:
        part = _FLOAT_PARTS[dtype.name]
        real = _floats(part, count, engine, floats)
        return make_complex(real, _floats(part, count, engine, floats))
    return _floats(dtype, count, engine, floats)


_FLOAT_PARTS: dict[str, DType] = {
    "c64": Shape.array("f32", ()).dtype,
    "c128": Shape.array("f64", ()).dtype,
}


def _floats(dtype: DType, count: int, engine: RandomEngine, floats: tuple[float, float] | None) -> Array:
    if dtype.bits == 4:
        return engine.patterns(dtype, count)
    return engine.large_floats(dtype, count) if floats is None else engine.floats(dtype, count, *floats)


def _integers(dtype: DType, count: int, constraints: Constraints, engine: RandomEngine) -> Array:
    lowest = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
    highest = lowest + (1 << dtype.bits) - 1
    if constraints.no_duplicates and count < highest:
        first = count // 2 - count if dtype.is_signed else 0
        return narrow(engine.permutation(count) + first, dtype)
    low, high = lowest, highest
    if constraints.index_limit is not None:
        low, high = 0, min(constraints.index_limit, highest)
    values = engine.integers(dtype, low, high, count)
    return _sorted(values, dtype) if constraints.sorted_ else values


def _sorted(values: Array, dtype: DType) -> Array:
    return narrow(np.sort(widen(values, dtype)), dtype)
