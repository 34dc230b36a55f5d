"""Evaluates the two sides of a region on the same random operands, and tells whether they differ by more than rounding.

Both sides are evaluated in their own types first. Equal bits agree. Else both are evaluated in float64, where rewrites that
are right differ by next to nothing, and with random roundings of the region's own types, which say how much rounding can
matter. An element differs if the distance of both pairs of values is larger than that. Integers and pred must be equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

import numpy as np
from msgspec import Struct

from hlo_run.errors import DeviceError, HloRunError, Unsupported
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.dtype import DType
from hlo_run.hlo.values.shape import Shape
from hlo_run.records import replace
from hlo_run.reference.arguments.fake_arguments import Draw, make_fake_arguments
from hlo_run.reference.evaluate.devices import DeviceGrid
from hlo_run.reference.evaluate.evaluate import Reference
from hlo_run.reference.evaluate.loop_limit import loops_end_within
from hlo_run.reference.evaluate.perturbed import rounding, smallest_step
from hlo_run.reference.random import RandomEngine
from hlo_run.reference.values import Array, Value, as_array, quiet, widen

# Signed numbers, positive ones, of which logarithms and roots exist, and few whole ones, which are often equal.
_SIGNED, _POSITIVE = Draw(floats=(-2.0, 2.0), integers=(-8, 40)), Draw(floats=(0.1, 2.0), integers=(0, 40))
_WHOLE = Draw(floats=(-2.0, 3.0), whole=True, integers=(-2, 3))
_SEED = 20240611
ONE_DEVICE = DeviceGrid()
# A region with so few results is evaluated on so many operands.
_FEW_ELEMENTS, _DRAWS_OF_FEW = 64, 9
_SAMPLES = 2
_SECONDS = 3.0
# An element may be off by so many times the largest error of the samples, and so many roundings of its own type.
_FACTOR, _OWN_ROUNDINGS = 8.0, 8.0
# An error below this many roundings of the array's largest number is what cancellation leaves.
_CANCELLED_ROUNDINGS = 4.0
# In types with such a rounding, a few of them are far less than what a wrong rewrite does.
_QUICK_ROUNDING = 2.0**-24
# The part of the largest number that an element may be off where the reference has no float64 value.
_ROUGH = 2.0**-6
# Results say something if this part of their elements are finite and not zero.
_TELLING = 0.125


class Kind(Enum):
    """The kinds of a region's verdict."""

    AGREES = "agrees"
    BLANK = "blank"
    ROUNDED = "rounded"
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
    """The verdict on a region. `reason` tells why it is not judged. `values` are the operands on which it differs.

    BLANK: both sides agree in numbers that tell nothing, such as zeros. ROUNDED: they agree because rounding is large, or
    the operands lead to NaNs and infinities.
    """

    kind: Kind
    reason: str = ""
    first: First | None = None
    values: tuple[Value, ...] = ()


def judge(old: HloModule, new: HloModule, both: HloModule, grid: DeviceGrid = ONE_DEVICE) -> Verdict:
    """Compare two modules with the same parameters. `both` computes their results together, and constrains the operands.

    All devices of the grid run them, each on separate operands. A region may rely on an operand that all devices share, so both
    sides also have to differ on equal operands.
    """
    try:
        return _judge(old, new, both, grid)
    except (Unsupported, DeviceError) as error:
        return Verdict(Kind.NOT_JUDGED, error.message)
    except MemoryError:
        return Verdict(Kind.NOT_JUDGED, "no memory")


def _judge(old: HloModule, new: HloModule, both: HloModule, grid: DeviceGrid) -> Verdict:
    shape = grid.result_shape(old)
    sides = Reference(old), Reference(new)
    tells: list[bool] = []
    by_rounding = False
    for number, draw in enumerate(_draws(old, new)):
        if draw is _POSITIVE and number == 1 and all(tells):
            continue
        values = _operands(old, both, draw, _SEED + number, grid)
        results = [_run(side, values, grid) for side in sides]
        told = _tells(results[0], shape)
        tells = [one or two for one, two in zip(tells, told, strict=True)] if tells else told
        first, needs_samples = _difference(old, new, values, results, grid, only_finite=draw is _WHOLE)
        if first is not None and grid.size > 1:
            values = [*grid.split(values)[0]] * grid.size
            results = [_run(side, values, grid) for side in sides]
            first, _ = _difference(old, new, values, results, grid, only_finite=draw is _WHOLE)
            if first is None:
                return Verdict(Kind.NOT_JUDGED, "operands that all devices may share")
        if first is not None:
            return Verdict(Kind.DIFFERS, first=first, values=tuple(values))
        by_rounding |= needs_samples or _is_lost(results[0], shape)
    if by_rounding:
        return Verdict(Kind.ROUNDED)
    return Verdict(Kind.AGREES if all(tells) else Kind.BLANK)


