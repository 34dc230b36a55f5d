"""The registers of a thread while a phase's code is written: where values come from and where results go."""

from __future__ import annotations

from abc import abstractmethod
from typing import assert_never

import numpy as np

from hlo_run.backends.host.jit.affine_sum import Affine
from hlo_run.backends.host.jit.builder import FORM_TYPES, ModuleText, f32_constant
from hlo_run.backends.host.jit.forms import Forms, Name, Value
from hlo_run.backends.host.jit.phases import Phase
from hlo_run.backends.host.jit.plan import Plan
from hlo_run.backends.host.ptx.instruction_set import Operation
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

_ONE = frozenset(("%nclusterid", "%cluster_nctaid", "%cluster_nctarank", "%nsmid"))


class Registers(Forms):
    """Reads and sets registers while a phase's function is written. Emitters call `read`, `define` and the builder `b`."""

    def __init__(self, plan: Plan, module: ModuleText, phase: Phase) -> None:
        super().__init__(module)
        self.plan = plan
        self.phase = phase
        self._values: dict[str, Value] = {}
        self._pure: dict[str, Value] = {}
        self._symbols: dict[tuple[str, int], str] = {}
        self._pointers: dict[int, str] = {}
        self._defined: set[str] = set()

    @abstractmethod
    def _emit(self, operation: Operation) -> None:
        """Write an instruction at the current place."""

    # ---- state --------------------------------------------------------------------------------------------------

    def state(self, index: int) -> str:
        """Return a pointer from the worker's state."""
        known = self._pointers.get(index)
        if known is None:
            with self.prologue():
                place = self.b.pointer("%st", str(8 * index))
                known = self._pointers[index] = self.b.op(
                    f"load ptr, ptr {place}, align 8, !invariant.load !2, !llvm.access.group !1"
                )
        return known

    def symbol(self, name: str, bits: int) -> str:
        """Return a symbol of an affine sum (see `affine`) as an integer."""
        known = self._symbols.get((name, bits))
        if known is None:
            with self.prologue():
                known = self._symbols[name, bits] = self._make_symbol(name, bits)
        return known

    def _make_symbol(self, name: str, bits: int) -> str:
        if bits != 32 and (name[0] in "./" or self.plan.width(name) == 32):
            return self.b.resize(self.symbol(name, 32), "i32", f"i{bits}")
        if name in self.plan.pure.quotients:
            dividend, divisor = self.plan.pure.quotients[name]
            return self.b.binary("udiv", "i32", self.sum(dividend, 32), str(divisor))
        match name[:5]:
            case ".lane" | ".warp":
                return f"%{name[1:]}"
            case ".cta.":
                return f"%cta{name[5:]}"
            case ".tid.":
                x, y, _ = self.plan.shape.block
                divided = {"x": 1, "y": x, "z": x * y}[name[5:]]
                quotient = self.b.binary("udiv", "i32", self.thread(), str(divided)) if divided > 1 else self.thread()
                return self.b.binary("urem", "i32", quotient, str(y if name[5:] == "y" else x)) if name[5:] != "z" else quotient
            case _:
                width = self.plan.width(name)
                bits_of = self.form(self._pure_value(name), f"i{width}")
                return self.b.resize(bits_of, f"i{width}", f"i{bits}")

    def thread(self) -> str:
        """Return the linear number of the thread in its block (i32)."""
        if self.plan.is_one_loop:
            return "%lane"
        known = self._symbols.get((".thread", 32))
        if known is None:
            with self.prologue():
                first = self.b.op("shl nuw nsw i32 %warp, 5")
                known = self._symbols[".thread", 32] = self.b.op(f"add nuw nsw i32 {first}, %lane")
        return known

    def sum(self, value: Affine, bits: int) -> str:
        """Return an affine sum as an integer of `bits` bits."""
        with self.prologue():
            total = ""
            flags = "nuw nsw " if value.constant >= 0 and all(c > 0 for _, c in value.terms) and bits == 64 else ""
            for name, coefficient in value.terms:
                term = self.symbol(name, bits)
                if coefficient != 1:
                    term = self.b.op(f"mul {flags}i{bits} {term}, {coefficient}")
                total = self.b.op(f"add {flags}i{bits} {total}, {term}") if total else term
            if not total:
                return str(_signed(value.constant, bits))
            if value.constant:
                total = self.b.op(f"add {flags}i{bits} {total}, {_signed(value.constant, bits)}")
        return total

    # ---- reading ------------------------------------------------------------------------------------------------

    def width(self, operand: Operand) -> int:
        """Return the width of a register in bits (1 for a predicate); 0 for operands without a width."""
        if isinstance(operand, Register):
            return self.plan.width(operand.name)
        return 32 if isinstance(operand, SpecialRegister) and not operand.name.endswith("64") else 0

    def read(self, operand: Operand, form: str) -> str:
        """Return `operand` in a form that is not a pair."""
        name = self._read(operand, form)
        assert isinstance(name, str), "pairs are read by read_pair"
        return name

    def read_pair(self, operand: Operand, kind: str) -> tuple[str, str]:
        """Return the (low, high) halves of a packed f16x2, bf16x2 or f32x2 operand, as f32."""
        pair = self._read(operand, kind)
        assert isinstance(pair, tuple), "packed forms are pairs"
        return pair

    def _read(self, operand: Operand, form: str) -> Name:
        match operand:
            case Register():
                return self._form(self.value(operand.name), form)
            case Negated():
                return self.b.binary("xor", "i1", self.read(operand.register, "i1"), "true")
            case Integer():
                return self._immediate(operand.value, form)
            case Float():
                return self._float(operand, form)
            case Symbol():
                return str(self.plan.addresses[operand.name][1] + operand.offset)
            case SpecialRegister():
                return self._form(self._special(operand.name), form)
            case Address() | Vector() | Pair() | Sink() | OperandList():
                raise AssertionError(f"{operand} is not a value")
            case _:
                assert_never(operand)

    def known(self, operand: Operand) -> Value | None:
        """Return the known forms of a register; None for other operands."""
        return self.value(operand.name) if isinstance(operand, Register) else None

    def constant(self, operand: Operand) -> int | None:
        """Return the value of an operand that is the same integer in all threads and launches, else None."""
        affine = self.plan.pure.affine_of(operand)
        return affine.constant if affine is not None and not affine.terms else None

    def value(self, name: str) -> Value:
        """Return the known forms of a register."""
        if not self.plan.is_stored(name):
            return self._pure_value(name)
        value = self._values.get(name)
        if value is None:
            value = self._values[name] = self._load_register(name)
        return value

    def _load_register(self, name: str) -> Value:
        width = f"i{self.plan.width(name)}"
        if name in self.plan.dirty:
            return Value({"f32": self.b.op(f"load float, ptr %{place_of(name)}")}, dirty=True)
        return Value({width: self.b.op(f"load {width}, ptr %{place_of(name)}")})

    def _pure_value(self, name: str) -> Value:
        known = self._pure.get(name)
        if known is None:
            affine = self.plan.pure.affine_of(Register(name))
            width = self.plan.width(name)
            if affine is not None and affine.terms != ((name, 1),):
                known = self._pure[name] = Value({f"i{width}": self.sum(affine, width)})
            else:
                with self.prologue():
                    self._emit(self.plan.pure.definitions[name])
                known = self._pure[name] = self._values.pop(name)
            known.pure = True
        return known

    def _special(self, name: str) -> Value:
        affine = self.plan.pure.affine_of(SpecialRegister(name))
        if affine is not None:
            return Value({"i32": self.sum(affine, 32)})
        if name.startswith("%lanemask_"):
            return Value({"i32": self._lane_mask(name.removeprefix("%lanemask_"))})
        base = name.split(".")[0]
        if base in ("%clusterid", "%nclusterid"):
            return self._special(name.replace("cluster", "cta"))
        if base == "%total_smem_size":
            return Value({"i32": str(self.plan.shape.shared_bytes)})
        width = "i64" if name in ("%clock64", "%globaltimer") else "i32"
        return Value({width: "1" if base in _ONE else "0"})

    def _lane_mask(self, relation: str) -> str:
        own = self.b.binary("shl", "i32", "1", self.symbol(".lane", 32))
        below = self.b.binary("sub", "i32", own, "1")
        upto = self.b.binary("or", "i32", own, below)
        match relation:
            case "eq":
                return own
            case "lt":
                return below
            case "le":
                return upto
            case _:
                return self.b.binary("xor", "i32", upto if relation == "gt" else below, "-1")

    def _immediate(self, value: int, form: str) -> Name:
        match form:
            case "i1":
                return "true" if value & 1 else "false"
            case "f32":
                return f32_constant(value & 0xFFFFFFFF)
            case "f64":
                return f"bitcast (i64 {_signed(value, 64)} to double)"
            case _ if form in FORM_TYPES:
                return str(_signed(value, int(form[1:])))
            case _:
                width = {"f32x2": 64}.get(form, 32 if form.endswith("x2") else 16)
                return self._form(Value({f"i{width}": str(_signed(value, width))}), form)

    def _float(self, operand: Float, form: str) -> Name:
        """Return a float immediate in the format of the instruction. An untyped move uses its bits."""
        bits, width = operand.bits, operand.width
        if width == 64 and form in ("f32", "i32"):
            with np.errstate(all="ignore"):
                bits = int(np.array(bits, np.uint64).view(np.float64).astype(np.float32).view(np.uint32))
        elif width == 32 and form in ("f64", "i64"):
            bits = int(np.array(bits, np.uint32).view(np.float32).astype(np.float64).view(np.uint64))
        return self._immediate(bits, form)

    # ---- writing ------------------------------------------------------------------------------------------------

    def define(self, target: Operand, form: str, name: Name, *, dirty: bool = False) -> None:
        """Set the register `target`."""
        if not isinstance(target, Sink):
            assert isinstance(target, Register), "the target is a register"
            self.copy(target, Value({form: name}, dirty=dirty))

    def copy(self, target: Operand, value: Value) -> None:
        """Set the register `target` to `value`, in all its forms."""
        assert isinstance(target, Register), "the target is a register"
        self._values[target.name] = Value(dict(value.forms), dirty=value.dirty)
        self._defined.add(target.name)

    def set_flag(self, name: str, value: str) -> None:
        """Set the carry flag."""
        self._values[name] = Value({"i1": value})
        self._defined.add(name)


def place_of(name: str) -> str:
    """Return the name of the function's memory for a register between blocks."""
    return f'"r {name}"'


def _signed(value: int, bits: int) -> int:
    """Return a constant in LLVM's signed notation. LLVM rejects constants that do not fit into the width."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value
