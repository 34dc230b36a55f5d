"""The forms in which a register's value may be known, and the conversions between them.

A register may be known in several *forms* at once: its bits (`i1`, `i16`, `i32`, `i64`), an f32 or f64, an f16 or bf16 value
widened to f32 (`f16`, `bf16`), or two values that share one register (`f16x2`, `bf16x2`, `f32x2`: pairs of names). A form is
computed from another one on first use. A float form is *dirty* while its NaNs may have any bits; a conversion to bits makes them
canonical.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TypeAlias

from hlo_run.backends.host.jit.builder import Builder, ModuleText

Name: TypeAlias = "str | tuple[str, str]"
NAN32, NAN16 = 0x7FFFFFFF, 0x7FFF


class Value:
    """The known forms of a register's value, each with its name. New forms of a `pure` value go to the function's prologue."""

    __slots__ = ("dirty", "forms", "pure")

    def __init__(self, forms: dict[str, Name], *, dirty: bool = False, pure: bool = False) -> None:
        self.forms = forms
        self.dirty = dirty
        self.pure = pure


class Forms:
    """Converts values while a function is written. `b` writes at the current place."""

    def __init__(self, module: ModuleText) -> None:
        self.b = Builder(module)
        self._prologue: list[str] = []

    @contextmanager
    def prologue(self) -> Generator[None]:
        """Write to the start of the function instead of the current place."""
        here, self.b.lines = self.b.lines, self._prologue
        yield
        self._prologue, self.b.lines = self.b.lines, here

    # ---- forms --------------------------------------------------------------------------------------------------

    def form(self, value: Value, form: str) -> str:
        """Return the name of `value` in a form that is not a pair."""
        name = self._form(value, form)
        assert isinstance(name, str), "pairs are read by read_pair"
        return name

    def _form(self, value: Value, form: str) -> Name:
        name = value.forms.get(form)
        if name is None and value.pure:
            with self.prologue():
                name = value.forms[form] = self._convert(value, form)
        elif name is None:
            name = value.forms[form] = self._convert(value, form)
        return name

    def _convert(self, value: Value, form: str) -> Name:
        b = self.b
        match form:
            case "f32":
                return b.cast("bitcast", self.form(value, "i32"), "i32", "float")
            case "f64":
                return b.cast("bitcast", self.form(value, "i64"), "i64", "double")
            case "f16" | "bf16":
                return self.widen(self.form(value, "i16"), form)
            case "f16x2" | "bf16x2":
                return self.halves(self.form(value, "i32"), form)
            case "f32x2":
                bits = self.form(value, "i64")
                high = b.resize(b.binary("lshr", "i64", bits, "32"), "i64", "i32")
                low = b.resize(bits, "i64", "i32")
                return b.cast("bitcast", low, "i32", "float"), b.cast("bitcast", high, "i32", "float")
            case _:
                return self._bits(value, form)

    def halves(self, bits: str, kind: str) -> tuple[str, str]:
        """Return the two values of an f16x2 or bf16x2 register as f32."""
        b = self.b
        high = b.resize(b.binary("lshr", "i32", bits, "16"), "i32", "i16")
        return self.widen(b.resize(bits, "i32", "i16"), kind[:-2]), self.widen(high, kind[:-2])

    def widen(self, bits: str, kind: str) -> str:
        """Return an f16 or bf16 value, given by its bits, as f32."""
        b = self.b
        if kind == "f16":
            return b.cast("fpext", b.cast("bitcast", bits, "i16", "half"), "half", "float")
        return b.cast("bitcast", b.op(f"shl i32 {b.resize(bits, 'i16', 'i32')}, 16"), "i32", "float")

    def _bits(self, value: Value, form: str) -> str:
        forms, b = value.forms, self.b
        for source, name in forms.items():
            if isinstance(name, tuple):
                return self._pack(source, name, value.dirty)
            match source:
                case "f32":
                    bits = b.cast("bitcast", name, "float", "i32")
                    return self.canonical(bits, name, "i32", NAN32) if value.dirty else bits
                case "f64":
                    return b.cast("bitcast", name, "double", "i64")
                case "f16" | "bf16":
                    return self._half_bits(name, source, value.dirty)
                case _:
                    pass
        raise AssertionError(f"no way from {list(forms)} to {form}")

    def _pack(self, kind: str, halves: tuple[str, str], dirty: bool) -> str:
        b = self.b
        if kind == "f32x2":
            low, high = (self.form(Value({"f32": half}, dirty=dirty), "i32") for half in halves)
            upper = b.op(f"shl i64 {b.resize(high, 'i32', 'i64')}, 32")
            return b.binary("or", "i64", upper, b.resize(low, "i32", "i64"))
        low, high = (self._half_bits(half, kind[:-2], dirty) for half in halves)
        upper = b.op(f"shl i32 {b.resize(high, 'i16', 'i32')}, 16")
        return b.binary("or", "i32", upper, b.resize(low, "i16", "i32"))

    def _half_bits(self, name: str, kind: str, dirty: bool) -> str:
        b = self.b
        if kind == "f16":
            bits = b.cast("bitcast", b.cast("fptrunc", name, "float", "half"), "half", "i16")
        else:
            bits = b.resize(b.op(f"lshr i32 {b.cast('bitcast', name, 'float', 'i32')}, 16"), "i32", "i16")
        return self.canonical(bits, name, "i16", NAN16) if dirty else bits

    def canonical(self, bits: str, name: str, type_name: str, nan: int) -> str:
        """Return the bits of an f32 (or wide) value. Every NaN is canonical."""
        return self.b.select(self.b.compare("uno", "float", name, name), type_name, str(nan), bits)