def _draws(old: HloModule, new: HloModule) -> Sequence[Draw]:
    """Return how the operands are drawn, in order; the second draw is only needed if the first tells nothing."""
    if not old.entry.parameters:
        return (_SIGNED,)
    opcodes = {instruction.opcode for module in (old, new) for instruction in module.instructions}
    compares = "compare" in opcodes and "sort" not in opcodes  # the order of equal numbers may be open
    leaves = (leaf for _, leaf in old.entry.root.shape.leaves())
    if sum(leaf.element_count for leaf in leaves if leaf.is_array) <= _FEW_ELEMENTS and "while" not in opcodes:
        kinds = (_SIGNED, _POSITIVE, _WHOLE) if compares else (_SIGNED, _POSITIVE)
        return (kinds * _DRAWS_OF_FEW)[:_DRAWS_OF_FEW]
    return (_SIGNED, _POSITIVE, _WHOLE) if compares else (_SIGNED, _POSITIVE)


def _operands(old: HloModule, both: HloModule, draw: Draw, seed: int, grid: DeviceGrid) -> list[Value]:
    """Return the operands of all devices, one device after another."""
    engine = RandomEngine(seed)
    try:
        return [value for _ in range(grid.size) for value in make_fake_arguments(both, engine, draw=draw)]
    except Unsupported:
        engine = RandomEngine(seed)
        return [value for _ in range(grid.size) for value in make_fake_arguments(old, engine, draw=draw)]


def _run(reference: Reference, values: Sequence[Value], grid: DeviceGrid) -> Value:
    with loops_end_within(_SECONDS):
        return grid.join(reference.run(grid.split(values), grid.replicas, grid.partitions))


def _flat(value: Value, shape: Shape) -> Iterator[tuple[Shape, Array]]:
    if shape.is_tuple:
        assert isinstance(value, tuple), "a value has the structure of its shape"
        for part, element in zip(value, shape.tuple_shapes, strict=True):
            yield from _flat(part, element)
    elif shape.is_array:
        yield shape, as_array(value)


def _tells(value: Value, shape: Shape) -> list[bool]:
    """Return for each array of a result whether enough of its numbers are finite and not zero; integers always tell."""
    found: list[bool] = []
    for leaf, array in _flat(value, shape):
        is_float = leaf.dtype.is_float or leaf.dtype.is_complex
        wide = _wide(array, leaf.dtype) if is_float else np.ones(1)
        telling = np.count_nonzero(np.isfinite(wide) & (wide != 0))
        found.append(not is_float or not array.size or bool(telling >= max(1, _TELLING * array.size)))
    return found


def _is_lost(value: Value, shape: Shape) -> bool:
    """True if most numbers of an array of a result are NaN or infinite."""
    arrays = [_wide(array, leaf.dtype) for leaf, array in _flat(value, shape) if leaf.dtype.is_float or leaf.dtype.is_complex]
    return any(np.count_nonzero(np.isfinite(array)) * 2 < array.size for array in arrays)


