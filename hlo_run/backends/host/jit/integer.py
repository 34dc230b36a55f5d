"""The integer and bit instructions as LLVM IR: one row per record of `specs`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from hlo_run.backends.host.jit.body import Body
from hlo_run.backends.host.ptx import specs
from hlo_run.backends.host.ptx.instruction_set import CARRY, Operation, row
from hlo_run.backends.host.ptx.syntax import Integer, Operand, Register

Emit = Callable[[Body, Operation], None]


def bits_of(type_name: str) -> str:
    """Return the form of an integer type's bits, or of a predicate."""
    return "i1" if type_name == "pred" else f"i{type_name[1:]}"


def _by_sign(type_name: str, signed: str, unsigned: str) -> str:
    return signed if type_name[0] == "s" else unsigned


# ---- sums -----------------------------------------------------------------------------------------------------------


def _halves(e: Body, op: Operation, operation: Callable[[str, str], str]) -> None:
    """Apply an operation of i16 to both halves of 32-bit registers."""
    target, a, b = op.operands
    parts: list[str] = []
    for shift in ("0", "16"):
        x, y = (e.b.resize(e.b.binary("lshr", "i32", e.read(source, "i32"), shift), "i32", "i16") for source in (a, b))
        parts.append(e.b.resize(operation(x, y), "i16", "i32"))
    e.define(target, "i32", e.b.binary("or", "i32", e.b.op(f"shl i32 {parts[1]}, 16"), parts[0]))


def _sum(e: Body, op: Operation, spec: specs.Sum) -> None:
    target, a, b = op.operands
    operation = "sub" if spec.subtracts else "add"
    if spec.is_packed:
        _halves(e, op, lambda x, y: e.b.binary(operation, "i16", x, y))
        return
    form = bits_of(spec.type)
    x, y = e.read(a, form), e.read(b, form)
    if spec.saturates:
        e.define(target, form, e.b.math(f"s{operation}.sat", "i32", x, y))
    elif spec.carry_in or spec.carry_out:
        _with_carry(e, spec, target, operation, x, y, form)
    else:
        e.define(target, form, e.b.binary(operation, form, x, y))


def _with_carry(e: Body, spec: specs.Sum | specs.Product, target: Operand, operation: str, x: str, y: str, form: str) -> None:
    """Add or subtract with the carry flag, in a type one bit wider."""
    wide = f"i{int(form[1:]) + 1}"
    total = e.b.binary(operation, wide, e.b.resize(x, form, wide), e.b.resize(y, form, wide))
    if spec.carry_in:
        total = e.b.binary(operation, wide, total, e.b.resize(e.read(Register(CARRY), "i1"), "i1", wide))
    e.define(target, form, e.b.resize(total, wide, form))
    if spec.carry_out:
        top = e.b.binary("lshr", wide, total, form[1:])
        e.set_flag(CARRY, e.b.resize(top, wide, "i1"))


# ---- products and quotients -----------------------------------------------------------------------------------------


def _product_of(e: Body, op: Operation, spec: specs.Product) -> tuple[str, str]:
    """Return (form, value) of the product."""
    _, a, b, *_ = op.operands
    form = bits_of(spec.type)
    x, y = e.read(a, form), e.read(b, form)
    if spec.part == "lo":
        return form, e.b.binary("mul", form, x, y)
    wide = f"i{2 * int(form[1:])}"
    signed = spec.type[0] == "s"
    product = e.b.binary("mul", wide, e.b.resize(x, form, wide, signed), e.b.resize(y, form, wide, signed))
    if spec.part == "wide":
        return wide, product
    return form, e.b.resize(e.b.binary("lshr", wide, product, form[1:]), wide, form)


def _product(e: Body, op: Operation, spec: specs.Product) -> None:
    target, _, _, *rest = op.operands
    form, product = _product_of(e, op, spec)
    if not spec.adds:
        e.define(target, form, product)
    elif spec.saturates:
        e.define(target, form, e.b.math("sadd.sat", "i32", product, e.read(rest[0], form)))
    elif spec.carry_in or spec.carry_out:
        _with_carry(e, spec, target, "add", product, e.read(rest[0], form), form)
    else:
        e.define(target, form, e.b.binary("add", form, product, e.read(rest[0], form)))


