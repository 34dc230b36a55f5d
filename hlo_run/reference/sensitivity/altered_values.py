"""Changes a value as a faulty kernel might: floats by a few percent with random signs, integers and pred to others in range.

A zero among floats becomes as large as the change of a usual number of the array. NaN and infinities stay: what is behind
them cannot be told from outside.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.dtype import DTYPES, DType
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.compare.rounding import rounding
from hlo_run.reference.numerics import dynamic
from hlo_run.reference.random import RandomEngine
from hlo_run.reference.values import Array, Value, narrow, quiet, widen

# The relative change of floats; of narrow types at least so many roundings.
RELATIVE = 2.0**-5
_ROUNDINGS = 4.0


def altered(value: Value, instruction: HloInstruction, seed: int, sign: int = 1) -> Value:
    """Return a value of `instruction` with all arrays changed that others read, without its workspaces.

    The opposite `sign` changes floats and integers the other way.
    """
    shape, engine = instruction.shape, RandomEngine(seed)
    with quiet():
        if not isinstance(value, tuple) or not shape.is_tuple:
            return _altered(value, shape, engine, sign)
        read = parts_read(instruction)
        parts = enumerate(zip(value, shape.tuple_shapes, strict=True))
        return tuple(_altered(part, leaf, engine, sign) if number in read else part for number, (part, leaf) in parts)


def parts_read(instruction: HloInstruction) -> Collection[int]:
    """Return the numbers of the parts of an instruction's tuple that others read; all, if it is read as a whole."""
    users = instruction.users
    if users and all(user.opcode == "get-tuple-element" for user in users):
        return {user.tuple_index for user in users}
    return range(len(instruction.shape.tuple_shapes))


def _altered(value: Value, shape: Shape, engine: RandomEngine, sign: int) -> Value:
    if isinstance(value, tuple):
        if not shape.is_tuple:
            return value  # a token
        return tuple(_altered(part, leaf, engine, sign) for part, leaf in zip(value, shape.tuple_shapes, strict=True))
    array = dynamic.leave(value)
    if not array.size:
        return value
    flat = np.ascontiguousarray(array).reshape(-1)
    changed = _changed(flat, shape.dtype, engine, sign).reshape(array.shape)
    return dynamic.enter(changed, shape)


def _changed(flat: Array, dtype: DType, engine: RandomEngine, sign: int) -> Array:
    match dtype.kind:
        case "pred":
            flips = _signs(engine, flat.size) * sign > 0
            return flat ^ flips if flips.any() and flat.size > 1 else ~flat
        case "float":
            return _changed_floats(flat, dtype, engine, sign)
        case "complex":
            part = DTYPES["f32" if dtype.bits == 64 else "f64"]
            return _changed_floats(flat.view(part.numpy), part, engine, sign).view(flat.dtype)
        case _:
            return _changed_integers(flat, dtype, engine, sign)


def _changed_floats(flat: Array, dtype: DType, engine: RandomEngine, sign: int) -> Array:
    wide = widen(flat, dtype)
    relative = max(RELATIVE, _ROUNDINGS * rounding(dtype))
    size = np.abs(wide)
    step: Array = np.where(size > 0, size * relative, 0.0 if size.all() else _step_of_zero(size, relative))
    moved: Array = (wide + step * _signs(engine, flat.size) * sign).astype(wide.dtype)
    return np.where(np.isfinite(wide), narrow(moved, dtype), flat).astype(flat.dtype)


def _step_of_zero(size: Array, relative: float) -> float:
    """Return the step of a usual element. `np.median` would import numpy.ma."""
    usual = size[np.isfinite(size) & (size > 0)]
    middle = usual.size // 2
    return relative * float(np.partition(usual, middle)[middle]) if usual.size else RELATIVE


def _changed_integers(flat: Array, dtype: DType, engine: RandomEngine, sign: int) -> Array:
    """Return the integers of other places, or, where these are equal, the next integer."""
    wide = flat.astype(np.uint64 if dtype.is_unsigned else np.int64)
    other = np.roll(wide, 1 + int(engine.words(1)[0] % np.uint64(flat.size)))
    low, high = int(wide.min()), int(wide.max())
    one = wide.dtype.type(1)
    next_one: Array = np.where(wide == high, wide - one, wide + one)
    if low == high:
        next_one = wide + one if sign > 0 else wide - one
    return narrow(np.where(other == wide, next_one, other), dtype)


def _signs(engine: RandomEngine, count: int) -> Array:
    words = engine.words((count + 63) // 64)
    return np.unpackbits(words.view(np.uint8), count=count).astype(np.int8) * 2 - 1
