"""Complex functions of c128 arrays, by formulas of real pairs without cancellation; the parts are nearest or next to it.

Infinite, invalid and zero operands have numpy's results, which are exact: infinities, zeros, NaNs and multiples of pi.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from hlo_run.elementary import complex_pairs as c
from hlo_run.elementary import constants, exponential, logarithm, trigonometric
from hlo_run.elementary.complex_pairs import Complex, near_one, product, value
from hlo_run.elementary.double_double import (
    Array,
    Pair,
    add,
    choose,
    divide,
    multiply,
    negative,
    of,
    scale,
    subtract,
    two_sum,
)
from hlo_run.elementary.inverse_trigonometric import angle

Function: TypeAlias = Callable[..., Array]
# Of the real and the imaginary part, to both parts of the result.
Parts: TypeAlias = Callable[[Array, Array], tuple[Array, Array]]

_HUGE = 2.0**400
_LOG_TWO = 0.6931471805599453
_LOG2_E = 1.4426950408889634
_BLOCK = 12288


def join(real: Array, imaginary: Array) -> Array:
    """Return real + i imaginary."""
    out = np.empty((*real.shape, 2), np.float64)
    out[..., 0], out[..., 1] = real, imaginary
    return out.view(np.complex128)[..., 0]


def _parts(z: Array) -> tuple[Array, Array]:
    """Return the real and the imaginary parts, each contiguous."""
    return np.ascontiguousarray(np.real(z)), np.ascontiguousarray(np.imag(z))


def _flipped(x: Array, like: Array) -> Array:
    """Return x, with the other sign where `like` has a sign."""
    return np.where(np.signbit(like), -x, x)


def _function(special: Function, parts: Parts) -> Function:
    """Return a function that computes finite numbers other than 0 by `parts` and others by `special`."""

    def apply(z: Array) -> Array:
        flat = np.ascontiguousarray(z, np.complex128).reshape(-1)
        out = np.empty_like(flat)
        with np.errstate(all="ignore"):
            for start in range(0, flat.size, _BLOCK):
                out[start : start + _BLOCK] = _block(special, parts, flat[start : start + _BLOCK])
        return out.reshape(np.shape(z))

    return apply


def _block(special: Function, parts: Parts, z: Array) -> Array:
    ordinary = np.isfinite(z) & (z != 0)
    if ordinary.all():
        return join(*parts(*_parts(z)))
    out = np.asarray(special(z))
    out = join(*map(_plain, _parts(out)))
    places = np.flatnonzero(ordinary)
    if places.size:
        chosen = z[places]
        out[places] = join(*parts(*_parts(chosen)))
    return out


def _plain(x: Array) -> Array:
    """Return the numbers with one NaN for all."""
    return np.where(np.isnan(x), -np.nan, x)


def _odd(quadrant: Callable[[Array, Array], Complex]) -> Parts:
    """Return the parts of an odd function from those for numbers of the first quadrant."""

    def parts(a: Array, b: Array) -> tuple[Array, Array]:
        real, imaginary = quadrant(np.abs(a), np.abs(b))
        return _flipped(value(real), a), _flipped(value(imaginary), b)

    return parts


def _exp(a: Array, b: Array) -> tuple[Array, Array]:
    p, k = exponential.exp(np.clip(a, -700.0, 745.0))
    extra = np.minimum(a + 700, 0)
    sine, cosine, _ = trigonometric.sine_cosine(np.abs(b))
    out = [value(c.shifted(product(p, part), k)) for part in (cosine, sine)]
    if (extra < 0).any():
        q, more = exponential.exp(np.maximum(extra, -750.0))
        out = [
            np.where(extra < 0, value(c.shifted(product(multiply(p, q), t), np.maximum(k + more, -1900))), near)
            for t, near in zip((cosine, sine), out, strict=True)
        ]
    return out[0], _flipped(out[1], b)


def _expm1(a: Array, b: Array) -> tuple[Array, Array]:
    size = np.abs(b)
    _, cosine, _ = trigonometric.sine_cosine(size)
    half, _, _ = trigonometric.sine_cosine(size * 0.5)
    grown = c.expm1(np.clip(a, -45.0, 45.0))
    near = subtract(multiply(grown, cosine), scale(c.square(half), 2.0))
    far, imaginary = _exp(a, b)
    return np.where(np.abs(a) < 45, value(near), far - 1), imaginary


def _log(a: Array, b: Array) -> tuple[Array, Array]:
    near, exponent = near_one((of(a), of(np.abs(b))))
    real, imaginary = c.log(near)
    return value(add(_logs_of_two(exponent), real)), _flipped(value(imaginary), b)


def _logs_of_two(exponent: Array) -> Pair:
    """Return exponent · ln 2."""
    first, second = constants.pair(constants.log2())
    number = exponent.astype(np.float64)
    return multiply((np.full_like(number, first), np.full_like(number, second)), of(number))


def _log1p(a: Array, b: Array) -> tuple[Array, Array]:
    # Where 1 + a is exact, or all but a
    apart = (np.maximum(np.abs(a), np.abs(b)) >= 2.0**100) | (np.maximum(np.abs(1 + a), np.abs(b)) < 2.0**-400)
    one, other = np.where(apart, 1.0, a), np.where(apart, 1.0, np.abs(b))
    real, imaginary = c.log((two_sum(np.ones_like(one), one), of(other)))
    small = np.maximum(np.abs(one), other) < 0.5
    u = add(of(2 * one), add(c.square(of(one)), c.square(of(other))))
    near = scale(logarithm.log1p((np.where(small, u[0], 0.0), np.where(small, u[1], 0.0))), 0.5)
    found = value(choose(small, near, real)), _flipped(value(imaginary), b)
    if apart.any():
        pole = (a == -1) & (b == 0)
        far = _log(np.where(pole, 1.0, 1 + a), b)
        return np.where(pole, -np.inf, np.where(apart, far[0], found[0])), np.where(apart, far[1], found[1])
    return found


def _logistic(a: Array, b: Array) -> tuple[Array, Array]:
    p, k = exponential.exp(np.maximum(-np.abs(a), -750.0))
    w = c.shifted(p, np.maximum(k, -1000))
    sine, cosine, _ = trigonometric.sine_cosine(np.abs(b))
    real, imaginary = product(w, cosine), product(w, sine)
    whole = add(c.one_like(a), real)
    size = add(c.square(whole), c.square(imaginary))
    top = choose(a < 0, add(multiply(real, whole), c.square(imaginary)), whole)
    return value(divide(top, size)), _flipped(value(divide(imaginary, size)), b)


def _sinh_of(a: Array, b: Array) -> Complex:
    cosh, sinh, k = c.cosh_sinh(a)
    sine, cosine, _ = trigonometric.sine_cosine(b)
    return c.shifted(product(sinh, cosine), k), c.shifted(product(cosh, sine), k)


def _sin_of(a: Array, b: Array) -> Complex:
    imaginary, real = _sinh_of(b, a)
    return real, imaginary


def _cosh(a: Array, b: Array) -> tuple[Array, Array]:
    cosh, sinh, k = c.cosh_sinh(np.abs(a))
    sine, cosine, _ = trigonometric.sine_cosine(np.abs(b))
    real, imaginary = c.shifted(product(cosh, cosine), k), c.shifted(product(sinh, sine), k)
    return value(real), _flipped(_flipped(value(imaginary), a), b)


def _cos(a: Array, b: Array) -> tuple[Array, Array]:
    real, imaginary = _cosh(b, a)
    return real, -imaginary


def _tanh_of(a: Array, b: Array) -> Complex:
    cosh, sinh, _ = c.cosh_sinh(np.minimum(a, 30.0))
    sine, cosine, _ = trigonometric.sine_cosine(b)
    size = add(c.square(sinh), c.square(cosine))
    turn = product(sine, cosine)
    real, imaginary = divide(product(sinh, cosh), size), divide(turn, size)
    far = a >= 30.0
    if far.any():
        p, k = exponential.exp(np.maximum(-2 * a, -750.0))
        small = c.shifted(multiply(scale(turn, 4.0), p), k)
        real, imaginary = choose(far, c.one_like(a), real), choose(far, small, imaginary)
    return real, imaginary


def _tan_of(a: Array, b: Array) -> Complex:
    imaginary, real = _tanh_of(b, a)
    return real, imaginary


def _roots_beside_one(a: Array, b: Array) -> tuple[Complex, Complex]:
    """Return the conjugate of sqrt(1 - z), and sqrt(1 + z)."""
    one = np.ones_like(a)
    return _root((two_sum(one, -a), of(b))), _root((two_sum(one, a), of(b)))


def _root(z: Complex) -> Complex:
    near, exponent = near_one(z)
    real, imaginary = c.root(near)
    return c.shifted(real, exponent >> 1), c.shifted(imaginary, exponent >> 1)


def _large(a: Array, b: Array) -> tuple[Array, Array, Array]:
    """Return where |z| is huge, and both parts with 1 there."""
    huge = np.maximum(a, b) >= _HUGE
    return huge, np.where(huge, 1.0, a), np.where(huge, 1.0, b)


def _growth(first: Complex, second: Complex) -> Pair:
    """Return Re s1 Im s2 + Im s1 Re s2."""
    return add(multiply(first[0], second[1]), multiply(first[1], second[0]))


def _log_of_double(a: Array, b: Array) -> tuple[Pair, Pair]:
    """Return ln 2|z| and the angle of z."""
    near, exponent = near_one((of(a), of(b)))
    log, turn = c.log(near)
    return add(_logs_of_two(exponent + 1), log), turn


def _asin_of(a: Array, b: Array) -> Complex:
    huge, near_a, near_b = _large(a, b)
    first, second = _roots_beside_one(near_a, near_b)
    real = angle(of(near_a), add(multiply(first[0], second[0]), multiply(first[1], second[1])))
    imaginary = c.asinh(_growth(first, second))
    if huge.any():
        log, turn = _log_of_double(np.where(huge, b, 1.0), np.where(huge, a, 1.0))
        real, imaginary = choose(huge, turn, real), choose(huge, log, imaginary)
    return real, imaginary


def _asinh_of(a: Array, b: Array) -> Complex:
    imaginary, real = _asin_of(b, a)
    return real, imaginary


def _acos_of(a: Array, b: Array) -> Complex:
    """Return Re acos z and -Im acos z for the first quadrant."""
    huge, near_a, near_b = _large(a, b)
    first, second = _roots_beside_one(near_a, near_b)
    real = scale(angle(first[0], second[0]), 2.0)
    imaginary = c.asinh(_growth(first, second))
    if huge.any():
        log, turn = _log_of_double(np.where(huge, a, 1.0), np.where(huge, b, 1.0))
        real, imaginary = choose(huge, turn, real), choose(huge, log, imaginary)
    return real, imaginary


def _acos_both(a: Array, b: Array) -> tuple[Array, Array]:
    """Return Re acos z and |Im acos z|."""
    real, imaginary = _acos_of(np.abs(a), np.abs(b))
    pi = constants.pair(constants.pi())
    real = choose(a < 0, subtract((np.full_like(a, pi[0]), np.full_like(a, pi[1])), real), real)
    return value(real), value(imaginary)


def _acos(a: Array, b: Array) -> tuple[Array, Array]:
    real, imaginary = _acos_both(a, b)
    return real, _flipped(-imaginary, b)


def _acosh(a: Array, b: Array) -> tuple[Array, Array]:
    real, imaginary = _acos_both(a, b)
    return imaginary, _flipped(real, b)


def _atanh_of(a: Array, b: Array) -> Complex:
    huge, near_a, near_b = _large(a, b)
    one = np.ones_like(a)
    less, more = two_sum(one, -near_a), two_sum(one, near_a)
    (short, tall), exponent = near_one((less, of(near_b)))
    pole = (short[0] == 0) & (tall[0] == 0)
    near_square = add(c.square(short), c.square(tall))
    near_square = np.where(pole, 1.0, near_square[0]), near_square[1]
    # (1 + a)² + b² = 4a + (1 - a)² + b²; beside the pole 4a is all of it.
    beside = exponent < -200
    far_square = add(c.square((np.where(beside, 1.0, less[0]), less[1])), c.square(of(near_b)))
    real = logarithm.log1p(divide(of(4 * near_a), far_square))
    if beside.any():
        quotient = divide(of(4 * near_a), near_square)
        real = choose(beside, subtract(logarithm.log(*quotient), _logs_of_two(2 * exponent)), real)
    real = scale(real, 0.25)
    across = subtract(multiply(short, more), multiply(of(near_b), tall))
    left = across[0] < 0
    imaginary = scale(angle(scale(tall, 2.0), choose(left, negative(across), across), left), 0.5)
    real = np.where(pole, np.inf, real[0]), np.where(pole, 0.0, real[1])
    if huge.any():
        size = np.maximum(a, b)
        one, other = np.where(huge, a / size, 1.0), np.where(huge, b / size, 1.0)
        real = choose(huge, of(one / (one * one + other * other) / size), real)
        imaginary = choose(huge, of(np.full_like(a, np.pi / 2)), imaginary)
    return real, imaginary


def _sqrt_of(a: Array, b: Array) -> tuple[Complex, Array]:
    near, exponent = near_one((of(a), of(np.abs(b))))
    return c.root(near), exponent >> 1


def _sqrt(a: Array, b: Array) -> tuple[Array, Array]:
    (real, imaginary), k = _sqrt_of(a, b)
    return value(c.shifted(real, k)), _flipped(value(c.shifted(imaginary, k)), b)


def _rsqrt(a: Array, b: Array) -> tuple[Array, Array]:
    (real, imaginary), k = _sqrt_of(a, b)
    size = add(c.square(real), c.square(imaginary))
    return value(c.shifted(divide(real, size), -k)), _flipped(-value(c.shifted(divide(imaginary, size), -k)), b)


def _abs(a: Array, b: Array) -> Array:
    near, exponent = near_one((of(a), of(b)))
    return value(c.shifted(c.modulus(near), exponent))


def absolute(z: Array) -> Array:
    """Return |z| of complex numbers, as f64 for c128 and f32 for c64."""
    part = np.dtype(np.float32 if z.dtype == np.complex64 else np.float64)
    a, b = (x.astype(np.float64).reshape(np.shape(z)) for x in _parts(z))
    with np.errstate(all="ignore"):
        ordinary = np.isfinite(a) & np.isfinite(b) & ((a != 0) | (b != 0))
        found = _abs(np.where(ordinary, a, 1.0), np.where(ordinary, b, 1.0))
        other = np.where(np.isinf(a) | np.isinf(b), np.inf, np.abs(a) + np.abs(b))
        return np.asarray(np.where(ordinary, found, other).astype(part))


def multiplied(x: Array, y: Array) -> Array:
    """Return x · y, every product and sum rounded: numpy's own product may contract them."""
    (a, b), (p, q) = (np.real(x), np.imag(x)), (np.real(y), np.imag(y))
    real, imaginary = a * p - b * q, a * q + b * p
    out = np.empty((*real.shape, 2), real.dtype)
    out[..., 0], out[..., 1] = real, imaginary
    return out.view(np.result_type(x, y))[..., 0]


