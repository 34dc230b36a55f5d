"""The integer and bit instructions as numpy code: one row per opcode."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hlo_run.backends.host.emulator.code_writer import CodeWriter, form_of_type
from hlo_run.backends.host.ptx.instruction_set import CARRY, Operation
from hlo_run.backends.host.ptx.syntax import Integer, Operand, Register

Emit = Callable[[CodeWriter, Operation], None]


def is_integer_type(type_name: str) -> bool:
    """True for s16 .. u64 and b16 .. b64, not for packed pairs and floats."""
    return type_name[0] in "sub" and type_name[1:].isdigit()


def unsigned(form: str) -> str:
    """Return the unsigned form of the same width."""
    return "u" + form[1:] if form[0] == "s" else form


def _binary(template: str) -> Emit:
    """Return the emitter of an operation on two operands of the instruction's type."""

    def emit(w: CodeWriter, op: Operation) -> None:
        form = form_of_type(op.type)
        target, a, b = op.operands
        w.define(target, form, template.format(w.read(a, form), w.read(b, form)))

    return emit


def _unary(template: str, result_form: str = "") -> Emit:
    def emit(w: CodeWriter, op: Operation) -> None:
        form = form_of_type(op.type)
        target, a = op.operands
        w.define(target, result_form or form, template.format(w.read(a, form)))

    return emit


def _packed(operation: str) -> Emit:
    """Return the emitter of an operation on the two 16-bit integers of a 32-bit register."""

    def emit(w: CodeWriter, op: Operation) -> None:
        target, a, b = op.operands
        dtype = "i2" if op.type == "s16x2" else "u2"
        w.define(target, "u32", f"packed16({operation}, {w.read(a, 'u32')}, {w.read(b, 'u32')}, {dtype})")

    return emit


def _with_carry(w: CodeWriter, target: Operand, function: str, a: str, b: str, carry_in: str, keeps: bool, form: str) -> None:
    """Define `target` by a function that returns (result, carry). With `keeps`, also set the carry flag."""
    result, carry = w.fresh(), w.fresh()
    w.emit(f"{result}, {carry} = {function}({a}, {b}, {carry_in})")
    w.define(target, form, result)
    if keeps:
        w.set_carry(CARRY, carry)


def _carry_in(w: CodeWriter, op: Operation) -> str:
    return w.read(Register(CARRY), "pred") if op.opcode in ("addc", "subc", "madc") else w.integer(0, "pred")


def _add_sub(plain: str, carrying: str, saturating: str) -> Emit:
    def emit(w: CodeWriter, op: Operation) -> None:
        target, a, b = op.operands
        form = form_of_type(op.type)
        if op.type.endswith("x2"):
            _packed("np.add")(w, op)
        elif "sat" in op.flags:
            if op.type != "s32":
                raise op.unsupported()
            w.define(target, form, f"{saturating}({w.read(a, form)}, {w.read(b, form)})")
        elif "cc" in op.flags or op.opcode in ("addc", "subc"):
            form = unsigned(form)
            a_name, b_name = w.read(a, form), w.read(b, form)
            _with_carry(w, target, carrying, a_name, b_name, _carry_in(w, op), "cc" in op.flags, form)
        else:
            form = unsigned(form)
            w.define(target, form, f"{w.read(a, form)} {plain} {w.read(b, form)}")

    return emit


emit_add = _add_sub("+", "add_with_carry", "saturating_add_s32")
emit_sub = _add_sub("-", "sub_with_borrow", "saturating_sub_s32")


def _product(w: CodeWriter, op: Operation) -> tuple[str, str]:
    """Return (form, expression) of the product with `.lo`, `.hi` or `.wide`."""
    form = form_of_type(op.type)
    _, a, b, *_ = op.operands
    if "wide" in op.flags:
        return f"{form[0]}{2 * int(form[1:])}", f"multiply_wide({w.read(a, form)}, {w.read(b, form)})"
    if "hi" in op.flags:
        return form, f"multiply_high({w.read(a, form)}, {w.read(b, form)})"
    form = unsigned(form)
    return form, f"{w.read(a, form)} * {w.read(b, form)}"


