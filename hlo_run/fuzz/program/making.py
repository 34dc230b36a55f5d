"""Find or make values for a step: of a given type and shape, converted, reduced to small numbers, or fitted to a range."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hlo_run.fuzz.program.scope import Scope, number_text
from hlo_run.fuzz.program.values import PART_OF, TYPES, Dims, Range, Value
from hlo_run.hlo.values.braces import braces

_LARGEST_LITERAL = 24


def obtain(scope: Scope, element_type: str, dims: Dims, exact: bool = True, reuse: float = 0.75) -> Value:
    """Return a value of this type and shape: with probability `reuse` an existing one (if any), else a new exact one."""
    found = [v for v in scope.values if v.type == element_type and v.dims == dims and (v.exact or not exact)]
    if found and scope.chance(reuse):
        return scope.rng.choice(found)
    return fresh(scope, element_type, dims)


def fresh(scope: Scope, element_type: str, dims: Dims) -> Value:
    """Make an exact value by converting or broadcasting another value, from an iota, or from constants."""
    way = scope.rng.choice(("convert", "convert", "broadcast", "broadcast", "iota", "literal", "filled"))
    value: Value | None = None
    match way:
        case "convert":
            source = scope.pick(lambda v: v.exact and v.dims == dims)
            value = converted(scope, source, element_type) if source is not None else None
        case "broadcast":
            source = scope.pick(lambda v: v.exact and v.type == element_type and len(v.dims) < len(dims))
            value = broadcast_to(scope, source, dims) if source is not None else None
        case "iota":
            value = iota(scope, element_type, dims) if dims else None
        case _:
            value = None
    if value is not None and value.exact:
        return value
    if way == "literal" and 0 < math.prod(dims) <= _LARGEST_LITERAL:
        return literal(scope, element_type, dims)
    return scope.filled(element_type, dims, some_number(scope, element_type))


def some_number(scope: Scope, element_type: str) -> float:
    """Return a small number that the type can represent."""
    t = TYPES[element_type]
    if t.kind == "pred":
        return scope.rng.choice((0, 1))
    if t.is_integer:
        low, high = (-2 if t.kind == "signed" else 0), (1 if t.bits < 4 else 7)
        return scope.rng.randint(max(low, -int(t.highest)), min(high, t.largest))
    return scope.rng.choice((0.0, 0.5, 1.0, -1.0, 2.0, -0.5, 1.5))


def literal(scope: Scope, element_type: str, dims: Dims) -> Value:
    """Add a constant array of small numbers."""
    numbers = [some_number(scope, element_type) for _ in range(math.prod(dims))]

    def text(depth: int, begin: int) -> str:
        if depth == len(dims):
            return number_text(element_type, numbers[begin])
        step = math.prod(dims[depth + 1 :])
        return "{" + ", ".join(text(depth + 1, begin + k * step) for k in range(dims[depth])) + "}"

    return scope.add(element_type, dims, f"constant({text(0, 0)})", Range(8 if TYPES[element_type].is_integer else 2, 1), False)


def iota(scope: Scope, element_type: str, dims: Dims) -> Value:
    """Return an iota along a random dimension, modulo a small power of two."""
    dim = scope.rng.randrange(len(dims))
    counts = scope.add("s32", dims, f"iota(), iota_dimension={dim}", Range(max(dims[dim] - 1, 0)), False)
    return converted(scope, small_integer(scope, counts, scope.rng.choice((1, 3, 7))), element_type) or counts


def small_integer(scope: Scope, value: Value, mask: int) -> Value:
    """Return an integer value in [0, mask]; `mask` is a power of two minus one."""
    mask = min(mask, value.element.largest)
    masks = scope.filled(value.type, value.dims, mask)
    return scope.add(value.type, value.dims, f"and({value.name}, {masks.name})", Range(mask), keep=False)


def converted(scope: Scope, value: Value, element_type: str) -> Value | None:
    """Convert an exact value; where possible, the result is exact. None if the type cannot hold the values."""
    source, target = value.element, TYPES[element_type]
    if source.name == target.name:
        return value
    if not value.exact:
        return None
    if source.kind == "complex":
        part = scope.add(PART_OF[source.name], value.dims, f"real({value.name})", value.range, keep=False)
        return converted(scope, part, element_type)
    if target.is_integer and source.is_float:
        value = magnitude(scope, value) if target.kind == "unsigned" else value
        if value.range.bound > target.highest:
            return None
        return _convert(scope, value, element_type, Range(value.range.bound))
    if source.is_integer and not target.is_integer and target.kind != "pred":
        room = min(2.0**target.digits, target.highest, 64)
        value = value if value.range.bound <= room else small_integer(scope, value, 3 if room < 8 else 7)
        return _convert(scope, value, element_type, value.range)
    if source.is_integer and target.is_integer:
        wraps = value.range.bound > target.highest or (source.kind == "signed" and target.kind == "unsigned")
        return _convert(scope, value, element_type, Range(2.0**64) if wraps else value.range)
    if target.kind == "pred":
        return _convert(scope, value, element_type, Range(1))
    return _convert(scope, value, element_type, value.range)


def _convert(scope: Scope, value: Value, element_type: str, range_: Range) -> Value:
    return scope.add(element_type, value.dims, f"convert({value.name})", range_, keep=False)


def magnitude(scope: Scope, value: Value) -> Value:
    """Return the absolute value, which later steps do not use."""
    return scope.add(value.type, value.dims, f"abs({value.name})", value.range, keep=False)


def broadcast_to(scope: Scope, value: Value, dims: Dims) -> Value | None:
    """Broadcast a value to `dims`, whose sizes must contain the value's sizes in order; None if they do not."""
    places: list[int] = []
    for size in value.dims:
        rest = [d for d in range(places[-1] + 1 if places else 0, len(dims)) if dims[d] == size]
        if not rest:
            return None
        places.append(scope.rng.choice(rest[:2]))
    text = f"broadcast({value.name}), dimensions={braces(places)}"
    return scope.add(value.type, dims, text, value.range, keep=False)


