"""Write one basic block as the source of a Python function over numpy arrays.

A register may be known in several *forms* at once, each in a Python variable: its bits (`u16`, `u32`, `u64`, or `pred`), views of
them (`s32`, `f32`, ...), an f32 value widened to f64 (`d32`), and f16 and bf16 values. The latter are rounded (`f16`, `bf16`) or
widened to f32 for arithmetic (`wide_f16`, `wide_bf16`), alone or as the two halves of a 32-bit register (`f16x2`, ...). A form is
computed from another form on first use, so a chain of operations in one format needs no conversions. Immediates are constants
of the module; their forms are computed while the code is written.

A float form is *dirty* while its NaNs may have any bits. A conversion to bits makes them canonical.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, assert_never

import ml_dtypes
import numpy as np

from hlo_run.arrays import Array
from hlo_run.backends.host.numerics import float_numerics
from hlo_run.backends.host.ptx.syntax import (
    Address,
    Float,
    Integer,
    Negated,
    Operand,
    OperandList,
    Pair,
    Register,
    Sink,
    SpecialRegister,
    Symbol,
    Vector,
)

Constant = Array

BITS_OF_WIDTH = {8: "u16", 16: "u16", 32: "u32", 64: "u64"}
NUMPY_OF_FORM: dict[str, Any] = {
    **{f"{kind}{bits}": np.dtype(f"{'i' if kind == 's' else 'u'}{bits // 8}") for kind in "su" for bits in (8, 16, 32, 64)},
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "pred": np.dtype(np.bool_),
}

# (from, to) -> expression. Every form of a register is reachable from its bits, and its bits from every form.
_CONVERSIONS: dict[tuple[str, str], str] = {
    **{(f"u{bits}", f"s{bits}"): f"{{0}}.view(i{bits // 8})" for bits in (16, 32, 64)},
    **{(f"s{bits}", f"u{bits}"): f"{{0}}.view(u{bits // 8})" for bits in (16, 32, 64)},
    ("u32", "f32"): "{0}.view(f4)",
    ("u64", "f64"): "{0}.view(f8)",
    ("f64", "u64"): "{0}.view(u8)",
    ("f32", "d32"): "{0}.astype(f8)",
    ("u16", "f16"): "{0}.view(half)",
    ("u16", "bf16"): "{0}.view(bfloat)",
    ("u16", "wide_f16"): "wide_f16({0})",
    ("u16", "wide_bf16"): "wide_bf16({0})",
    ("f16", "wide_f16"): "{0}.astype(f4)",
    ("bf16", "wide_bf16"): "{0}.astype(f4)",
}
# (clean, dirty) expressions from a form to bits. The dirty one makes NaNs canonical.
_TO_BITS: dict[str, tuple[str, str]] = {
    "f32": ("{0}.view(u4)", "bits32({0})"),
    "f16": ("{0}.view(u2)", "bits16({0})"),
    "bf16": ("{0}.view(u2)", "bits16({0})"),
}
_HALVES = {"f16x2": "f16", "bf16x2": "bf16"}
_FORM_WIDTH = {
    **dict.fromkeys(("u16", "s16", "f16", "bf16", "wide_f16", "wide_bf16"), 16),
    **dict.fromkeys(("u32", "s32", "f32", "d32"), 32),
    **dict.fromkeys(("u64", "s64", "f64"), 64),
    "pred": 1,
}
_VARIABLE = re.compile(r"\bv\d+\b")
_CONSTANT_NAMESPACE: dict[str, object] = {
    **{f"{kind}{size}": np.dtype(f"{kind}{size}") for kind in "iuf" for size in (1, 2, 4, 8) if (kind, size) != ("f", 1)},
    "half": np.dtype(np.float16),
    "bfloat": np.dtype(ml_dtypes.bfloat16),
    "wide_f16": float_numerics.wide_f16,
    "wide_bf16": float_numerics.wide_bf16,
}


def form_of_type(type_name: str) -> str:
    """Return the form for computing with values of a PTX type."""
    return f"u{type_name[1:]}" if type_name[0] == "b" and type_name[1:].isdigit() else type_name


def bits_form(type_name: str) -> str:
    """Return the form of the bits of a register of a declared type."""
    return "pred" if type_name == "pred" else BITS_OF_WIDTH[int(type_name.lstrip("bsuf"))]


class Constants:
    """The constant arrays of a program, [1, 1], by name. Equal values have equal names."""

    def __init__(self) -> None:
        self.arrays: dict[str, Constant] = {}
        self._names: dict[tuple[str, bytes], str] = {}

    def add(self, array: Constant) -> str:
        """Return the name of a constant."""
        key = (array.dtype.str, array.tobytes())
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = f"k{len(self._names)}"
            self.arrays[name] = array.reshape(1, 1)
        return name

    def of(self, value: int, form: str) -> str:
        """Return the name of an integer constant, taken modulo the width of the form."""
        bits = 8 * NUMPY_OF_FORM[form].itemsize
        unsigned = np.array(value & ((1 << bits) - 1), f"u{bits // 8}")
        return self.add(unsigned.view(NUMPY_OF_FORM[form]) if form != "pred" else np.array(bool(value)))


class Value:
    """The known forms of a register's value, each with its variable. If `constant`, the names are names of constants."""

    __slots__ = ("constant", "dirty", "forms")

    def __init__(self, forms: dict[str, str], *, dirty: bool = False, constant: bool = False) -> None:
        self.forms = forms
        self.dirty = dirty
        self.constant = constant