def _difference(e: Body, op: Operation, spec: specs.Difference) -> None:
    target, a, b, c = op.operands
    form, b_ = bits_of(spec.type), e.b
    x, y = e.read(a, form), e.read(b, form)
    less = b_.compare(_by_sign(spec.type, "slt", "ult"), form, x, y)
    difference = b_.select(less, form, b_.binary("sub", form, y, x), b_.binary("sub", form, x, y))
    e.define(target, form, b_.binary("add", form, difference, e.read(c, form)))


def _quotient(e: Body, op: Operation, spec: specs.Quotient) -> None:
    """Divide. Division by zero gives all bits set, and the dividend as remainder, as on the hardware."""
    target, a, b = op.operands
    form, b_ = bits_of(spec.type), e.b
    x, y = e.read(a, form), e.read(b, form)
    is_zero = b_.compare("eq", form, y, "0")
    safe = b_.select(is_zero, form, "1", y)
    is_div = not spec.is_remainder
    if spec.type[0] == "u":
        result = b_.binary("udiv" if is_div else "urem", form, x, safe)
    else:
        # The smallest number divided by -1 overflows, which LLVM leaves undefined.
        minus_one = b_.compare("eq", form, safe, "-1")
        quotient = b_.binary("sdiv" if is_div else "srem", form, x, b_.select(minus_one, form, "1", safe))
        result = b_.select(minus_one, form, b_.binary("sub", form, "0", x) if is_div else "0", quotient)
    e.define(target, form, b_.select(is_zero, form, "-1" if is_div else x, result))


