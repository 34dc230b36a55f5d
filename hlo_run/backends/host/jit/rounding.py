"""Exact roundings as LLVM IR: to narrow formats, to odd, and in the directions that are not the processor's default.

The methods are those of `float_numerics`. An f64 sum or quotient with its error is made odd where it is inexact, and can then be
rounded again to any narrower format. Functions take and return names. f16 and bf16 values are f32 that hold them exactly.
"""

from __future__ import annotations

import struct

from hlo_run.backends.host.jit.builder import Builder, f64_constant

_NAN_BF16 = f64_constant(struct.unpack("<f", bytes.fromhex("0000ff7f"))[0])
_MODES = {"rz": 0, "rn": 1, "rp": 2, "rm": 3}


def to_bf16(b: Builder, x: str, *, of_bf16: bool = False) -> str:
    """Round f32 to bf16, nearest even. NaN becomes some bf16 NaN.

    With `of_bf16`, `x` is a sum, difference or product of bf16 values. Its NaNs come from the operands or the processor. The low
    half of their bits is zero, so rounding keeps them NaN.
    """
    bits = b.cast("bitcast", x, "float", "i32")
    odd = b.binary("and", "i32", b.binary("lshr", "i32", bits, "16"), "1")
    rounded = b.binary("add", "i32", b.binary("add", "i32", bits, "32767"), odd)
    kept = b.binary("and", "i32", rounded, "-65536")
    result = b.cast("bitcast", kept, "i32", "float")
    return result if of_bf16 else b.select(b.compare("uno", "float", x, x), "float", _NAN_BF16, result)


def to_f16(b: Builder, x: str) -> str:
    """Round f32 to f16, nearest even."""
    return b.cast("fpext", b.cast("fptrunc", x, "float", "half"), "half", "float")


def to_half(b: Builder, x: str, kind: str) -> str:
    """Round f32 to f16 or bf16."""
    return to_f16(b, x) if kind == "f16" else to_bf16(b, x)


def multiply_bf16(b: Builder, x: str, y: str, constants: tuple[int, ...] = ()) -> str:
    """Multiply bf16 values with one rounding. The f32 product is exact unless it is subnormal, where bf16 has a fixed step.

    A subnormal product is rounded by adding a number whose last bit is this step; subtracting it again is exact. If one of the
    `constants` (given by their bits) is a multiple of 2**-16, f32 holds every product.
    """
    product = b.binary("fmul", "float", x, y)
    if any(_is_multiple_of_2_16(bits) for bits in constants):
        return to_bf16(b, product, of_bf16=True)
    shifter = "0x3918000000000000"  # 1.5 * 2**-110: its last bit is 2**-133, the smallest bf16 number
    moved = b.binary("fsub", "float", b.math("fma", "float", x, y, shifter), shifter)
    signed = b.math("copysign", "float", moved, product)
    return b.select(is_tiny(b, product), "float", signed, to_bf16(b, product, of_bf16=True))


def is_tiny(b: Builder, x: str) -> str:
    """Return whether an f32 is subnormal or zero."""
    exponent = b.binary("and", "i32", b.cast("bitcast", x, "float", "i32"), str(0x7F800000))
    return b.compare("eq", "i32", exponent, "0")


def _is_multiple_of_2_16(bits: int) -> bool:
    """True for a bf16 that is a multiple of 2**-16, infinite or NaN. Its products are never subnormal."""
    exponent, fraction = bits >> 7 & 0xFF, bits & 0x7F
    trailing = ((fraction | 0x80) & -(fraction | 0x80)).bit_length() - 1
    return exponent - 127 - 7 + trailing >= -16 or bits & 0x7FFF == 0


# ---- sums and quotients with their errors ---------------------------------------------------------------------------


def widen(b: Builder, x: str) -> str:
    """Return f32 as f64."""
    return b.cast("fpext", x, "float", "double")


def two_sum(b: Builder, x: str, y: str) -> tuple[str, str]:
    """Return (s, e) with s + e exactly x + y."""
    total = b.binary("fadd", "double", x, y)
    shadow = b.binary("fsub", "double", total, x)
    rest = b.binary("fsub", "double", x, b.binary("fsub", "double", total, shadow))
    return total, b.binary("fadd", "double", rest, b.binary("fsub", "double", y, shadow))


def is_finite(b: Builder, type_name: str, x: str) -> str:
    """Return an i1: false for infinities and NaNs."""
    infinity = "0x7FF0000000000000"
    return b.compare("olt", type_name, b.math("fabs", type_name, x), infinity)