def divided(x: Array, y: Array) -> Array:
    """Return x / y by Smith's method."""
    (a, b), (p, q) = (np.real(x), np.imag(x)), (np.real(y), np.imag(y))
    steep = np.abs(p) < np.abs(q)
    long, short = np.where(steep, q, p), np.where(steep, p, q)
    zero = (p == 0) & (q == 0)
    ratio = short / np.where(zero, long.dtype.type(1), long)
    factor = long.dtype.type(1) / (long + short * ratio)
    real = np.where(steep, a * ratio + b, a + b * ratio) * factor
    imaginary = np.where(steep, b * ratio - a, b - a * ratio) * factor
    size = np.abs(p)
    real, imaginary = np.where(zero, a / size, real), np.where(zero, b / size, imaginary)
    out = np.empty((*np.shape(real), 2), real.dtype)
    out[..., 0], out[..., 1] = real, imaginary
    return out.view(np.result_type(x, y))[..., 0]


def _power_of_integer(z: Array, n: int) -> Array:
    """Return z^n for a small integer n, by squaring."""
    out, square, left = np.ones_like(z), z, abs(n)
    while left:
        if left & 1:
            out = multiplied(out, square)
        square, left = multiplied(square, square), left >> 1
    return out if n >= 0 else divided(np.ones_like(z), out)


