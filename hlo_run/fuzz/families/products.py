"""Steps of dots of all forms, convolutions and Fourier transforms."""

from __future__ import annotations

import math

from hlo_run.fuzz.program.making import obtain
from hlo_run.fuzz.program.scope import Scope
from hlo_run.fuzz.program.values import TYPES, Dims, Range, Value, plus, rounded, times
from hlo_run.hlo.values.braces import braces

# Result types besides the operands' type.
_WIDER = {"s8": ("s32",), "u8": ("s32", "u32"), "bf16": ("f32",), "f16": ("f32",), "f8e4m3fn": ("f32", "bf16", "f16")}
_WIDER["f8e5m2"] = _WIDER["f8e4m3fn"]
_DOT_TYPES = "f32 f64 bf16 f16 s32 s8 u8 c64 c128 f8e4m3fn f8e5m2 s64".split()
_MOST_WORK = 200_000


def product_range(one: Value, two: Value, count: int, element_type: str) -> Range:
    """Return the range of a sum of `count` products."""
    t = TYPES[element_type]
    if t.is_integer:
        return Range(t.highest)
    each = times(one.range, two.range)
    each = plus(each, each) if one.element.kind == "complex" else each
    error = each.error * count + 0.0 if not each.exact else 0.0
    total = rounded(Range(each.bound * max(count, 1), each.grain, error), element_type)
    # Inexact products are rounded at each step of the sum.
    return total if total.exact else Range(total.bound, 0, total.error * (2 + math.log2(count + 1)))


def _product(scope: Scope, one: Value, two: Value, count: int, dims: Dims, text: str) -> None:
    result = one.type if one.element.is_wide_float or one.type[0] == "c" else "f32"
    result = one.type if one.element.is_integer else result
    if one.type in _WIDER and scope.chance(0.5):
        result = scope.rng.choice(_WIDER[one.type])
    known = product_range(one, two, count, result)
    if not known.exact and known.error > 2.0**-5 * max(known.bound, 1):
        return
    scope.add(result, dims, text, known)


def dot(scope: Scope) -> None:
    """Add a dot with random batch, contracting and free dimensions in any order."""
    value = scope.pick(lambda v: v.type in _DOT_TYPES and len(v.dims) <= 4)
    if value is None:
        return
    rank = len(value.dims)
    order = scope.rng.sample(range(rank), rank)
    batch_count = scope.rng.choice([n for n in (0, 0, 0, 1, 1, 2) if n <= rank])
    contracted_count = scope.rng.choice([n for n in (0, 1, 1, 1, 1, 2) if n <= rank - batch_count])
    batch, contracted = order[:batch_count], order[batch_count : batch_count + contracted_count]
    free = sorted(order[batch_count + contracted_count :])
    columns = [scope.size() for _ in range(scope.rng.choice((0, 1, 1, 1, 2)))]
    named = [*(("b", d) for d in batch), *(("c", d) for d in contracted), *(("f", k) for k in range(len(columns)))]
    scope.rng.shuffle(named)
    # The free dimensions of the right side stay in order.
    frees = iter(range(len(columns)))
    named = [(what, next(frees) if what == "f" else d) for what, d in named]
    other_dims = tuple(columns[d] if what == "f" else value.dims[d] for what, d in named)
    dims = (*(value.dims[d] for d in batch), *(value.dims[d] for d in free), *columns)
    count = math.prod(value.dims[d] for d in contracted)
    if not scope.fits_in(other_dims) or not scope.fits_in(dims) or math.prod(dims) * count > _MOST_WORK:
        return
    other = obtain(scope, value.type, other_dims, exact=False)
    places = {("b", d): p for p, (what, d) in enumerate(named) if what == "b"}
    places |= {("c", d): p for p, (what, d) in enumerate(named) if what == "c"}
    text = (
        f"dot({value.name}, {other.name}), lhs_batch_dims={braces(batch)},"
        f" lhs_contracting_dims={braces(contracted)}, rhs_batch_dims={braces([places['b', d] for d in batch])},"
        f" rhs_contracting_dims={braces([places['c', d] for d in contracted])}"
    )
    _product(scope, value, other, count, dims, text)


