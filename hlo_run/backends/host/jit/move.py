"""Comparisons, selections and moves as LLVM IR: one row per record of `specs`."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from hlo_run.backends.host.emulator.memory import LOCAL_NUMBER, NUMBER_SHIFT, SHARED_NUMBER
from hlo_run.backends.host.jit.body import Body
from hlo_run.backends.host.jit.floating import REAL, flush
from hlo_run.backends.host.jit.integer import Emit, bits_of
from hlo_run.backends.host.ptx import specs
from hlo_run.backends.host.ptx.instruction_set import Operation, row
from hlo_run.backends.host.ptx.specs import is_integer
from hlo_run.backends.host.ptx.syntax import TYPE_BYTES, Float, Negated, Operand, Pair, Register, Sink, Symbol, Vector

# ---- comparisons ----------------------------------------------------------------------------------------------------


def _predicate(spec: specs.Compare) -> str:
    """Return the predicate of icmp or fcmp for a comparison."""
    relation = spec.relation
    if is_integer(spec.type) or spec.type == "pred":
        return relation if relation in ("eq", "ne") else ("s" if spec.type[0] == "s" else "u") + relation
    if relation in ("num", "nan"):
        return "ord" if relation == "num" else "uno"
    return ("u" if spec.unordered else "o") + relation


def _compared(e: Body, spec: specs.Compare, a: Operand, b: Operand) -> str:
    kind = spec.type
    form = bits_of(kind) if kind == "pred" or is_integer(kind) else kind
    x, y = e.read(a, form), e.read(b, form)
    if spec.flushes:
        x, y = flush(e, kind, x), flush(e, kind, y)
    return e.b.compare(_predicate(spec), REAL.get(kind, form), x, y)


def _with_third(e: Body, spec: specs.Compare, test: str, rest: list[Operand]) -> str:
    """Combine a comparison with the predicate operand of .and, .or or .xor."""
    return e.b.binary(spec.logic, "i1", test, e.read(rest[0], "i1")) if spec.logic else test


def _compare(e: Body, op: Operation, spec: specs.Compare) -> None:
    target, a, b, *rest = op.operands
    if spec.lanes == 2:
        _compare_pair(e, spec, target, a, b, rest)
        return
    test = _compared(e, spec, a, b)
    if not isinstance(target, Pair):
        e.define(target, "i1", _with_third(e, spec, test, rest))
        return
    opposite = e.b.binary("xor", "i1", test, "true")
    first, second = _with_third(e, spec, test, rest), _with_third(e, spec, opposite, rest)
    e.define(target.first, "i1", first)
    e.define(target.second, "i1", second)


def _compare_pair(e: Body, spec: specs.Compare, target: Operand, a: Operand, b: Operand, rest: list[Operand]) -> None:
    assert isinstance(target, Pair), "the rules have checked the operands"
    x, y = e.read_pair(a, f"{spec.type}x2"), e.read_pair(b, f"{spec.type}x2")
    tests = [e.b.compare(_predicate(spec), "float", x[side], y[side]) for side in (0, 1)]
    results = [_with_third(e, spec, test, rest) for test in tests]
    e.define(target.first, "i1", results[0])
    e.define(target.second, "i1", results[1])


def _compare_to(e: Body, op: Operation, spec: specs.CompareTo) -> None:
    target, a, b, *rest = op.operands
    test = _with_third(e, spec.test, _compared(e, spec.test, a, b), rest)
    if spec.result == "f32":
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


def _select_by_predicate(e: Body, op: Operation, spec: specs.Select) -> None:
    target, a, b, predicate = op.operands
    if isinstance(predicate, Negated):
        a, b, predicate = b, a, predicate.register
    select(e, target, spec.type, e.read(predicate, "i1"), a, b)


def _select_by_sign(e: Body, op: Operation, spec: specs.SelectBySign) -> None:
    target, a, b, sign = op.operands
    if spec.sign == "f32":
        value = e.read(sign, "f32")
        value = flush(e, "f32", value) if spec.flushes else value
        condition = e.b.compare("oge", "float", value, "0.0")
    else:
        condition = e.b.compare("sge", "i32", e.read(sign, "i32"), "0")
    select(e, target, spec.type, condition, a, b)


# ---- moves ----------------------------------------------------------------------------------------------------------


def _move(e: Body, op: Operation, spec: specs.Move) -> None:
    target, source = op.operands
    if isinstance(target, Vector):
        _unpack(e, spec, target, source)
    elif isinstance(source, Vector):
        _pack(e, spec, target, source)
    elif isinstance(source, Register):
        e.copy(target, e.value(source.name))
    elif spec.type in ("f32", "f64") and isinstance(source, Float):
        e.define(target, spec.type, e.read(source, spec.type))
    else:
        form = "i1" if spec.type == "pred" else f"i{max(16, 8 * TYPE_BYTES[spec.type])}"
        e.define(target, form, e.read(source, form))


def _unpack(e: Body, spec: specs.Move, target: Vector, source: Operand) -> None:
    """`mov.b32 {lo, hi}, r`: split a register into equal parts, lowest bits first."""
    width = int(spec.type[1:])
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


def _pack(e: Body, spec: specs.Move, target: Operand, source: Vector) -> None:
    width = int(spec.type[1:])
    part = width // len(source.elements)
    result = "0"
    for number, element in enumerate(source.elements):
        bits = e.read(element, f"i{max(16, part)}")
        piece = e.b.resize(e.b.resize(bits, f"i{max(16, part)}", f"i{part}"), f"i{part}", f"i{width}")
        result = e.b.binary("or", f"i{width}", e.b.binary("shl", f"i{width}", piece, str(number * part)), result)
    e.define(target, f"i{width}", result)


_NUMBERS: Mapping[str, int] = {"shared": SHARED_NUMBER, "local": LOCAL_NUMBER}


def _convert_address(e: Body, op: Operation, spec: specs.ConvertAddress) -> None:
    """Convert addresses. Global and constant addresses are already generic; shared and local ones need their region's number."""
    target, source = op.operands
    form = bits_of(spec.type)
    if spec.space in _NUMBERS:
        operation = "sub" if spec.is_inward else "add"
        number = str(_NUMBERS[spec.space] << NUMBER_SHIFT)
        e.define(target, form, e.b.binary(operation, form, e.read(source, form), number))
    elif isinstance(source, Register):
        e.copy(target, e.value(source.name))
    else:
        e.define(target, form, e.read(source, form))


def _is_in_space(e: Body, op: Operation, spec: specs.IsInSpace) -> None:
    target, source = op.operands
    number = e.b.binary("lshr", "i64", e.read(source, "i64"), str(NUMBER_SHIFT))
    if spec.space in _NUMBERS:
        e.define(target, "i1", e.b.compare("eq", "i64", number, str(_NUMBERS[spec.space])))
    else:
        e.define(target, "i1", e.b.compare("ult", "i64", number, str(SHARED_NUMBER)))


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


EMITTERS: Mapping[type[Struct], Emit] = dict(
    (
        row(specs.Compare, _compare),
        row(specs.CompareTo, _compare_to),
        row(specs.Select, _select_by_predicate),
        row(specs.SelectBySign, _select_by_sign),
        row(specs.Move, _move),
        row(specs.ConvertAddress, _convert_address),
        row(specs.IsInSpace, _is_in_space),
    )
)