_MOST_FACTORS = 100


def power(z: Array, w: Array) -> Array:
    """Return z^w = e^(w ln z): by products for integers below 100, as numpy for 0 and infinities."""
    z, w = (np.ascontiguousarray(x, np.complex128) for x in np.broadcast_arrays(z, w))
    shape, z, w = z.shape, z.reshape(-1), w.reshape(-1)
    with np.errstate(all="ignore"):
        out = np.empty_like(z)
        exponent, turn = _parts(w)
        whole = (turn == 0) & (np.floor(exponent) == exponent) & (np.abs(exponent) < _MOST_FACTORS) & (z != 0)
        for n in np.unique(exponent[whole]).tolist():
            places = whole & (exponent == n)
            out[places] = _power_of_integer(z[places], int(n))
        ordinary = ~whole & np.isfinite(z) & np.isfinite(w) & (z != 0)
        other = ~whole & ~ordinary
        if other.any():
            out[other] = join(*map(_plain, _parts(np.power(z[other], w[other]))))
        if ordinary.any():
            out[ordinary] = _general_power(z[ordinary], w[ordinary])
    return out.reshape(shape)


def _general_power(z: Array, w: Array) -> Array:
    (a, b), (p, q) = _parts(z), map(of, _parts(w))
    near, exponent = near_one((of(a), of(np.abs(b))))
    log, turn = c.log(near)
    log = add(_logs_of_two(exponent), log)
    turn = choose(np.signbit(b), negative(turn), turn)
    real = subtract(multiply(p, log), multiply(q, turn))
    imaginary = add(multiply(p, turn), multiply(q, log))
    far = ~(np.abs(real[0]) < 745)
    real = np.where(far, np.copysign(745.0, real[0]), real[0]), np.where(far, 0.0, real[1])
    size, k = exponential.exp(*real)
    sine, cosine, _ = trigonometric.sine_cosine(np.where(np.isfinite(imaginary[0]), imaginary[0], 0.0), imaginary[1])
    return join(*(value(c.shifted(product(size, part), k)) for part in (cosine, sine)))


