"""The floating-point instructions as LLVM IR: one row per opcode.

f32 and f64 are LLVM's float and double. f16 and bf16 are computed in f32 and rounded. Packed pairs are two of these.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from hlo_run.backends.host.jit import rounding
from hlo_run.backends.host.jit.approx import approximate
from hlo_run.backends.host.jit.body import Body
from hlo_run.backends.host.jit.builder import f64_constant
from hlo_run.backends.host.jit.integer import INTEGER_PART, Emit, is_integer_type
from hlo_run.backends.host.ptx.instruction_set import Operation
from hlo_run.backends.host.ptx.syntax import Float, Operand, Register

REAL = {"f32": "float", "f64": "double", "f16": "float", "bf16": "float"}
"""The LLVM type for computing with values of a format."""

_DIRECTIONS = ("rz", "rm", "rp")
_PLAIN = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_APPROXIMATE = frozenset(("ex2", "lg2", "tanh", "sin", "cos", "rsqrt"))
# A sum with an f32 constant above this exponent is 0 or normal: if it cancels, the other term has no smaller bits.
_NOT_SMALL = 127 - 100
_HALVES = ("f16", "bf16")
_HALF_OPCODES = frozenset(("add", "sub", "mul", "fma", "min", "max", "neg", "abs", "ex2", "tanh"))


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


def compute(e: Body, op: Operation, kind: str, values: list[str], constants: tuple[int, ...] = ()) -> str:
    """Return the operation on values of one format, with all its modifiers. Raises Unsupported.

    `constants` are the bits of the known operands.
    """
    opcode = "fma" if op.opcode == "mad" else op.opcode
    # 2**x is 1 for subnormal x, whether flushed or not.
    if "ftz" in op.flags and kind != "f64" and opcode != "ex2":
        values = [value if value in e.normal else flush(e, kind, value) for value in values]
    result = _half(e, op, opcode, kind, values, constants) if kind in _HALVES else _single(e, op, opcode, kind, values)
    if opcode == "add" and kind == "f32" and any(bits >> 23 & 0xFF > _NOT_SMALL for bits in constants):
        e.normal.add(result)
    if "ftz" in op.flags and kind != "f64" and result not in e.normal:
        result = flush(e, kind, result)
        e.normal.add(result)
    if "sat" in op.flags:
        result = saturate(e, REAL[kind], result)
        e.unit.add(result)
    if "relu" in op.flags:
        if op.opcode != "fma":
            raise op.unsupported()
        result = relu(e, REAL[kind], result)
    return result


def _half(e: Body, op: Operation, opcode: str, kind: str, values: list[str], constants: tuple[int, ...]) -> str:
    b = e.b
    if op.choice(*_DIRECTIONS) or opcode not in _HALF_OPCODES:
        raise op.unsupported()
    if opcode == "fma":
        x, y, z = (rounding.widen(b, value) for value in values)
        total = rounding.add_to_odd(b, b.binary("fmul", "double", x, y), z)
        return rounding.to_half(b, rounding.f32_to_odd(b, total), kind)
    if opcode == "mul" and kind == "bf16":
        return rounding.multiply_bf16(b, values[0], values[1], constants)
    result = _single(e, op, opcode, "f32", values)
    if opcode in ("add", "sub") and kind == "bf16":
        return rounding.to_bf16(b, result, of_bf16=True)
    return result if opcode in ("min", "max", "neg", "abs") else rounding.to_half(b, result, kind)


def _single(e: Body, op: Operation, opcode: str, kind: str, values: list[str]) -> str:
    b, real = e.b, REAL[kind]
    if mode := op.choice(*_DIRECTIONS):
        return _directed(e, op, opcode, kind, mode, values)
    if opcode == "div" and "approx" in op.flags:
        if kind != "f32":
            raise op.unsupported()
        return _divide_approx(e, *values)
    if opcode in ("rcp", "rsqrt") and kind == "f64" and "ftz" in op.flags:
        return _upper_word_approx(e, opcode, values[0])
    if opcode in _PLAIN:
        return b.binary(_PLAIN[opcode], real, *values)
    match opcode:
        case "fma" | "sqrt":
            return b.math(opcode, real, *values)
        case "min" | "max":
            return b.math(opcode + "imum" + ("" if "NaN" in op.flags else "num"), real, *values)
        case "neg":
            return b.op(f"fneg {real} {values[0]}")
        case "abs":
            return b.math("fabs", real, values[0])
        case "rcp":
            return b.binary("fdiv", real, "1.0", values[0])
        case "rsqrt" if kind == "f64":
            return b.binary("fdiv", real, "1.0", b.math("sqrt", real, values[0]))
        case _ if opcode in _APPROXIMATE and kind == "f32":
            return approximate(b, opcode, values[0])
        case _:
            raise op.unsupported()


def _directed(e: Body, op: Operation, opcode: str, kind: str, mode: str, values: list[str]) -> str:
    if kind == "f32" and opcode == "fma" and mode == "rm" and values[0] in e.unit and _lands_among_integers(e, op):
        result = rounding.whole_below(e.b, *values)
        e.numbers.add(result)
        return result
    if opcode == "sub":
        opcode, values = "add", [values[0], e.b.op(f"fneg {REAL[kind]} {values[1]}")]
    if opcode not in ("add", "mul", "fma", "div", "rcp", "sqrt"):
        raise op.unsupported()
    if kind == "f32":
        return rounding.directed_f32(e.b, opcode, mode, values)
    if opcode == "rcp":
        opcode, values = "div", [f64_constant(1.0), values[0]]
    return rounding.directed_f64(e.b, opcode, mode, values)


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


def _emit(e: Body, op: Operation) -> None:
    if len(op.types) == 2:
        _mixed(e, op)
        return
    target, *sources = op.operands
    kind = op.type
    if kind.endswith("x2"):
        _pair(e, op, target, sources)
        return
    values = [e.read(source, kind) for source in sources]
    dirty = kind != "f64"
    if op.opcode in ("neg", "abs") and kind == "f32":
        known = e.known(sources[0])
        dirty = known is not None and known.dirty
    constants = tuple(bits for source in sources if (bits := _constant(e, source, kind)) is not None)
    result = compute(e, op, kind, values, constants)
    e.define(target, kind, result, dirty=dirty and result not in e.numbers)


def _constant(e: Body, operand: Operand, kind: str) -> int | None:
    """Return the bits of an operand that is equal in all threads and launches; None for others."""
    if isinstance(operand, Register) and (moved := e.plan.pure.definitions.get(operand.name)) and moved.opcode == "mov":
        operand = moved.operands[1] if isinstance(moved.operands[1], Float) else operand
    if isinstance(operand, Float):
        return operand.bits if f"f{operand.width}" == kind else None
    return e.constant(operand)


def _pair(e: Body, op: Operation, target: Operand, sources: list[Operand]) -> None:
    pairs = [e.read_pair(source, op.type) for source in sources]
    kind = op.type.removesuffix("x2")
    constants = [bits for source in sources if (bits := e.constant(source)) is not None]
    low, high = (
        compute(e, op, kind, [pair[side] for pair in pairs], tuple(bits >> 16 * side & 0xFFFF for bits in constants))
        for side in (0, 1)
    )
    e.define(target, op.type, (low, high), dirty=True)


def _mixed(e: Body, op: Operation) -> None:
    """`add.f32.f16` and similar: f16 or bf16 operands, an f32 addend, an f32 result."""
    target, *sources = op.operands
    kind = op.types[1]
    if op.opcode not in ("add", "sub", "fma") or op.types[0] != "f32" or kind not in _HALVES or "ftz" in op.flags:
        raise op.unsupported()
    values = [*(e.read(source, kind) for source in sources[:-1]), e.read(sources[-1], "f32")]
    e.define(target, "f32", compute(e, op, "f32", values), dirty=True)


def _integer_or_float(e: Body, op: Operation) -> None:
    """An opcode that integers and floats share."""
    if is_integer_type(op.type) or op.type in ("s16x2", "u16x2"):
        INTEGER_PART[op.opcode](e, op)
    else:
        _emit(e, op)


def _testp(e: Body, op: Operation) -> None:
    target, a = op.operands
    b, real = e.b, REAL[op.type]
    x = e.read(a, op.type)
    size = b.math("fabs", real, x)
    infinity, least = "0x7FF0000000000000", f64_constant(2.0**-126 if op.type == "f32" else 2.0**-1022)
    match op.choice("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
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


def _copysign(e: Body, op: Operation) -> None:
    """Copy the sign in integer bits, as only they hold the correct sign of a NaN."""
    target, sign, magnitude = op.operands
    form = "i32" if op.type == "f32" else "i64"
    top = 1 << (int(form[1:]) - 1)
    x = e.b.binary("and", form, e.read(sign, form), str(-top))
    y = e.b.binary("and", form, e.read(magnitude, form), str(top - 1))
    e.define(target, form, e.b.binary("or", form, x, y))


EMITTERS: Mapping[str, Emit] = {
    **dict.fromkeys(("add", "sub", "mul", "mad", "div", "abs", "neg", "min", "max"), _integer_or_float),
    **dict.fromkeys(("fma", "rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh"), _emit),
    "testp": _testp,
    "copysign": _copysign,
}
