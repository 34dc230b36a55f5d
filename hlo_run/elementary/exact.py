"""Elementary functions of single floats in decimal arithmetic of any precision, for elements where a pair leaves a doubt.

`decimal` computes e^x, ln x and square roots to the last digit and with integers only, so every machine gives the same.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_EVEN, Context, Decimal, getcontext, localcontext
from functools import cache
from typing import TypeAlias

# From floats, as decimals, to a value whose relative error is below 10^(5 - precision of the context).
Exact: TypeAlias = Callable[..., Decimal]

_PRECISIONS = (45, 90, 300, 900)
_SPARE = 5


def nearest(function: Exact, *arguments: float) -> float:
    """Return the f64 nearest to the function's value; of a tie the even one."""
    operands = [Decimal(argument) for argument in arguments]
    value = Decimal(0)
    for precision in _PRECISIONS:
        with localcontext(_context(precision)):
            value = function(*operands)
            margin = abs(value).scaleb(_SPARE - precision)
            low, high = float(value - margin), float(value + margin)
        if low == high:
            return low
    return float(value)


def _context(precision: int) -> Context:
    return Context(prec=precision, rounding=ROUND_HALF_EVEN, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[])


def _more(digits: int) -> Context:
    """Return the current context with more digits."""
    return _context(getcontext().prec + max(0, digits))


def _lost(x: Decimal) -> int:
    """Return how many digits a sum near 1 loses if the result is about x."""
    return 0 if not x else max(0, -x.adjusted()) + 2


def exp(x: Decimal) -> Decimal:
    """Return e^x."""
    return x.exp()


def expm1(x: Decimal) -> Decimal:
    """Return e^x - 1."""
    with localcontext(_more(_lost(x))):
        return x.exp() - 1


def log(x: Decimal) -> Decimal:
    """Return ln x."""
    with localcontext(_more(_lost(x - 1))):
        return x.ln()


def exp2(x: Decimal) -> Decimal:
    """Return 2^x."""
    return Decimal(2) ** x


def log2(x: Decimal) -> Decimal:
    """Return the logarithm of x to the base 2."""
    with localcontext(_more(_lost(x - 1) + 2)):
        return x.ln() / Decimal(2).ln()


def log1p(x: Decimal) -> Decimal:
    """Return ln(1 + x)."""
    with localcontext(_more(2 * _lost(x))):
        return (1 + x).ln()


def sinh(x: Decimal) -> Decimal:
    """Return sinh x."""
    with localcontext(_more(_lost(x))):
        return (x.exp() - (-x).exp()) / 2


def cosh(x: Decimal) -> Decimal:
    """Return cosh x."""
    return (x.exp() + (-x).exp()) / 2


def tanh(x: Decimal) -> Decimal:
    """Return tanh x."""
    with localcontext(_more(_lost(x))):
        square = (2 * x).exp()
        return (square - 1) / (square + 1)


def logistic(x: Decimal) -> Decimal:
    """Return 1 / (1 + e^-x)."""
    return 1 / (1 + (-x).exp())


def asinh(x: Decimal) -> Decimal:
    """Return asinh x."""
    with localcontext(_more(3 * _lost(x) + 2 * max(0, x.adjusted()))):
        size = abs(x)
        return (size + (size * size + 1).sqrt()).ln().copy_sign(x)


def acosh(x: Decimal) -> Decimal:
    """Return acosh x."""
    with localcontext(_more(2 * _lost(x - 1))):
        return (x + ((x - 1) * (x + 1)).sqrt()).ln()


def atanh(x: Decimal) -> Decimal:
    """Return atanh x."""
    with localcontext(_more(2 * _lost(x))):
        return ((1 + x) / (1 - x)).ln() / 2


def power(x: Decimal, y: Decimal) -> Decimal:
    """Return |x|^y."""
    return abs(x) ** y


def cbrt(x: Decimal) -> Decimal:
    """Return the cube root of x."""
    with localcontext(_more(2)):
        return (abs(x) ** (Decimal(1) / 3)).copy_sign(x)


def rsqrt(x: Decimal) -> Decimal:
    """Return 1 / sqrt(x)."""
    return 1 / x.sqrt()


@cache
def _pi(precision: int) -> Decimal:
    def inverse(n: int) -> int:
        term, total, k = 10 ** (precision + 10) // n, 0, 1
        while term:
            total += term // k if k % 4 == 1 else -(term // k)
            term //= n * n
            k += 2
        return total

    with localcontext(_context(precision + 10)):
        return Decimal(4 * (4 * inverse(5) - inverse(239))).scaleb(-precision - 10)


def _sine_cosine(x: Decimal) -> tuple[Decimal, Decimal]:
    """Return both, with digits for a result as small as a multiple of pi makes it."""
    precision = getcontext().prec + max(0, x.adjusted()) + 30
    with localcontext(_context(precision)):
        half = _pi(precision) / 2
        turns = (x / half).to_integral_value()
        r = x - turns * half
        square, parts = r * r, [Decimal(0), Decimal(0)]
        for first, start in ((r, 1), (Decimal(1), 0)):
            term, n = first, start
            while term and term.adjusted() > first.adjusted() - precision:
                parts[1 - start] += term
                term = -term * square / ((n + 1) * (n + 2))
                n += 2
        sine, cosine = parts
        return ((sine, cosine), (cosine, -sine), (-sine, -cosine), (-cosine, sine))[int(turns) % 4]


def sin(x: Decimal) -> Decimal:
    """Return sin x."""
    return _sine_cosine(x)[0]


def cos(x: Decimal) -> Decimal:
    """Return cos x."""
    return _sine_cosine(x)[1]


def tan(x: Decimal) -> Decimal:
    """Return tan x."""
    sine, cosine = _sine_cosine(x)
    return sine / cosine


def _atan(x: Decimal) -> Decimal:
    """Return atan x for x >= 0."""
    with localcontext(_more(6)):
        halvings = 4
        for _ in range(halvings):
            x = x / (1 + (1 + x * x).sqrt())
        square, term, total, n = x * x, x, Decimal(0), 1
        while term and term.adjusted() > x.adjusted() - getcontext().prec:
            total += term / n
            term = -term * square
            n += 2
        return total * 2**halvings


def atan2(y: Decimal, x: Decimal) -> Decimal:
    """Return the angle of (x, y), other than (0, 0)."""
    tall, wide, pi = abs(y), abs(x), _pi(getcontext().prec)
    angle = _atan(tall / wide) if tall <= wide else pi / 2 - _atan(wide / tall)
    return (pi - angle if x < 0 else angle).copy_sign(y)


def asin(x: Decimal) -> Decimal:
    """Return asin x."""
    with localcontext(_more(2)):
        return atan2(x, _other_leg(x))


def acos(x: Decimal) -> Decimal:
    """Return acos x."""
    with localcontext(_more(2)):
        return atan2(_other_leg(x), x)


def _other_leg(x: Decimal) -> Decimal:
    with localcontext(_more(2 * _lost(x) + 120)):
        return ((1 - x) * (1 + x)).sqrt()


def erf(x: Decimal) -> Decimal:
    """Return the error function: 2 / sqrt(pi) e^(-x²) times the sum of 2^n x^(2n+1) / (2n+1)!!."""
    square, term, total, n = x * x, x, Decimal(0), 1
    while term and term.adjusted() > x.adjusted() - getcontext().prec:
        total += term
        n += 2
        term = term * 2 * square / n
    return 2 * total * (-square).exp() / _pi(getcontext().prec).sqrt()
