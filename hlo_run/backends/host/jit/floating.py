"""The floating-point instructions as LLVM IR: one row per record of `specs`.

f32 and f64 are LLVM's float and double. f16 and bf16 are computed in f32 and rounded. Packed pairs are two of these.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from msgspec import Struct

from hlo_run.backends.host.jit import rounding
from hlo_run.backends.host.jit.approx import approximate
from hlo_run.backends.host.jit.body import Body
from hlo_run.backends.host.jit.builder import f64_constant
from hlo_run.backends.host.jit.integer import Emit
from hlo_run.backends.host.ptx import specs
from hlo_run.backends.host.ptx.instruction_set import Operation, row
from hlo_run.backends.host.ptx.syntax import Float, Operand, Register

REAL = {"f32": "float", "f64": "double", "f16": "float", "bf16": "float"}
"""The LLVM type for computing with values of a format."""

_PLAIN = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
# A sum with an f32 constant above this exponent is 0 or normal: if it cancels, the other term has no smaller bits.
_NOT_SMALL = 127 - 100
_HALVES = ("f16", "bf16")


def flush(e: Body, kind: str, x: str) -> str:
    """Return `x` with subnormals of the format replaced by zeros of the same sign (`.ftz`)."""
    if kind == "f16":
        is_tiny = e.b.compare("olt", "float", e.b.math("fabs", "float", x), f64_constant(2.0**-14))
    else:
        is_tiny = rounding.is_tiny(e.b, x)
    return e.b.select(is_tiny, "float", e.b.math("copysign", "float", "0.0", x), x)


def saturate(e: Body, real: str, x: str) -> str:
    """Clamp to [0, 1]. NaN and -0 become +0 (`.sat`)."""
    positive = e.b.select(e.b.compare("ogt", real, x, "0.0"), real, x, "0.0")
    return e.b.select(e.b.compare("olt", real, positive, "1.0"), real, positive, "1.0")


def relu(e: Body, real: str, x: str) -> str:
    """Clamp below at +0. NaN stays NaN (`.relu`)."""
    return e.b.select(e.b.compare("ugt", real, x, "0.0"), real, x, "0.0")


def compute(e: Body, op: Operation, spec: specs.FloatArithmetic, values: list[str], constants: tuple[int, ...] = ()) -> str:
    """Return the operation on values of one format, with all its modifiers.

    `constants` are the bits of the known operands.
    """
    kind = spec.format
    # 2**x is 1 for subnormal x, whether flushed or not.
    if spec.flushes and spec.operation != "ex2":
        values = [value if value in e.normal else flush(e, kind, value) for value in values]
    result = _half(e, op, spec, values, constants) if kind in _HALVES else _single(e, op, spec, kind, values)
    if spec.operation == "add" and kind == "f32" and any(bits >> 23 & 0xFF > _NOT_SMALL for bits in constants):
        e.normal.add(result)
    if spec.flushes and result not in e.normal:
        result = flush(e, kind, result)
        e.normal.add(result)
    if spec.saturates:
        result = saturate(e, REAL[kind], result)
        e.unit.add(result)
    return relu(e, REAL[kind], result) if spec.relu else result


def _half(e: Body, op: Operation, spec: specs.FloatArithmetic, values: list[str], constants: tuple[int, ...]) -> str:
    b, kind, operation = e.b, spec.format, spec.operation
    if operation == "fma":
        x, y, z = (rounding.widen(b, value) for value in values)
        total = rounding.add_to_odd(b, b.binary("fmul", "double", x, y), z)
        return rounding.to_half(b, rounding.f32_to_odd(b, total), kind)
    if operation == "mul" and kind == "bf16":
        return rounding.multiply_bf16(b, values[0], values[1], constants)
    result = _single(e, op, spec, "f32", values)
    if operation in ("add", "sub") and kind == "bf16":
        return rounding.to_bf16(b, result, of_bf16=True)
    return result if operation in ("min", "max", "neg", "abs") else rounding.to_half(b, result, kind)


def _single(e: Body, op: Operation, spec: specs.FloatArithmetic, kind: str, values: list[str]) -> str:
    b, real, operation = e.b, REAL[kind], spec.operation
    if spec.rounding:
        return _directed(e, op, spec, values)
    if spec.is_quick:
        return _divide_approx(e, *values) if operation == "div" else _upper_word_approx(e, operation, values[0])
    if operation in _PLAIN:
        return b.binary(_PLAIN[operation], real, *values)
    match operation:
        case "fma" | "sqrt":
            return b.math(operation, real, *values)
        case "min" | "max":
            return b.math(operation + "imum" + ("" if spec.keeps_nan else "num"), real, *values)
        case "neg":
            return b.op(f"fneg {real} {values[0]}")
        case "abs":
            return b.math("fabs", real, values[0])
        case "rcp":
            return b.binary("fdiv", real, "1.0", values[0])
        case "rsqrt" if kind == "f64":
            return b.binary("fdiv", real, "1.0", b.math("sqrt", real, values[0]))
        case _:
            return approximate(b, operation, values[0])


def _directed(e: Body, op: Operation, spec: specs.FloatArithmetic, values: list[str]) -> str:
    operation, kind, mode = spec.operation, spec.format, spec.rounding
    if kind == "f32" and operation == "fma" and mode == "rm" and values[0] in e.unit and _lands_among_integers(e, op):
        result = rounding.whole_below(e.b, *values)
        e.numbers.add(result)
        return result
    if operation == "sub":
        operation, values = "add", [values[0], e.b.op(f"fneg {REAL[kind]} {values[1]}")]
    if kind == "f32":
        return rounding.directed_f32(e.b, operation, mode, values)
    if operation == "rcp":
        operation, values = "div", [f64_constant(1.0), values[0]]
    return rounding.directed_f64(e.b, operation, mode, values)


def _lands_among_integers(e: Body, op: Operation) -> bool:
    """True if `x * y + z` is in [2**23, 2**24) for all x in [0, 1], and z is an integer. f32 has only integers in this range."""
    factor, addend = (_constant(e, operand, "f32") for operand in op.operands[2:4])
    if factor is None or addend is None:
        return False
    y, z = (struct.unpack("<f", (bits & 0xFFFFFFFF).to_bytes(4, "little"))[0] for bits in (factor, addend))
    return 0 <= y <= 2.0**22 and z >= 2.0**23 and z + y < 2.0**24


def _divide_approx(e: Body, x: str, y: str) -> str:
    """Return x times the reciprocal of y, which is flushed to zero for |y| above 2**126."""
    b = e.b
    large = b.compare("ogt", "float", b.math("fabs", "float", y), f64_constant(2.0**126))
    zero = b.math("copysign", "float", "0.0", y)
    return b.select(large, "float", b.binary("fmul", "float", x, zero), b.binary("fdiv", "float", x, y))


def _upper_word_approx(e: Body, opcode: str, x: str) -> str:
    """`rcp.approx.ftz.f64` and `rsqrt.approx.ftz.f64`: use only the upper 32 bits of operand and result."""
    b = e.b
    upper = _upper_word(e, x)
    is_tiny = b.compare("olt", "double", b.math("fabs", "double", upper), f64_constant(2.0**-1022))
    flushed = b.select(is_tiny, "double", b.math("copysign", "double", "0.0", upper), upper)
    divisor = b.math("sqrt", "double", flushed) if opcode == "rsqrt" else flushed
    return _upper_word(e, b.binary("fdiv", "double", "1.0", divisor))


def _upper_word(e: Body, x: str) -> str:
    bits = e.b.binary("and", "i64", e.b.cast("bitcast", x, "double", "i64"), "-4294967296")
    return e.b.cast("bitcast", bits, "i64", "double")


# ---- instructions ---------------------------------------------------------------------------------------------------


def _float(e: Body, op: Operation, spec: specs.FloatArithmetic) -> None:
    target, *sources = op.operands
    if spec.wide_from:
        _mixed(e, op, spec, target, sources)
        return
    if spec.lanes == 2:
        _pair(e, op, spec, target, sources)
        return
    kind = spec.format
    values = [e.read(source, kind) for source in sources]
    dirty = kind != "f64"
    if spec.operation in ("neg", "abs") and kind == "f32":
        known = e.known(sources[0])
        dirty = known is not None and known.dirty
    constants = tuple(bits for source in sources if (bits := _constant(e, source, kind)) is not None)
    result = compute(e, op, spec, values, constants)
    e.define(target, kind, result, dirty=dirty and result not in e.numbers)


def _constant(e: Body, operand: Operand, kind: str) -> int | None:
    """Return the bits of an operand that is equal in all threads and launches; None for others."""
    if isinstance(operand, Register) and (moved := e.plan.pure.definitions.get(operand.name)) and moved.opcode == "mov":
        operand = moved.operands[1] if isinstance(moved.operands[1], Float) else operand
    if isinstance(operand, Float):
        return operand.bits if f"f{operand.width}" == kind else None
    return e.constant(operand)


def _pair(e: Body, op: Operation, spec: specs.FloatArithmetic, target: Operand, sources: list[Operand]) -> None:
    packed = f"{spec.format}x2"
    pairs = [e.read_pair(source, packed) for source in sources]
    constants = [bits for source in sources if (bits := e.constant(source)) is not None]
    low, high = (
        compute(e, op, spec, [pair[side] for pair in pairs], tuple(bits >> 16 * side & 0xFFFF for bits in constants))
        for side in (0, 1)
    )
    e.define(target, packed, (low, high), dirty=True)


def _mixed(e: Body, op: Operation, spec: specs.FloatArithmetic, target: Operand, sources: list[Operand]) -> None:
    """`add.f32.f16` and similar: f16 or bf16 operands, an f32 addend, an f32 result."""
    values = [*(e.read(source, spec.wide_from) for source in sources[:-1]), e.read(sources[-1], "f32")]
    e.define(target, "f32", compute(e, op, spec, values), dirty=True)


def _test_property(e: Body, op: Operation, spec: specs.TestProperty) -> None:
    target, a = op.operands
    b, real = e.b, REAL[spec.format]
    x = e.read(a, spec.format)
    size = b.math("fabs", real, x)
    infinity, least = "0x7FF0000000000000", f64_constant(2.0**-126 if spec.format == "f32" else 2.0**-1022)
    match spec.property:
        case "finite":
            result = b.compare("olt", real, size, infinity)
        case "infinite":
            result = b.compare("oeq", real, size, infinity)
        case "number":
            result = b.compare("ord", real, x, x)
        case "notanumber":
            result = b.compare("uno", real, x, x)
        case "normal":
            result = b.binary("and", "i1", b.compare("oge", real, size, least), b.compare("olt", real, size, infinity))
        case _:
            result = b.binary("and", "i1", b.compare("olt", real, size, least), b.compare("ogt", real, size, "0.0"))
    e.define(target, "i1", result)


def _copy_sign(e: Body, op: Operation, spec: specs.CopySign) -> None:
    """Copy the sign in integer bits, as only they hold the correct sign of a NaN."""
    target, sign, magnitude = op.operands
    form = "i32" if spec.format == "f32" else "i64"
    top = 1 << (int(form[1:]) - 1)
    x = e.b.binary("and", form, e.read(sign, form), str(-top))
    y = e.b.binary("and", form, e.read(magnitude, form), str(top - 1))
    e.define(target, form, e.b.binary("or", form, x, y))


EMITTERS: Mapping[type[Struct], Emit] = dict(
    (row(specs.FloatArithmetic, _float), row(specs.TestProperty, _test_property), row(specs.CopySign, _copy_sign))
)
