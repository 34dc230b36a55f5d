"""Comparisons, selections, moves and conversions as numpy code: one row per record of `specs`."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from hlo_run.backends.host.emulator.code_integer import Emit
from hlo_run.backends.host.emulator.code_writer import BITS_OF_WIDTH, CodeWriter, Value, form_of_type
from hlo_run.backends.host.emulator.memory import LOCAL_NUMBER, NUMBER_SHIFT, SHARED_NUMBER
from hlo_run.backends.host.ptx import specs
from hlo_run.backends.host.ptx.instruction_set import Operation, row
from hlo_run.backends.host.ptx.specs import is_integer
from hlo_run.backends.host.ptx.syntax import (
    TYPE_BYTES,
    Float,
    Integer,
    Negated,
    Operand,
    Pair,
    Register,
    Sink,
    Symbol,
    Vector,
)

# ---- comparisons ----------------------------------------------------------------------------------------------------

_COMPARE = {
    **{"eq": "{0} == {1}", "ne": "{0} != {1}", "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}", "ge": "{0} >= {1}"},
    "num": "({0} == {0}) & ({1} == {1})",
    "nan": "({0} != {0}) | ({1} != {1})",
}
# True if either operand is a NaN, so each is the negation of the opposite.
_UNORDERED = {
    **{"eq": "({0} == {1}) | ({0} != {0}) | ({1} != {1})", "ne": "{0} != {1}"},
    **{"lt": "~({0} >= {1})", "le": "~({0} > {1})", "gt": "~({0} <= {1})", "ge": "~({0} < {1})"},
}
# numpy's `!=` is true for NaNs; PTX's `ne` of floats is false.
_ORDERED_NE = "({0} < {1}) | ({0} > {1})"
_LOGIC = {"and": "&", "or": "|", "xor": "^"}


def _comparison(spec: specs.Compare, a: str, b: str) -> str:
    """Return the expression that compares two variables."""
    if spec.unordered:
        return _UNORDERED[spec.relation].format(a, b)
    is_float = not (is_integer(spec.type) or spec.type == "pred")
    template = _ORDERED_NE if spec.relation == "ne" and is_float else _COMPARE[spec.relation]
    return template.format(a, b)


def _operand_form(type_name: str) -> str:
    return {"f16": "wide_f16", "bf16": "wide_bf16"}.get(type_name) or form_of_type(type_name)


def _compared(w: CodeWriter, spec: specs.Compare, a: Operand, b: Operand) -> str:
    form = _operand_form(spec.type)
    names = [w.read(a, form), w.read(b, form)]
    if spec.flushes:
        flush = "flush({0})" if spec.type == "f32" else f"flush_half({{0}}, {spec.type!r})"
        names = [w.temporary(flush.format(name)) for name in names]
    return w.temporary(_comparison(spec, names[0], names[1]))


def _with_third(w: CodeWriter, spec: specs.Compare, test: str, rest: list[Operand]) -> str:
    """Combine a comparison with the predicate operand of .and, .or or .xor."""
    return f"{test} {_LOGIC[spec.logic]} {w.read(rest[0], 'pred')}" if spec.logic else test


def _compare(w: CodeWriter, op: Operation, spec: specs.Compare) -> None:
    target, a, b, *rest = op.operands
    if spec.lanes == 2:
        _compare_pair(w, spec, target, a, b, rest)
        return
    test = _compared(w, spec, a, b)
    if not isinstance(target, Pair):
        w.define(target, "pred", _with_third(w, spec, test, rest))
        return
    w.define(target.first, "pred", _with_third(w, spec, test, rest))
    w.define(target.second, "pred", _with_third(w, spec, f"(~{test})", rest))


def _compare_pair(w: CodeWriter, spec: specs.Compare, target: Operand, a: Operand, b: Operand, rest: list[Operand]) -> None:
    assert isinstance(target, Pair), "the rules have checked the operands"
    low_a, high_a = w.read_pair(a, f"{spec.type}x2")
    low_b, high_b = w.read_pair(b, f"{spec.type}x2")
    low = w.temporary(f"({_comparison(spec, low_a, low_b)})")
    high = w.temporary(f"({_comparison(spec, high_a, high_b)})")
    w.define(target.first, "pred", _with_third(w, spec, low, rest))
    w.define(target.second, "pred", _with_third(w, spec, high, rest))


def _compare_to(w: CodeWriter, op: Operation, spec: specs.CompareTo) -> None:
    target, a, b, *rest = op.operands
    test = w.temporary(_with_third(w, spec.test, _compared(w, spec.test, a, b), rest))
    expression = f"{test}.astype(f4)" if spec.result == "f32" else f"{test} * {w.integer(-1, 'u32')}"
    w.define(target, spec.result, expression)


# ---- selections -----------------------------------------------------------------------------------------------------

_NARROW = {"f32": ("u4", "f4"), "f16": ("u2", "half"), "bf16": ("u2", "bfloat"), "f64": ("u8", "f8")}


def _float_form(w: CodeWriter, width: int, operands: tuple[Operand, ...]) -> str:
    """Return a float form to select in that avoids converting a float result to bits; empty for a selection of bits."""
    candidates = {16: ("f16", "bf16"), 32: ("f32",), 64: ("f64",)}[width]
    bits = BITS_OF_WIDTH[width]
    values = [w.known(operand) for operand in operands]
    for form in candidates:
        fits = all(value is None or value.constant or (value.dirty and form in value.forms) for value in values)
        if fits and any(value is not None and value.dirty and bits not in value.forms for value in values):
            return form
    return ""


def _select(w: CodeWriter, target: Operand, type_name: str, condition: str, a: Operand, b: Operand) -> None:
    width = int(type_name.lstrip("bsuf"))
    form = _float_form(w, width, (a, b))
    if not form:
        bits = BITS_OF_WIDTH[width]
        w.define(target, bits, f"select({condition}, {w.read(a, bits)}, {w.read(b, bits)})")
        return
    as_bits, as_float = _NARROW[form]
    known = [w.known(operand) for operand in (a, b)]
    dirty = any(value is not None and value.dirty for value in known)
    names = [f"{w.read(operand, form)}.view({as_bits})" for operand in (a, b)]
    w.define(target, form, f"select({condition}, {names[0]}, {names[1]}).view({as_float})", dirty=dirty)


def _select_by_predicate(w: CodeWriter, op: Operation, spec: specs.Select) -> None:
    target, a, b, predicate = op.operands
    if isinstance(predicate, Negated):
        a, b, predicate = b, a, predicate.register
    _select(w, target, spec.type, w.read(predicate, "pred"), a, b)


def _select_by_sign(w: CodeWriter, op: Operation, spec: specs.SelectBySign) -> None:
    target, a, b, sign = op.operands
    name = w.read(sign, spec.sign)
    name = f"flush({name})" if spec.flushes else name
    _select(w, target, spec.type, w.temporary(f"{name} >= 0"), a, b)


# ---- moves ----------------------------------------------------------------------------------------------------------


def _move(w: CodeWriter, op: Operation, spec: specs.Move) -> None:
    target, source = op.operands
    if isinstance(target, Vector):
        _unpack(w, spec, target, source)
    elif isinstance(source, Vector):
        _pack(w, spec, target, source)
    elif isinstance(source, Register):
        known = w.known(source)
        assert known is not None, "a register's value is known"
        w.copy(target, known)
    else:
        w.copy(target, immediate_value(w, spec, source))


def immediate_value(w: CodeWriter, spec: specs.Move, source: Operand) -> Value:
    """Return the value of a `mov` whose source is not a register."""
    bits = "pred" if spec.type == "pred" else BITS_OF_WIDTH[8 * TYPE_BYTES[spec.type]]
    form = spec.type if spec.type in ("f32", "f64") and isinstance(source, Float) else bits
    return Value({form: w.read(source, form)}, constant=isinstance(source, Integer | Float | Symbol))


def _unpack(w: CodeWriter, spec: specs.Move, target: Vector, source: Operand) -> None:
    """`mov.b32 {lo, hi}, r`: split a register into equal parts, lowest bits first."""
    width = int(spec.type[1:])
    part = width // len(target.elements)
    known = w.known(source)
    for kind in ("f16", "bf16"):
        if part == 16 and width == 32 and known is not None and f"{kind}x2" in known.forms:
            halves = known.forms[f"{kind}x2"].split("|")
            for element, half in zip(target.elements, halves, strict=True):
                if not isinstance(element, Sink):
                    w.copy(element, Value({kind: half}, dirty=known.dirty))
            return
    name = w.read(source, BITS_OF_WIDTH[width])
    for number, element in enumerate(target.elements):
        shifted = f"({name} >> {w.integer(number * part, BITS_OF_WIDTH[width])})" if number else name
        if part == 8:
            w.define(element, "u16", f"{shifted}.astype(u1).astype(u2)")
        else:
            w.define(element, BITS_OF_WIDTH[part], f"{shifted}.astype(u{part // 8})")


def _pack(w: CodeWriter, spec: specs.Move, target: Operand, source: Vector) -> None:
    width = int(spec.type[1:])
    part = width // len(source.elements)
    bits = BITS_OF_WIDTH[width]
    terms: list[str] = []
    for number, element in enumerate(source.elements):
        term = w.read(element, BITS_OF_WIDTH[part])
        if part == 8:
            term = f"{term}.astype(u1)"
        term = f"{term}.astype(u{width // 8})"
        terms.append(f"({term} << {w.integer(number * part, bits)})" if number else term)
    w.define(target, bits, " | ".join(terms))


def _convert_address(w: CodeWriter, op: Operation, spec: specs.ConvertAddress) -> None:
    """Convert addresses. Global and constant addresses are already generic; shared and local ones need their region's number."""
    target, source = op.operands
    form = form_of_type(spec.type)
    if spec.space in _NUMBERS:
        sign = "-" if spec.is_inward else "+"
        w.define(target, form, f"{w.read(source, form)} {sign} {w.integer(_NUMBERS[spec.space] << NUMBER_SHIFT, form)}")
    elif isinstance(source, Register):
        known = w.known(source)
        assert known is not None, "a register's value is known"
        w.copy(target, known)
    else:
        w.define(target, form, w.temporary(w.read(source, form)))


