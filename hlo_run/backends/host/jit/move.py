"""Comparisons, selections and moves as LLVM IR: one row per opcode."""

from __future__ import annotations

from collections.abc import Mapping

from hlo_run.backends.host.emulator.memory import LOCAL_NUMBER, NUMBER_SHIFT, SHARED_NUMBER
from hlo_run.backends.host.jit.body import Body
from hlo_run.backends.host.jit.floating import REAL, flush
from hlo_run.backends.host.jit.integer import Emit, bits_of, is_integer_type
from hlo_run.backends.host.ptx.instruction_set import Operation
from hlo_run.backends.host.ptx.syntax import Float, Negated, Operand, Pair, Register, Sink, Symbol, Vector

_ORDERED = ("eq", "ne", "lt", "le", "gt", "ge")
_SAME_AS = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_KINDS = (*_ORDERED, *_SAME_AS, *(f"{name}u" for name in _ORDERED), "num", "nan")


# ---- comparisons ----------------------------------------------------------------------------------------------------


def _predicate(op: Operation, type_name: str) -> str:
    """Return the predicate of icmp or fcmp for a comparison of a type."""
    kind = op.choice(*_KINDS)
    if is_integer_type(type_name) or type_name == "pred":
        if kind.endswith("u") or kind in ("num", "nan"):
            raise op.unsupported()
        base = _SAME_AS.get(kind, kind)
        if base in ("eq", "ne"):
            return base
        is_signed = type_name[0] == "s" and kind not in _SAME_AS
        return ("s" if is_signed else "u") + base
    if kind in _SAME_AS:
        raise op.unsupported()
    if kind in ("num", "nan"):
        return "ord" if kind == "num" else "uno"
    return "u" + kind[:-1] if kind.endswith("u") else "o" + kind


def _compared(e: Body, op: Operation, type_name: str, a: Operand, b: Operand) -> str:
    form = "i1" if type_name == "pred" else bits_of(type_name) if is_integer_type(type_name) else type_name
    x, y = e.read(a, form), e.read(b, form)
    if "ftz" in op.flags and type_name in REAL and type_name != "f64":
        x, y = flush(e, type_name, x), flush(e, type_name, y)
    return e.b.compare(_predicate(op, type_name), REAL.get(type_name, form), x, y)


def _with_third(e: Body, op: Operation, test: str, rest: list[Operand]) -> str:
    """Combine a comparison with the predicate operand of .and, .or or .xor."""
    logic = op.choice("and", "or", "xor")
    return e.b.binary(logic, "i1", test, e.read(rest[0], "i1")) if logic else test


def _setp(e: Body, op: Operation) -> None:
    target, a, b, *rest = op.operands
    if op.type.endswith("x2"):
        _setp_pair(e, op, target, a, b, rest)
        return
    test = _compared(e, op, op.type, a, b)
    if not isinstance(target, Pair):
        e.define(target, "i1", _with_third(e, op, test, rest))
        return
    opposite = e.b.binary("xor", "i1", test, "true")
    first, second = _with_third(e, op, test, rest), _with_third(e, op, opposite, rest)
    e.define(target.first, "i1", first)
    e.define(target.second, "i1", second)


def _setp_pair(e: Body, op: Operation, target: Operand, a: Operand, b: Operand, rest: list[Operand]) -> None:
    if not isinstance(target, Pair) or op.type == "f32x2" or "ftz" in op.flags:
        raise op.unsupported()
    kind = op.type.removesuffix("x2")
    x, y = e.read_pair(a, op.type), e.read_pair(b, op.type)
    tests = [e.b.compare(_predicate(op, kind), "float", x[side], y[side]) for side in (0, 1)]
    results = [_with_third(e, op, test, rest) for test in tests]
    e.define(target.first, "i1", results[0])
    e.define(target.second, "i1", results[1])


def _set(e: Body, op: Operation) -> None:
    target, a, b, *rest = op.operands
    result, compared = op.types
    if compared.endswith("x2") or result not in ("u32", "s32", "f32"):
        raise op.unsupported()
    test = _with_third(e, op, _compared(e, op, compared, a, b), rest)
    if result == "f32":
        e.define(target, "f32", e.b.cast("uitofp", test, "i1", "float"))
    else:
        e.define(target, "i32", e.b.resize(test, "i1", "i32", signed=True))


# ---- selections -----------------------------------------------------------------------------------------------------


def _float_form(e: Body, width: int, operands: tuple[Operand, ...]) -> str:
    """Return the float form to select in if all operands are fresh results in it, to avoid a conversion to bits; else ""."""
    values = [e.known(operand) for operand in operands]
    for form in {16: ("f16", "bf16"), 32: ("f32",)}.get(width, ()):
        if all(value is None or (value.dirty and form in value.forms) for value in values) and any(values):
            return form
    return ""


def select(e: Body, target: Operand, type_name: str, condition: str, a: Operand, b: Operand) -> None:
    """Set `target` to `a` or `b`."""
    width = int(type_name.lstrip("bsuf"))
    form = _float_form(e, width, (a, b))
    if form and not (isinstance(a, Symbol) or isinstance(b, Symbol)):
        e.define(target, form, e.b.select(condition, "float", e.read(a, form), e.read(b, form)), dirty=True)
        return
    # A float immediate is used as its bits in the format of the instruction.
    forms = [type_name if isinstance(operand, Float) and type_name in ("f32", "f64") else f"i{width}" for operand in (a, b)]
    names = [e.read(operand, form) for operand, form in zip((a, b), forms, strict=True)]
    bits = [
        name if form[0] == "i" else e.b.cast("bitcast", name, REAL[form], f"i{width}")
        for name, form in zip(names, forms, strict=True)
    ]
    e.define(target, f"i{width}", e.b.select(condition, f"i{width}", bits[0], bits[1]))


