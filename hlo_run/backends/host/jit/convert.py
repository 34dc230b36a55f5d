"""`cvt` as LLVM IR: between integer and floating-point formats, with every rounding mode, clamping and packing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from hlo_run.backends.host.jit import rounding
from hlo_run.backends.host.jit.body import Body
from hlo_run.backends.host.jit.builder import f64_constant
from hlo_run.backends.host.jit.floating import REAL, flush, relu, saturate
from hlo_run.backends.host.jit.forms import NAN32
from hlo_run.backends.host.jit.integer import Emit
from hlo_run.backends.host.jit.move import define_integer, integer_source
from hlo_run.backends.host.ptx import specs
from hlo_run.backends.host.ptx.instruction_set import Operation, row
from hlo_run.backends.host.ptx.syntax import Operand, Register

_ROUND = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


def _convert_integer(e: Body, op: Operation, spec: specs.ConvertInteger) -> None:
    target, source = op.operands
    to, origin = spec.to, spec.origin
    b = e.b
    value = integer_source(e, source, origin)
    have, want = f"i{origin[1:]}", f"i{to[1:]}"
    if spec.saturates:
        low, high = _limits(to)
        own_low, own_high = _limits(origin)
        sign = "s" if origin[0] == "s" else "u"
        value = b.math(f"{sign}min", have, value, _literal(min(high, own_high), int(origin[1:])))
        value = b.math(f"{sign}max", have, value, _literal(max(low, own_low), int(origin[1:])))
    define_integer(e, target, b.resize(value, have, want, signed=origin[0] == "s"), to)


def _limits(type_name: str) -> tuple[int, int]:
    bits = int(type_name[1:])
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if type_name[0] == "s" else (0, (1 << bits) - 1)


def _literal(value: int, bits: int) -> str:
    return str(value - (1 << bits) if value >> (bits - 1) and value > 0 else value)


def _wide(e: Body, source: Operand, type_name: str, flushes: bool) -> str:
    value = e.read(source, type_name)
    return flush(e, "f32", value) if flushes and type_name == "f32" else value


def _float_to_integer(e: Body, op: Operation, spec: specs.FloatToInteger) -> None:
    """Convert with clamping. NaN becomes 0; for f64 operands and 64-bit results it becomes the sign bit alone."""
    target, source = op.operands
    to, origin = spec.to, spec.origin
    b, real, form = e.b, REAL[origin], f"i{to[1:]}"
    value = _wide(e, source, origin, spec.flushes)
    whole = b.math(_ROUND[spec.rounding], real, value)
    kind = "fptosi" if to[0] == "s" else "fptoui"
    suffix = "f32" if real == "float" else "f64"
    result = b.intrinsic(f"{kind}.sat.{form}.{suffix}", form, (real, whole))
    if origin == "f64" or to[1:] == "64":
        indefinite = str(-(1 << (int(to[1:]) - 1)))
        result = b.select(b.compare("uno", real, value, value), form, indefinite, result)
    define_integer(e, target, result, to)


def _integer_to_float(e: Body, op: Operation, spec: specs.IntegerToFloat) -> None:
    target, source = op.operands
    to, origin, mode = spec.to, spec.origin, spec.rounding
    b, form = e.b, f"i{origin[1:]}"
    value = integer_source(e, source, origin)
    convert = "sitofp" if origin[0] == "s" else "uitofp"
    if to in ("f32", "f64") and (mode == "rn" or (to == "f64" and origin[1:] != "64")):
        result = b.cast(convert, value, form, REAL[to])
    elif to == "f64":
        high, low = _split(e, value, origin)
        result = rounding.directed_f64(b, "add", mode, [high, low])
    else:
        if origin[1:] == "64":
            exact = rounding.add_to_odd(b, *_split(e, value, origin))
        else:
            exact = b.cast(convert, value, form, "double")
        narrow = rounding.narrow_f64(b, exact, mode) if to == "f32" else rounding.narrow_to_half(b, exact, "double", to, mode)
        result = narrow
    e.define(target, to, saturate(e, REAL[to], result) if spec.saturates else result)


def _split(e: Body, value: str, origin: str) -> tuple[str, str]:
    """Return two f64 whose exact sum is a 64-bit integer."""
    b = e.b
    signed = origin[0] == "s"
    upper = b.binary("ashr" if signed else "lshr", "i64", value, "32")
    high = b.cast("sitofp" if signed else "uitofp", upper, "i64", "double")
    low = b.cast("uitofp", b.binary("and", "i64", value, "4294967295"), "i64", "double")
    return b.binary("fmul", "double", high, f64_constant(2.0**32)), low


def _convert_float(e: Body, op: Operation, spec: specs.ConvertFloat) -> None:
    target, source = op.operands
    to, origin = spec.to, spec.origin
    if spec.is_copy and isinstance(source, Register):
        e.copy(target, e.value(source.name))
        return
    value = _wide(e, source, origin, spec.flushes)
    if spec.integral:
        value = e.b.math(_ROUND[spec.integral], REAL[origin], value)
    result = _narrowed(e, spec, value)
    if spec.flushes and to == "f32":
        result = flush(e, "f32", result)
    if spec.saturates:
        result = saturate(e, REAL[to], result)
        e.unit.add(result)
    if spec.relu:
        result = relu(e, REAL[to], result)
    e.define(target, to, result, dirty=to != "f64" and result not in e.unit)


def _narrowed(e: Body, spec: specs.ConvertFloat, value: str) -> str:
    b, to, origin = e.b, spec.to, spec.origin
    match to:
        case "f16" | "bf16":
            return value if to == origin else rounding.narrow_to_half(b, value, REAL[origin], to, spec.rounding)
        case "f32":
            return rounding.narrow_f64(b, value, spec.rounding) if origin == "f64" else value
        case _:
            return value if origin == "f64" else rounding.widen(b, value)


# ---- packed ---------------------------------------------------------------------------------------------------------


def _pack_halves(e: Body, op: Operation, spec: specs.PackHalves) -> None:
    target, *sources = op.operands
    values = [e.read(source, "f32") for source in reversed(sources)]
    low, high = (rounding.narrow_to_half(e.b, value, "float", spec.to[:-2], spec.rounding) for value in values)
    if spec.relu:
        low, high = relu(e, "float", low), relu(e, "float", high)
    e.define(target, spec.to, (low, high), dirty=True)


def _unpack_small(e: Body, op: Operation, spec: specs.UnpackSmall) -> None:
    target, source = op.operands
    small = _SMALL[spec.origin]
    bits = e.read(source, "i16")
    low, high = (_from_small(e, e.b.binary("lshr", "i16", bits, shift), small) for shift in ("0", str(small.bits)))
    e.define(target, "f16x2", (low, high), dirty=True)


def _round_to_tf32(e: Body, op: Operation, spec: specs.RoundToTf32) -> None:
    """Round to 10 fraction bits, ties away from zero."""
    del spec
    target, source = op.operands
    b, x = e.b, e.read(source, "f32")
    bits = b.cast("bitcast", x, "float", "i32")
    rounded = b.binary("and", "i32", b.binary("add", "i32", bits, "4096"), "-8192")
    finite = rounding.is_finite(b, "float", x)
    result = b.select(finite, "i32", rounded, bits)
    e.define(target, "i32", b.select(b.compare("uno", "float", x, x), "i32", str(NAN32), result))


class _Small(NamedTuple):
    """An 8-bit or 4-bit format: fraction bits, bias, largest value, and the first magnitudes of infinity and NaN."""

    bits: int
    fraction_bits: int
    bias: int
    largest: float
    infinity: int | None
    special: int | None

    @property
    def magnitude(self) -> int:
        """All bits but the sign."""
        return (1 << (self.bits - 1)) - 1


_SMALL = {
    "e4m3x2": _Small(8, 3, 7, 448.0, infinity=None, special=0x7F),
    "e5m2x2": _Small(8, 2, 15, 57344.0, infinity=0x7C, special=0x7C),
    "e2m1x2": _Small(4, 1, 1, 6.0, infinity=None, special=None),
}


def _pack_small(e: Body, op: Operation, spec: specs.PackSmall) -> None:
    target, *sources = op.operands
    if spec.origin == "f32":
        high, low = (e.read(source, "f32") for source in sources)
    else:
        low, high = e.read_pair(sources[0], "f16x2")
    small = _SMALL[spec.to]
    upper, lower = (_small_bits(e, value, small) for value in (high, low))
    bits = e.b.binary("or", "i32", e.b.op(f"shl i32 {upper}, {small.bits}"), lower)
    e.define(target, "i16", e.b.resize(bits, "i32", "i16"))


def _small_bits(e: Body, x: str, small: _Small) -> str:
    """Round f32 to a small float (in an i32), nearest even, clamped to the largest value. NaN sets all bits but the sign."""
    fraction_bits, bias = small.fraction_bits, small.bias
    b = e.b
    size = b.math("fabs", "float", x)
    limit = f64_constant(small.largest)
    size = b.select(b.compare("ogt", "float", size, limit), "float", limit, size)
    bits = b.cast("bitcast", size, "float", "i32")
    shift = 23 - fraction_bits
    odd = b.binary("and", "i32", b.binary("lshr", "i32", bits, str(shift)), "1")
    sum_ = b.binary("add", "i32", b.binary("add", "i32", bits, str((1 << (shift - 1)) - 1)), odd)
    normal = b.binary("sub", "i32", b.binary("lshr", "i32", sum_, str(shift)), str((127 - bias) << fraction_bits))
    # Adding a number whose last bit is the format's smallest one rounds a subnormal.
    magic = 2.0 ** (1 - bias - fraction_bits + 23)
    rounded = b.binary("fadd", "float", size, f64_constant(magic))
    magic_bits = (int(1 - bias - fraction_bits + 23) + 127) << 23
    subnormal = b.binary("sub", "i32", b.cast("bitcast", rounded, "float", "i32"), str(magic_bits))
    is_small = b.compare("olt", "float", size, f64_constant(2.0 ** (1 - bias)))
    magnitude = b.select(is_small, "i32", subnormal, normal)
    sign_bit = 1 << (small.bits - 1)
    shifted = b.binary("lshr", "i32", b.cast("bitcast", x, "float", "i32"), str(32 - small.bits))
    result = b.binary("or", "i32", magnitude, b.binary("and", "i32", shifted, str(sign_bit)))
    return b.select(b.compare("uno", "float", x, x), "i32", str(small.magnitude), result)


def _from_small(e: Body, bits: str, small: _Small) -> str:
    """Return the small float in the low bits of an i16 as f32."""
    b = e.b
    word = b.resize(bits, "i16", "i32")
    sign = b.op(f"shl i32 {b.binary('and', 'i32', word, str(1 << (small.bits - 1)))}, {32 - small.bits}")
    magnitude = b.binary("and", "i32", word, str(small.magnitude))
    # Read as an f32 it is too small by a power of two. This holds for subnormals too.
    moved = b.cast("bitcast", b.op(f"shl i32 {magnitude}, {23 - small.fraction_bits}"), "i32", "float")
    value = b.binary("fmul", "float", moved, f64_constant(2.0 ** (127 - small.bias)))
    if small.special is not None:
        special = "0x7FF8000000000000"
        if small.infinity is not None:
            is_infinite = b.compare("eq", "i32", magnitude, str(small.infinity))
            special = b.select(is_infinite, "float", "0x7FF0000000000000", special)
        value = b.select(b.compare("uge", "i32", magnitude, str(small.special)), "float", special, value)
    with_sign = b.binary("or", "i32", b.cast("bitcast", value, "float", "i32"), sign)
    return b.cast("bitcast", with_sign, "i32", "float")


EMITTERS: Mapping[type[Struct], Emit] = dict(
    (
        row(specs.ConvertInteger, _convert_integer),
        row(specs.FloatToInteger, _float_to_integer),
        row(specs.IntegerToFloat, _integer_to_float),
        row(specs.ConvertFloat, _convert_float),
        row(specs.PackHalves, _pack_halves),
        row(specs.PackSmall, _pack_small),
        row(specs.UnpackSmall, _unpack_small),
        row(specs.RoundToTf32, _round_to_tf32),
    )
)