_NUMBERS: Mapping[str, int] = {"shared": SHARED_NUMBER, "local": LOCAL_NUMBER}


def _is_in_space(w: CodeWriter, op: Operation, spec: specs.IsInSpace) -> None:
    target, source = op.operands
    number = w.temporary(f"{w.read(source, 'u64')} >> {w.integer(NUMBER_SHIFT, 'u64')}")
    relation = f"== {_NUMBERS[spec.space]}" if spec.space in _NUMBERS else f"< {SHARED_NUMBER}"
    w.define(target, "pred", f"{number} {relation}")


# ---- conversions ----------------------------------------------------------------------------------------------------

_HALF_KINDS = ("f16", "bf16")


def integer_source(w: CodeWriter, source: Operand, type_name: str) -> str:
    """Return a variable of the integer type `type_name` with the low bits of a register that may be wider."""
    size = int(type_name[1:]) // 8
    width = w.width(source)
    if size > 1 and width in (0, 8 * size):
        return w.read(source, type_name)
    truncated = f"{w.read(source, BITS_OF_WIDTH[width or 8])}.astype(u{size})"
    return w.temporary(f"{truncated}.view(i{size})" if type_name[0] == "s" else truncated)


def define_integer(w: CodeWriter, target: Operand, name: str, type_name: str) -> None:
    """Set a register to an integer of `type_name`, with sign or zero extension to the register's width."""
    if isinstance(target, Sink):
        return
    size, width = int(type_name[1:]) // 8, w.width(target)
    kind = "i" if type_name[0] == "s" else "u"
    if width == 8:
        w.define(target, "u16", f"{name}.view(u1).astype(u2)")
        return
    if width == 8 * size:
        w.define(target, f"{type_name[0]}{width}", w.temporary(name))
        return
    extended = f"{name}.astype({kind}{width // 8})"
    w.define(target, BITS_OF_WIDTH[width], f"{extended}.view(u{width // 8})" if kind == "i" else extended)


