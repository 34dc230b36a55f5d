"""The integer and bit instructions as numpy code: one row per record of `specs`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from hlo_run.backends.host.emulator.code_writer import CodeWriter, form_of_type
from hlo_run.backends.host.ptx import specs
from hlo_run.backends.host.ptx.instruction_set import CARRY, Operation, row
from hlo_run.backends.host.ptx.syntax import Integer, Operand, Register

Emit = Callable[[CodeWriter, Operation], None]


def unsigned(form: str) -> str:
    """Return the unsigned form of the same width."""
    return "u" + form[1:] if form[0] == "s" else form


def _packed(w: CodeWriter, op: Operation, function: str, is_signed: bool) -> None:
    """Write an operation on the two 16-bit integers of a 32-bit register."""
    target, a, b = op.operands
    dtype = "i2" if is_signed else "u2"
    w.define(target, "u32", f"packed16({function}, {w.read(a, 'u32')}, {w.read(b, 'u32')}, {dtype})")


def _with_carry(w: CodeWriter, target: Operand, function: str, a: str, b: str, carry_in: str, keeps: bool, form: str) -> None:
    """Define `target` by a function that returns (result, carry). With `keeps`, also set the carry flag."""
    result, carry = w.fresh(), w.fresh()
    w.emit(f"{result}, {carry} = {function}({a}, {b}, {carry_in})")
    w.define(target, form, result)
    if keeps:
        w.set_carry(CARRY, carry)


def _carry_in(w: CodeWriter, has_carry: bool) -> str:
    return w.read(Register(CARRY), "pred") if has_carry else w.integer(0, "pred")


def _sum(w: CodeWriter, op: Operation, spec: specs.Sum) -> None:
    target, a, b = op.operands
    form = form_of_type(spec.type)
    if spec.is_packed:
        _packed(w, op, "np.subtract" if spec.subtracts else "np.add", spec.type[0] == "s")
    elif spec.saturates:
        function = "saturating_sub_s32" if spec.subtracts else "saturating_add_s32"
        w.define(target, form, f"{function}({w.read(a, form)}, {w.read(b, form)})")
    elif spec.carry_in or spec.carry_out:
        function, form = "sub_with_borrow" if spec.subtracts else "add_with_carry", unsigned(form)
        a_name, b_name = w.read(a, form), w.read(b, form)
        _with_carry(w, target, function, a_name, b_name, _carry_in(w, spec.carry_in), spec.carry_out, form)
    else:
        form = unsigned(form)
        w.define(target, form, f"{w.read(a, form)} {'-' if spec.subtracts else '+'} {w.read(b, form)}")


def _product_of(w: CodeWriter, op: Operation, spec: specs.Product) -> tuple[str, str]:
    """Return (form, expression) of the product."""
    form = form_of_type(spec.type)
    _, a, b, *_ = op.operands
    if spec.part == "wide":
        return f"{form[0]}{2 * int(form[1:])}", f"multiply_wide({w.read(a, form)}, {w.read(b, form)})"
    if spec.part == "hi":
        return form, f"multiply_high({w.read(a, form)}, {w.read(b, form)})"
    form = unsigned(form)
    return form, f"{w.read(a, form)} * {w.read(b, form)}"


def _product(w: CodeWriter, op: Operation, spec: specs.Product) -> None:
    """Write a product, with its addend, carry or saturation."""
    target, a, b, *rest = op.operands
    if spec.saturates:
        names = ", ".join(w.read(operand, "s32") for operand in (a, b, *rest))
        w.define(target, "s32", f"saturating_mad_high_s32({names})")
        return
    form, product = _product_of(w, op, spec)
    if not spec.adds:
        w.define(target, form, product)
    elif not (spec.carry_in or spec.carry_out):
        w.define(target, form, f"{product} + {w.read(rest[0], form)}")
    else:
        bits = unsigned(form)
        product = w.temporary(f"({product}).view(u{int(bits[1:]) // 8})")
        addend = w.read(rest[0], bits)
        _with_carry(w, target, "add_with_carry", product, addend, _carry_in(w, spec.carry_in), spec.carry_out, bits)


def _quotient(w: CodeWriter, op: Operation, spec: specs.Quotient) -> None:
    target, a, b = op.operands
    form = form_of_type(spec.type)
    function = "remainder" if spec.is_remainder else "divide"
    w.define(target, form, f"{function}({w.read(a, form)}, {w.read(b, form)})")


def _difference(w: CodeWriter, op: Operation, spec: specs.Difference) -> None:
    target, a, b, c = op.operands
    form = form_of_type(spec.type)
    w.define(target, form, f"absolute_difference({w.read(a, form)}, {w.read(b, form)}) + {w.read(c, form)}")


def _extreme(w: CodeWriter, op: Operation, spec: specs.Extreme) -> None:
    """Write a min or max, with relu if the instruction has it."""
    function = "np.minimum" if spec.operation == "min" else "np.maximum"
    if spec.is_packed:
        _packed(w, op, function, spec.type[0] == "s")
        return
    target, a, b = op.operands
    form = form_of_type(spec.type)
    expression = f"{function}({w.read(a, form)}, {w.read(b, form)})"
    if spec.relu:
        expression = f"np.maximum({expression}, {w.integer(0, form)})"
    w.define(target, form, expression)


_UNARY: Mapping[str, str] = {
    "abs": "np.abs({0})",
    "neg": "-{0}",
    "not": "~{0}",
    "cnot": "({0} == 0).astype(u{1})",
    "brev": "reverse_bits({0})",
    "popc": "count_bits({0})",
    "clz": "count_leading_zeros({0})",
}


def _unary(w: CodeWriter, op: Operation, spec: specs.Unary) -> None:
    target, a = op.operands
    form = form_of_type(spec.type)
    size = int(form[1:]) // 8 if spec.operation == "cnot" else 0
    result_form = "u32" if spec.operation in ("popc", "clz") else form
    w.define(target, result_form, _UNARY[spec.operation].format(w.read(a, form), size))


def _dot_bytes(w: CodeWriter, op: Operation, spec: specs.DotBytes) -> None:
    target, a, b, c = op.operands
    names = ", ".join(w.read(operand, "u32") for operand in (a, b, c))
    w.define(target, "u32", f"dot_bytes({names}, {spec.width}, {spec.signed[0]}, {spec.signed[1]}, {spec.start > 0})")


def _find_highest(w: CodeWriter, op: Operation, spec: specs.FindHighest) -> None:
    target, a = op.operands
    w.define(target, "u32", f"find_highest({w.read(a, form_of_type(spec.type))}, {spec.as_shift})")


def _extract_bits(w: CodeWriter, op: Operation, spec: specs.ExtractBits) -> None:
    target, a, start, count = op.operands
    form = form_of_type(spec.type)
    w.define(target, form, f"extract_bits({w.read(a, form)}, {w.read(start, 'u32')}, {w.read(count, 'u32')})")


def _insert_bits(w: CodeWriter, op: Operation, spec: specs.InsertBits) -> None:
    target, a, b, start, count = op.operands
    form = form_of_type(spec.type)
    places = f"{w.read(start, 'u32')}, {w.read(count, 'u32')}"
    w.define(target, form, f"insert_bits({w.read(a, form)}, {w.read(b, form)}, {places})")


def _permute_bytes(w: CodeWriter, op: Operation, spec: specs.PermuteBytes) -> None:
    target, a, b, selector = op.operands
    a_name, b_name = w.read(a, "u32"), w.read(b, "u32")
    if spec.mode or not w.is_constant(selector) or w.constant_of(selector, "u32") & 0x8888:
        w.define(target, "u32", f"permute_bytes({a_name}, {b_name}, {w.read(selector, 'u32')}, {spec.mode!r})")
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


_LOGIC = {"and": "&", "or": "|", "xor": "^"}


def _logic(w: CodeWriter, op: Operation, spec: specs.Logic) -> None:
    target, a, b = op.operands
    form = form_of_type(spec.type)
    w.define(target, form, f"{w.read(a, form)} {_LOGIC[spec.operation]} {w.read(b, form)}")


def _lookup3(w: CodeWriter, op: Operation, spec: specs.Lookup3) -> None:
    del spec
    target, a, b, c, table = op.operands
    assert isinstance(table, Integer), "the rules have checked the operands"
    names = ", ".join(w.read(operand, "u32") for operand in (a, b, c))
    w.define(target, "u32", f"lookup3({names}, {table.value})")


def _funnel_shift(w: CodeWriter, op: Operation, spec: specs.FunnelShift) -> None:
    target, low, high, amount = op.operands
    names = ", ".join(w.read(operand, "u32") for operand in (low, high, amount))
    w.define(target, "u32", f"funnel_shift({names}, left={spec.is_left}, wrap={spec.wraps})")


def _shift(w: CodeWriter, op: Operation, spec: specs.Shift) -> None:
    target, a, amount = op.operands
    form = form_of_type(spec.type)
    name = w.read(a, form)
    symbol, function = ("<<", "shift_left") if spec.is_left else (">>", "shift_right")
    if not w.is_constant(amount):
        w.define(target, form, f"{function}({name}, {w.read(amount, 'u32')})")
        return
    distance, width = w.constant_of(amount, "u32"), int(form[1:])
    if distance >= width and form[0] == "u":
        w.define(target, form, f"np.zeros_like({name})")
    else:
        w.define(target, form, f"{name} {symbol} {w.integer(min(distance, width - 1), form)}")


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
