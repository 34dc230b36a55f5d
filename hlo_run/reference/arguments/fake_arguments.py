"""Make fake arguments: random values in the ranges of XLA's tools, within the constraints and meanings of the module's uses."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from hlo_run.hlo.feeds import Feed, Feeds
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.dtype import DTYPES, DType
from hlo_run.hlo.values.shape import Shape
from hlo_run.records import replace
from hlo_run.reference.arguments.choices import NO_CHOICE, Choice, Choices
from hlo_run.reference.arguments.constraints import Constraints, constraints_of
from hlo_run.reference.arguments.recipes import Recipe
from hlo_run.reference.arguments.value_ranges import Interval
from hlo_run.reference.complex_functions import make_complex
from hlo_run.reference.random import HIGH, LOW, RandomEngine
from hlo_run.reference.values import TOKEN, Array, Value, narrow, out_of_memory, quiet, widen

# One in so many integers is one of those that make sense now and then.
RARITY = 8
# Unusual integers, of all bits, are as rare. Unusual floats are larger by at most so many powers of two.
_MOST_LARGER = 2
# A peak is so many times as large as the largest other number.
_PEAK = 2.0
_GOLDEN = (math.sqrt(5) - 1) / 2


class Peaks(Struct, frozen=True):
    """One number of each row is its largest one (`sign` 1) or its smallest (-1), in each turn another one.

    Rows go along dimension `dim` of an array with dimensions `dims`, and along the last one of others.
    """

    sign: int
    dims: tuple[int, ...]
    dim: int


class Draw(Struct, frozen=True):
    """The distribution of random arguments; the ranges by default are as in XLA's `MakeFakeArguments`.

    `xla` draws exactly as that does; else integers make sense for their uses (`meanings.py`).

    `floats` is their range, closed below and open above, or None: log-uniform over all exponents. `whole` rounds them down.
    `integers` is the closed range of integers that no use constrains; None: all of the type. `last_indices` makes every index
    that a use constrains the largest one in bounds, except those of scatters. `unusual` is for kernels that handle all
    numbers: floats have many sizes, with larger ones at the ends of each dimension (if `larger_ends`), and more integers are
    out of bounds, from the end, at the edges of what the module handles, or of all bits. Floats are smaller by up to
    `smaller` powers of two. With several draws of one module, `turn` counts them: its truth values and integers that are
    alone take another of their values in each. `pairs`: the integers keep theirs for two turns, so that they meet both truth
    values. With `peaks`, integers that are alone have their largest value.
    """

    floats: tuple[float, float] | None = (LOW, HIGH)
    whole: bool = False
    integers: tuple[int, int] | None = None
    last_indices: bool = False
    xla: bool = False
    unusual: bool = False
    smaller: int = 10
    turn: int = 0
    pairs: bool = False
    peaks: Peaks | None = None
    larger_ends: bool = True

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
    choices: Choices | None = None,
) -> list[Value]:
    """Return one value per entry parameter, in order, drawn from an engine (or from a new one with the seed `engine`).

    Pass the same engine again for other data. Without `draw`, numbers have the ranges of XLA's tools. `choices` are those of the
    module, with any recipes for its floats; they are made here if they are not given. With `zero` all values are 0 and nothing is
    drawn. Raises Unsupported if the uses of a parameter conflict, DeviceError if memory runs out.
    """
    engine = RandomEngine(engine) if isinstance(engine, int) else engine
    draw = draw or (Draw(floats=None) if use_large_float_range else Draw())
    found: list[Value] = []
    if choices is None and not (zero or draw.xla):
        choices = Choices(module)
    with quiet():
        for parameter in module.entry.parameters:
            try:
                found.append(_argument(parameter, engine, draw, zero, choices))
            except MemoryError:
                raise out_of_memory(parameter) from None
    return found


def _argument(parameter: HloInstruction, engine: RandomEngine, draw: Draw, zero: bool, choices: Choices | None) -> Value:
    def build(shape: Shape, path: tuple[int, ...]) -> Value:
        if shape.is_tuple:
            return tuple(build(element, (*path, number)) for number, element in enumerate(shape.tuple_shapes))
        if not shape.is_array:
            return TOKEN
        if zero:
            return np.zeros(shape.dims, shape.dtype.numpy)
        constraints = constraints_of(parameter, path)
        choice = NO_CHOICE if choices is None or draw.xla else choices.of(parameter.parameter_number, path)
        own = draw if not draw.turn else replace(draw, turn=draw.turn // (1 + draw.pairs) + parameter.parameter_number + 1)
        values = _line(shape.dtype, shape.element_count, constraints, choice, engine, own).reshape(shape.dims)
        if draw.turn and shape.dtype.kind == "pred" and values.size == 1:
            # Two of them take all four pairs of values in four turns, and each both values in turns 2n and 2n + 1.
            is_other = draw.turn >> 1 & parameter.parameter_number
            values = np.full(shape.dims, (draw.turn ^ is_other) & 1, np.bool_)
        if (
            draw.unusual
            and (values.size > 1 or draw.turn)
            and (shape.dtype.is_float or shape.dtype.is_complex)
            and constraints.identity is None
        ):
            values = _of_many_sizes(values, shape, engine, draw)
            if draw.peaks is not None and shape.rank and not shape.dtype.is_complex:
                values = _with_peaks(values, shape, draw.peaks, draw.turn)
        return _probabilities(values, shape.dtype, choice.recipe.rows) if choice.recipe.rows >= 0 and values.size else values

    return build(parameter.shape, ())


def _of_many_sizes(values: Array, shape: Shape, engine: RandomEngine, draw: Draw) -> Array:
    """Return the numbers times powers of two: half of them smaller ones, those at the ends of each dimension larger ones."""
    if shape.dtype.bits < 16:
        return values
    steps = engine.integers(DTYPES["s32"], -draw.smaller, draw.smaller, values.size).reshape(shape.dims)
    powers: Array = np.minimum(steps, 0)
    for axis, size in enumerate(shape.dims):
        if size > 2 and draw.larger_ends:
            is_end = np.isin(np.arange(size), (0, size - 1))
            powers = powers + is_end.reshape(size, *(1,) * (shape.rank - axis - 1))
    return narrow(widen(values, shape.dtype) * np.ldexp(1.0, np.minimum(powers, _MOST_LARGER)), shape.dtype)


def _with_peaks(values: Array, shape: Shape, peaks: Peaks, turn: int) -> Array:
    """Return the numbers with a peak in each row, at the next place in the next row, and in the next turn after the last row."""
    wide = widen(values, shape.dtype).copy()
    # A bitcast may add or drop dimensions of one element, or merge dimensions.
    is_same = wide.size == math.prod(peaks.dims) and peaks.dims[peaks.dim] > 1
    lines: Array = np.moveaxis(wide.reshape(peaks.dims), peaks.dim, -1) if is_same else wide
    places = np.indices(lines.shape[:-1])
    rows = np.arange(math.prod(lines.shape[:-1])).reshape(lines.shape[:-1])
    # Numbers that one thread reads one after the other are neighbours, or some lines apart: the places are far from each other.
    steps = (rows + rows.size * turn) * _coprime_step(lines.shape[-1])
    lines[(*places, steps % lines.shape[-1])] = peaks.sign * _PEAK * np.abs(wide).max()
    return narrow(wide, shape.dtype)


def _coprime_step(count: int) -> int:
    """Return a step through places 0 to `count` - 1 that comes to each of them, and next to none of the last ones."""
    return next(step for step in range(max(1, round(count * _GOLDEN)), count + 2) if math.gcd(step, count) == 1)


def _probabilities(values: Array, dtype: DType, dim: int) -> Array:
    """Return positive numbers divided by their sums along a dimension, whose order of addition is the same everywhere."""
    wide = widen(values, dtype)
    sums = np.add.accumulate(wide, axis=dim)
    return narrow(wide / np.take(sums, [-1], axis=dim), dtype)


def random_feeds(seed: int) -> Feeds:
    """Return infeed data: random values in the ranges of fake arguments, from an engine per device."""

    def feed_of(device: int) -> Feed:
        engine = RandomEngine(seed + ((device + 1) << 40))

        def feed(element_type: str, dims: tuple[int, ...]) -> Array:
            with quiet():
                return _line(DTYPES[element_type], math.prod(dims), Constraints(), NO_CHOICE, engine, Draw()).reshape(dims)

        return feed

    return feed_of


def _line(dtype: DType, count: int, constraints: Constraints, choice: Choice, engine: RandomEngine, draw: Draw) -> Array:
    """Return `count` values of one type."""
    if constraints.identity is not None:
        return np.full(count, constraints.identity).astype(dtype.numpy)
    if dtype.is_integer:
        return _integers(dtype, count, constraints, choice, engine, draw)
    if dtype.kind == "pred":
        return engine.integers(dtype, 0, 1, count)
    if dtype.is_complex:
        part = _FLOAT_PARTS[dtype.name]
        real = _floats(part, count, choice.recipe, engine, draw)
        return make_complex(real, _floats(part, count, choice.recipe, engine, draw))
    return _floats(dtype, count, choice.recipe, engine, draw)


_FLOAT_PARTS: dict[str, DType] = {
    "c64": Shape.array("f32", ()).dtype,
    "c128": Shape.array("f64", ()).dtype,
}


def _floats(dtype: DType, count: int, recipe: Recipe, engine: RandomEngine, draw: Draw) -> Array:
    if dtype.bits == 4:
        return engine.patterns(dtype, count)
    if draw.floats is None:
        return engine.large_floats(dtype, count)
    values = engine.floats(dtype, count, *recipe.floats(*draw.floats))
    return narrow(np.floor(widen(values, dtype)), dtype) if draw.whole and recipe == Recipe() else values


def _integers(dtype: DType, count: int, constraints: Constraints, choice: Choice, engine: RandomEngine, draw: Draw) -> Array:
    meaning = choice.meaning
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
        low, high = 0, min(constraints.index_limit, highest)
    if meaning is not None:
        limits = (0, high) if constraints.index_limit is not None else (lowest, highest)
        low, high = _common(meaning.usual, limits)
    is_index = constraints.index_limit is not None or (meaning is not None and meaning.is_index)
    is_scattered = constraints.scattered or (meaning is not None and meaning.is_scattered)
    if is_index and draw.last_indices and not is_scattered:
        low = high
    if meaning is not None and meaning.is_distinct and low + count - 1 <= high:
        values = narrow(engine.permutation(high - low + 1)[:count] + low, dtype)
    else:
        values = engine.integers(dtype, low, high, count)
    if meaning is not None and draw.unusual:
        # In order, those out of bounds are at the ends: in every second turn the ends have others.
        beyond = () if meaning.is_sorted and draw.turn % 2 else meaning.beyond
        kinds = [kind for kind in (meaning.rare, *meaning.special, *beyond, *meaning.edges) if kind is not None]
        if draw.turn and count == 1:
            kinds = [high] if draw.peaks else [[*kinds, (low, high)][draw.turn % (len(kinds) + 1)]]
        values = _with_rare(values, dtype, kinds, len(kinds) + (count > 1), engine)
    elif meaning is not None and count > 1:
        values = _with_rare(values, dtype, (meaning.rare, *meaning.special), RARITY, engine)
    elif draw.unusual and count > 1 and constraints == Constraints():
        values = _with_rare(values, dtype, [(lowest, highest)], RARITY, engine)
    is_sorted = constraints.sorted_ or (meaning is not None and meaning.is_sorted)
    return _sorted(values, dtype) if is_sorted else values


def _common(usual: Interval, limits: Interval) -> Interval:
    low, high = max(usual[0], limits[0]), min(usual[1], limits[1])
    return (low, high) if low <= high else limits


def _with_rare(values: Array, dtype: DType, kinds: Sequence[Interval | int | None], rarity: int, engine: RandomEngine) -> Array:
    """Return the integers with some in their place that make sense now and then: one in `rarity` of each interval or number."""
    if not any(kind is not None for kind in kinds):
        return values
    count = values.size
    choice = engine.integers(DTYPES["u32"], 0, rarity - 1, count)
    for number, kind in enumerate(kinds):
        if kind is not None:
            is_range = isinstance(kind, tuple)
            others = engine.integers(dtype, *kind, count) if is_range else np.full(count, kind).astype(dtype.numpy)
            values = np.where(choice == number, others, values)
    return values


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