def _dot_bytes(e: Body, op: Operation, spec: specs.DotBytes) -> None:
    """Sum the products of bytes with bytes or 16-bit halves."""
    target, a, b, c = op.operands
    total = e.read(c, "i32")
    x, y = e.read(a, "i32"), e.read(b, "i32")
    for number in range(32 // spec.width):
        p = _lane_of(e, x, number, spec.width, spec.signed[0])
        q = _lane_of(e, y, spec.start + number, 8, spec.signed[1])
        total = e.b.binary("add", "i32", total, e.b.binary("mul", "i32", p, q))
    e.define(target, "i32", total)


def _lane_of(e: Body, word: str, number: int, width: int, signed: bool) -> str:
    part = e.b.resize(e.b.binary("lshr", "i32", word, str(number * width)), "i32", f"i{width}")
    return e.b.resize(part, f"i{width}", "i32", signed)


# ---- order ----------------------------------------------------------------------------------------------------------


def _extreme(e: Body, op: Operation, spec: specs.Extreme) -> None:
    target, a, b = op.operands
    name = _by_sign(spec.type, "s", "u") + spec.operation
    if spec.is_packed:
        _halves(e, op, lambda x, y: e.b.math(name, "i16", x, y))
        return
    form = bits_of(spec.type)
    result = e.b.math(name, form, e.read(a, form), e.read(b, form))
    e.define(target, form, e.b.math("smax", form, result, "0") if spec.relu else result)


# ---- bits -----------------------------------------------------------------------------------------------------------


def _unary(e: Body, op: Operation, spec: specs.Unary) -> None:
    target, a = op.operands
    form, b = bits_of(spec.type), e.b
    value = e.read(a, form)
    match spec.operation:
        case "abs":
            e.define(target, form, b.intrinsic(f"abs.{form}", form, (form, value), ("i1", "false")))
        case "neg":
            e.define(target, form, b.binary("sub", form, "0", value))
        case "not":
            e.define(target, form, b.binary("xor", form, value, "-1"))
        case "cnot":
            e.define(target, form, b.resize(b.compare("eq", form, value, "0"), "i1", form))
        case "brev":
            e.define(target, form, b.math("bitreverse", form, value))
        case "popc":
            e.define(target, "i32", b.resize(b.math("ctpop", form, value), form, "i32"))
        case _:
            e.define(target, "i32", b.resize(leading_zeros(e, form, value), form, "i32"))


def _logic(e: Body, op: Operation, spec: specs.Logic) -> None:
    target, a, b = op.operands
    form = bits_of(spec.type)
    e.define(target, form, e.b.binary(spec.operation, form, e.read(a, form), e.read(b, form)))


def leading_zeros(e: Body, form: str, value: str) -> str:
    """Return the number of zero bits above the highest set bit; the width for 0."""
    return e.b.intrinsic(f"ctlz.{form}", form, (form, value), ("i1", "false"))


def _find_highest(e: Body, op: Operation, spec: specs.FindHighest) -> None:
    target, a = op.operands
    form, b = bits_of(spec.type), e.b
    value = e.read(a, form)
    if spec.type[0] == "s":
        value = b.select(b.compare("slt", form, value, "0"), form, b.binary("xor", form, value, "-1"), value)
    zeros = leading_zeros(e, form, value)
    place = zeros if spec.as_shift else b.binary("sub", form, str(int(form[1:]) - 1), zeros)
    found = b.resize(place, form, "i32")
    e.define(target, "i32", b.select(b.compare("eq", form, value, "0"), "i32", "-1", found))


def shift(e: Body, operation: str, form: str, value: str, amount: str) -> str:
    """Shift by an i32 amount. Amounts of the width or more give 0, or copies of the sign."""
    width = int(form[1:])
    b = e.b
    if operation == "ashr":
        least = b.math("umin", "i32", amount, str(width - 1))
        return b.binary("ashr", form, value, b.resize(least, "i32", form))
    inside = b.compare("ult", "i32", amount, str(width))
    masked = b.binary("and", "i32", amount, str(width - 1))
    return b.select(inside, form, b.binary(operation, form, value, b.resize(masked, "i32", form)), "0")


def _shift(e: Body, op: Operation, spec: specs.Shift) -> None:
    target, a, amount = op.operands
    form = bits_of(spec.type)
    operation = "shl" if spec.is_left else _by_sign(spec.type, "ashr", "lshr")
    value, distance = e.read(a, form), e.constant(amount)
    if distance is None:
        e.define(target, form, shift(e, operation, form, value, e.read(amount, "i32")))
        return
    width = int(form[1:])
    distance &= 0xFFFFFFFF
    if distance >= width and operation != "ashr":
        e.define(target, form, "0")
    else:
        e.define(target, form, e.b.binary(operation, form, value, str(min(distance, width - 1))))


def _funnel_shift(e: Body, op: Operation, spec: specs.FunnelShift) -> None:
    target, low, high, amount = op.operands
    b = e.b
    distance = e.read(amount, "i32")
    distance = b.binary("and", "i32", distance, "31") if spec.wraps else b.math("umin", "i32", distance, "32")
    upper = b.op(f"shl i64 {b.resize(e.read(high, 'i32'), 'i32', 'i64')}, 32")
    both = b.binary("or", "i64", upper, b.resize(e.read(low, "i32"), "i32", "i64"))
    wide = b.resize(distance, "i32", "i64")
    shifted = b.binary("shl" if spec.is_left else "lshr", "i64", both, wide)
    if spec.is_left:
        shifted = b.binary("lshr", "i64", shifted, "32")
    e.define(target, "i32", b.resize(shifted, "i64", "i32"))


def _ones(e: Body, form: str, count: str) -> str:
    """Return a mask of the `count` (i32) lowest bits."""
    return e.b.binary("xor", form, shift(e, "shl", form, "-1", count), "-1")


def _extract_bits(e: Body, op: Operation, spec: specs.ExtractBits) -> None:
    target, a, start, count = op.operands
    form, b = bits_of(spec.type), e.b
    width = int(form[1:])
    value = e.read(a, form)
    begin, length = (b.binary("and", "i32", e.read(source, "i32"), "255") for source in (start, count))
    field = b.binary("and", form, shift(e, "lshr", form, value, begin), _ones(e, form, length))
    if spec.type[0] == "s":
        # Bits above the field, and field bits from above the word, are copies of the field's topmost bit in the word.
        last = b.math("umin", "i32", b.binary("add", "i32", b.binary("add", "i32", begin, length), "-1"), str(width - 1))
        sign = b.resize(shift(e, "lshr", form, value, last), form, "i1")
        left = b.intrinsic("usub.sat.i32", "i32", ("i32", str(width)), ("i32", begin))
        inside = b.math("umin", "i32", length, left)
        extended = b.binary("or", form, field, b.binary("xor", form, _ones(e, form, inside), "-1"))
        empty = b.compare("eq", "i32", length, "0")
        field = b.select(empty, form, "0", b.select(sign, form, extended, field))
    e.define(target, form, field)


def _insert_bits(e: Body, op: Operation, spec: specs.InsertBits) -> None:
    target, a, b_, start, count = op.operands
    form, b = bits_of(spec.type), e.b
    begin, length = (b.binary("and", "i32", e.read(source, "i32"), "255") for source in (start, count))
    mask = shift(e, "shl", form, _ones(e, form, length), begin)
    taken = b.binary("and", form, shift(e, "shl", form, e.read(a, form), begin), mask)
    kept = b.binary("and", form, e.read(b_, form), b.binary("xor", form, mask, "-1"))
    e.define(target, form, b.binary("or", form, taken, kept))


_SELECTORS: Mapping[str, tuple[int, ...]] = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}
"""The selectors of the named modes of `prmt`, by the two lowest bits of the operand."""