def _difference(
    old: HloModule, new: HloModule, values: Sequence[Value], results: Sequence[Value], grid: DeviceGrid, only_finite: bool
) -> tuple[First | None, bool]:
    """Return the first element in which the results differ by more than rounding, and whether random roundings decided.

    With `only_finite`, others do not count.
    """
    shape = grid.result_shape(old)
    leaves = [leaf for leaf, _ in _flat(results[0], shape)]
    pairs = list(zip(*([array for _, array in _flat(result, shape)] for result in results), strict=True))
    needs_samples = False
    with quiet():
        masks = [_quick(leaf.dtype, *pair) for leaf, pair in zip(leaves, pairs, strict=True)]
        if only_finite:
            # Infinities of 0, and their NaNs, depend on the order of the operations.
            finite = [_is_finite(leaf.dtype, *pair) for leaf, pair in zip(leaves, pairs, strict=True)]
            masks = [mask & one for mask, one in zip(masks, finite, strict=True)]
        if any(mask.any() for mask in masks) and (_has_floats(old) or _has_floats(new)):
            masks, needs_samples = _in_float64((old, new), values, leaves, pairs, masks, grid)
    first: First | None = None
    outputs: list[int] = []
    for number, (mask, (one, two)) in enumerate(zip(masks, pairs, strict=True)):
        if mask.any():
            outputs.append(number % (len(masks) // grid.size))
            index = tuple(int(i) for i in np.argwhere(mask)[0])
            first = first or First((), index, one[index], two[index], int(np.count_nonzero(mask)), mask.size)
    return (replace(first, outputs=tuple(dict.fromkeys(outputs))) if first is not None else None), needs_samples


def _is_finite(dtype: DType, one: Array, two: Array) -> Array:
    if not (dtype.is_float or dtype.is_complex):
        return np.ones(one.shape, np.bool_)
    return np.asarray(np.isfinite(_wide(one, dtype)) & np.isfinite(_wide(two, dtype)))


def _has_floats(module: HloModule) -> bool:
    leaves = (leaf for instruction in module.instructions for _, leaf in instruction.shape.leaves())
    return any(leaf.is_array and (leaf.dtype.is_float or leaf.dtype.is_complex) for leaf in leaves)


def _quick(dtype: DType, one: Array, two: Array) -> Array:
    """Return which elements differ, by more than a few roundings of a type in which that is nearly nothing.

    Infinities of other signs do not: that of x / 0 follows from the sign of zero. Nor do complex numbers that are not finite.
    """
    mask = np.asarray((one != two) & ~((one != one) & (two != two)))
    if not mask.any() or not (dtype.is_float or dtype.is_complex):
        return mask
    wide = _wide(one, dtype), _wide(two, dtype)
    lost = [~np.isfinite(side) if dtype.is_complex else np.isinf(side) for side in wide]
    mask = mask & ~(lost[0] & lost[1])
    if rounding(dtype) > _QUICK_ROUNDING:
        return mask
    return mask & _far(*wide, _few_roundings(dtype, *wide))


def _in_float64(
    modules: Sequence[HloModule],
    values: Sequence[Value],
    leaves: Sequence[Shape],
    pairs: Sequence[tuple[Array, Array]],
    masks: Sequence[Array],
    grid: DeviceGrid,
) -> tuple[list[Array], bool]:
    """Return which elements differ by more than rounding: of precise values, or if these differ, by samples too (True)."""
    shape = grid.result_shape(modules[0])

    def of_leaf(value: Value, number: int) -> Array:
        return list(_flat(value, shape))[number][1]

    try:
        precise = [_run(Reference(module, "f64"), values, grid) for module in modules]
        found = list(masks)
        for number, leaf in enumerate(leaves):
            if found[number].any():
                exact = of_leaf(precise[0], number), of_leaf(precise[1], number)
                found[number] = found[number] & _apart(leaf.dtype, *exact)
        if not any(mask.any() for mask in found):
            return found, False
        samples = [[_run(Reference(module, "f64", seed), values, grid) for seed in range(_SAMPLES)] for module in modules]
    except (HloRunError, MemoryError):
        return [mask & _roughly(leaf.dtype, *pair) for leaf, pair, mask in zip(leaves, pairs, masks, strict=True)], True
    for number, leaf in enumerate(leaves):
        if found[number].any():
            exact = [of_leaf(value, number) for value in precise]
            off = [_off(value, of_leaf(s, number)) for value, side in zip(exact, samples, strict=True) for s in side]
            found[number] = found[number] & _beyond(leaf.dtype, pairs[number], exact, off)
    return found, True


def _off(one: Array, two: Array) -> Array:
    return np.asarray(one != two) if one.dtype.kind in "bui" else np.abs(one - two)


def _apart(dtype: DType, one: Array, two: Array) -> Array:
    """Return which precise values differ by more than a few roundings of the type."""
    if not (dtype.is_float or dtype.is_complex):
        return np.asarray(one != two)
    return _far(one, two, _few_roundings(dtype, one, two))


def _roughly(dtype: DType, one: Array, two: Array) -> Array:
    """Return which elements differ so much that hardly any rounding explains it."""
    if not (dtype.is_float or dtype.is_complex):
        return np.asarray(one != two)
    wide = _wide(one, dtype), _wide(two, dtype)
    return _far(*wide, _few_roundings(dtype, *wide) + _ROUGH * np.max(_size(*wide), initial=0.0))


def _size(one: Array, two: Array) -> Array:
    finite = np.isfinite(one) & np.isfinite(two)
    return np.where(finite, np.maximum(np.abs(one), np.abs(two)), 0.0)


def _few_roundings(dtype: DType, one: Array, two: Array) -> Array:
    """Return what the roundings of a type are for numbers of this size, and what cancellation leaves of the largest."""
    size, own = _size(one, two), rounding(dtype)
    largest = float(np.max(size, initial=0.0))
    return _OWN_ROUNDINGS * own * size + _CANCELLED_ROUNDINGS * own * largest + 2 * smallest_step(dtype)


def _beyond(dtype: DType, pair: tuple[Array, Array], exact: Sequence[Array], off: Sequence[Array]) -> Array:
    """Return which elements differ by more than the samples say that rounding may matter; `off` are the samples' errors."""
    if not (dtype.is_float or dtype.is_complex):
        return np.asarray(~np.any([error != 0 for error in off], axis=0))
    spread, size = np.max(off, axis=0), _size(*exact)
    usual = np.isfinite(spread) & (size > 0)
    relative = float(np.median(spread[usual] / size[usual])) if usual.any() else 0.0
    allowed = _FACTOR * np.maximum(spread, relative * size) + _few_roundings(dtype, *exact)
    # The rounding of such an element may be a NaN or an infinity.
    allowed = np.where(np.isnan(allowed) & np.isfinite(exact[0]) & np.isfinite(exact[1]), np.inf, allowed)
    return _far(exact[0], exact[1], allowed) & _far(_wide(pair[0], dtype), _wide(pair[1], dtype), allowed)


def _far(one: Array, two: Array, allowed: Array) -> Array:
    same = (one == two) | ((one != one) & (two != two))
    distance = np.abs(one - two)
    is_near = np.isfinite(distance) & ((distance <= allowed) | np.isnan(allowed))
    return np.asarray(~same & ~is_near)


def _wide(values: Array, dtype: DType) -> Array:
    return values.astype(np.complex128) if dtype.is_complex else widen(values, dtype).astype(np.float64)
