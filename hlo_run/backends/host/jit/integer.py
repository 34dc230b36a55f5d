"""The integer and bit instructions as LLVM IR: one row per opcode."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hlo_run.backends.host.jit.body import Body
from hlo_run.backends.host.ptx.instruction_set import CARRY, Operation
from hlo_run.backends.host.ptx.syntax import Integer, Operand, Register

Emit = Callable[[Body, Operation], None]


def is_integer_type(type_name: str) -> bool:
    """True for s16 .. u64 and b16 .. b64, not for packed pairs and floats."""
    return type_name[0] in "sub" and type_name[1:].isdigit()


def bits_of(type_name: str) -> str:
    """Return the form of an integer type's bits."""
    return f"i{type_name[1:]}"


def _binary(operation: str) -> Emit:
    def emit(e: Body, op: Operation) -> None:
        target, a, b = op.operands
        form = "i1" if op.type == "pred" else bits_of(op.type)
        e.define(target, form, e.b.binary(operation, form, e.read(a, form), e.read(b, form)))

    return emit


def _by_sign(op: Operation, signed: str, unsigned: str) -> str:
    return signed if op.type[0] == "s" else unsigned


# ---- sums -----------------------------------------------------------------------------------------------------------


def _halves(e: Body, op: Operation, operation: Callable[[str, str], str]) -> None:
    """Apply an operation of i16 to both halves of 32-bit registers."""
    target, a, b = op.operands
    parts: list[str] = []
    for shift in ("0", "16"):
        x, y = (e.b.resize(e.b.binary("lshr", "i32", e.read(source, "i32"), shift), "i32", "i16") for source in (a, b))
        parts.append(e.b.resize(operation(x, y), "i16", "i32"))
    e.define(target, "i32", e.b.binary("or", "i32", e.b.op(f"shl i32 {parts[1]}, 16"), parts[0]))


def _add_sub(operation: str) -> Emit:
    def emit(e: Body, op: Operation) -> None:
        target, a, b = op.operands
        if op.type.endswith("x2"):
            _halves(e, op, lambda x, y: e.b.binary(operation, "i16", x, y))
            return
        form = bits_of(op.type)
        x, y = e.read(a, form), e.read(b, form)
        if "sat" in op.flags:
            if op.type != "s32":
                raise op.unsupported()
            e.define(target, form, e.b.math(f"s{operation}.sat", "i32", x, y))
        elif "cc" in op.flags or op.opcode in ("addc", "subc"):
            _with_carry(e, op, target, operation, x, y, form)
        else:
            e.define(target, form, e.b.binary(operation, form, x, y))

    return emit


def _with_carry(e: Body, op: Operation, target: Operand, operation: str, x: str, y: str, form: str) -> None:
    """Add or subtract with the carry flag, in a type one bit wider."""
    wide = f"i{int(form[1:]) + 1}"
    total = e.b.binary(operation, wide, e.b.resize(x, form, wide), e.b.resize(y, form, wide))
    if op.opcode in ("addc", "subc", "madc"):
        total = e.b.binary(operation, wide, total, e.b.resize(e.read(Register(CARRY), "i1"), "i1", wide))
    e.define(target, form, e.b.resize(total, wide, form))
    if "cc" in op.flags:
        top = e.b.binary("lshr", wide, total, form[1:])
        e.set_flag(CARRY, e.b.resize(top, wide, "i1"))


# ---- products and quotients -----------------------------------------------------------------------------------------


def _product(e: Body, op: Operation) -> tuple[str, str]:
    """Return (form, value) of the product with `.lo`, `.hi` or `.wide`."""
    _, a, b, *_ = op.operands
    form = bits_of(op.type)
    x, y = e.read(a, form), e.read(b, form)
    if not op.flags & {"wide", "hi"}:
        return form, e.b.binary("mul", form, x, y)
    wide = f"i{2 * int(form[1:])}"
    signed = op.type[0] == "s"
    product = e.b.binary("mul", wide, e.b.resize(x, form, wide, signed), e.b.resize(y, form, wide, signed))
    if "wide" in op.flags:
        return wide, product
    return form, e.b.resize(e.b.binary("lshr", wide, product, form[1:]), wide, form)


def _mul(e: Body, op: Operation) -> None:
    form, product = _product(e, op)
    e.define(op.operands[0], form, product)


def _mad(e: Body, op: Operation) -> None:
    target, _, _, addend = op.operands
    form, product = _product(e, op)
    if "sat" in op.flags:
        if op.type != "s32" or "hi" not in op.flags:
            raise op.unsupported()
        e.define(target, form, e.b.math("sadd.sat", "i32", product, e.read(addend, form)))
    elif "cc" in op.flags or op.opcode == "madc":
        _with_carry(e, op, target, "add", product, e.read(addend, form), form)
    else:
        e.define(target, form, e.b.binary("add", form, product, e.read(addend, form)))


