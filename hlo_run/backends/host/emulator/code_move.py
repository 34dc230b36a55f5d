"""Comparisons, selections, moves and conversions as numpy code: one row per opcode."""

from __future__ import annotations

from collections.abc import Mapping

from hlo_run.backends.host.emulator.code_integer import Emit, is_integer_type
from hlo_run.backends.host.emulator.code_writer import BITS_OF_WIDTH, CodeWriter, Value, form_of_type
from hlo_run.backends.host.emulator.memory import LOCAL_NUMBER, NUMBER_SHIFT, SHARED_NUMBER
from hlo_run.backends.host.ptx.instruction_set import Operation
from hlo_run.backends.host.ptx.syntax import (
    TYPE_BYTES,
    Float,
    Integer,
    Negated,
    Operand,
    Pair,
    Register,
    Sink,
    SpecialRegister,
    Symbol,
    Vector,
)

# ---- comparisons ----------------------------------------------------------------------------------------------------

_COMPARE = {
    **{"eq": "{0} == {1}", "ne": "{0} != {1}", "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}", "ge": "{0} >= {1}"},
    **{"lo": "{0} < {1}", "ls": "{0} <= {1}", "hi": "{0} > {1}", "hs": "{0} >= {1}"},
    # Unordered: true if either operand is a NaN, so each is the negation of the opposite.
    **{"equ": "({0} == {1}) | ({0} != {0}) | ({1} != {1})", "neu": "~(({0} < {1}) | ({0} > {1}) | ({0} == {1}))"},
    **{"ltu": "~({0} >= {1})", "leu": "~({0} > {1})", "gtu": "~({0} <= {1})", "geu": "~({0} < {1})"},
    "num": "({0} == {0}) & ({1} == {1})",
    "nan": "({0} != {0}) | ({1} != {1})",
}
# numpy's `!=` is true for NaNs; PTX's `ne` of floats is false.
_ORDERED_NE = "({0} < {1}) | ({0} > {1})"
_LOGIC = {"and": "&", "or": "|", "xor": "^"}


def _comparison(op: Operation, type_name: str, a: str, b: str) -> str:
    """Return the expression that compares two variables of a type."""
    kind = op.choice(*_COMPARE)
    is_integer = is_integer_type(type_name) or type_name == "pred"
    if is_integer and (kind.endswith("u") or kind in ("num", "nan")):
        raise op.unsupported()
    if not is_integer and kind in ("lo", "ls", "hi", "hs"):
        raise op.unsupported()
    if kind == "neu" and not is_integer:
        return f"{a} != {b}"
    template = _ORDERED_NE if kind == "ne" and not is_integer else _COMPARE[kind]
    return template.format(a, b)


def _operand_form(type_name: str) -> str:
    return {"f16": "wide_f16", "bf16": "wide_bf16"}.get(type_name) or form_of_type(type_name)


def _compared(w: CodeWriter, op: Operation, type_name: str, a: Operand, b: Operand) -> str:
    form = _operand_form(type_name)
    names = [w.read(a, form), w.read(b, form)]
    if "ftz" in op.flags and type_name != "f64":
        flush = "flush({0})" if type_name == "f32" else f"flush_half({{0}}, {type_name!r})"
        names = [w.temporary(flush.format(name)) for name in names]
    return w.temporary(_comparison(op, type_name, names[0], names[1]))


def _with_third(w: CodeWriter, op: Operation, test: str, rest: list[Operand]) -> str:
    """Combine a comparison with the predicate operand of .and, .or or .xor."""
    logic = op.choice("and", "or", "xor")
    return f"{test} {_LOGIC[logic]} {w.read(rest[0], 'pred')}" if logic else test


def _setp(w: CodeWriter, op: Operation) -> None:
    target, a, b, *rest = op.operands
    if op.type.endswith("x2"):
        _setp_pair(w, op, target, a, b, rest)
        return
    test = _compared(w, op, op.type, a, b)
    if not isinstance(target, Pair):
        w.define(target, "pred", _with_third(w, op, test, rest))
        return
    w.define(target.first, "pred", _with_third(w, op, test, rest))
    w.define(target.second, "pred", _with_third(w, op, f"(~{test})", rest))


def _setp_pair(w: CodeWriter, op: Operation, target: Operand, a: Operand, b: Operand, rest: list[Operand]) -> None:
    if not isinstance(target, Pair) or op.type == "f32x2" or "ftz" in op.flags:
        raise op.unsupported()
    low_a, high_a = w.read_pair(a, op.type)
    low_b, high_b = w.read_pair(b, op.type)
    kind = op.type.removesuffix("x2")
    low = w.temporary(f"({_comparison(op, kind, low_a, low_b)})")
    high = w.temporary(f"({_comparison(op, kind, high_a, high_b)})")
    w.define(target.first, "pred", _with_third(w, op, low, rest))
    w.define(target.second, "pred", _with_third(w, op, high, rest))