def _convert_integer(w: CodeWriter, op: Operation, spec: specs.ConvertInteger) -> None:
    target, source = op.operands
    name = integer_source(w, source, spec.origin)
    dtype = f"{'i' if spec.to[0] == 's' else 'u'}{int(spec.to[1:]) // 8}"
    expression = f"saturate_integer({name}, {dtype})" if spec.saturates else f"{name}.astype({dtype})"
    define_integer(w, target, expression, spec.to)


def _wide_source(w: CodeWriter, source: Operand, type_name: str, flushes: bool) -> str:
    name = w.read(source, f"wide_{type_name}" if type_name in _HALF_KINDS else type_name)
    return f"flush({name})" if flushes and type_name == "f32" else name


def _float_to_integer(w: CodeWriter, op: Operation, spec: specs.FloatToInteger) -> None:
    target, source = op.operands
    name = _wide_source(w, source, spec.origin, spec.flushes)
    define_integer(w, target, f"float_to_int({name}, {spec.rounding!r}, {spec.to!r}, {spec.origin!r})", spec.to)


def _integer_to_float(w: CodeWriter, op: Operation, spec: specs.IntegerToFloat) -> None:
    target, source = op.operands
    expression = f"int_to_{spec.to}({integer_source(w, source, spec.origin)}, {spec.rounding!r})"
    w.define(target, spec.to, f"saturate({expression})" if spec.saturates else expression)


