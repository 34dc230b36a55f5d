"""The `.approx` instructions as LLVM IR, with the same operations as `approximations` in numpy."""

from __future__ import annotations

from hlo_run.backends.host.jit.builder import Builder, f64_constant
from hlo_run.backends.host.jit.llvm import has_feature
from hlo_run.backends.host.jit.rounding import is_finite, widen
from hlo_run.backends.host.numerics import approximations as a

_INFINITY = "0x7FF0000000000000"
_NAN = "0x7FF8000000000000"


def approximate(b: Builder, opcode: str, x: str) -> str:
    """Return ex2, lg2, tanh, sin, cos or rsqrt of an f32."""
    if opcode == "ex2":
        return _exp2_f32(b, x)
    wide = widen(b, x)
    match opcode:
        case "lg2":
            result = _log2(b, wide)
        case "tanh":
            result = _tanh(b, wide)
        case "rsqrt":
            result = b.binary("fdiv", "double", f64_constant(1.0), b.math("sqrt", "double", wide))
        case _:
            result = _sine(b, x, int(opcode == "cos"))
    return b.cast("fptrunc", result, "double", "float")


def _horner(b: Builder, coefficients: tuple[float, ...], x: str) -> str:
    total = f64_constant(coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = b.binary("fadd", "double", b.binary("fmul", "double", total, x), f64_constant(coefficient))
    return total


def _exp2_f32(b: Builder, x: str) -> str:
    for predicate, limit in (("olt", -a.EXP2_LIMIT), ("ogt", a.EXP2_LIMIT)):
        x = b.select(b.compare(predicate, "float", x, f64_constant(limit)), "float", f64_constant(limit), x)
    rounded = b.binary("fadd", "float", x, f64_constant(a.ROUNDING_F32))
    fraction = b.binary("fsub", "float", x, b.binary("fsub", "float", rounded, f64_constant(a.ROUNDING_F32)))
    total = f64_constant(a.EXP2_F32[-1])
    for coefficient in a.EXP2_F32[-2::-1]:
        total = b.binary("fadd", "float", b.binary("fmul", "float", total, fraction), f64_constant(coefficient))
    power = b.math("fma", "float", total, fraction, "1.0")
    exponent = b.binary("sub", "i32", b.cast("bitcast", rounded, "float", "i32"), str(a.ROUNDING_F32_BITS))
    if has_feature("avx512vl"):
        # With AVX-512 this is one instruction, elsewhere a call per element. It also rounds once, as the code below does.
        return b.intrinsic("ldexp.f32.i32", "float", ("float", power), ("i32", exponent))
    half = b.binary("ashr", "i32", exponent, "1")
    for part in (half, b.binary("sub", "i32", exponent, half)):
        bits = b.op(f"shl i32 {b.binary('add', 'i32', part, '127')}, 23")
        power = b.binary("fmul", "float", power, b.cast("bitcast", bits, "i32", "float"))
    return power


def _exp2(b: Builder, x: str) -> str:
    for predicate, limit in (("olt", -a.EXP2_LIMIT), ("ogt", a.EXP2_LIMIT)):
        x = b.select(b.compare(predicate, "double", x, f64_constant(limit)), "double", f64_constant(limit), x)
    rounded = b.binary("fadd", "double", x, f64_constant(a.ROUNDING))
    fraction = b.binary("fsub", "double", x, b.binary("fsub", "double", rounded, f64_constant(a.ROUNDING)))
    exponent = b.op(f"shl i64 {b.cast('bitcast', rounded, 'double', 'i64')}, 52")
    scale = b.cast("bitcast", b.binary("add", "i64", exponent, str(1023 << 52)), "i64", "double")
    return b.binary("fmul", "double", _horner(b, a.EXP2, fraction), scale)


def _log2(b: Builder, x: str) -> str:
    bits = b.cast("bitcast", x, "double", "i64")
    exponent = b.binary("ashr", "i64", b.binary("sub", "i64", bits, str(a.SQRT_HALF_BITS)), "52")
    mantissa = b.cast("bitcast", b.binary("sub", "i64", bits, b.op(f"shl i64 {exponent}, 52")), "i64", "double")
    one = f64_constant(1.0)
    s = b.binary("fdiv", "double", b.binary("fsub", "double", mantissa, one), b.binary("fadd", "double", mantissa, one))
    series = b.binary("fmul", "double", s, _horner(b, a.LOG2, b.binary("fmul", "double", s, s)))
    whole = b.cast("sitofp", b.resize(exponent, "i64", "i32"), "i32", "double")
    result = b.binary("fadd", "double", whole, series)
    not_positive = b.select(b.compare("oeq", "double", x, "0.0"), "double", "0xFFF0000000000000", _NAN)
    result = b.select(b.compare("ogt", "double", x, "0.0"), "double", result, not_positive)
    return b.select(b.compare("oeq", "double", x, _INFINITY), "double", _INFINITY, result)


def _tanh(b: Builder, x: str) -> str:
    square = b.binary("fmul", "double", x, x)
    cubic = b.binary("fmul", "double", b.binary("fmul", "double", x, square), _horner(b, a.TANH, square))
    small = b.binary("fadd", "double", x, cubic)
    size = b.math("fabs", "double", x)
    power = _exp2(b, b.binary("fmul", "double", size, f64_constant(a.TWO_LOG2_E)))
    divisor = b.binary("fadd", "double", power, f64_constant(1.0))
    quotient = b.binary("fdiv", "double", f64_constant(2.0), divisor)
    large = b.binary("fsub", "double", f64_constant(1.0), quotient)
    is_small = b.compare("olt", "double", size, f64_constant(a.TANH_SMALL))
    return b.math("copysign", "double", b.select(is_small, "double", small, large), x)


def _sine(b: Builder, x: str, quarters: int) -> str:
    """Return sin(x + quarters * pi/2) in f64."""
    size = b.math("fabs", "float", x)
    turns, angle = _reduced(b, size)
    if quarters:
        turns = b.binary("add", "i64", turns, str(quarters))
    square = b.binary("fmul", "double", angle, angle)
    cubic = b.binary("fmul", "double", b.binary("fmul", "double", angle, square), _horner(b, a.SIN, square))
    sine = b.binary("fadd", "double", angle, cubic)
    even = b.binary("fmul", "double", square, _horner(b, a.COS, square))
    cosine = b.binary("fadd", "double", f64_constant(1.0), even)
    is_odd = b.compare("ne", "i64", b.binary("and", "i64", turns, "1"), "0")
    result = b.select(is_odd, "double", cosine, sine)
    negative = b.compare("ne", "i64", b.binary("and", "i64", turns, "2"), "0")
    if not quarters:
        sign = b.compare("slt", "i32", b.cast("bitcast", x, "float", "i32"), "0")
        negative = b.binary("xor", "i1", negative, sign)
    signed = b.select(negative, "double", b.op(f"fneg double {result}"), result)
    return b.select(is_finite(b, "float", x), "double", signed, _NAN)


def _reduced(b: Builder, x: str) -> tuple[str, str]:
    """Return (quarter turns as i64, angle in [-pi/4, pi/4]) of x >= 0."""
    bits = b.cast("bitcast", x, "float", "i32")
    field = b.resize(b.binary("and", "i32", b.binary("lshr", "i32", bits, "23"), "255"), "i32", "i64")
    fraction = b.binary("or", "i32", b.binary("and", "i32", bits, "8388607"), "8388608")
    mantissa = b.resize(fraction, "i32", "i64")
    high, low = (_entry(b, number, field) for number in (0, 1))
    upper = b.binary("mul", "i64", mantissa, high)
    product = b.binary("add", "i64", upper, b.binary("lshr", "i64", b.binary("mul", "i64", mantissa, low), "32"))
    turns = b.binary("lshr", "i64", b.binary("add", "i64", product, str(1 << 61)), "62")
    rest = b.binary("sub", "i64", product, b.op(f"shl i64 {turns}, 62"))
    unit = f64_constant(a.QUARTER_TURN * 2.0**-62)
    angle = b.binary("fmul", "double", b.cast("sitofp", rest, "i64", "double"), unit)
    is_small = b.compare("olt", "float", x, f64_constant(a.SMALL_ANGLE))
    return b.select(is_small, "i64", "0", turns), b.select(is_small, "double", widen(b, x), angle)


def _entry(b: Builder, number: int, field: str) -> str:
    """Load an entry of one of the tables of 2/pi."""
    name = f"turns{number}"
    numbers = ", ".join(f"i64 {int(entry.view('int64'))}" for entry in a.turn_tables()[number])
    text = f"@{name} = internal constant [256 x i64] [{numbers}]"
    if text not in b.module.functions:
        b.module.functions.append(text)
    place = b.op(f"getelementptr i64, ptr @{name}, i64 {field}")
    return b.op(f"load i64, ptr {place}, !llvm.access.group !1")
