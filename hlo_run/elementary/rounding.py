"""Rounds pairs to results: the nearest f64, or a f64 that a second rounding makes the nearest of a narrower type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from msgspec import Struct

from hlo_run.elementary.double_double import Array, Pair, quick_two_sum, times_power_of_two
from hlo_run.elementary.exact import Exact, nearest

# The intermediate arrays of a block stay in the cache.
_BLOCK = 12288
# Below it a result is subnormal, or may be.
_SUBNORMAL = 2.0**-1021
_ZERO_EXPONENT = -1080
# Of approximations, in steps of f64.
_TOLERANCE = 1 << 10
# Enough digits for what is compared with f32, few enough for an approximation to decide nearly all elements.
_ROUGH_DIGITS = 36
_ROUGH_TOLERANCE = 1 << 8


class Found(Struct, frozen=True):
    """The values of a block: (pair) · 2^exponent, with the relative error, and the elements where the pair is not sure."""

    value: Pair
    exponent: Array | None = None
    unsure: Array | None = None
    error: Array | float = 2.0**-64
    # ±1 per element, multiplied at last.
    sign: Array | None = None


Evaluate: TypeAlias = Callable[..., Found]


class Elementary(Struct, frozen=True):
    """A function of f64 arrays, correctly rounded.

    `ordinary` says where `evaluate` computes it; elsewhere it is `special`, which is called with all elements. `exact` is
    the function in decimal arithmetic.
    `approximate` is fast, has an error below 2^-43 on every machine, and may differ between machines.
    """

    ordinary: Callable[..., Array]
    special: Callable[..., Array]
    evaluate: Evaluate
    exact: Exact
    approximate: Callable[..., Array]

    def __call__(self, *operands: Array) -> Array:
        """Return the nearest f64 numbers."""
        return self._mapped(operands, self._nearest)

    def native(self, x: Array) -> Array:
        """Return the nearest numbers of the operand's own type, f32 or f64."""
        if x.dtype == np.float64:
            return self(x)
        return self.narrowed(24, 2.0**-126)(x.astype(np.float64)).astype(x.dtype)

    def narrowed(self, digits: int, smallest: float) -> Callable[..., Array]:
        """Return the function to f64 that rounds to the nearest number with `digits` binary digits, at most 24.

        `smallest` is the smallest normal number of that type. A fast approximation decides all elements but those near the
        middle of two numbers of the type.
        """
        return self._approximated(digits, smallest, _TOLERANCE)

    def rough(self, *operands: Array) -> Array:
        """Return f64 numbers rounded to 36 digits, which takes a tenth of the time."""
        out = self._approximated(_ROUGH_DIGITS, 0.0, _ROUGH_TOLERANCE)(*operands)
        half = 1 << (52 - _ROUGH_DIGITS)
        return ((out.view(np.int64) + half) & -2 * half).view(np.float64)

    def _approximated(self, digits: int, smallest: float, tolerance: int) -> Callable[..., Array]:
        mask, half = (1 << (53 - digits)) - 1, 1 << (52 - digits)

        def apply(*operands: Array) -> Array:
            with np.errstate(all="ignore"):
                out = np.atleast_1d(self.approximate(*operands))
                bits = out.view(np.int64)
                doubt = ((bits + (half + tolerance)) & mask) <= 2 * tolerance
                size = np.abs(out)
                if not size.min(initial=np.inf) > smallest:
                    # The middle of two subnormal numbers has fewer digits.
                    is_small = (size < smallest) & (out != 0)
                    doubt |= is_small & (((bits + tolerance) & mask) <= 2 * tolerance) | np.isnan(out)
                shape = np.broadcast_shapes(*(np.shape(operand) for operand in operands))
                if not doubt.any():
                    return out.reshape(shape)
                flat, places = out.reshape(-1), np.flatnonzero(doubt)
                wide = [np.broadcast_to(operand, shape).reshape(-1)[places] for operand in operands]
                flat[places] = self._mapped(wide, self._odd)
                return flat.reshape(shape)

        return apply

    def _mapped(self, operands: Sequence[Array], rounded: Callable[..., Array]) -> Array:
        wide = np.broadcast_arrays(*operands) if len(operands) > 1 else operands
        flat = [np.ascontiguousarray(operand, np.float64).reshape(-1) for operand in wide]
        out = np.empty(flat[0].size, np.float64)
        with np.errstate(all="ignore"):
            for start in range(0, out.size, _BLOCK):
                out[start : start + _BLOCK] = self._block([operand[start : start + _BLOCK] for operand in flat], rounded)
        return out.reshape(wide[0].shape)

    def _block(self, operands: list[Array], rounded: Callable[..., Array]) -> Array:
        ordinary = self.ordinary(*operands)
        if ordinary.all():
            return rounded(*operands)
        out = np.array(self.special(*operands))  # a copy: it may be an operand
        places = np.flatnonzero(ordinary)
        if places.size:
            out[places] = rounded(*(operand[places] for operand in operands))
        return out

    def _nearest(self, *operands: Array) -> Array:
        found = self.evaluate(*operands)
        hi, lo = found.value
        error = np.abs(hi) * found.error
        out = hi + (lo + error)
        doubt = out != hi + (lo - error)
        if found.unsure is not None:
            doubt |= found.unsure
        if found.exponent is not None:
            out = times_power_of_two(out, found.exponent)
            # Far below the smallest number the result is 0.
            doubt |= (np.abs(out) < _SUBNORMAL) & (found.exponent > _ZERO_EXPONENT)
        if doubt.any():
            for place in np.flatnonzero(doubt).tolist():
                out[place] = nearest(self.exact, *(operand.item(place) for operand in operands))
        return out if found.sign is None else np.abs(out) * found.sign

    def _odd(self, *operands: Array) -> Array:
        """Return f64 numbers rounded to odd: rounded once more to at most 24 digits they are the nearest."""
        found = self.evaluate(*operands)
        hi, lo = quick_two_sum(*found.value)
        inexact = np.abs(lo) > np.abs(hi) * found.error
        bits = hi.view(np.int64)
        # Towards zero, and the last bit set.
        bits = np.where(inexact, (bits - ((lo < 0) != (hi < 0))) | 1, bits)
        out = bits.view(np.float64)
        if found.exponent is not None:
            out = times_power_of_two(out, found.exponent)
        return out if found.sign is None else out * found.sign
