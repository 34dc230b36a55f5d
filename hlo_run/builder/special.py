"""Builder methods of functions that have no opcode: `lgamma`, `digamma`.

Both use Lanczos' approximation of the gamma function with g = 7 and 9 coefficients (P. Godfrey, 2001), and the reflection formula
below 1/2. Floats narrower than f32 are computed in f32.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from hlo_run.builder.core import HloValue
from hlo_run.builder.elementwise import ElementwiseMethods
from hlo_run.errors import UsageError

_G = 7.0
_FIRST = 0.99999999999980993
_COEFFICIENTS = (
    676.5203681218851,
    -1259.1392167224028,
    771.32342877765313,
    -176.61502916214059,
    12.507343278686905,
    -0.13857109526572012,
    9.9843695780195716e-6,
    1.5056327351493116e-7,
)
_LOG_OFFSET = 2.0149030205422647
"""The natural logarithm of g + 1/2; the C library's may differ between machines."""
_LOG_SQRT_2_PI = 0.91893853320467274178
_LOG_PI = 1.1447298858494001741


class SpecialMethods(ElementwiseMethods):
    """Functions of floats, made of elementwise instructions."""

    def lgamma(self, operand: HloValue) -> HloValue:
        """Return the natural logarithm of |gamma(x)| of floats. It is infinite at 0, -1, -2, .. and for infinite operands.

        Raises UsageError for other types.
        """
        return self._in_wide_float("lgamma", operand, self._lgamma)

    def digamma(self, operand: HloValue) -> HloValue:
        """Return the derivative of the logarithm of gamma(x) of floats. It is NaN at 0, -1, -2, ... Raises UsageError."""
        return self._in_wide_float("digamma", operand, self._digamma)

    def _in_wide_float(self, name: str, operand: HloValue, function: Callable[[HloValue], HloValue]) -> HloValue:
        shape = operand.shape
        if not shape.is_array or not shape.dtype.is_float:
            raise UsageError(f"{name} needs floats, got {shape.to_string(layout=False)}")
        if shape.element_type in ("f32", "f64"):
            return function(operand)
        return self.convert(function(self.convert(operand, "f32")), shape.element_type)

    def _reflected(self, x: HloValue) -> tuple[HloValue, HloValue]:
        """Return whether x < 1/2, and z so that gamma(z + 1) is gamma(x), or gamma(1 - x) if x < 1/2."""
        is_low = x < 0.5
        return is_low, self.select(is_low, -x, x - 1.0)

    def _series(self, z: HloValue) -> HloValue:
        """Return Lanczos' sum, with which gamma(z + 1) = sqrt(2 pi) (z + g + 1/2)^(z + 1/2) e^-(z + g + 1/2) sum."""
        total: HloValue | None = None
        for number, coefficient in enumerate(_COEFFICIENTS, 1):
            term = coefficient / (z + float(number))
            total = term + _FIRST if total is None else total + term
        assert total is not None
        return total

    def _log_base(self, z: HloValue) -> tuple[HloValue, HloValue]:
        """Return t = z + g + 1/2 and its logarithm, accurate where z is small."""
        return z + (_G + 0.5), self.log_plus_one(z / (_G + 0.5)) + _LOG_OFFSET

    def _distance_to_integer(self, x: HloValue) -> HloValue:
        """Return the distance from |x| to the nearest integer. pi times it has the magnitude of the sine of pi x."""
        magnitude = self.abs(x)
        fraction = magnitude - self.floor(magnitude)
        return self.select(fraction > 0.5, 1.0 - fraction, fraction)

    def _lgamma(self, x: HloValue) -> HloValue:
        is_low, z = self._reflected(x)
        t, log_t = self._log_base(z)
        # (z + 1/2) log t - t in one product keeps the difference of two large numbers small.
        log_gamma = (z + 0.5 - t / log_t) * log_t + _LOG_SQRT_2_PI + self.log(self._series(z))
        log_sine = self.log(self.sine(self._distance_to_integer(x) * math.pi))
        reflection = self.select(self.is_finite(log_sine), _LOG_PI - log_sine - log_gamma, -log_sine)
        result = self.select(is_low, reflection, log_gamma)
        return self.select(self.compare(self.abs(x), math.inf, "EQ"), math.inf, result)

    def _digamma(self, x: HloValue) -> HloValue:
        is_low, z = self._reflected(x)
        t, log_t = self._log_base(z)
        slope: HloValue | None = None
        for number, coefficient in enumerate(_COEFFICIENTS, 1):
            place = z + float(number)
            term = coefficient / (place * place)
            slope = term if slope is None else slope + term
        assert slope is not None
        value = log_t - _G / t - slope / self._series(z)
        # pi / tan(pi x) of the offset from the nearest integer, which is exact where pi x is not.
        offset = x - self.floor(x + 0.5)
        reflection = value - math.pi / self.tan(offset * math.pi)
        result = self.select(is_low, reflection, value)
        is_pole = self.and_(x <= 0.0, self.compare(x, self.floor(x), "EQ"))
        return self.select(is_pole, math.nan, result)
