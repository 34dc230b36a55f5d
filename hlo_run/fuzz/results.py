"""Compares results with the generator's predictions: their ranges, grains and errors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hlo_run.arrays import Array
from hlo_run.fuzz.program.values import Value
from hlo_run.hlo.values.literal import Literal

# The tolerance in units of the error bound, which counts the roundings of one order of operations only.
_SLACK = 8.0


def _plain(array: Literal) -> Array:
    array = np.asarray(array)
    if np.iscomplexobj(array):
        return array.astype(np.complex128)
    kind = array.dtype.kind
    return array if kind in "iub" else array.astype(np.int64 if "int" in array.dtype.name else np.float64)


def _leaves(value: Value, literal: Literal, path: str) -> Iterator[tuple[Value, Array, str]]:
    if value.is_tuple:
        for number, (part, inner) in enumerate(zip(value.parts, literal, strict=True)):
            yield from _leaves(part, inner, f"{path}.{number}")
    else:
        yield value, _plain(literal), path


def false_claims(value: Value, literal: Literal, path: str) -> Iterator[str]:
    """Yield the generator's claims about a value that are false: not finite, out of bounds, not a multiple of the grain."""
    for leaf, array, where in _leaves(value, literal, path):
        if array.size == 0 or array.dtype.kind == "b":
            continue
        if not np.isfinite(array).all():
            yield f"{where} of {leaf.type} is not finite"
        elif leaf.element.is_float and np.abs(array).max() > leaf.range.bound * 1.001 + leaf.range.error:
            yield f"{where} of {leaf.type} exceeds its bound"
        elif leaf.element.is_float and leaf.exact and np.any((array * 2.0**leaf.range.grain) % 1):
            yield f"{where} of {leaf.type} is not a multiple of its grain"


def differences(value: Value, expected: Literal, actual: Literal, path: str) -> Iterator[str]:
    """Yield a description of each array that differs by more than its range allows; exact arrays must be equal."""
    for (leaf, one, where), (_, other, _) in zip(_leaves(value, expected, path), _leaves(value, actual, path), strict=True):
        if one.shape != other.shape:
            yield f"{where} of {leaf.type} has the shape {other.shape}, expected {one.shape}"
            continue
        same = one == other
        if not leaf.exact:
            with np.errstate(all="ignore"):
                same |= np.abs(other - one) <= _SLACK * leaf.range.error
        if not same.all():
            place = tuple(map(int, np.argwhere(~same)[0]))
            how = "exact" if leaf.exact else "inexact"
            yield (
                f"{how} {leaf.type} differs in {int((~same).sum())} of {same.size}, at {where}{list(place)}:"
                f" expected {one[place]}, got {other[place]}, error {leaf.range.error:.2g}"
            )


def same_feed(one: list[list[Literal]], other: list[list[Literal]]) -> bool:
    first, second = ([value for device in side for value in device] for side in (one, other))
    return len(first) == len(second) and all(np.array_equal(_plain(a), _plain(b)) for a, b in zip(first, second, strict=True))