class CodeWriter:
    """Collects the lines of one block's function. `registers` maps registers to types, `slots` to their positions in `R`.

    `fixed` holds the registers that are constant in the whole kernel. `symbols` maps a variable's name to its address
    (space, number). `result_is_used` is True if some operation reads the result of the operation being written.
    """

    def __init__(
        self,
        constants: Constants,
        registers: Mapping[str, str],
        slots: Mapping[str, int],
        fixed: Mapping[str, Value],
        symbols: Mapping[str, tuple[str, int]],
    ) -> None:
        self.constants = constants
        self.symbols = symbols
        self.lines: list[str] = []
        self._registers = registers
        self._slots = slots
        self._values: dict[str, Value] = dict(fixed)
        self._fixed = fixed
        self._pointers: dict[tuple[str, str], str] = {}
        self._defined: set[str] = set()
        self._count = 0
        self.result_is_used = True

    # ---- lines --------------------------------------------------------------------------------------------------

    def emit(self, line: str) -> None:
        """Add a line of code."""
        self.lines.append(line)

    def temporary(self, expression: str) -> str:
        """Return a new variable that holds `expression`."""
        name = self.fresh()
        self.lines.append(f"{name} = {expression}")
        return name

    def fresh(self) -> str:
        """Return a new variable's name."""
        self._count += 1
        return f"v{self._count}"

    def integer(self, value: int, form: str) -> str:
        """Return the name of an integer constant in one of the integer forms."""
        return self.constants.of(value, form)

    # ---- reading ------------------------------------------------------------------------------------------------

    def width(self, operand: Operand) -> int:
        """Return the width of a register in bits (1 for a predicate); 0 for operands without a width."""
        if not isinstance(operand, Register):
            return 32 if isinstance(operand, SpecialRegister) and not operand.name.endswith("64") else 0
        type_name = self._registers[operand.name]
        return 1 if type_name == "pred" else int(type_name.lstrip("bsuf"))

    def read(self, operand: Operand, form: str) -> str:
        """Return a variable or constant that holds `operand` in `form`."""
        match operand:
            case Register():
                return self._form(self._value(operand.name), form)
            case Negated():
                return f"~{self._form(self._value(operand.register.name), 'pred')}"
            case Integer():
                return self._form(self._immediate(operand.value, form), form)
            case Float():
                return self._float(operand, form)
            case SpecialRegister():
                width = "u64" if operand.name in ("%clock64", "%globaltimer") else "u32"
                return self._form(Value({width: self.temporary(f"s.special({operand.name[1:]!r})")}), form)
            case Symbol():
                return self.integer(self.symbols[operand.name][1] + operand.offset, form)
            case Address() | Vector() | Pair() | Sink() | OperandList():
                raise AssertionError(f"{operand} is not a value")
            case _:
                assert_never(operand)

    def is_constant(self, operand: Operand) -> bool:
        """True if the operand's value is known while the code is written."""
        if isinstance(operand, Register):
            return operand.name in self._values and self._values[operand.name].constant
        return isinstance(operand, Integer | Float)

    def constant_of(self, operand: Operand, form: str) -> int:
        """Return the bits of a constant operand in `form`, as an integer."""
        return int(self.constants.arrays[self.read(operand, form)][0, 0])

    def known(self, operand: Operand) -> Value | None:
        """Return the known forms of a register; None for other operands."""
        return self._value(operand.name) if isinstance(operand, Register) else None

    def _value(self, name: str) -> Value:
        value = self._values.get(name)
        if value is None:
            variable = self.temporary(f"R[{self._slots[name]}]")
            value = self._values[name] = Value({self._bits_form(name): variable})
        return value

    def _bits_form(self, name: str) -> str:
        return bits_form(self._registers[name])

    def _immediate(self, value: int, form: str) -> Value:
        if form == "pred":
            return Value({"pred": self.integer(value, "pred")}, constant=True)
        width = 32 if form in _HALVES or form.removeprefix("wide_") in _HALVES else _FORM_WIDTH[form]
        bits = BITS_OF_WIDTH[width]
        return Value({bits: self.integer(value, bits)}, constant=True)

    def _float(self, operand: Float, form: str) -> str:
        """Return a float immediate in the format of the instruction. An untyped move uses its bits."""
        bits, width = operand.bits, operand.width
        if width == 64 and form in ("f32", "d32", "u32", "s32"):
            double = np.array(bits, np.uint64).view(np.float64)
            bits, width = int(double.astype(np.float32).view(np.uint32)), 32
        elif width == 32 and form in ("f64", "u64"):
            single = np.array(bits, np.uint32).view(np.float32)
            bits, width = int(single.astype(np.float64).view(np.uint64)), 64
        bits_form = BITS_OF_WIDTH[width]
        return self._form(Value({bits_form: self.integer(bits, bits_form)}, constant=True), form)

    def _form(self, value: Value, form: str) -> str:
        """Return the variable of `value` in `form`. Convert from an existing form if needed."""
        name = value.forms.get(form)
        if name is not None:
            return name
        halves = form.removeprefix("wide_")
        if halves in _HALVES:
            return self._pair(value, form)
        expression = self._conversion(value, form)
        if value.constant:
            array = eval(expression, {**_CONSTANT_NAMESPACE, **self.constants.arrays})
            name = self.constants.add(array)
        else:
            name = self.temporary(expression)
        value.forms[form] = name
        return name

    def _conversion(self, value: Value, form: str) -> str:
        for source, name in value.forms.items():
            if template := _CONVERSIONS.get((source, form)):
                return template.format(name)
        bits = BITS_OF_WIDTH[_FORM_WIDTH[form]]
        if form != bits:
            intermediate = "f32" if form == "d32" else bits
            return _CONVERSIONS[(intermediate, form)].format(self._form(value, intermediate))
        for source, name in value.forms.items():
            if source in _TO_BITS:
                return _TO_BITS[source][value.dirty].format(name)
            if source in ("wide_f16", "wide_bf16"):
                return f"bits16(to_{source[5:]}({name}))"
            if source in _HALVES:
                low, high = name.split("|")
                return f"pack_halves({self._half_bits(low, value.dirty)}, {self._half_bits(high, value.dirty)})"
        raise AssertionError(f"no way from {list(value.forms)} to {form}")

    @staticmethod
    def _half_bits(name: str, dirty: bool) -> str:
        return f"bits16({name})" if dirty else f"{name}.view(u2)"

    # ---- halves of a 32-bit register ----------------------------------------------------------------------------

    def _pair(self, value: Value, form: str) -> str:
        """Return the `low|high` variables of a packed value, widened to f32."""
        kind = form.removeprefix("wide_").removesuffix("x2")
        narrow = value.forms.get(f"{kind}x2")
        if narrow is not None:
            low, high = (self.temporary(f"{name}.astype(f4)") for name in narrow.split("|"))
        else:
            bits = self._form(value, "u32")
            low = self._widened(f"({bits} & {self.integer(0xFFFF, 'u32')}).astype(u2)", kind, value.constant)
            high = self._widened(f"({bits} >> {self.integer(16, 'u32')}).astype(u2)", kind, value.constant)
        value.forms[form] = f"{low}|{high}"
        return value.forms[form]

    def _widened(self, bits: str, kind: str, constant: bool) -> str:
        expression = f"wide_{kind}({bits})"
        if constant:
            return self.constants.add(eval(expression, {**_CONSTANT_NAMESPACE, **self.constants.arrays}))
        return self.temporary(expression)

    def read_pair(self, operand: Operand, kind: str) -> tuple[str, str]:
        """Return the (low, high) halves of a packed f16x2 or bf16x2 operand, as f32."""
        if isinstance(operand, Register):
            pair = self._form(self._value(operand.name), f"wide_{kind}")
        else:
            assert isinstance(operand, Integer), "a packed operand is a register or an integer"
            pair = self._form(self._immediate(operand.value, "u32"), f"wide_{kind}")
        low, high = pair.split("|")
        return low, high

    # ---- writing ------------------------------------------------------------------------------------------------

    def define(self, target: Operand, form: str, expression: str, *, dirty: bool = False) -> None:
        """Set the register `target` to `expression`, which is in `form`."""
        if isinstance(target, Sink):
            return
        assert isinstance(target, Register), "the target is a register"
        name = expression if _VARIABLE.fullmatch(expression) else self.temporary(expression)
        self._set(target.name, Value({form: name}, dirty=dirty))

    def define_pair(self, target: Operand, kind: str, low: str, high: str) -> None:
        """Set a register to two f16 or bf16 results (`kind` is f16x2 or bf16x2). Their NaNs may have any bits."""
        assert isinstance(target, Register), "the target is a register"
        self._set(target.name, Value({kind: f"{self.temporary(low)}|{self.temporary(high)}"}, dirty=True))

    def copy(self, target: Operand, source: Value) -> None:
        """Set the register `target` to `source`, in all its forms."""
        assert isinstance(target, Register), "the target is a register"
        self._set(target.name, Value(dict(source.forms), dirty=source.dirty, constant=source.constant))

    def _set(self, name: str, value: Value) -> None:
        self._values[name] = value
        self._defined.add(name)

    def set_carry(self, name: str, variable: str) -> None:
        """Set the carry flag."""
        self._set(name, Value({"pred": variable}))

    # ---- addresses ----------------------------------------------------------------------------------------------

    def pointer(self, address: Operand, space: str) -> tuple[str, int]:
        """Return (variable of the Pointer, displacement) for `[base+offset]` in `space`."""
        assert isinstance(address, Address), "memory is accessed through an address"
        base = address.base
        if isinstance(base, Symbol):
            variable_space, number = self.symbols[base.name]
            space, name, displacement = variable_space, self.integer(number, "u64"), base.offset + address.offset
        elif isinstance(base, Integer):
            name, displacement = self.integer(base.value, "u64"), address.offset
        else:
            form = BITS_OF_WIDTH[self.width(base)]
            name, displacement = self.read(base, form), address.offset
        kind = space if space in ("shared", "local") else "global"
        pointer = self._pointers.get((kind, name))
        if pointer is None:
            pointer = self._pointers[kind, name] = self.temporary(f"{kind}_pointer(s, {name})")
        return pointer, displacement

    # ---- the end of the block -----------------------------------------------------------------------------------

    def finish(self, live_in: tuple[str, ...], live_out: tuple[str, ...], result: str | None) -> str:
        """Return the function's body. It stores the registers in `live_out` and drops the others of `live_in`."""
        kept = set(live_out)
        for name in live_out:
            if name in self._defined and name not in self._fixed:
                slot = self._slots[name]
                variable = self._form(self._values[name], self._bits_form(name))
                self.lines.append(f"R[{slot}] = {variable}")
        dropped = [f"R[{self._slots[name]}]" for name in live_in if name not in kept and name not in self._fixed]
        if dropped:
            self.lines.append(" = ".join(dropped) + " = None")
        if result is not None:
            self.lines.append(f"return {result}")
        return "\n".join(f"    {line}" for line in _with_deletions(self.lines)) or "    pass"


def _with_deletions(lines: list[str]) -> list[str]:
    """Delete each variable after its last use, so that numpy reuses its memory while it is in the cache."""
    seen: set[str] = set()
    result: list[str] = []
    for line in reversed(lines):
        last = [name for name in dict.fromkeys(_VARIABLE.findall(line)) if name not in seen]
        seen.update(last)
        if last and not line.startswith("return"):
            result.append("del " + ", ".join(last))
        result.append(line)
    return result[::-1]