def _selp(e: Body, op: Operation) -> None:
    target, a, b, predicate = op.operands
    if isinstance(predicate, Negated):
        a, b, predicate = b, a, predicate.register
    select(e, target, op.type, e.read(predicate, "i1"), a, b)


def _slct(e: Body, op: Operation) -> None:
    target, a, b, sign = op.operands
    if op.types[1] == "f32":
        value = e.read(sign, "f32")
        value = flush(e, "f32", value) if "ftz" in op.flags else value
        condition = e.b.compare("oge", "float", value, "0.0")
    elif op.types[1] == "s32":
        condition = e.b.compare("sge", "i32", e.read(sign, "i32"), "0")
    else:
        raise op.unsupported()
    select(e, target, op.types[0], condition, a, b)


# ---- moves ----------------------------------------------------------------------------------------------------------


def _mov(e: Body, op: Operation) -> None:
    target, source = op.operands
    if op.type == "b128":
        raise op.unsupported()
    if isinstance(target, Vector):
        _unpack(e, op, target, source)
    elif isinstance(source, Vector):
        _pack(e, op, target, source)
    elif isinstance(source, Register):
        e.copy(target, e.value(source.name))
    elif isinstance(source, Symbol) and e.plan.addresses[source.name][0] == "param":
        raise op.unsupported()
    elif op.type in ("f32", "f64") and isinstance(source, Float):
        e.define(target, op.type, e.read(source, op.type))
    else:
        form = "i1" if op.type == "pred" else f"i{max(16, int(op.type.lstrip('bsuf')))}"
        e.define(target, form, e.read(source, form))


def _unpack(e: Body, op: Operation, target: Vector, source: Operand) -> None:
    """`mov.b32 {lo, hi}, r`: split a register into equal parts, lowest bits first."""
    width = int(op.type[1:])
    part = width // len(target.elements)
    known = e.known(source)
    for kind in ("f16", "bf16"):
        if part == 16 and width == 32 and known is not None and f"{kind}x2" in known.forms:
            for element, half in zip(target.elements, e.read_pair(source, f"{kind}x2"), strict=True):
                e.define(element, kind, half, dirty=known.dirty)
            return
    bits = e.read(source, f"i{width}")
    for number, element in enumerate(target.elements):
        piece = e.b.resize(e.b.binary("lshr", f"i{width}", bits, str(number * part)), f"i{width}", f"i{part}")
        e.define(element, f"i{max(16, part)}", e.b.resize(piece, f"i{part}", f"i{max(16, part)}"))


def _pack(e: Body, op: Operation, target: Operand, source: Vector) -> None:
    width = int(op.type[1:])
    part = width // len(source.elements)
    result = "0"
    for number, element in enumerate(source.elements):
        bits = e.read(element, f"i{max(16, part)}")
        piece = e.b.resize(e.b.resize(bits, f"i{max(16, part)}", f"i{part}"), f"i{part}", f"i{width}")
        result = e.b.binary("or", f"i{width}", e.b.binary("shl", f"i{width}", piece, str(number * part)), result)
    e.define(target, f"i{width}", result)


def _cvta(e: Body, op: Operation) -> None:
    """Convert addresses. Global and constant addresses are already generic; shared and local ones need their region's number."""
    target, source = op.operands
    form = bits_of(op.type)
    space = op.choice("global", "shared", "local", "const")
    if space in ("shared", "local"):
        if form != "i64":
            raise op.unsupported()
        number = SHARED_NUMBER if space == "shared" else LOCAL_NUMBER
        operation = "sub" if "to" in op.flags else "add"
        e.define(target, form, e.b.binary(operation, form, e.read(source, form), str(number << NUMBER_SHIFT)))
    elif isinstance(source, Register):
        e.copy(target, e.value(source.name))
    else:
        e.define(target, form, e.read(source, form))


def _isspacep(e: Body, op: Operation) -> None:
    target, source = op.operands
    number = e.b.binary("lshr", "i64", e.read(source, "i64"), str(NUMBER_SHIFT))
    match op.choice("shared", "local", "global"):
        case "shared":
            e.define(target, "i1", e.b.compare("eq", "i64", number, str(SHARED_NUMBER)))
        case "local":
            e.define(target, "i1", e.b.compare("eq", "i64", number, str(LOCAL_NUMBER)))
        case "global":
            e.define(target, "i1", e.b.compare("ult", "i64", number, str(SHARED_NUMBER)))
        case _:
            raise op.unsupported()


def define_integer(e: Body, target: Operand, bits: str, type_name: str) -> None:
    """Set a register to an integer of `type_name`, with sign or zero extension to the register's width."""
    if not isinstance(target, Sink):
        form = f"i{e.width(target)}"
        e.define(target, form, e.b.resize(bits, f"i{type_name[1:]}", form, signed=type_name[0] == "s"))


def integer_source(e: Body, source: Operand, type_name: str) -> str:
    """Return the low bits of a register that may be wider than the integer type."""
    width = int(type_name[1:])
    have = e.width(source) or max(16, width)
    return e.b.resize(e.read(source, f"i{have}"), f"i{have}", f"i{width}")


EMITTERS: Mapping[str, Emit] = {
    "setp": _setp,
    "set": _set,
    "selp": _selp,
    "slct": _slct,
    "mov": _mov,
    "cvta": _cvta,
    "isspacep": _isspacep,
}
