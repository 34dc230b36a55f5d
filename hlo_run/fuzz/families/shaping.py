"""Steps of data movement, iotas, constants, barriers and tuples."""

from __future__ import annotations

import math

from hlo_run.fuzz.program.making import iota, obtain, some_number
from hlo_run.fuzz.program.scope import Scope, number_range
from hlo_run.fuzz.program.values import Range, Value, join
from hlo_run.hlo.values.braces import braces


def broadcast(scope: Scope) -> None:
    """Insert one or two dimensions by a broadcast."""
    value = scope.pick(lambda v: len(v.dims) < 4)
    if value is None:
        return
    dims, kept = list(value.dims), list(range(len(value.dims)))
    for _ in range(scope.rng.choice((1, 1, 2))):
        place = scope.rng.randint(0, len(dims))
        dims.insert(place, scope.size())
        kept = [d + (d >= place) for d in kept]
    if scope.fits_in(dims):
        scope.add(value.type, tuple(dims), f"broadcast({value.name}), dimensions={braces(kept)}", value.range)


def transpose(scope: Scope) -> None:
    """Add a transpose by a random permutation."""
    value = scope.pick(lambda v: len(v.dims) >= 2)
    if value is None:
        return
    order = list(range(len(value.dims)))
    scope.rng.shuffle(order)
    dims = tuple(value.dims[d] for d in order)
    scope.add(value.type, dims, f"transpose({value.name}), dimensions={braces(order)}", value.range)