def convolution(scope: Scope) -> None:
    """Add a convolution with groups, strides, padding and dilations, and dimensions in any order."""
    rng = scope.rng
    t = scope.some_type(lambda name: name in ("f32", "bf16", "f16", "f64", "s32", "s8"))
    spatial = rng.choice((0, 1, 1, 2, 2, 2, 3))
    groups, batch_groups = rng.choice(((1, 1), (1, 1), (1, 1), (2, 1), (3, 1), (1, 2)))
    batch = rng.choice((1, 2, 3)) * batch_groups
    inputs, outputs = rng.choice((1, 2, 3, 4)), rng.choice((1, 2, 4, 5)) * groups * batch_groups
    extents = [rng.choice((1, 2, 3, 5, 8)) for _ in range(spatial)]
    taps = [rng.randint(1, 3) for _ in range(spatial)]
    window: list[list[str]] = [[], [], [], [], [], []]
    sizes: list[int] = []
    for extent, size in zip(extents, taps, strict=True):
        stride, low, high = rng.choice((1, 1, 2)), rng.choice((0, 0, 1, 2)), rng.choice((0, 0, 1))
        base, spread = rng.choice(((1, 1), (1, 1), (1, 1), (2, 1), (1, 2)))
        padded = (extent - 1) * base + 1 + low + high
        reach = (size - 1) * spread + 1
        sizes.append((padded - reach) // stride + 1 if padded >= reach else 0)
        flipped = str(int(rng.random() < 0.1))
        for row, number in zip(window, (size, stride, f"{low}_{high}", base, spread, flipped), strict=True):
            row.append(str(number))
    numbers = "".join(map(str, range(spatial)))
    labels = [[*letters, *numbers] for letters in ("bf", "io", "bf")]
    for side in labels:
        rng.shuffle(side) if rng.random() < 0.7 else None
    extent_of = [{"b": batch, "f": inputs * groups}, {"i": inputs, "o": outputs}, {"b": batch // batch_groups, "f": outputs}]
    for known, row in zip(extent_of, (extents, taps, sizes), strict=True):
        known |= {str(k): size for k, size in enumerate(row)}
    shapes = [tuple(known[c] for c in side) for known, side in zip(extent_of, labels, strict=True)]
    if 0 in shapes[2] or not all(map(scope.fits_in, shapes)):
        return
    image, kernel = obtain(scope, t, shapes[0], exact=False), obtain(scope, t, shapes[1], exact=False)
    names = ("size", "stride", "pad", "lhs_dilate", "rhs_dilate", "rhs_reversal")
    text = " ".join(f"{name}={'x'.join(row)}" for name, row in zip(names, window, strict=True))
    spelled = ["".join(side) for side in labels]
    more = f", feature_group_count={groups}" if groups > 1 else ""
    more += f", batch_group_count={batch_groups}" if batch_groups > 1 else ""
    windows = f", window={{{text}}}" if spatial else ""
    text = f"convolution({image.name}, {kernel.name}){windows}, dim_labels={spelled[0]}_{spelled[1]}->{spelled[2]}{more}"
    count = inputs * math.prod(taps)
    known = product_range(image, kernel, count, t)
    if known.exact or known.error < 2.0**-5:
        scope.add(t, shapes[2], text, known)


def ragged_dot(scope: Scope) -> None:
    """Add a ragged dot: groups of a matrix's rows, each multiplied by its own matrix."""
    t = scope.some_type(lambda name: name in ("f32", "bf16", "f64"))
    groups, rows, inner, columns = scope.rng.randint(1, 4), scope.size(), scope.size(1), scope.size(1)
    if not scope.fits_in((rows, inner)) or not scope.fits_in((groups, inner, columns)) or not scope.fits_in((rows, columns)):
        return
    left, right = obtain(scope, t, (rows, inner), exact=True), obtain(scope, t, (groups, inner, columns), exact=True)
    cuts = sorted(scope.rng.randint(0, rows) for _ in range(groups - 1))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, rows], strict=True)]
    counts = scope.add("s32", (groups,), f"constant({{{', '.join(map(str, sizes))}}})", Range(max(rows, 1)), keep=False)
    text = (
        f"ragged-dot({left.name}, {right.name}, {counts.name}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}},"
        " lhs_ragged_dims={0}, rhs_group_dims={0}"
    )
    _product(scope, left, right, inner, (rows, columns), text.replace("ragged-dot", "ragged-dot"))


def transform(scope: Scope) -> None:
    """Add a real Fourier transform and its inverse."""
    value = scope.pick(lambda v: v.type == "f32" and len(v.dims) in (1, 2) and 0 not in v.dims and v.dims[-1] <= 65)
    if value is None:
        return
    size = value.dims[-1]
    half = (*value.dims[:-1], size // 2 + 1)
    error = value.range.error * size + 64 * size * value.range.bound * 2.0**-24
    text = f"fft({value.name}), fft_type=RFFT, fft_length={{{size}}}"
    made = scope.add("c64", half, text, Range(value.range.bound * size, 0, error), keep=False)
    back = f"fft({made.name}), fft_type=IRFFT, fft_length={{{size}}}"
    scope.add("f32", value.dims, back, Range(value.range.bound, 0, error / size * 4))


def quantised_dot(scope: Scope) -> None:
    """Add a dot of values that are quantised to 8-bit floats and scaled."""
    rows, inner, columns = (scope.rng.choice((16, 16, 32)) for _ in range(3))
    x, w = obtain(scope, "f32", (rows, inner), exact=True), obtain(scope, "f32", (inner, columns), exact=True)
    sides: list[Value] = []
    for value in (x, w):
        limited = scope.clamp(value, 4.0) if value.range.bound > 4 else value
        narrow = scope.add("f8e4m3fn", value.dims, f"convert({limited.name})", limited.range, keep=False)
        if not narrow.exact:
            return
        wide = scope.add("f32", value.dims, f"convert({narrow.name})", narrow.range, keep=False)
        scale = scope.filled("f32", value.dims, scope.rng.choice((0.5, 2.0, 1.0)))
        sides.append(
            scope.add("f32", value.dims, f"multiply({wide.name}, {scale.name})", times(wide.range, scale.range), keep=False)
        )
    text = f"dot({sides[0].name}, {sides[1].name}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
    _product(scope, sides[0], sides[1], inner, (rows, columns), text)