def emit_mul(w: CodeWriter, op: Operation) -> None:
    """Write a mul."""
    form, expression = _product(w, op)
    w.define(op.operands[0], form, expression)


def emit_mad(w: CodeWriter, op: Operation) -> None:
    """Write a mad or madc, with its carry or saturation."""
    target, a, b, addend = op.operands
    if "sat" in op.flags:
        if op.type != "s32" or "hi" not in op.flags:
            raise op.unsupported()
        names = ", ".join(w.read(operand, "s32") for operand in (a, b, addend))
        w.define(target, "s32", f"saturating_mad_high_s32({names})")
        return
    form, product = _product(w, op)
    if "cc" not in op.flags and op.opcode == "mad":
        w.define(target, form, f"{product} + {w.read(addend, form)}")
        return
    bits = unsigned(form)
    product = w.temporary(f"({product}).view(u{int(bits[1:]) // 8})")
    _with_carry(w, target, "add_with_carry", product, w.read(addend, bits), _carry_in(w, op), "cc" in op.flags, bits)


def _sad(w: CodeWriter, op: Operation) -> None:
    target, a, b, c = op.operands
    form = form_of_type(op.type)
    w.define(target, form, f"absolute_difference({w.read(a, form)}, {w.read(b, form)}) + {w.read(c, form)}")


def emit_min_max(w: CodeWriter, op: Operation) -> None:
    """Write a min or max, with relu if the instruction has it."""
    function = "np.minimum" if op.opcode == "min" else "np.maximum"
    if op.type.endswith("x2"):
        if "relu" in op.flags:
            raise op.unsupported()
        _packed(function)(w, op)
        return
    target, a, b = op.operands
    form = form_of_type(op.type)
    expression = f"{function}({w.read(a, form)}, {w.read(b, form)})"
    if "relu" in op.flags:
        expression = f"np.maximum({expression}, {w.integer(0, form)})"
    w.define(target, form, expression)


def _dot_bytes(w: CodeWriter, op: Operation) -> None:
    target, a, b, c = op.operands
    signs = [name[0] == "s" for name in op.types]
    names = ", ".join(w.read(operand, "u32") for operand in (a, b, c))
    width = 8 if op.opcode == "dp4a" else 16
    w.define(target, "u32", f"dot_bytes({names}, {width}, {signs[0]}, {signs[1]}, {'hi' in op.flags})")


def _bfind(w: CodeWriter, op: Operation) -> None:
    target, a = op.operands
    w.define(target, "u32", f"find_highest({w.read(a, form_of_type(op.type))}, {'shiftamt' in op.flags})")


def _bfe(w: CodeWriter, op: Operation) -> None:
    target, a, start, count = op.operands
    form = form_of_type(op.type)
    w.define(target, form, f"extract_bits({w.read(a, form)}, {w.read(start, 'u32')}, {w.read(count, 'u32')})")


def _bfi(w: CodeWriter, op: Operation) -> None:
    target, a, b, start, count = op.operands
    form = form_of_type(op.type)
    places = f"{w.read(start, 'u32')}, {w.read(count, 'u32')}"
    w.define(target, form, f"insert_bits({w.read(a, form)}, {w.read(b, form)}, {places})")