def _set(w: CodeWriter, op: Operation) -> None:
    target, a, b, *rest = op.operands
    result, compared = op.types
    if compared.endswith("x2"):
        raise op.unsupported()
    test = w.temporary(_with_third(w, op, _compared(w, op, compared, a, b), rest))
    match result:
        case "u32" | "s32":
            w.define(target, "u32", f"{test} * {w.integer(-1, 'u32')}")
        case "f32":
            w.define(target, "f32", f"{test}.astype(f4)")
        case _:
            raise op.unsupported()


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


def _selp(w: CodeWriter, op: Operation) -> None:
    target, a, b, predicate = op.operands
    if isinstance(predicate, Negated):
        a, b, predicate = b, a, predicate.register
    _select(w, target, op.type, w.read(predicate, "pred"), a, b)


def _slct(w: CodeWriter, op: Operation) -> None:
    target, a, b, sign = op.operands
    if op.types[1] not in ("s32", "f32"):
        raise op.unsupported()
    name = w.read(sign, op.types[1])
    name = f"flush({name})" if "ftz" in op.flags and op.types[1] == "f32" else name
    _select(w, target, op.types[0], w.temporary(f"{name} >= 0"), a, b)


# ---- moves ----------------------------------------------------------------------------------------------------------


def _mov(w: CodeWriter, op: Operation) -> None:
    target, source = op.operands
    if op.type == "b128":
        raise op.unsupported()
    if isinstance(target, Vector):
        _unpack(w, op, target, source)
    elif isinstance(source, Vector):
        _pack(w, op, target, source)
    elif isinstance(source, Register):
        known = w.known(source)
        assert known is not None, "a register's value is known"
        w.copy(target, known)
    else:
        w.copy(target, immediate_value(w, op, source))


def immediate_value(w: CodeWriter, op: Operation, source: Operand) -> Value:
    """Return the value of a `mov` whose source is not a register."""
    bits = "pred" if op.type == "pred" else BITS_OF_WIDTH[8 * TYPE_BYTES[op.type]]
    if isinstance(source, Symbol):
        space, _ = w.symbols[source.name]
        if space == "param":
            raise op.unsupported()
    is_float = op.type in ("f32", "f64") and isinstance(source, Float | Integer)
    name = w.read(source, op.type) if is_float and isinstance(source, Float) else w.read(source, bits)
    constant = isinstance(source, Integer | Float | Symbol)
    form = op.type if is_float and isinstance(source, Float) else bits
    return Value({form: name}, constant=constant and not isinstance(source, SpecialRegister))


def _unpack(w: CodeWriter, op: Operation, target: Vector, source: Operand) -> None:
    """`mov.b32 {lo, hi}, r`: split a register into equal parts, lowest bits first."""
    width = int(op.type[1:])
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


def _pack(w: CodeWriter, op: Operation, target: Operand, source: Vector) -> None:
    width = int(op.type[1:])
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


def _cvta(w: CodeWriter, op: Operation) -> None:
    """Convert addresses. Global and constant addresses are already generic; shared and local ones need their region's number."""
    target, source = op.operands
    form = form_of_type(op.type)
    space = op.choice("global", "shared", "local", "const")
    if space in ("shared", "local"):
        number = SHARED_NUMBER if space == "shared" else LOCAL_NUMBER
        sign = "-" if "to" in op.flags else "+"
        if form != "u64":
            raise op.unsupported()
        w.define(target, form, f"{w.read(source, form)} {sign} {w.integer(number << NUMBER_SHIFT, form)}")
    elif isinstance(source, Register):
        known = w.known(source)
        assert known is not None, "a register's value is known"
        w.copy(target, known)
    else:
        w.define(target, form, w.temporary(w.read(source, form)))


def _isspacep(w: CodeWriter, op: Operation) -> None:
    target, source = op.operands
    number = w.temporary(f"{w.read(source, 'u64')} >> {w.integer(NUMBER_SHIFT, 'u64')}")
    match op.choice("shared", "local", "global", "const"):
        case "shared":
            w.define(target, "pred", f"{number} == {SHARED_NUMBER}")
        case "local":
            w.define(target, "pred", f"{number} == {LOCAL_NUMBER}")
        case "global":
            w.define(target, "pred", f"{number} < {SHARED_NUMBER}")
        case _:
            raise op.unsupported()


# ---- conversions ----------------------------------------------------------------------------------------------------

_HALF_KINDS = ("f16", "bf16")


def _cvt(w: CodeWriter, op: Operation) -> None:
    target, *sources = op.operands
    to, source = op.types
    if "x2" in to or "x2" in source or to == "tf32":
        _cvt_packed(w, op, target, sources)
    elif is_integer_type(to) and is_integer_type(source):
        _cvt_integers(w, op, target, sources[0])
    elif is_integer_type(to):
        _cvt_to_integer(w, op, target, sources[0])
    elif is_integer_type(source):
        _cvt_from_integer(w, op, target, sources[0])
    else:
        _cvt_floats(w, op, target, sources[0])


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


