"""Expands complex ops to arith and math ops on real and imaginary parts.

No intermediate step overflows or loses all digits unless the result does. Zeros and infinities follow C.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct, field
from xdsl.dialects import arith, complex, math
from xdsl.dialects.builtin import AnyFloat, ComplexType, FloatAttr
from xdsl.ir import Attribute, Operation, SSAValue

from hlo_run.dialects.types import is_complex

_INFINITY = float("inf")


class Number(Struct, frozen=True):
    """A complex number: its real and imaginary part."""

    re: SSAValue
    im: SSAValue


class Parts(Struct):
    """Builds the ops of a formula in `ops`. `type` is the type of the parts. Equal constants share one op."""

    type: AnyFloat
    complex_type: ComplexType[AnyFloat]
    ops: list[Operation] = field(default_factory=list[Operation])
    constants: dict[str, SSAValue] = field(default_factory=dict[str, SSAValue])

    @classmethod
    def of(cls, type_: Attribute) -> Parts:
        """Return an empty builder for formulas of the complex type `type_`."""
        assert is_complex(type_), "the formulas are of complex numbers"
        return cls(type_.element_type, type_)

    def add_op(self, op: Operation) -> SSAValue:
        """Append an op and return its first result."""
        self.ops.append(op)
        return op.results[0]

    def split(self, value: SSAValue) -> Number:
        """Return the parts of a complex value. Parts of complex.create and complex.constant need no new complex op."""
        owner = value.owner
        if isinstance(owner, complex.CreateOp):
            return Number(owner.real, owner.imaginary)
        if isinstance(owner, complex.ConstantOp):
            real, imaginary = (self.constant(_float(part)) for part in owner.value)
            return Number(real, imaginary)
        return Number(self.add_op(complex.ReOp(value)), self.add_op(complex.ImOp(value)))

    def join(self, number: Number) -> SSAValue:
        """Return the complex value (`complex.create`) with these parts."""
        return self.add_op(complex.CreateOp(number.re, number.im, self.complex_type))

    def constant(self, number: float) -> SSAValue:
        """Return a constant of the part type. A second request for the same number returns the same value; -0 differs from +0."""
        key = number.hex()  # 0.0 == -0.0, but they are two constants
        if key not in self.constants:
            self.constants[key] = self.add_op(arith.ConstantOp(FloatAttr(number, self.type)))
        return self.constants[key]

    def unary(self, op: Callable[[SSAValue], Operation], value: SSAValue) -> SSAValue:
        """Apply `op` to the value, and return the result."""
        return self.add_op(op(value))

    def plus(self, x: SSAValue, y: SSAValue) -> SSAValue:
        """Return x + y."""
        return self.add_op(arith.AddfOp(x, y, flags=None))

    def minus(self, x: SSAValue, y: SSAValue) -> SSAValue:
        """Return x - y."""
        return self.add_op(arith.SubfOp(x, y, flags=None))

    def times(self, x: SSAValue, y: SSAValue) -> SSAValue:
        """Return x · y."""
        return self.add_op(arith.MulfOp(x, y, flags=None))

    def over(self, x: SSAValue, y: SSAValue) -> SSAValue:
        """Return x / y."""
        return self.add_op(arith.DivfOp(x, y, flags=None))

    def negative(self, x: SSAValue) -> SSAValue:
        """Return -x."""
        return self.add_op(arith.NegfOp(x, None))

    def magnitude(self, x: SSAValue) -> SSAValue:
        """Return |x|."""
        return self.add_op(math.AbsFOp(x))

    def with_sign(self, x: SSAValue, sign: SSAValue) -> SSAValue:
        """Return the magnitude of `x` with the sign of `sign`."""
        return self.add_op(math.CopySignOp(x, sign))

    def test(self, x: SSAValue, predicate: str, y: SSAValue | float) -> SSAValue:
        """Return the i1 result of comparing `x` with `y`; `predicate` is one of `arith.cmpf` (`oeq`, `uno`, ..)."""
        other = y if isinstance(y, SSAValue) else self.constant(y)
        return self.add_op(arith.CmpfOp(x, other, predicate))

    def both(self, x: SSAValue, y: SSAValue) -> SSAValue:
        """Return the conjunction of two i1 values."""
        return self.add_op(arith.AndIOp(x, y))

    def either(self, x: SSAValue, y: SSAValue) -> SSAValue:
        """Return the disjunction of two i1 values."""
        return self.add_op(arith.OrIOp(x, y))

    def select(self, condition: SSAValue, then: SSAValue, otherwise: SSAValue) -> SSAValue:
        """Return `then` if the i1 `condition` is true, `otherwise` if not."""
        return self.add_op(arith.SelectOp(condition, then, otherwise))

    def choose(self, condition: SSAValue, then: Number, otherwise: Number) -> Number:
        """Return one of two complex numbers, with a select per part."""
        return Number(self.select(condition, then.re, otherwise.re), self.select(condition, then.im, otherwise.im))

    def larger_first(self, x: SSAValue, y: SSAValue) -> tuple[SSAValue, SSAValue]:
        """Return the magnitudes of two numbers, the larger first. If one is NaN, both results are NaN."""
        x, y = self.magnitude(x), self.magnitude(y)
        return self.add_op(arith.MaximumfOp(x, y, flags=None)), self.add_op(arith.MinimumfOp(x, y, flags=None))


def _float(attribute: Attribute) -> float:
    assert isinstance(attribute, FloatAttr), "parts are floats"
    return attribute.value.data


def _add(p: Parts, x: Number, y: Number) -> Number:
    return Number(p.plus(x.re, y.re), p.plus(x.im, y.im))


def _subtract(p: Parts, x: Number, y: Number) -> Number:
    return Number(p.minus(x.re, y.re), p.minus(x.im, y.im))


def _multiply(p: Parts, x: Number, y: Number) -> Number:
    real = p.minus(p.times(x.re, y.re), p.times(x.im, y.im))
    return Number(real, p.plus(p.times(x.re, y.im), p.times(x.im, y.re)))


def _negate(p: Parts, x: Number) -> Number:
    return Number(p.negative(x.re), p.negative(x.im))


def _divide(p: Parts, x: Number, y: Number) -> Number:
    """Smith's algorithm: scale by the ratio of the divisor's smaller part to its larger part."""
    real_is_larger = p.test(p.magnitude(y.re), "oge", p.magnitude(y.im))
    large, small = p.select(real_is_larger, y.re, y.im), p.select(real_is_larger, y.im, y.re)
    ratio = p.over(small, large)
    divisor = p.plus(large, p.times(small, ratio))
    first, second = p.select(real_is_larger, x.re, x.im), p.select(real_is_larger, x.im, x.re)
    real = p.over(p.plus(first, p.times(second, ratio)), divisor)
    imaginary = p.over(p.minus(second, p.times(first, ratio)), divisor)
    plain = Number(real, p.select(real_is_larger, imaginary, p.negative(imaginary)))
    stuck = p.both(p.test(plain.re, "uno", plain.re), p.test(plain.im, "uno", plain.im))
    return p.choose(stuck, _divide_specials(p, x, y, plain), plain)


def _divide_specials(p: Parts, x: Number, y: Number, otherwise: Number) -> Number:
    """Return the quotient of operands where the formula gives NaN but the result is infinite or zero."""
    infinity = p.constant(_INFINITY)
    signed = p.with_sign(infinity, y.re)
    by_zero = p.both(p.test(y.re, "oeq", 0.0), p.test(y.im, "oeq", 0.0))
    by_zero = p.both(by_zero, p.either(p.test(x.re, "ord", x.re), p.test(x.im, "ord", x.im)))
    unit_x, unit_y = _unit(p, x), _unit(p, y)
    shrunk = p.both(_is_finite(p, x), _is_infinite(p, y))
    result = p.choose(shrunk, _scaled(p, p.constant(0.0), _times_conjugate(p, x, unit_y)), otherwise)
    grown = p.both(_is_infinite(p, x), _is_finite(p, y))
    result = p.choose(grown, _scaled(p, infinity, _times_conjugate(p, unit_x, y)), result)
    return p.choose(by_zero, Number(p.times(signed, x.re), p.times(signed, x.im)), result)


def _unit(p: Parts, x: Number) -> Number:
    """Replace infinite parts by 1 and other parts by 0, and keep the signs."""

    def part(value: SSAValue) -> SSAValue:
        is_infinite = p.test(p.magnitude(value), "oeq", _INFINITY)
        return p.with_sign(p.select(is_infinite, p.constant(1.0), p.constant(0.0)), value)

    return Number(part(x.re), part(x.im))


def _times_conjugate(p: Parts, x: Number, y: Number) -> Number:
    real = p.plus(p.times(x.re, y.re), p.times(x.im, y.im))
    return Number(real, p.minus(p.times(x.im, y.re), p.times(x.re, y.im)))


def _scaled(p: Parts, factor: SSAValue, x: Number) -> Number:
    return Number(p.times(factor, x.re), p.times(factor, x.im))


def _is_infinite(p: Parts, x: Number) -> SSAValue:
    real, imaginary = (p.test(p.magnitude(part), "oeq", _INFINITY) for part in (x.re, x.im))
    return p.either(real, imaginary)


def _is_finite(p: Parts, x: Number) -> SSAValue:
    real, imaginary = (p.test(p.magnitude(part), "one", _INFINITY) for part in (x.re, x.im))
    return p.both(real, imaginary)


def _abs(p: Parts, x: Number) -> SSAValue:
    large, small = p.larger_first(x.re, x.im)
    ratio = p.over(small, large)
    root = p.unary(math.SqrtOp, p.plus(p.constant(1.0), p.times(ratio, ratio)))
    # 0 / 0 and infinity / infinity have no ratio.
    plain = p.either(p.test(large, "oeq", 0.0), p.test(large, "oeq", _INFINITY))
    length = p.select(plain, large, p.times(large, root))
    return p.select(_is_infinite(p, x), p.constant(_INFINITY), length)


def _angle(p: Parts, x: Number) -> SSAValue:
    return p.add_op(math.Atan2Op(x.im, x.re))


def _exp(p: Parts, x: Number) -> Number:
    """Multiply twice by e^(a/2): e^a may overflow although its product with a small sine does not."""
    half = p.unary(math.ExpOp, p.times(x.re, p.constant(0.5)))
    cosine, sine = p.unary(math.CosOp, x.im), p.unary(math.SinOp, x.im)
    plain = Number(p.times(p.times(half, cosine), half), p.times(p.times(half, sine), half))
    # A zero imaginary part stays zero even if e^a is infinite. e^-infinity is 0 even if the sine is NaN.
    real_only = p.test(x.im, "oeq", 0.0)
    vanishes = p.both(p.test(x.re, "oeq", -_INFINITY), p.test(p.magnitude(x.im), "oeq", _INFINITY))
    zero = Number(p.constant(0.0), p.constant(0.0))
    plain = p.choose(vanishes, zero, plain)
    return Number(p.select(real_only, p.times(half, half), plain.re), p.select(real_only, x.im, plain.im))


def _expm1(p: Parts, x: Number) -> Number:
    """Re = (e^a - 1) cos b - 2 sin²(b/2)."""
    half_sine = p.unary(math.SinOp, p.times(x.im, p.constant(0.5)))
    lost = p.times(p.constant(2.0), p.times(half_sine, half_sine))
    real = p.minus(p.times(p.unary(math.ExpM1Op, x.re), p.unary(math.CosOp, x.im)), lost)
    whole = _exp(p, x)
    # If e^a is large, subtracting 1 does not change it, and e^a may overflow.
    is_large = p.test(x.re, "ogt", 10.0)
    return Number(p.select(is_large, p.minus(whole.re, p.constant(1.0)), real), whole.im)


def _log_of_length(p: Parts, x: SSAValue, y: SSAValue) -> SSAValue:
    """log |x + iy| = log(larger) + log(1 + ratio²) / 2."""
    large, small = p.larger_first(x, y)
    ratio = p.select(p.test(large, "oeq", small), p.constant(1.0), p.over(small, large))
    ratio = p.select(p.test(large, "oeq", 0.0), p.constant(0.0), ratio)
    rest = p.times(p.constant(0.5), p.unary(math.Log1pOp, p.times(ratio, ratio)))
    return p.plus(p.unary(math.LogOp, large), rest)


def _log(p: Parts, x: Number) -> Number:
    return Number(_log_of_length(p, x.re, x.im), _angle(p, x))


def _log1p(p: Parts, x: Number) -> Number:
    """Near 0, log |1 + z| = log1p(a (2 + a) + b²) / 2."""
    shifted = Number(p.plus(p.constant(1.0), x.re), x.im)
    square = p.plus(p.times(x.re, p.plus(p.constant(2.0), x.re)), p.times(x.im, x.im))
    near = p.times(p.constant(0.5), p.unary(math.Log1pOp, square))
    large, _ = p.larger_first(x.re, x.im)
    real = p.select(p.test(large, "olt", 0.5), near, _log_of_length(p, shifted.re, shifted.im))
    return Number(real, _angle(p, shifted))


def _sqrt(p: Parts, x: Number) -> Number:
    """With t = sqrt((|z| + |a|) / 2): t + ib/2t for a >= 0, else |b|/2t ± it."""
    half = p.constant(0.5)
    real = p.magnitude(x.re)
    t = p.unary(math.SqrtOp, p.plus(p.times(half, _abs(p, x)), p.times(half, real)))
    quotient = p.over(p.times(half, x.im), t)
    right = p.test(x.re, "oge", 0.0)
    result = p.choose(right, Number(t, quotient), Number(p.magnitude(quotient), p.with_sign(t, x.im)))
    is_zero = p.both(p.test(x.re, "oeq", 0.0), p.test(x.im, "oeq", 0.0))
    result = p.choose(is_zero, Number(p.constant(0.0), x.im), result)
    is_endless = p.test(p.magnitude(x.im), "oeq", _INFINITY)
    return p.choose(is_endless, Number(p.constant(_INFINITY), x.im), result)


def _rsqrt(p: Parts, x: Number) -> Number:
    """1 / s = conj(s) / |s|², and |s|² = |z|."""
    root, length = _sqrt(p, x), _abs(p, x)
    plain = Number(p.over(root.re, length), p.negative(p.over(root.im, length)))
    is_zero, is_endless = p.test(length, "oeq", 0.0), p.test(length, "oeq", _INFINITY)
    nothing = p.constant(0.0)
    result = p.choose(is_zero, Number(p.constant(_INFINITY), p.constant(float("nan"))), plain)
    return p.choose(is_endless, Number(nothing, p.with_sign(nothing, p.negative(x.im))), result)


def _sin(p: Parts, x: Number) -> Number:
    sine, cosine = p.unary(math.SinOp, x.re), p.unary(math.CosOp, x.re)
    return Number(p.times(sine, p.unary(math.CoshOp, x.im)), p.times(cosine, p.unary(math.SinhOp, x.im)))


def _cos(p: Parts, x: Number) -> Number:
    sine, cosine = p.unary(math.SinOp, x.re), p.unary(math.CosOp, x.re)
    return Number(p.times(cosine, p.unary(math.CoshOp, x.im)), p.negative(p.times(sine, p.unary(math.SinhOp, x.im))))


def _tanh(p: Parts, x: Number) -> Number:
    """(sinh a cosh a + i sin b cos b) / (sinh² a + cos² b); for |a| > 20, ±1 + 4i sin b cos b e^-2|a|."""
    sinh, cosh = p.unary(math.SinhOp, x.re), p.unary(math.CoshOp, x.re)
    sine, cosine = p.unary(math.SinOp, x.im), p.unary(math.CosOp, x.im)
    wave = p.times(sine, cosine)
    divisor = p.plus(p.times(sinh, sinh), p.times(cosine, cosine))
    near = Number(p.over(p.times(sinh, cosh), divisor), p.over(wave, divisor))
    size = p.magnitude(x.re)
    decay = p.unary(math.ExpOp, p.times(p.constant(-2.0), size))
    far = Number(p.with_sign(p.constant(1.0), x.re), p.times(p.times(p.constant(4.0), wave), decay))
    return p.choose(p.test(size, "ogt", 20.0), far, near)


def _tan(p: Parts, x: Number) -> Number:
    """tan z = -i tanh(iz)."""
    turned = _tanh(p, Number(p.negative(x.im), x.re))
    return Number(turned.im, p.negative(turned.re))


def _power(p: Parts, x: Number, y: Number) -> Number:
    """e^(y log x). x^0 is 1. 0^y is 0 if the real part of y is positive."""
    result = _exp(p, _multiply(p, y, _log(p, x)))
    nothing, one = p.constant(0.0), p.constant(1.0)
    base_is_zero = p.both(p.test(x.re, "oeq", 0.0), p.test(x.im, "oeq", 0.0))
    result = p.choose(p.both(base_is_zero, p.test(y.re, "ogt", 0.0)), Number(nothing, nothing), result)
    power_is_zero = p.both(p.test(y.re, "oeq", 0.0), p.test(y.im, "oeq", 0.0))
    return p.choose(power_is_zero, Number(one, nothing), result)


def _sign(p: Parts, x: Number) -> Number:
    length = _abs(p, x)
    plain = Number(p.over(x.re, length), p.over(x.im, length))
    return p.choose(p.test(length, "oeq", 0.0), x, plain)


def _atan2(p: Parts, y: Number, x: Number) -> Number:
    """-i log((x + iy) / sqrt(x² + y²))."""
    turned = Number(p.minus(x.re, y.im), p.plus(x.im, y.re))
    length = _sqrt(p, _add(p, _multiply(p, x, x), _multiply(p, y, y)))
    value = _log(p, _divide(p, turned, length))
    return Number(value.im, p.negative(value.re))


def _equal(p: Parts, x: Number, y: Number) -> SSAValue:
    return p.both(p.test(x.re, "oeq", y.re), p.test(x.im, "oeq", y.im))


def _not_equal(p: Parts, x: Number, y: Number) -> SSAValue:
    return p.either(p.test(x.re, "une", y.re), p.test(x.im, "une", y.im))


FUNCTIONS: dict[type[Operation], Callable[..., Any]] = {
    complex.AddOp: _add,
    complex.SubOp: _subtract,
    complex.MulOp: _multiply,
    complex.DivOp: _divide,
    complex.NegOp: _negate,
    complex.AbsOp: _abs,
    complex.AngleOp: _angle,
    complex.ExpOp: _exp,
    complex.Expm1Op: _expm1,
    complex.LogOp: _log,
    complex.Log1pOp: _log1p,
    complex.SqrtOp: _sqrt,
    complex.RsqrtOp: _rsqrt,
    complex.SinOp: _sin,
    complex.CosOp: _cos,
    complex.TanOp: _tan,
    complex.TanhOp: _tanh,
    complex.PowOp: _power,
    complex.SignOp: _sign,
    complex.Atan2Op: _atan2,
    complex.EqualOp: _equal,
    complex.NotEqualOp: _not_equal,
}
