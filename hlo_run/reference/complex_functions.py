"""Complex functions with HLO's results in the corner cases where numpy's differ."""

from __future__ import annotations

import numpy as np

from hlo_run.arrays import NumpyType
from hlo_run.elementary import complex_functions as functions
from hlo_run.reference.values import Array


def real_part(z: Array) -> Array:
    """Return the real part of each element."""
    return np.asarray(np.real(z))


def imaginary_part(z: Array) -> Array:
    """Return the imaginary part of each element; 0 for real numbers."""
    return np.asarray(np.imag(z))


def make_complex(real: Array, imag: Array) -> Array:
    """Return real + i·imag exactly; with numpy's arithmetic, an infinite part would make the other part NaN."""
    parts: NumpyType = np.result_type(real, imag)
    out = np.empty((*np.broadcast_shapes(real.shape, imag.shape), 2), parts)
    out[..., 0], out[..., 1] = real, imag
    return out.view(np.complex128 if parts == np.float64 else np.complex64)[..., 0]


def complex_arctan2(y: Array, x: Array) -> Array:
    """Return -i log((x + iy) / sqrt(x² + y²)), the definition of HLO's atan2."""
    x, y = (value.astype(np.complex128) for value in (x, y))
    turned = make_complex(-imaginary_part(y), real_part(y))  # i y
    log = functions.log(functions.divided(x + turned, functions.sqrt(functions.multiplied(x, x) + functions.multiplied(y, y))))
    return make_complex(imaginary_part(log), -real_part(log))


def complex_sign(z: Array) -> Array:
    """Return z / |z|, and 0 for 0."""
    size = functions.absolute(z)
    return np.where(z == 0, z, make_complex(real_part(z) / size, imaginary_part(z) / size))


def complex_maximum(x: Array, y: Array) -> Array:
    """Return the larger number by real parts, then by imaginary parts; `y` if they do not compare (NaN)."""
    return np.where(_not_below(x, y), x, y)


def complex_minimum(x: Array, y: Array) -> Array:
    """Return the smaller number by real parts, then by imaginary parts; `y` if they do not compare (NaN)."""
    return np.where(_not_below(y, x), x, y)


def _not_below(x: Array, y: Array) -> Array:
    a, b, c, d = real_part(x), imaginary_part(x), real_part(y), imaginary_part(y)
    return (a > c) | ((a == c) & (b >= d))


def divide_complex(x: Array, y: Array) -> Array:
    """Return x / y as C's Annex G: infinite operands and zero divisors give infinities or zeros, not NaN."""
    quotient = functions.divided(x, y)
    a, b, c, d = real_part(x), imaginary_part(x), real_part(y), imaginary_part(y)
    stuck = np.isnan(real_part(quotient)) & np.isnan(imaginary_part(quotient))
    if not stuck.any():
        return quotient
    by_zero = stuck & (y == 0) & ~(np.isnan(a) & np.isnan(b))
    huge = np.copysign(np.inf, c)
    quotient = np.where(by_zero, make_complex(huge * a, huge * b), quotient)
    stuck &= y != 0
    unit_a, unit_b = _unit(a), _unit(b)
    grown = make_complex(np.inf * (unit_a * c + unit_b * d), np.inf * (unit_b * c - unit_a * d))
    quotient = np.where(stuck & np.isinf(x) & np.isfinite(y), grown, quotient)
    unit_c, unit_d = _unit(c), _unit(d)
    shrunk = make_complex(0.0 * (a * unit_c + b * unit_d), 0.0 * (b * unit_c - a * unit_d))
    return np.where(stuck & np.isfinite(x) & np.isinf(y), shrunk, quotient).astype(x.dtype)


def _unit(part: Array) -> Array:
    """Return ±1 for an infinite part, ±0 for any other."""
    return np.copysign(np.isinf(part).astype(part.dtype), part)