def state_range(value: Value) -> Range:
    """Return a range for the state of a loop whose initial value is `value`."""
    t = value.element
    if t.is_integer:
        return Range(t.highest)
    if t.kind == "pred":
        return Range(1)
    if value.exact:
        wanted = Range(max(value.range.bound, 2.0), max(value.range.grain, 1))
        return wanted if wanted.bound * 2.0**wanted.grain <= 2.0**t.digits else value.range
    return Range(max(value.range.bound, 1.0), 0, max(value.range.error, 64 * 2.0**-t.digits))


def fitted(scope: Scope, value: Value, wanted: Range) -> Value | None:
    """Return `value`, which has the right type and shape, scaled or clamped to a range; None if that is not possible."""
    t = value.element
    if not t.is_float:
        return value if t.kind != "complex" or value.range == wanted else None
    if wanted.exact:
        return _fitted_exactly(scope, value, wanted) if value.exact else None
    power = 0
    while value.range.error * 2.0**power > wanted.error or value.range.bound * 2.0**power > wanted.bound:
        power -= 1
    scaled = scope.scaled(value, power) if power else value
    return scaled if scaled.range.error <= wanted.error else scope.scaled(scaled, -1)


def _fitted_exactly(scope: Scope, value: Value, wanted: Range) -> Value | None:
    if value.range.bound > wanted.bound:
        value = scope.clamp(value, wanted.bound)
    if value.range.grain <= wanted.grain:
        return value
    if value.range.bound * 2.0**wanted.grain > value.element.highest:
        return None
    large = scope.scaled(value, wanted.grain)
    whole = scope.add(value.type, value.dims, f"floor({large.name})", Range(large.range.bound + 1), keep=False)
    back = scope.scaled(whole, -wanted.grain)
    back = scope.clamp(back, wanted.bound) if back.range.bound > wanted.bound else back
    return back if back.exact else None


def positive(scope: Scope, value: Value) -> Value:
    """Return max(value, 1/2): it has no -0, so exact floats have unique bits."""
    half = scope.filled(value.type, value.dims, 0.5)
    known = Range(max(value.range.bound, 0.5), max(value.range.grain, 1), value.range.error)
    return scope.add(value.type, value.dims, f"maximum({value.name}, {half.name})", known, keep=False)


def scalar_index(scope: Scope, size: int, element_type: str = "s32") -> Value:
    """Return a scalar index: half of the time a constant in [-1, size] (in [0, size] if unsigned), else any value."""
    if scope.chance(0.5):
        low = -1 if TYPES[element_type].kind == "signed" else 0
        return scope.number(element_type, scope.rng.randint(low, min(max(size, 0), TYPES[element_type].largest)))
    return obtain(scope, element_type, ())


def same_dims(scope: Scope, value: Value, count: int, exact: bool = True) -> Sequence[Value]:
    """Return `count` values of the type and shape of `value`."""
    return [obtain(scope, value.type, value.dims, exact) for _ in range(count)]