def _sad(e: Body, op: Operation) -> None:
    target, a, b, c = op.operands
    form, b_ = bits_of(op.type), e.b
    x, y = e.read(a, form), e.read(b, form)
    less = b_.compare(_by_sign(op, "slt", "ult"), form, x, y)
    difference = b_.select(less, form, b_.binary("sub", form, y, x), b_.binary("sub", form, x, y))
    e.define(target, form, b_.binary("add", form, difference, e.read(c, form)))


def _divide(e: Body, op: Operation) -> None:
    """Divide. Division by zero gives all bits set, and the dividend as remainder, as on the hardware."""
    target, a, b = op.operands
    form, b_ = bits_of(op.type), e.b
    x, y = e.read(a, form), e.read(b, form)
    is_zero = b_.compare("eq", form, y, "0")
    safe = b_.select(is_zero, form, "1", y)
    is_div = op.opcode == "div"
    if op.type[0] == "u":
        result = b_.binary("udiv" if is_div else "urem", form, x, safe)
    else:
        # The smallest number divided by -1 overflows, which LLVM leaves undefined.
        minus_one = b_.compare("eq", form, safe, "-1")
        quotient = b_.binary("sdiv" if is_div else "srem", form, x, b_.select(minus_one, form, "1", safe))
        result = b_.select(minus_one, form, b_.binary("sub", form, "0", x) if is_div else "0", quotient)
    e.define(target, form, b_.select(is_zero, form, "-1" if is_div else x, result))


def _dot_bytes(e: Body, op: Operation) -> None:
    """`dp4a` and `dp2a`: sum the products of bytes with bytes or 16-bit halves."""
    target, a, b, c = op.operands
    total = e.read(c, "i32")
    if len(op.types) != 2:
        raise op.unsupported()
    x, y = e.read(a, "i32"), e.read(b, "i32")
    count, width = (4, 8) if op.opcode == "dp4a" else (2, 16)
    start = 2 if "hi" in op.flags else 0
    for number in range(count):
        p = _lane_of(e, x, number, width, op.types[0][0] == "s")
        q = _lane_of(e, y, start + number, 8, op.types[1][0] == "s")
        total = e.b.binary("add", "i32", total, e.b.binary("mul", "i32", p, q))
    e.define(target, "i32", total)


def _lane_of(e: Body, word: str, number: int, width: int, signed: bool) -> str:
    part = e.b.resize(e.b.binary("lshr", "i32", word, str(number * width)), "i32", f"i{width}")
    return e.b.resize(part, f"i{width}", "i32", signed)


# ---- order ----------------------------------------------------------------------------------------------------------


def _min_max(e: Body, op: Operation) -> None:
    target, a, b = op.operands
    name = _by_sign(op, "s", "u") + op.opcode
    if op.type.endswith("x2"):
        if "relu" in op.flags:
            raise op.unsupported()
        _halves(e, op, lambda x, y: e.b.math(name, "i16", x, y))
        return
    form = bits_of(op.type)
    result = e.b.math(name, form, e.read(a, form), e.read(b, form))
    e.define(target, form, e.b.math("smax", form, result, "0") if "relu" in op.flags else result)


def _abs(e: Body, op: Operation) -> None:
    target, a = op.operands
    form = bits_of(op.type)
    e.define(target, form, e.b.intrinsic(f"abs.{form}", form, (form, e.read(a, form)), ("i1", "false")))


def _neg(e: Body, op: Operation) -> None:
    target, a = op.operands
    form = bits_of(op.type)
    e.define(target, form, e.b.binary("sub", form, "0", e.read(a, form)))


# ---- bits -----------------------------------------------------------------------------------------------------------


def _not(e: Body, op: Operation) -> None:
    target, a = op.operands
    form = "i1" if op.type == "pred" else bits_of(op.type)
    e.define(target, form, e.b.binary("xor", form, e.read(a, form), "-1"))


def _cnot(e: Body, op: Operation) -> None:
    target, a = op.operands
    form = bits_of(op.type)
    e.define(target, form, e.b.resize(e.b.compare("eq", form, e.read(a, form), "0"), "i1", form))


def _count(name: str) -> Emit:
    def emit(e: Body, op: Operation) -> None:
        target, a = op.operands
        form = bits_of(op.type)
        counted = leading_zeros(e, form, e.read(a, form)) if name == "ctlz" else e.b.math(name, form, e.read(a, form))
        e.define(target, "i32", e.b.resize(counted, form, "i32"))

    return emit


def leading_zeros(e: Body, form: str, value: str) -> str:
    """Return the number of zero bits above the highest set bit; the width for 0."""
    return e.b.intrinsic(f"ctlz.{form}", form, (form, value), ("i1", "false"))


def _brev(e: Body, op: Operation) -> None:
    target, a = op.operands
    form = bits_of(op.type)
    e.define(target, form, e.b.math("bitreverse", form, e.read(a, form)))


def _bfind(e: Body, op: Operation) -> None:
    target, a = op.operands
    form, b = bits_of(op.type), e.b
    value = e.read(a, form)
    if op.type[0] == "s":
        value = b.select(b.compare("slt", form, value, "0"), form, b.binary("xor", form, value, "-1"), value)
    zeros = leading_zeros(e, form, value)
    place = zeros if "shiftamt" in op.flags else b.binary("sub", form, str(int(form[1:]) - 1), zeros)
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