def _permute_bytes(e: Body, op: Operation, spec: specs.PermuteBytes) -> None:
    target, a, b_, selector = op.operands
    b = e.b
    upper = b.op(f"shl i64 {b.resize(e.read(b_, 'i32'), 'i32', 'i64')}, 32")
    both = b.binary("or", "i64", upper, b.resize(e.read(a, "i32"), "i32", "i64"))
    chosen = e.read(selector, "i32")
    if spec.mode:
        low = b.binary("and", "i32", chosen, "3")
        table = _SELECTORS[spec.mode]
        chosen = str(table[3])
        for number in (2, 1, 0):
            chosen = b.select(b.compare("eq", "i32", low, str(number)), "i32", str(table[number]), chosen)
    result = "0"
    for position in range(4):
        nibble = b.binary("lshr", "i32", chosen, str(4 * position))
        place = b.op(f"shl i32 {b.binary('and', 'i32', nibble, '7')}, 3")
        byte = b.resize(b.binary("lshr", "i64", both, b.resize(place, "i32", "i64")), "i64", "i8")
        copies = b.binary("ashr", "i8", byte, "7")
        wants_sign = b.compare("ne", "i32", b.binary("and", "i32", nibble, "8"), "0")
        byte = b.resize(b.select(wants_sign, "i8", copies, byte), "i8", "i32")
        result = b.binary("or", "i32", b.binary("shl", "i32", byte, str(8 * position)), result)
    e.define(target, "i32", result)


def _lookup3(e: Body, op: Operation, spec: specs.Lookup3) -> None:
    del spec
    target, a, b_, c, table = op.operands
    assert isinstance(table, Integer), "the rules have checked the operands"
    b = e.b
    words = [e.read(operand, "i32") for operand in (a, b_, c)]
    opposite = [b.binary("xor", "i32", word, "-1") for word in words]
    result = "0"
    for index in range(8):
        if table.value >> index & 1:
            x, y, z = (word if index & bit else no for word, no, bit in zip(words, opposite, (4, 2, 1), strict=True))
            result = b.binary("or", "i32", result, b.binary("and", "i32", b.binary("and", "i32", x, y), z))
    e.define(target, "i32", result)


EMITTERS: Mapping[type[Struct], Emit] = dict(
    (
        row(specs.Sum, _sum),
        row(specs.Product, _product),
        row(specs.Quotient, _quotient),
        row(specs.Difference, _difference),
        row(specs.Extreme, _extreme),
        row(specs.Unary, _unary),
        row(specs.Logic, _logic),
        row(specs.Shift, _shift),
        row(specs.FunnelShift, _funnel_shift),
        row(specs.DotBytes, _dot_bytes),
        row(specs.FindHighest, _find_highest),
        row(specs.ExtractBits, _extract_bits),
        row(specs.InsertBits, _insert_bits),
        row(specs.PermuteBytes, _permute_bytes),
        row(specs.Lookup3, _lookup3),
    )
)