def _reciprocal_root(z: Array) -> Array:
    return divided(np.ones_like(z), np.asarray(np.sqrt(z)))


def _special_logistic(z: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-z)))


exp = _function(np.exp, _exp)


def exp2(z: Array) -> Array:
    """Return 2^z as XLA computes it: e to the power of z ln 2, each part rounded."""
    return exp(join(np.real(z) * _LOG_TWO, np.imag(z) * _LOG_TWO))


expm1 = _function(np.expm1, _expm1)
log = _function(np.log, _log)


def log2(z: Array) -> Array:
    """Return the logarithm to the base 2 as XLA computes it: ln z, each part times 1 / ln 2."""
    natural = log(z)
    return join(np.real(natural) * _LOG2_E, np.imag(natural) * _LOG2_E)


log1p = _function(np.log1p, _log1p)
logistic = _function(_special_logistic, _logistic)
sin = _function(np.sin, _odd(_sin_of))
cos = _function(np.cos, _cos)
tan = _function(np.tan, _odd(_tan_of))
sinh = _function(np.sinh, _odd(_sinh_of))
cosh = _function(np.cosh, _cosh)
tanh = _function(np.tanh, _odd(_tanh_of))
asin = _function(np.arcsin, _odd(_asin_of))
acos = _function(np.arccos, _acos)
asinh = _function(np.arcsinh, _odd(_asinh_of))
acosh = _function(np.arccosh, _acosh)
atanh = _function(np.arctanh, _odd(_atanh_of))
sqrt = _function(np.sqrt, _sqrt)
rsqrt = _function(_reciprocal_root, _rsqrt)