def to_odd(b: Builder, total: str, error: str) -> str:
    """Make the last bit of an f64 odd by a step towards `error`, where `error` is not zero."""
    bits = b.cast("bitcast", total, "double", "i64")
    even = b.compare("eq", "i64", b.binary("and", "i64", bits, "1"), "0")
    inexact = b.binary("and", "i1", b.compare("one", "double", error, "0.0"), is_finite(b, "double", error))
    away = b.compare("eq", "i1", b.compare("ogt", "double", error, "0.0"), b.compare("ogt", "double", total, "0.0"))
    moved = b.binary("add", "i64", bits, b.select(away, "i64", "1", "-1"))
    chosen = b.select(b.binary("and", "i1", even, inexact), "i64", moved, bits)
    return b.cast("bitcast", chosen, "i64", "double")


def add_to_odd(b: Builder, x: str, y: str) -> str:
    """Return x + y of f64 rounded to odd."""
    return to_odd(b, *two_sum(b, x, y))


def f32_to_odd(b: Builder, x: str) -> str:
    """Round f64 (exact, or rounded to odd) to f32 by rounding to odd."""
    narrow = narrow_f64(b, x, "rz")
    differs = b.compare("one", "double", widen(b, narrow), x)
    inexact = b.binary("and", "i1", differs, is_finite(b, "double", x))
    bits = b.cast("bitcast", narrow, "float", "i32")
    odd = b.binary("or", "i32", bits, b.resize(inexact, "i1", "i32"))
    return b.cast("bitcast", odd, "i32", "float")


# ---- directions -----------------------------------------------------------------------------------------------------


def redirect(b: Builder, bits: str, form: str, back: str, exact: str, real: str, mode: str) -> str:
    """Return the bits of a result rounded in the direction `mode`, from the bits of the result rounded to nearest.

    `back` is the result rounded to nearest and `exact` the value before rounding, both of type `real`.
    """
    if mode == "rz":
        too_far = b.compare("ogt", real, b.math("fabs", real, back), b.math("fabs", real, exact))
    else:
        too_far = b.compare("ogt" if mode == "rm" else "olt", real, back, exact)
    return _step_back(b, bits, form, b.compare("oeq", real, back, "0.0"), too_far, mode)


def _step_back(b: Builder, bits: str, form: str, is_zero: str, too_far: str, mode: str) -> str:
    """Return the bits of the next number in the direction `mode` where `too_far` holds. With `rz` it never holds for zero."""
    if mode == "rz":
        return b.binary("sub", form, bits, b.resize(too_far, "i1", form))
    down, top = mode == "rm", int(form[1:]) - 1
    # The bits of a smaller number are smaller if it is positive, and larger if it is negative.
    step = b.binary("or", form, b.binary("ashr", form, bits, str(top)), "1")
    moved = b.binary("sub" if down else "add", form, bits, step)
    least = str(-(1 << top) + 1) if down else "1"
    return b.select(too_far, form, b.select(is_zero, form, least, moved), bits)


def narrow_f64(b: Builder, x: str, mode: str) -> str:
    """Round f64 (exact, or rounded to odd) to f32 in any mode."""
    nearest = b.cast("fptrunc", x, "double", "float")
    if mode == "rn":
        return nearest
    bits = b.cast("bitcast", nearest, "float", "i32")
    moved = redirect(b, bits, "i32", widen(b, nearest), x, "double", mode)
    return b.cast("bitcast", moved, "i32", "float")


def narrow_to_half(b: Builder, x: str, real: str, kind: str, mode: str) -> str:
    """Round f32 or f64 (exact, or rounded to odd) to f16 or bf16 in any mode."""
    nearest = to_half(b, f32_to_odd(b, x) if real == "double" else x, kind)
    if mode == "rn":
        return nearest
    back = widen(b, nearest) if real == "double" else nearest
    if kind == "f16":
        half = b.cast("fptrunc", nearest, "float", "half")
        moved = redirect(b, b.cast("bitcast", half, "half", "i16"), "i16", back, x, real, mode)
        return b.cast("fpext", b.cast("bitcast", moved, "i16", "half"), "half", "float")
    upper = b.resize(b.binary("lshr", "i32", b.cast("bitcast", nearest, "float", "i32"), "16"), "i32", "i16")
    moved = b.resize(redirect(b, upper, "i16", back, x, real, mode), "i16", "i32")
    result = b.cast("bitcast", b.op(f"shl i32 {moved}, 16"), "i32", "float")
    return b.select(b.compare("uno", "float", nearest, nearest), "float", nearest, result)