def _shift(e: Body, op: Operation) -> None:
    target, a, amount = op.operands
    form = bits_of(op.type)
    operation = "shl" if op.opcode == "shl" else _by_sign(op, "ashr", "lshr")
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


def _funnel(e: Body, op: Operation) -> None:
    target, low, high, amount = op.operands
    b = e.b
    distance = e.read(amount, "i32")
    distance = b.binary("and", "i32", distance, "31") if "wrap" in op.flags else b.math("umin", "i32", distance, "32")
    upper = b.op(f"shl i64 {b.resize(e.read(high, 'i32'), 'i32', 'i64')}, 32")
    both = b.binary("or", "i64", upper, b.resize(e.read(low, "i32"), "i32", "i64"))
    wide = b.resize(distance, "i32", "i64")
    shifted = b.binary("shl" if "l" in op.flags else "lshr", "i64", both, wide)
    if "l" in op.flags:
        shifted = b.binary("lshr", "i64", shifted, "32")
    e.define(target, "i32", b.resize(shifted, "i64", "i32"))


def _ones(e: Body, form: str, count: str) -> str:
    """Return a mask of the `count` (i32) lowest bits."""
    return e.b.binary("xor", form, shift(e, "shl", form, "-1", count), "-1")


def _bfe(e: Body, op: Operation) -> None:
    target, a, start, count = op.operands
    form, b = bits_of(op.type), e.b
    width = int(form[1:])
    value = e.read(a, form)
    begin, length = (b.binary("and", "i32", e.read(source, "i32"), "255") for source in (start, count))
    field = b.binary("and", form, shift(e, "lshr", form, value, begin), _ones(e, form, length))
    if op.type[0] == "s":
        # Bits above the field, and field bits from above the word, are copies of the field's topmost bit in the word.
        last = b.math("umin", "i32", b.binary("add", "i32", b.binary("add", "i32", begin, length), "-1"), str(width - 1))
        sign = b.resize(shift(e, "lshr", form, value, last), form, "i1")
        left = b.intrinsic("usub.sat.i32", "i32", ("i32", str(width)), ("i32", begin))
        inside = b.math("umin", "i32", length, left)
        extended = b.binary("or", form, field, b.binary("xor", form, _ones(e, form, inside), "-1"))
        empty = b.compare("eq", "i32", length, "0")
        field = b.select(empty, form, "0", b.select(sign, form, extended, field))
    e.define(target, form, field)


def _bfi(e: Body, op: Operation) -> None:
    target, a, b_, start, count = op.operands
    form, b = bits_of(op.type), e.b
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


def _prmt(e: Body, op: Operation) -> None:
    target, a, b_, selector = op.operands
    b = e.b
    upper = b.op(f"shl i64 {b.resize(e.read(b_, 'i32'), 'i32', 'i64')}, 32")
    both = b.binary("or", "i64", upper, b.resize(e.read(a, "i32"), "i32", "i64"))
    chosen = e.read(selector, "i32")
    if mode := op.choice(*_SELECTORS):
        low = b.binary("and", "i32", chosen, "3")
        table = _SELECTORS[mode]
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


def _lop3(e: Body, op: Operation) -> None:
    target, a, b_, c, table = op.operands
    if not isinstance(table, Integer):
        raise op.unsupported()
    b = e.b
    words = [e.read(operand, "i32") for operand in (a, b_, c)]
    opposite = [b.binary("xor", "i32", word, "-1") for word in words]
    result = "0"
    for index in range(8):
        if table.value >> index & 1:
            x, y, z = (word if index & bit else no for word, no, bit in zip(words, opposite, (4, 2, 1), strict=True))
            result = b.binary("or", "i32", result, b.binary("and", "i32", b.binary("and", "i32", x, y), z))
    e.define(target, "i32", result)


EMITTERS: Mapping[str, Emit] = {
    "addc": _add_sub("add"),
    "subc": _add_sub("sub"),
    "madc": _mad,
    "sad": _sad,
    "rem": _divide,
    "dp4a": _dot_bytes,
    "dp2a": _dot_bytes,
    "popc": _count("ctpop"),
    "clz": _count("ctlz"),
    "bfind": _bfind,
    "brev": _brev,
    "bfe": _bfe,
    "bfi": _bfi,
    "prmt": _prmt,
    "and": _binary("and"),
    "or": _binary("or"),
    "xor": _binary("xor"),
    "not": _not,
    "cnot": _cnot,
    "lop3": _lop3,
    "shf": _funnel,
    "shl": _shift,
    "shr": _shift,
}
# Opcodes shared with floats: `floating` chooses by the type.
INTEGER_PART: Mapping[str, Emit] = {
    "add": _add_sub("add"),
    "sub": _add_sub("sub"),
    "mul": _mul,
    "mad": _mad,
    "div": _divide,
    "abs": _abs,
    "neg": _neg,
    "min": _min_max,
    "max": _min_max,
}