def _cvt_integers(w: CodeWriter, op: Operation, target: Operand, source: Operand) -> None:
    to, origin = op.types
    name = integer_source(w, source, origin)
    kind = "i" if to[0] == "s" else "u"
    size = int(to[1:]) // 8
    expression = f"saturate_integer({name}, {kind}{size})" if "sat" in op.flags else f"{name}.astype({kind}{size})"
    define_integer(w, target, expression, to)


def _wide_source(w: CodeWriter, op: Operation, source: Operand, type_name: str) -> str:
    name = w.read(source, f"wide_{type_name}" if type_name in _HALF_KINDS else type_name)
    return f"flush({name})" if "ftz" in op.flags and type_name == "f32" else name


def _cvt_to_integer(w: CodeWriter, op: Operation, target: Operand, source: Operand) -> None:
    to, origin = op.types
    mode = op.choice("rni", "rzi", "rmi", "rpi")
    if not mode:
        raise op.unsupported()
    name = _wide_source(w, op, source, origin)
    define_integer(w, target, f"float_to_int({name}, {mode!r}, {to!r}, {origin!r})", to)


def _cvt_from_integer(w: CodeWriter, op: Operation, target: Operand, source: Operand) -> None:
    to, origin = op.types
    mode = op.choice("rn", "rz", "rm", "rp")
    if not mode:
        raise op.unsupported()
    expression = f"int_to_{to}({integer_source(w, source, origin)}, {mode!r})"
    w.define(target, to, f"saturate({expression})" if "sat" in op.flags else expression)


def _cvt_floats(w: CodeWriter, op: Operation, target: Operand, source: Operand) -> None:
    to, origin = op.types
    mode = op.choice("rni", "rzi", "rmi", "rpi", "rn", "rz", "rm", "rp")
    if op.flags & {"satfinite", "rna"} or ("relu" in op.flags and to not in _HALF_KINDS):
        raise op.unsupported()
    known = w.known(source)
    if to == origin and not mode and not op.flags and known is not None:
        w.copy(target, known)
        return
    name = _wide_source(w, op, source, origin)
    if mode.endswith("i") and to == origin:
        name = f"round_to_integral({name}, {mode!r})"
        mode = "rn"
    expression = _float_conversion(to, origin, name, mode or "rn")
    if "ftz" in op.flags and to == "f32":
        expression = f"flush({expression})"
    if "sat" in op.flags:
        expression = f"saturate({expression})"
    if "relu" in op.flags:
        expression = f"relu({expression})"
    w.define(target, to, expression, dirty=to != "f64")


def _float_conversion(to: str, origin: str, name: str, mode: str) -> str:
    """Return the expression of a conversion between float formats. f16 and bf16 sources are wide, f16 and bf16 results narrow."""
    match to:
        case "f16" | "bf16":
            return f"narrow_to_{to}({name}, {mode!r})"
        case "f32":
            return f"narrow_f64({name}, {mode!r})" if origin == "f64" else name
        case _:
            return name if origin == "f64" else f"{name}.astype(f8)"


_SMALL_PAIRS = ("e4m3x2", "e5m2x2", "e2m1x2")


def _cvt_packed(w: CodeWriter, op: Operation, target: Operand, sources: list[Operand]) -> None:
    """Convert to packed pairs (the first source is the upper half), to 8-bit and 4-bit floats, and to tf32."""
    to, origin = op.types
    mode = op.choice("rn", "rz", "rna")
    if to == "tf32":
        if mode != "rna" or len(op.flags) > 1:
            raise op.unsupported()
        w.define(target, "u32", f"to_tf32({w.read(sources[0], 'f32')})")
    elif to in ("f16x2", "bf16x2") and origin == "f32" and mode in ("rn", "rz") and "satfinite" not in op.flags:
        results = [f"narrow_to_{to[:-2]}({w.read(source, 'f32')}, {mode!r})" for source in reversed(sources)]
        results = [f"relu({result})" for result in results] if "relu" in op.flags else results
        w.define_pair(target, to, results[0], results[1])
    elif to in _SMALL_PAIRS and mode == "rn" and "satfinite" in op.flags and "relu" not in op.flags:
        if origin == "f32":
            high, low = (w.read(source, "f32") for source in sources)
        elif origin == "f16x2" and to != "e2m1x2":
            low, high = w.read_pair(sources[0], "f16x2")
        else:
            raise op.unsupported()
        w.define(target, "u16", f"pack_small({high}, {low}, {to!r})")
    elif to == "f16x2" and origin in _SMALL_PAIRS and "relu" not in op.flags:
        low, high = w.fresh(), w.fresh()
        w.emit(f"{low}, {high} = unpack_small({w.read(sources[0], 'u16')}, {origin!r})")
        w.define_pair(target, "f16x2", f"to_f16({low})", f"to_f16({high})")
    else:
        raise op.unsupported()


EMITTERS: Mapping[str, Emit] = {
    "setp": _setp,
    "set": _set,
    "selp": _selp,
    "slct": _slct,
    "mov": _mov,
    "cvta": _cvta,
    "isspacep": _isspacep,
    "cvt": _cvt,
}