def reshape(scope: Scope) -> None:
    """Merge, split or insert dimensions by a reshape."""
    value = scope.pick()
    if value is None:
        return
    dims = list(value.dims)
    for _ in range(scope.rng.choice((1, 1, 2))):
        way = scope.rng.randrange(3)
        if way == 0 and len(dims) > 1:
            place = scope.rng.randrange(len(dims) - 1)
            dims[place : place + 2] = [dims[place] * dims[place + 1]]
        elif way == 1 and dims:
            place = scope.rng.randrange(len(dims))
            factor = scope.rng.choice([f for f in (1, 2, 3, 4, 5, 8, 16) if dims[place] % f == 0])
            parts = [factor, dims[place] // factor]
            scope.rng.shuffle(parts)
            dims[place : place + 1] = parts
        else:
            dims.insert(scope.rng.randint(0, len(dims)), 1)
    if len(dims) <= 6 and math.prod(dims) == value.count:
        scope.add(value.type, tuple(dims), f"reshape({value.name})", value.range)


def squeeze(scope: Scope) -> None:
    """Remove dimensions of size 1."""
    value = scope.pick(lambda v: 1 in v.dims)
    if value is not None:
        dims = tuple(size for size in value.dims if size != 1)
        scope.add(value.type, dims, f"reshape({value.name})", value.range)


def slice_(scope: Scope) -> None:
    """Add a slice with random starts, limits and strides."""
    value = scope.pick(lambda v: len(v.dims) > 0)
    if value is None:
        return
    parts: list[tuple[int, int, int]] = []
    for size in value.dims:
        start = scope.rng.randint(0, size) if scope.chance(0.1) else scope.rng.randrange(max(size, 1))
        limit = scope.rng.randint(min(start + scope.chance(0.95), size), size)
        parts.append((start, limit, scope.rng.choice((1, 1, 1, 2, 3))) if scope.chance(0.6) else (0, size, 1))
    dims = tuple(-(-(limit - start) // stride) for start, limit, stride in parts)
    text = ", ".join(f"[{start}:{limit}:{stride}]" for start, limit, stride in parts)
    scope.add(value.type, dims, f"slice({value.name}), slice={{{text}}}", value.range)


def pad(scope: Scope) -> None:
    """Add a pad with low, high and interior padding; edge padding may be negative."""
    value = scope.pick(lambda v: len(v.dims) > 0)
    if value is None:
        return
    edges: list[str] = []
    dims: list[int] = []
    for size in value.dims:
        low, high, inside = scope.rng.choice(((0, 0, 0), (0, 0, 0), (1, 2, 0), (0, 3, 1), (-1, 2, 0), (3, -1, 2), (-1, -1, 0)))
        padded = size + max(size - 1, 0) * inside + low + high
        if padded < 0:
            low, high, inside, padded = 0, 0, 0, size
        edges.append(f"{low}_{high}_{inside}")
        dims.append(padded)
    if not scope.fits_in(dims):
        return
    number = some_number(scope, value.type)
    fill = scope.number(value.type, number) if scope.chance(0.7) else obtain(scope, value.type, (), exact=False)
    known = join(value.range, fill.range)
    scope.add(value.type, tuple(dims), f"pad({value.name}, {fill.name}), padding={'x'.join(edges)}", known)


def concatenate(scope: Scope) -> None:
    """Add a concatenate of up to four arrays along a random dimension."""
    value = scope.pick(lambda v: len(v.dims) > 0)
    if value is None:
        return
    dim = scope.rng.randrange(len(value.dims))

    def fits(v: Value) -> bool:
        same = v.type == value.type and len(v.dims) == len(value.dims)
        return same and all(d == dim or a == b for d, (a, b) in enumerate(zip(v.dims, value.dims, strict=True)))

    parts = [value, *(scope.pick(fits) or value for _ in range(scope.rng.choice((0, 1, 1, 2))))]
    if scope.chance(0.3):
        parts.append(obtain(scope, value.type, value.dims))
    scope.rng.shuffle(parts)
    size = sum(part.dims[dim] for part in parts)
    dims = tuple(size if d == dim else s for d, s in enumerate(value.dims))
    if scope.fits_in(dims):
        known = join(*(part.range for part in parts))
        scope.add(value.type, dims, f"concatenate({', '.join(p.name for p in parts)}), dimensions={{{dim}}}", known)


def reverse(scope: Scope) -> None:
    """Reverse random dimensions."""
    value = scope.pick(lambda v: len(v.dims) > 0)
    if value is None:
        return
    dims = sorted(scope.rng.sample(range(len(value.dims)), scope.rng.randint(1, len(value.dims))))
    scope.add(value.type, value.dims, f"reverse({value.name}), dimensions={braces(dims)}", value.range)


def count(scope: Scope) -> None:
    """Add an iota of a type that the module prefers."""
    dims = scope.some_dims(least_rank=1)
    if scope.chance(0.5):
        scope.keep(iota(scope, scope.some_type(), dims))
        return
    dim = scope.rng.randrange(len(dims))
    element_type = scope.some_type(lambda name: name in ("s32", "u8", "s64", "f32", "s16", "u32", "f64"))
    scope.add(element_type, dims, f"iota(), iota_dimension={dim}", Range(max(dims[dim] - 1, 0)))


def constant(scope: Scope) -> None:
    """Add a constant array of one number or of random numbers."""
    number = some_number(scope, name := scope.some_type())
    dims = scope.some_dims(most_rank=2)
    value = scope.filled(name, dims, number) if scope.chance(0.5) else obtain(scope, name, dims, reuse=0)
    assert number_range(number).bound >= 0
    scope.keep(value)


def barrier(scope: Scope) -> None:
    """Add an optimization barrier on up to three values."""
    values = [v for v in (scope.pick() for _ in range(scope.rng.randint(1, 3))) if v is not None]
    if not values:
        return
    if len(values) == 1:
        scope.add(values[0].type, values[0].dims, f"opt-barrier({values[0].name})", values[0].range)
        return
    packed = scope.add_tuple(values)
    scope.take_apart(scope.add_tuple(values, f"opt-barrier({packed.name})"))


def through_tuple(scope: Scope) -> None:
    """Add a tuple, sometimes nested, and its elements."""
    values = [v for v in (scope.pick() for _ in range(scope.rng.randint(1, 3))) if v is not None]
    if not values:
        return
    packed = scope.add_tuple(values)
    if scope.chance(0.3):
        packed = scope.add_tuple([packed, values[0]])
    scope.take_apart(packed)
