"""Elementwise steps. Discontinuous ops only use exact values."""

from __future__ import annotations

import math
from collections.abc import Callable

from hlo_run.fuzz.program.making import converted, magnitude, obtain, some_number
from hlo_run.fuzz.program.scope import Scope
from hlo_run.fuzz.program.values import PART_OF, TYPES, Range, Value, join, plus, times
from hlo_run.hlo.opcodes.names import Opcode

# By opcode: (factor from operand error to result error, bound of the result, largest operand bound).
_SMOOTH: dict[Opcode, tuple[float, float, float]] = {
    "tanh": (1, 1, 64),
    "sine": (1, 1, 8),
    "cosine": (1, 1, 8),
    "logistic": (0.25, 1, 64),
    "exponential": (math.exp(2), math.exp(2), 2),
    "exponential-minus-one": (math.exp(2), math.exp(2), 2),
    "erf": (1.13, 1, 64),
    "tan": (3.5, 1.6, 1),
    "asinh": (1, 3.5, 16),
    "sinh": (3.8, 3.7, 2),
    "cosh": (3.7, 3.8, 2),
}
# Functions of positive operands, with the bound of the result by the bound of the operand.
_OF_POSITIVE: dict[Opcode, Callable[[float], float]] = {
    "log-plus-one": math.log1p,
    "sqrt": math.sqrt,
    "cbrt": lambda x: x ** (1 / 3),
    "log": lambda x: max(math.log(x), 0.7),
    "rsqrt": lambda x: 1.5,
}
_STEPS: tuple[Opcode, ...] = ("floor", "ceil", "round-nearest-afz", "round-nearest-even", "sign")
# The allowed error of library functions and approximations, in roundings of the type.
_SLACK = 16.0


def smooth(scope: Scope) -> None:
    """Add a smooth function of a float whose range suits it, for example exponential or tanh."""
    value = scope.pick(lambda v: v.element.is_wide_float)
    if value is None:
        return
    if scope.chance(0.25):
        return _of_positive(scope, value)
    fitting: list[Opcode] = [opcode for opcode, (_, _, most) in _SMOOTH.items() if value.range.bound <= most]
    if not fitting:
        return
    opcode = scope.rng.choice(fitting)
    factor, bound, _ = _SMOOTH[opcode]
    _add_inexact(scope, value, opcode, Range(bound, 0, factor * value.range.error))


def _of_positive(scope: Scope, value: Value) -> None:
    opcode = scope.rng.choice(list(_OF_POSITIVE))
    half = scope.filled(value.type, value.dims, 0.5)
    above = magnitude(scope, value)
    known = Range(above.range.bound + 0.5, max(above.range.grain, 1), above.range.error)
    above = scope.add(value.type, value.dims, f"add({above.name}, {half.name})", known, keep=False)
    # The derivatives of all of these are below 2 for x >= 1/2.
    _add_inexact(scope, above, opcode, Range(_OF_POSITIVE[opcode](above.range.bound), 0, 2 * above.range.error))


def _add_inexact(scope: Scope, value: Value, opcode: Opcode, range_: Range) -> None:
    error = range_.error + _SLACK * max(range_.bound, 1.0) * 2.0**-value.element.digits
    scope.add(value.type, value.dims, f"{opcode}({value.name})", Range(range_.bound, 0, error))


def arithmetic(scope: Scope) -> None:
    """Add a sum, difference, product or extremum of any number type."""
    value = scope.pick(lambda v: v.element.kind != "pred")
    if value is None:
        return
    opcodes: list[Opcode] = ["add", "subtract", "multiply"] if value.element.kind == "complex" else _ARITHMETIC
    opcode = scope.rng.choice(opcodes)
    other = obtain(scope, value.type, value.dims, exact=False)
    one, two = (value, other) if scope.chance(0.7) else (other, value)
    add_binary(scope, opcode, one, two)


_ARITHMETIC: list[Opcode] = ["add", "add", "subtract", "multiply", "multiply", "maximum", "minimum"]


def add_binary(scope: Scope, opcode: Opcode, one: Value, two: Value, keep: bool = True) -> Value:
    """Add one of add, subtract, multiply, maximum, minimum."""
    if opcode == "multiply":
        known = times(one.range, two.range)
        known = plus(known, known) if one.element.kind == "complex" else known
    else:
        known = join(one.range, two.range) if opcode in ("maximum", "minimum") else plus(one.range, two.range)
    return scope.add(one.type, one.dims, f"{opcode}({one.name}, {two.name})", known, keep)


def sign_changes(scope: Scope) -> None:
    """Add a negate or abs of a number."""
    value = scope.pick(lambda v: v.element.is_number and v.element.kind != "unsigned")
    if value is not None:
        opcode = scope.rng.choice(("negate", "abs"))
        scope.add(value.type, value.dims, f"{opcode}({value.name})", value.range)


