"""Recognises values that hide the kernel that computes them: all zero, all equal, NaN or infinite."""

from __future__ import annotations

import numpy as np

from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.values import Array, Value, as_array, quiet, widen

# A value hides its kernel if a smaller part of its elements is finite and not zero.
_LEAST_SEEN = 1 / 32


def hides(value: Value, shape: Shape) -> bool:
    """True if an array of a value shows little of the kernel that computes it."""
    return any(_array_hides(as_array(_at(value, path)), leaf) for path, leaf in shape.leaves() if leaf.is_array)


def common_number(array: Array, shape: Shape) -> complex | None:
    """Return the finite number that all elements of an array are; None if there is none."""
    if not array.size:
        return None
    with quiet():
        first = array.reshape(-1)[:1]
        number = complex(widen(first, shape.dtype)[0])
        return number if bool((array == first).all()) and np.isfinite(number) else None


def _array_hides(array: Array, shape: Shape) -> bool:
    if not array.size:
        return False
    with quiet():
        if shape.dtype.is_float or shape.dtype.is_complex:
            values = widen(array, shape.dtype)
            seen = np.isfinite(values) & (values != 0)
            if np.count_nonzero(seen) < _LEAST_SEEN * array.size:
                return True
        elif array.size == 1:
            return not array.any()
        first = array.reshape(-1)[:1]
        return array.size > 1 and bool((array == first).all())


def _at(value: Value, path: tuple[int, ...]) -> Value:
    for number in path:
        assert isinstance(value, tuple), "the value has the structure of the shape"
        value = value[number]
    return value
