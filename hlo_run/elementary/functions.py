"""The elementary functions of f64 arrays, correctly rounded: the domain, the special values and the method of each.

An invalid operand gives a NaN with its sign bit set, as the operations of x86 do; a NaN stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import numpy as np

from hlo_run.elementary import (
    constants,
    error_function,
    exact,
    exponential,
    inverse_trigonometric,
    logarithm,
    roots,
    trigonometric,
)
from hlo_run.elementary.double_double import Array, Pair, multiply, of, two_product
from hlo_run.elementary.rounding import Elementary, Found

_INVALID = -math.nan
# Below it, an odd function with slope 1 at 0 is x to more digits than a pair has.
_TINY = 2.0**-60
# Beyond it, e^x is infinite or zero.
_EXP_END = 746.0
_EXP2_END = 1076.0
# Below it, the second part of erf's pair is subnormal.
_ERF_TINY = 2.0**-900


def _or_nan(x: Array, value: Array) -> Array:
    return np.where(np.isnan(x), x + x, value)


def _is_near(x: Array, end: float) -> Array:
    size = np.abs(x)
    return (size >= _TINY) & (size < end)


def _exp(x: Array) -> Found:
    value, exponent = exponential.exp(x)
    return Found(value, exponent)


def _exp_special(x: Array) -> Array:
    return _or_nan(x, np.where(x > 0, np.inf, 0.0))


def _expm1_special(x: Array) -> Array:
    return np.where(x > 1, np.inf, np.where(x < -1, -1.0, x + 0 * x))


def _logistic(x: Array) -> Found:
    value, exponent = exponential.logistic(x)
    return Found(value, exponent)


def _logistic_special(x: Array) -> Array:
    return _or_nan(x, np.where(x > 0, 1.0, 0.0))


def _sinh(x: Array) -> Found:
    _, value, exponent = exponential.cosh_sinh(x)
    return Found(logarithm.signed(value, x), exponent)


def _sinh_special(x: Array) -> Array:
    return np.where(np.abs(x) > 1, np.copysign(np.inf, x), x)


def _cosh(x: Array) -> Found:
    value, _, exponent = exponential.cosh_sinh(x)
    return Found(value, exponent)


def _cosh_special(x: Array) -> Array:
    return _or_nan(x, np.where(np.abs(x) > 1, np.inf, 1.0))


def _log_special(x: Array) -> Array:
    return np.where(x < 0, _INVALID, np.where(x == 0, -np.inf, x))


@cache
def _log2_pair() -> tuple[float, float]:
    """Return ln 2."""
    return constants.pair(constants.log2())


@cache
def _inverse_log2_pair() -> tuple[float, float]:
    """Return 1 / ln 2."""
    return constants.pair(constants.ONE * constants.ONE // constants.log2())


def _exp2(x: Array) -> Found:
    first, second = _log2_pair()
    z, rest = two_product(np.full_like(x, first), x)
    value, exponent = exponential.exp(z, rest + second * x)
    return Found(value, exponent)


def _log2(x: Array) -> Pair:
    first, second = _inverse_log2_pair()
    return multiply(logarithm.log(x), (np.full_like(x, first), np.full_like(x, second)))


def _log1p_special(x: Array) -> Array:
    return np.where(x < -1, _INVALID, np.where(x == -1, -np.inf, x))


def _sin(x: Array) -> Found:
    value, _, unsure = trigonometric.sine_cosine(x)
    return Found(value, None, unsure)


def _cos(x: Array) -> Found:
    _, value, unsure = trigonometric.sine_cosine(x)
    return Found(value, None, unsure)


def _tan(x: Array) -> Found:
    value, unsure = trigonometric.tangent(x)
    return Found(value, None, unsure, 2.0**-63)


def _sin_special(x: Array) -> Array:
    return np.where(np.isinf(x), _INVALID, x)


def _cos_special(x: Array) -> Array:
    return np.where(np.isinf(x), _INVALID, _or_nan(x, np.ones_like(x)))


def _in_domain(x: Array, inside: Array) -> Array:
    """Return the values, and an invalid NaN for |x| > 1."""
    return np.where(np.abs(x) > 1, _INVALID, inside)


def _acos_special(x: Array) -> Array:
    return _in_domain(x, _or_nan(x, np.where(x > 0, 0.0, np.pi)))


def _acosh_special(x: Array) -> Array:
    return np.where(x < 1, _INVALID, np.where(x == 1, 0.0, x))


def _cbrt(x: Array) -> Found:
    value, exponent = roots.cbrt(x)
    return Found(value, exponent, error=2.0**-95)


def _rsqrt(x: Array) -> Found:
    value, exponent = roots.rsqrt(x)
    return Found(value, exponent, error=2.0**-95)


def _rsqrt_special(x: Array) -> Array:
    return np.where(x < 0, _INVALID, _or_nan(x, np.where(x == 0, np.copysign(np.inf, x), 0.0)))


def _erf_special(x: Array) -> Array:
    out = np.where(np.abs(x) > 1, np.copysign(1.0, x), x)
    for place in np.flatnonzero((np.abs(x) < _ERF_TINY) & (x != 0)).tolist():
        out[place] = exact.nearest(exact.erf, x.item(place))
    return out


def _atan2(y: Array, x: Array) -> Found:
    return Found(logarithm.signed(inverse_trigonometric.atan2(y, x), y))


def _atan2_ordinary(y: Array, x: Array) -> Array:
    quotient = np.abs(y / x)
    return (quotient > 2.0**-400) & (quotient < 2.0**400) & (np.abs(x) < np.inf) & (np.abs(y) < np.inf) & (x != 0)


def _atan2_special(y: Array, x: Array) -> Array:
    tall, wide, left = np.abs(y), np.abs(x), np.signbit(x)
    flat = np.where(left, np.pi, np.where(tall == 0, 0.0, tall / wide))
    found = np.where((tall > wide) | (wide == 0) & (tall > 0), np.pi / 2, flat)
    found = np.where(np.isinf(tall) & np.isinf(wide), np.where(left, 3 * np.pi / 4, np.pi / 4), found)
    return np.where(np.isnan(x) | np.isnan(y), x + y, np.copysign(found, y))


def _is_integer(y: Array) -> Array:
    return np.floor(y) == y


def _is_odd(y: Array) -> Array:
    half = y * 0.5
    return _is_integer(y) & (np.floor(half) != half)


def _power_ordinary(x: Array, y: Array) -> Array:
    finite = (np.abs(x) < np.inf) & (x != 0) & (np.abs(y) < np.inf) & (y != 0)
    return finite & ((x > 0) | _is_integer(y))


def _power(x: Array, y: Array) -> Found:
    log, low = logarithm.log(np.abs(x))
    z, rest = two_product(log, y)
    rest = rest + low * y
    far = ~(np.abs(z) < 760)
    if far.any():
        z, rest = np.where(far, np.copysign(760.0, log) * np.copysign(1.0, y), z), np.where(far, 0.0, rest)
    value, exponent = exponential.exp(z, rest)
    sign = np.where((x < 0) & _is_odd(y), -1.0, 1.0) if (x < 0).any() else None
    return Found(value, exponent, None, np.abs(z) * 2.0**-66 + 2.0**-67, sign)


def _power_special(x: Array, y: Array) -> Array:
    size = np.abs(x)
    value = np.where((size > 1) == (y > 0), np.inf, 0.0)
    value = np.where(size == 1, 1.0, value)
    value = np.where(np.signbit(x) & _is_odd(y), -value, value)
    value = np.where(np.isnan(x) | np.isnan(y), x + y, value)
    value = np.where((x < 0) & (size < np.inf) & ~_is_integer(y) & ~np.isnan(y), _INVALID, value)
    return np.where((y == 0) | (x == 1), 1.0, value)


def _fast_logistic(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _fast_rsqrt(x: Array) -> Array:
    return np.asarray(1 / np.sqrt(x))


Unary: TypeAlias = Callable[[Array], Array]


def _function(
    ordinary: Unary, special: Unary, evaluate: Callable[[Array], Found], exactly: exact.Exact, approximate: Unary
) -> Elementary:
    return Elementary(ordinary, special, evaluate, exactly, approximate)


def _paired(
    ordinary: Unary, special: Unary, evaluate: Callable[[Array], Pair], exactly: exact.Exact, approximate: Unary
) -> Elementary:
    """Return the function whose value is a pair."""

    def found(x: Array) -> Found:
        return Found(evaluate(x))

    return Elementary(ordinary, special, found, exactly, approximate)


def _unsigned(
    ordinary: Unary, special: Unary, evaluate: Callable[[Array], Pair], exactly: exact.Exact, approximate: Unary
) -> Elementary:
    """Return the odd function whose size is a pair."""

    def found(x: Array) -> Found:
        return Found(logarithm.signed(evaluate(x), x))

    return Elementary(ordinary, special, found, exactly, approximate)


def _is_positive(x: Array) -> Array:
    return (x > 0) & (x < np.inf)


def _is_finite(x: Array) -> Array:
    return _is_near(x, np.inf)


def _same(x: Array) -> Array:
    return x


exp = _function(lambda x: np.abs(x) < _EXP_END, _exp_special, _exp, exact.exp, np.exp)
exp2 = _function(lambda x: np.abs(x) < _EXP2_END, _exp_special, _exp2, exact.exp2, np.exp2)
expm1 = _paired(lambda x: (np.abs(x) >= _TINY) & (x > -50) & (x < 710), _expm1_special, exponential.expm1, exact.expm1, np.expm1)
logistic = _function(lambda x: np.abs(x) < _EXP_END, _logistic_special, _logistic, exact.logistic, _fast_logistic)
sinh = _function(lambda x: _is_near(x, 711), _sinh_special, _sinh, exact.sinh, np.sinh)
cosh = _function(lambda x: _is_near(x, 711), _cosh_special, _cosh, exact.cosh, np.cosh)
tanh = _paired(lambda x: np.abs(x) >= _TINY, _same, exponential.tanh, exact.tanh, np.tanh)
log = _paired(_is_positive, _log_special, logarithm.log, exact.log, np.log)
log2 = _paired(_is_positive, _log_special, _log2, exact.log2, np.log2)
log1p = _paired(
    lambda x: (np.abs(x) >= _TINY) & (x > -1) & (x < np.inf),
    _log1p_special,
    lambda x: logarithm.log1p(of(x)),
    exact.log1p,
    np.log1p,
)
sin = _function(_is_finite, _sin_special, _sin, exact.sin, np.sin)
cos = _function(_is_finite, _cos_special, _cos, exact.cos, np.cos)
tan = _function(_is_finite, _sin_special, _tan, exact.tan, np.tan)
asin = _unsigned(
    lambda x: (np.abs(x) >= _TINY) & (np.abs(x) <= 1),
    lambda x: _in_domain(x, x),
    inverse_trigonometric.asin,
    exact.asin,
    np.arcsin,
)
acos = _paired(lambda x: np.abs(x) < 1, _acos_special, inverse_trigonometric.acos, exact.acos, np.arccos)
asinh = _unsigned(_is_finite, _same, logarithm.asinh, exact.asinh, np.arcsinh)
acosh = _paired(lambda x: (x > 1) & (x < np.inf), _acosh_special, logarithm.acosh, exact.acosh, np.arccosh)
atanh = _unsigned(
    lambda x: _is_near(x, 1),
    lambda x: _in_domain(x, np.where(np.abs(x) == 1, np.copysign(np.inf, x), x)),
    logarithm.atanh,
    exact.atanh,
    np.arctanh,
)
cbrt = _function(lambda x: (np.abs(x) < np.inf) & (x != 0), _same, _cbrt, exact.cbrt, np.cbrt)
rsqrt = _function(_is_positive, _rsqrt_special, _rsqrt, exact.rsqrt, _fast_rsqrt)
erf = _function(
    lambda x: (np.abs(x) >= _ERF_TINY) & (np.abs(x) <= error_function.LAST),
    _erf_special,
    lambda x: Found(error_function.erf(x), error=2.0**-62),
    exact.erf,
    error_function.approximate,
)
atan2 = Elementary(_atan2_ordinary, _atan2_special, _atan2, exact.atan2, np.arctan2)
power = Elementary(_power_ordinary, _power_special, _power, exact.power, np.power)