def steps(scope: Scope) -> None:
    """Add a step function or reduce-precision of exact floats."""
    value = scope.pick(lambda v: v.element.is_float and v.exact)
    if value is None:
        return
    if value.element.bits >= 16 and scope.chance(0.2):
        bits = scope.rng.randint(2, 6)
        text = f"reduce-precision({value.name}), exponent_bits=8, mantissa_bits={bits}"
        if value.type == "f16":
            text = text.replace("exponent_bits=8", "exponent_bits=5")
        scope.add(value.type, value.dims, text, Range(2 * value.range.bound, value.range.grain))
        return
    opcode = scope.rng.choice(_STEPS)
    known = Range(1) if opcode == "sign" else Range(math.ceil(value.range.bound))
    scope.add(value.type, value.dims, f"{opcode}({value.name})", known)


def divide(scope: Scope) -> None:
    """Divide floats by numbers of at least 1/2, integers by any number."""
    value = scope.pick(lambda v: v.element.is_integer or v.element.is_wide_float)
    if value is None:
        return
    if value.element.is_integer:
        other = obtain(scope, value.type, value.dims)
        opcode = scope.rng.choice(("divide", "remainder"))
        scope.add(value.type, value.dims, f"{opcode}({value.name}, {other.name})", Range(value.element.highest))
        return
    if scope.chance(0.3):
        factor = scope.filled(value.type, value.dims, scope.rng.choice((0.5, 2.0, 4.0, 3.0, -2.0)))
        known = Range(2 * value.range.bound, 0, 2 * value.range.error + 2 * value.range.bound * 2.0**-value.element.digits)
        scope.add(value.type, value.dims, f"divide({value.name}, {factor.name})", known)
        return
    other = obtain(scope, value.type, value.dims, exact=False)
    half = scope.filled(value.type, value.dims, 0.5)
    below = magnitude(scope, other)
    below = scope.add(value.type, value.dims, f"add({below.name}, {half.name})", plus(below.range, Range(0.5, 1)), keep=False)
    opcode = scope.rng.choice(("divide", "divide", "atan2", "power"))
    bound = 2 * value.range.bound
    error = 2 * value.range.error + 4 * value.range.bound * below.range.error
    if opcode == "power":
        if value.range.bound > 2 or below.range.bound > 4:
            return
        bound = 4.5**2
        error = 32 * (value.range.error + below.range.error)
        value, below = below, value
    elif opcode == "atan2":
        bound, error = 1.6, 2 * (value.range.error + below.range.error)
    slack = _SLACK * max(bound, 1.0) * 2.0**-value.element.digits
    scope.add(value.type, value.dims, f"{opcode}({value.name}, {below.name})", Range(bound, 0, error + slack))


def integer(scope: Scope) -> None:
    """Add a unary or bitwise op, shift or power of integers."""
    value = scope.pick(lambda v: v.element.is_integer)
    if value is None:
        return
    highest = Range(value.element.highest)
    if scope.chance(0.3):
        opcodes = ["not", "popcnt", "count-leading-zeros", *(("sign", "abs", "negate") if value.element.kind == "signed" else ())]
        opcode = scope.rng.choice(opcodes)
        known = highest if opcode in ("not", "abs", "negate") else Range(64)
        scope.add(value.type, value.dims, f"{opcode}({value.name})", known)
        return
    opcode = scope.rng.choice(_BITWISE)
    other = obtain(scope, value.type, value.dims)
    if opcode == "power":
        other = scope.filled(value.type, value.dims, scope.rng.choice((0, 1, 2, 3) if value.element.bits > 2 else (0, 1)))
    scope.add(value.type, value.dims, f"{opcode}({value.name}, {other.name})", highest)


_BITWISE = "and or xor shift-left shift-right-arithmetic shift-right-logical power".split()


def logic(scope: Scope) -> None:
    """Add a logical op of preds; a compare if no pred exists."""
    value = scope.pick(lambda v: v.type == "pred")
    if value is None:
        return compare(scope)
    if scope.chance(0.2):
        scope.add("pred", value.dims, f"not({value.name})", Range(1))
        return
    other = obtain(scope, "pred", value.dims)
    scope.add("pred", value.dims, f"{scope.rng.choice(('and', 'or', 'xor'))}({value.name}, {other.name})", Range(1))


def compare(scope: Scope) -> None:
    """Add a compare of exact values; complex numbers only by EQ and NE."""
    value = scope.pick(lambda v: v.exact)
    if value is None:
        return
    other = obtain(scope, value.type, value.dims)
    directions = ("EQ", "NE") if value.element.kind == "complex" else ("EQ", "NE", "LT", "LE", "GT", "GE")
    scope.add("pred", value.dims, f"compare({value.name}, {other.name}), direction={scope.rng.choice(directions)}", Range(1))