def _convert_float(w: CodeWriter, op: Operation, spec: specs.ConvertFloat) -> None:
    target, source = op.operands
    known = w.known(source)
    if spec.is_copy and known is not None:
        w.copy(target, known)
        return
    name = _wide_source(w, source, spec.origin, spec.flushes)
    if spec.integral:
        name = f"round_to_integral({name}, {spec.integral!r})"
    expression = _float_conversion(spec.to, spec.origin, name, spec.rounding)
    if spec.flushes and spec.to == "f32":
        expression = f"flush({expression})"
    if spec.saturates:
        expression = f"saturate({expression})"
    if spec.relu:
        expression = f"relu({expression})"
    w.define(target, spec.to, expression, dirty=spec.to != "f64")


def _float_conversion(to: str, origin: str, name: str, mode: str) -> str:
    """Return the expression of a conversion between float formats. f16 and bf16 sources are wide, f16 and bf16 results narrow."""
    match to:
        case "f16" | "bf16":
            return f"narrow_to_{to}({name}, {mode!r})"
        case "f32":
            return f"narrow_f64({name}, {mode!r})" if origin == "f64" else name
        case _:
            return name if origin == "f64" else f"{name}.astype(f8)"


def _pack_halves(w: CodeWriter, op: Operation, spec: specs.PackHalves) -> None:
    target, *sources = op.operands
    results = [f"narrow_to_{spec.to[:-2]}({w.read(source, 'f32')}, {spec.rounding!r})" for source in reversed(sources)]
    results = [f"relu({result})" for result in results] if spec.relu else results
    w.define_pair(target, spec.to, results[0], results[1])


def _pack_small(w: CodeWriter, op: Operation, spec: specs.PackSmall) -> None:
    target, *sources = op.operands
    if spec.origin == "f32":
        high, low = (w.read(source, "f32") for source in sources)
    else:
        low, high = w.read_pair(sources[0], "f16x2")
    w.define(target, "u16", f"pack_small({high}, {low}, {spec.to!r})")


def _unpack_small(w: CodeWriter, op: Operation, spec: specs.UnpackSmall) -> None:
    target, source = op.operands
    low, high = w.fresh(), w.fresh()
    w.emit(f"{low}, {high} = unpack_small({w.read(source, 'u16')}, {spec.origin!r})")
    w.define_pair(target, "f16x2", f"to_f16({low})", f"to_f16({high})")


def _round_to_tf32(w: CodeWriter, op: Operation, spec: specs.RoundToTf32) -> None:
    del spec
    target, source = op.operands
    w.define(target, "u32", f"to_tf32({w.read(source, 'f32')})")


EMITTERS: Mapping[type[Struct], Emit] = dict(
    (
        row(specs.Compare, _compare),
        row(specs.CompareTo, _compare_to),
        row(specs.Select, _select_by_predicate),
        row(specs.SelectBySign, _select_by_sign),
        row(specs.Move, _move),
        row(specs.ConvertAddress, _convert_address),
        row(specs.IsInSpace, _is_in_space),
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