def directed_f32(b: Builder, opcode: str, mode: str, values: list[str]) -> str:
    """Return add, mul, fma, div, rcp or sqrt of f32 values rounded in the direction `mode`."""
    wide = [widen(b, value) for value in values]
    match opcode:
        case "mul":
            return narrow_f64(b, b.binary("fmul", "double", *wide), mode)
        case "add" | "fma":
            left = b.binary("fmul", "double", wide[0], wide[1]) if opcode == "fma" else wide[0]
            return _directed_sum(b, left, wide[-1], mode)
        case "sqrt":
            root = b.math("sqrt", "double", wide[0])
            rest = b.math("fma", "double", b.op(f"fneg double {root}"), root, wide[0])
            return narrow_f64(b, to_odd(b, root, rest), mode)
        case _:
            x, y = (f64_constant(1.0), wide[0]) if opcode == "rcp" else wide
            quotient = b.binary("fdiv", "double", x, y)
            rest = b.math("fma", "double", b.op(f"fneg double {quotient}"), y, x)
            signed = b.select(b.compare("olt", "double", y, "0.0"), "double", b.op(f"fneg double {rest}"), rest)
            return narrow_f64(b, to_odd(b, quotient, signed), mode)


def whole_below(b: Builder, x: str, y: str, z: str) -> str:
    """Return x * y + z of f32 rounded down. x and y are not negative, z is an integer, and the sum is in [2**23, 2**24).

    The sum rounded to nearest is an integer, so its difference to z is exact, and so is the sign of the rounding error.
    """
    nearest = b.math("fma", "float", x, y, z)
    whole = b.binary("fsub", "float", nearest, z)
    rest = b.math("fma", "float", x, y, b.op(f"fneg float {whole}"))
    below = b.binary("fsub", "float", nearest, f64_constant(1.0))
    return b.select(b.compare("olt", "float", rest, "0.0"), "float", below, nearest)


def _directed_sum(b: Builder, x: str, y: str, mode: str) -> str:
    """Add f64 values that are f32 values or products of them, and round to f32.

    The f32 nearest to the f64 sum is the result or one step beyond it. The sign of the rest, which f64 holds, decides.
    """
    total, error = two_sum(b, x, y)
    nearest = b.cast("fptrunc", total, "double", "float")
    back = widen(b, nearest)
    rest = b.binary("fadd", "double", b.binary("fsub", "double", total, back), error)
    if mode == "rz":
        too_far = b.compare("olt", "double", b.binary("fmul", "double", rest, back), "0.0")
    else:
        too_far = b.compare("olt" if mode == "rm" else "ogt", "double", rest, "0.0")
    bits = b.cast("bitcast", nearest, "float", "i32")
    moved = _step_back(b, bits, "i32", b.compare("oeq", "float", nearest, "0.0"), too_far, mode)
    result = b.cast("bitcast", moved, "i32", "float")
    if mode != "rm":
        return result
    # An exact zero sum is -0, unless both terms are +0.
    signs = [b.cast("bitcast", value, "double", "i64") for value in (x, y)]
    any_bit = b.compare("ne", "i64", b.binary("or", "i64", *signs), "0")
    return b.select(b.binary("and", "i1", b.compare("oeq", "double", total, "0.0"), any_bit), "float", "-0.0", result)


def directed_f64(b: Builder, opcode: str, mode: str, values: list[str]) -> str:
    """Return an operation of f64 in the direction `mode`, by a function that switches the processor's rounding mode."""
    name = f"directed_{opcode}"
    operation = {"add": "fadd", "mul": "fmul", "div": "fdiv"}.get(opcode, opcode)
    formals = ", ".join(f"double %{letter}" for letter in "abc"[: len(values)])
    how = 'metadata !"round.dynamic", metadata !"fpexcept.strict"'
    text = f"""define internal double @{name}(i32 %mode, {formals}) noinline strictfp {{
  call void @llvm.set.rounding(i32 %mode) strictfp
  %r = call double @llvm.experimental.constrained.{operation}.f64({formals}, {how}) strictfp
  call void @llvm.set.rounding(i32 1) strictfp
  ret double %r
}}"""
    if text not in b.module.functions:
        b.module.functions.append(text)
        types = ", ".join(["double"] * len(values))
        constrained = f"llvm.experimental.constrained.{operation}.f64"
        b.module.declarations[constrained] = f"declare double @{constrained}({types}, metadata, metadata)"
        b.module.declarations["llvm.set.rounding"] = "declare void @llvm.set.rounding(i32)"
    actual = ", ".join(f"double {value}" for value in values)
    return b.op(f"call double @{name}(i32 {_MODES[mode]}, {actual})")