def select(scope: Scope) -> None:
    """Add a select between two arrays by an array of preds or by one pred."""
    value = scope.pick()
    if value is None:
        return
    other = obtain(scope, value.type, value.dims, exact=False)
    pred = obtain(scope, "pred", () if scope.chance(0.15) else value.dims)
    if pred.dims != value.dims:
        wide = scope.add("pred", value.dims, f"broadcast({pred.name}), dimensions={{}}", Range(1), keep=False)
        pred = wide
    known = join(value.range, other.range)
    scope.add(value.type, value.dims, f"select({pred.name}, {value.name}, {other.name})", known)


def clamp(scope: Scope) -> None:
    """Add a clamp between two arrays or two scalars."""
    value = scope.pick(lambda v: v.element.is_number)
    if value is None:
        return
    whole = scope.chance(0.4)
    ends = [obtain(scope, value.type, value.dims if whole else (), exact=False) for _ in range(2)]
    known = join(value.range, *(end.range for end in ends))
    scope.add(value.type, value.dims, f"clamp({ends[0].name}, {value.name}, {ends[1].name})", known)


def convert(scope: Scope) -> None:
    """Add a conversion to a random type; inexact floats only become wide floats."""
    value = scope.pick()
    if value is None:
        return
    target = scope.some_type()
    if value.exact:
        made = converted(scope, value, target)
        if made is not None:
            scope.keep(made)
        return
    if TYPES[target].is_wide_float and value.element.is_float:
        scope.add(target, value.dims, f"convert({value.name})", value.range)


def complex_parts(scope: Scope) -> None:
    """Add an op on complex numbers: real, imag, abs, negate, or complex of two floats."""
    value = scope.pick(lambda v: v.element.kind == "complex")
    if value is not None and scope.chance(0.7):
        part = PART_OF[value.type]
        opcode = scope.rng.choice(("real", "imag", "abs", "negate"))
        if opcode == "negate":
            scope.add(value.type, value.dims, f"negate({value.name})", value.range)
            return
        slack = _SLACK * 2 * value.range.bound * 2.0 ** -TYPES[part].digits
        known = Range(2 * value.range.bound, 0, value.range.error * 2 + slack) if opcode == "abs" else value.range
        scope.add(part, value.dims, f"{opcode}({value.name})", known)
        return
    real = scope.pick(lambda v: v.type in ("f32", "f64"))
    if real is not None:
        imaginary = obtain(scope, real.type, real.dims, exact=False)
        whole = {"f32": "c64", "f64": "c128"}[real.type]
        known = join(real.range, imaginary.range)
        scope.add(whole, real.dims, f"complex({real.name}, {imaginary.name})", known)


def map_scalars(scope: Scope) -> None:
    """Add a map with a computation of scalars."""
    value = scope.pick(lambda v: v.element.is_number and len(v.dims) > 0)
    if value is None:
        return
    other = obtain(scope, value.type, value.dims, exact=False)
    opcode = scope.rng.choice(("maximum", "minimum", "add"))
    known = join(value.range, other.range) if opcode != "add" else plus(value.range, other.range)
    dims = ",".join(map(str, range(len(value.dims))))
    applied = scope.program.scalar_computation(opcode, value.type)
    scope.add(value.type, value.dims, f"map({value.name}, {other.name}), dimensions={{{dims}}}, to_apply={applied}", known)


def nothing_much(scope: Scope) -> None:
    """Add ops that simplifiers remove: x+0, x*1, converts to the same type, copies, selects between equal values."""
    value = scope.pick(lambda v: v.element.is_number)
    if value is None:
        return
    match scope.rng.randrange(6):
        case 0:
            zero = scope.filled(value.type, value.dims, 0)
            text = f"add({value.name}, {zero.name})"
        case 1:
            one = scope.filled(value.type, value.dims, 1)
            text = f"multiply({one.name}, {value.name})"
        case 2:
            text = f"convert({value.name})"
        case 3:
            text = f"copy({value.name})"
        case 4:
            pred = obtain(scope, "pred", value.dims)
            text = f"select({pred.name}, {value.name}, {value.name})"
        case _:
            number = some_number(scope, value.type)
            limit = scope.filled(value.type, value.dims, number)
            known = Range(max(value.range.bound, abs(number)), max(value.range.grain, 1), value.range.error)
            scope.add(value.type, value.dims, f"maximum({limit.name}, {value.name})", known)
            return
    scope.add(value.type, value.dims, text, value.range)