def _prmt(w: CodeWriter, op: Operation) -> None:
    target, a, b, selector = op.operands
    a_name, b_name = w.read(a, "u32"), w.read(b, "u32")
    mode = op.choice("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
    if mode or not w.is_constant(selector) or w.constant_of(selector, "u32") & 0x8888:
        w.define(target, "u32", f"permute_bytes({a_name}, {b_name}, {w.read(selector, 'u32')}, {mode!r})")
        return
    w.define(target, "u32", _shifted_bytes(w, (a_name, b_name), w.constant_of(selector, "u32")))


def _shifted_bytes(w: CodeWriter, words: tuple[str, str], selector: int) -> str:
    """Return a constant byte permutation as masks and shifts: one term for all bytes of a word with the same shift."""
    masks: dict[tuple[int, int], int] = {}
    for position in range(4):
        byte = selector >> (4 * position) & 7
        move = (byte >> 2, 8 * (position - (byte & 3)))
        masks[move] = masks.get(move, 0) | 0xFF << (8 * (byte & 3))
    terms: list[str] = []
    for (word, shift), mask in masks.items():
        term = words[word] if mask == 0xFFFFFFFF else f"({words[word]} & {w.integer(mask, 'u32')})"
        if shift:
            term = f"({term} {'<<' if shift > 0 else '>>'} {w.integer(abs(shift), 'u32')})"
        terms.append(term)
    return " | ".join(terms)


def _logic(symbol: str) -> Emit:
    def emit(w: CodeWriter, op: Operation) -> None:
        target, a, b = op.operands
        form = form_of_type(op.type)
        w.define(target, form, f"{w.read(a, form)} {symbol} {w.read(b, form)}")

    return emit


def _cnot(w: CodeWriter, op: Operation) -> None:
    target, a = op.operands
    form = form_of_type(op.type)
    w.define(target, form, f"({w.read(a, form)} == 0).astype(u{int(form[1:]) // 8})")


def _lop3(w: CodeWriter, op: Operation) -> None:
    target, a, b, c, table = op.operands
    if not isinstance(table, Integer):
        raise op.unsupported()
    names = ", ".join(w.read(operand, "u32") for operand in (a, b, c))
    w.define(target, "u32", f"lookup3({names}, {table.value})")


def _shf(w: CodeWriter, op: Operation) -> None:
    target, low, high, amount = op.operands
    names = ", ".join(w.read(operand, "u32") for operand in (low, high, amount))
    w.define(target, "u32", f"funnel_shift({names}, left={'l' in op.flags}, wrap={'wrap' in op.flags})")


def _shift(w: CodeWriter, op: Operation) -> None:
    target, a, amount = op.operands
    form = form_of_type(op.type)
    name = w.read(a, form)
    symbol, function = ("<<", "shift_left") if op.opcode == "shl" else (">>", "shift_right")
    if not w.is_constant(amount):
        w.define(target, form, f"{function}({name}, {w.read(amount, 'u32')})")
        return
    distance, width = w.constant_of(amount, "u32"), int(form[1:])
    if distance >= width and form[0] == "u":
        w.define(target, form, f"np.zeros_like({name})")
    else:
        w.define(target, form, f"{name} {symbol} {w.integer(min(distance, width - 1), form)}")


EMITTERS: Mapping[str, Emit] = {
    "addc": emit_add,
    "subc": emit_sub,
    "madc": emit_mad,
    "sad": _sad,
    "rem": _binary("remainder({0}, {1})"),
    "dp4a": _dot_bytes,
    "dp2a": _dot_bytes,
    "popc": _unary("count_bits({0})", "u32"),
    "clz": _unary("count_leading_zeros({0})", "u32"),
    "bfind": _bfind,
    "brev": _unary("reverse_bits({0})"),
    "bfe": _bfe,
    "bfi": _bfi,
    "prmt": _prmt,
    "and": _logic("&"),
    "or": _logic("|"),
    "xor": _logic("^"),
    "not": _unary("~{0}"),
    "cnot": _cnot,
    "lop3": _lop3,
    "shf": _shf,
    "shl": _shift,
    "shr": _shift,
}
# Opcodes shared with floats: `code_float` chooses by the type.
INTEGER_PART: Mapping[str, Emit] = {
    "add": emit_add,
    "sub": emit_sub,
    "mul": emit_mul,
    "mad": emit_mad,
    "div": _binary("divide({0}, {1})"),
    "abs": _unary("np.abs({0})"),
    "neg": _unary("-{0}"),
    "min": emit_min_max,
    "max": emit_min_max,
}
