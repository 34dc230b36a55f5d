"""Evaluates the two sides of a region on the same random operands, and says whether they differ by more than rounding.

Both sides are evaluated in their own types first. Equal bits agree. Else both are evaluated in float64, where rewrites that
are right differ by next to nothing, and with random roundings of the region's own types, which say how much rounding can
matter. An element differs if the distance of both pairs of values is larger than that. Integers and pred must be equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from hlo_run.errors import DeviceError, HloRunError, Unsupported
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.dtype import DType
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.arguments.fake_arguments import Draw, make_fake_arguments
from hlo_run.reference.evaluate.evaluate import Reference
from hlo_run.reference.evaluate.loop_limit import loops_end_within
from hlo_run.reference.evaluate.perturbed import rounding, smallest_step
from hlo_run.reference.values import Array, Value, as_array, quiet, widen

# Signed numbers, then positive ones, of which logarithms and roots exist.
_DRAWS = (Draw(floats=(-2.0, 2.0), integers=(-8, 40)), Draw(floats=(0.1, 2.0), integers=(0, 40)))
_SEED = 20240611
# A region with so few results is evaluated on so many operands.
_FEW_ELEMENTS, _DRAWS_OF_FEW = 64, 8
_SAMPLES = 2
_SECONDS = 3.0
# An element may be off by so many times the largest error of the samples, and so many roundings of its own type.
_FACTOR, _OWN_ROUNDINGS = 8.0, 8.0
# An error below this many roundings of the array's largest number is what cancellation leaves.
_CANCELLED_ROUNDINGS = 4.0
# Results say something if this part of their elements are finite and not zero.
_TELLING = 0.125


class Kind(Enum):
    """What the comparison of a region says."""

    AGREES = "agrees"
    BLANK = "blank"
    DIFFERS = "differs"
    NOT_JUDGED = "not judged"


class First(Struct, frozen=True):
    """The first element that differs: the number of the value in the region's results, its index, and both sides.

    `outputs` are the numbers of all values that differ, `count` the wrong elements of the first.
    """

    outputs: tuple[int, ...]
    index: tuple[int, ...]
    old: object
    new: object
    count: int
    elements: int


class Verdict(Struct, frozen=True):
    """The verdict on a region. `reason` says why it is not judged. `values` are the operands on which it differs.

    BLANK: both sides agree in numbers that tell nothing (zero, NaN, infinite).
    """

    kind: Kind
    reason: str = ""
    first: First | None = None
    values: tuple[Value, ...] = ()


def judge(old: HloModule, new: HloModule, both: HloModule) -> Verdict:
    """Compare two modules with the same parameters. `both` computes their results together, and constrains the operands."""
    try:
        return _judge(old, new, both)
    except (Unsupported, DeviceError) as error:
        return Verdict(Kind.NOT_JUDGED, error.message)
    except MemoryError:
        return Verdict(Kind.NOT_JUDGED, "no memory")


def _judge(old: HloModule, new: HloModule, both: HloModule) -> Verdict:
    sides = Reference(old), Reference(new)
    shapes = [leaf for _, leaf in old.entry.root.shape.leaves()]
    few = sum(shape.element_count for shape in shapes if shape.is_array) <= _FEW_ELEMENTS
    draws = _DRAWS_OF_FEW if few and old.entry.parameters else 1
    tells = False
    number = 0
    while number < draws:
        values = _operands(old, both, number)
        results = [_run(side, values) for side in sides]
        tells |= _tells(results[0], old.entry.root.shape)
        if first := _difference(old, new, values, results):
            return Verdict(Kind.DIFFERS, first=first, values=tuple(values))
        number += 1
        if number == draws == 1 and not tells and old.entry.parameters:
            draws = len(_DRAWS)
    return Verdict(Kind.AGREES if tells else Kind.BLANK)


def _operands(old: HloModule, both: HloModule, number: int) -> list[Value]:
    draw = _DRAWS[number % len(_DRAWS)]
    try:
        return make_fake_arguments(both, _SEED + number, draw=draw)
    except Unsupported:
        return make_fake_arguments(old, _SEED + number, draw=draw)


def _run(reference: Reference, values: Sequence[Value]) -> Value:
    with loops_end_within(_SECONDS):
        return reference.run([values])[0]


def _flat(value: Value, shape: Shape) -> Iterator[tuple[Shape, Array]]:
    if shape.is_tuple:
        assert isinstance(value, tuple), "a value has the structure of its shape"
        for part, element in zip(value, shape.tuple_shapes, strict=True):
            yield from _flat(part, element)
    elif shape.is_array:
        yield shape, as_array(value)


def _tells(value: Value, shape: Shape) -> bool:
    """True if enough numbers of a result are finite and not zero; integers always tell."""
    for leaf, array in _flat(value, shape):
        if not (leaf.dtype.is_float or leaf.dtype.is_complex):
            return True
        wide = _wide(array, leaf.dtype)
        if np.count_nonzero(np.isfinite(wide) & (wide != 0)) >= max(1, _TELLING * array.size):
            return True
    return False


def _difference(old: HloModule, new: HloModule, values: Sequence[Value], results: Sequence[Value]) -> First | None:
    """Return the first element in which the results differ by more than rounding."""
    shape = old.entry.root.shape
    pairs = [list(_flat(result, shape)) for result in results]
    unequal = [_unequal(one, two) for (_, one), (_, two) in zip(*pairs, strict=True)]
    if not any(mask.any() for mask in unequal):
        return None
    has_floats = any(
        leaf.is_array and (leaf.dtype.is_float or leaf.dtype.is_complex)
        for module in (old, new)
        for instruction in module.instructions
        for _, leaf in instruction.shape.leaves()
    )
    wide = _in_float64((old, new), values) if has_floats else None
    first: First | None = None
    outputs: list[int] = []
    for number, ((leaf, one), (_, two)) in enumerate(zip(*pairs, strict=True)):
        mask = unequal[number]
        if wide is not None and mask.any():
            mask = mask & _beyond(leaf.dtype, one, two, [list(_flat(value, shape))[number][1] for value in wide])
        if mask.any():
            outputs.append(number)
            index = tuple(int(i) for i in np.argwhere(mask)[0])
            first = first or First((), index, one[index], two[index], int(np.count_nonzero(mask)), mask.size)
    return replace(first, outputs=tuple(outputs)) if first is not None else None


def _unequal(one: Array, two: Array) -> Array:
    with quiet():
        return np.asarray((one != two) & ~((one != one) & (two != two)))


def _in_float64(modules: Sequence[HloModule], values: Sequence[Value]) -> list[Value] | None:
    """Return for each module its results in float64 and the samples with roundings: precise, precise, samples of both."""
    try:
        precise = [_run(Reference(module, "f64"), values) for module in modules]
        samples = [_run(Reference(module, "f64", seed), values) for module in modules for seed in range(_SAMPLES)]
    except (HloRunError, MemoryError):
        return None
    return [*precise, *samples]


def _beyond(dtype: DType, one: Array, two: Array, wide: Sequence[Array]) -> Array:
    """Return which elements differ by more than the samples say that rounding may matter."""
    with quiet():
        exact_one, exact_two, *samples = wide
        if not (dtype.is_float or dtype.is_complex):
            flips = [_unequal(sample, (exact_one, exact_two)[n // _SAMPLES]) for n, sample in enumerate(samples)]
            return _unequal(exact_one, exact_two) & ~np.any(flips, axis=0)
        spread = np.max([np.abs(s - (exact_one, exact_two)[n // _SAMPLES]) for n, s in enumerate(samples)], axis=0)
        finite = np.isfinite(exact_one) & np.isfinite(exact_two)
        size = np.where(finite, np.maximum(np.abs(exact_one), np.abs(exact_two)), 0.0)
        usual = np.isfinite(spread) & (size > 0)
        relative = float(np.median(spread[usual] / size[usual])) if usual.any() else 0.0
        own = rounding(dtype)
        allowed = _FACTOR * np.maximum(spread, relative * size) + _OWN_ROUNDINGS * own * size
        allowed += _CANCELLED_ROUNDINGS * own * float(np.max(size, initial=0.0)) + 2 * smallest_step(dtype)
        # The rounding of such an element may be a NaN or an infinity.
        allowed = np.where(np.isnan(allowed) & finite, np.inf, allowed)
        far = [_far(*pair, allowed) for pair in ((exact_one, exact_two), (_wide(one, dtype), _wide(two, dtype)))]
        return far[0] & far[1]


def _far(one: Array, two: Array, allowed: Array) -> Array:
    same = (one == two) | ((one != one) & (two != two))
    distance = np.abs(one - two)
    is_near = np.isfinite(distance) & ((distance <= allowed) | np.isnan(allowed))
    return np.asarray(~same & ~is_near)


def _wide(values: Array, dtype: DType) -> Array:
    return values.astype(np.complex128) if dtype.is_complex else widen(values, dtype).astype(np.float64)
