"""LLVM IR as text: lines with fresh names for values and labels, and the common idioms."""

from __future__ import annotations

import struct

from msgspec import Struct, field

FORM_TYPES = {"i1": "i1", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64", "f32": "float", "f64": "double"}
"""LLVM's type of the plain forms."""

_SUFFIX = {"float": "f32", "double": "f64", "half": "f16"}


class ModuleText(Struct):
    """The parts of a module: functions, declarations of the called intrinsics, and metadata."""

    declarations: dict[str, str] = field(default_factory=dict[str, str])
    functions: list[str] = field(default_factory=list[str])
    trailer: list[str] = field(default_factory=list[str])

    def parallel_loop(self, *, vectors: bool = True) -> str:
        """Return the suffix of a loop's back edge: its iterations are independent. Without `vectors` it is not vectorised."""
        number = 10 + len(self.trailer)
        rest = "" if vectors else ', !{!"llvm.loop.vectorize.enable", i1 false}'
        self.trailer.append(f"!{number} = distinct !{{!{number}, !3{rest}}}")
        return f", !llvm.loop !{number}"

    def __str__(self) -> str:
        declared = [self.declarations[name] for name in sorted(self.declarations)]
        return "\n".join([*self.functions, *declared, *self.trailer]) + "\n"


def f32_constant(bits: int) -> str:
    """Return the f32 constant with these bits."""
    return f"bitcast (i32 {bits} to float)"


def f64_constant(value: float) -> str:
    """Return an f64 constant."""
    return f"0x{int.from_bytes(struct.pack('<d', value), 'little'):016X}"


class Builder:
    """The lines of one function. Methods return the names of new values. Types are LLVM's."""

    def __init__(self, module: ModuleText, prefix: str = "v") -> None:
        self.module = module
        self.lines: list[str] = []
        self._prefix = prefix
        self._count = 0

    # ---- lines --------------------------------------------------------------------------------------------------

    def fresh(self, stem: str = "") -> str:
        """Return an unused name, without `%`."""
        self._count += 1
        return f"{stem or self._prefix}{self._count}"

    def do(self, line: str) -> None:
        """Add a line without a result."""
        self.lines.append(f"  {line}")

    def op(self, expression: str) -> str:
        """Add `%new = expression` and return `%new`."""
        name = f"%{self.fresh()}"
        self.lines.append(f"  {name} = {expression}")
        return name

    def label(self, name: str) -> None:
        """Begin a basic block."""
        self.lines.append(f"{name}:")

    def jump(self, target: str) -> None:
        """End the current block with a jump."""
        self.do(f"br label %{target}")

    def branch(self, condition: str, yes: str, no: str) -> None:
        """End the current block with a branch on an i1."""
        self.do(f"br i1 {condition}, label %{yes}, label %{no}")

    def place(self) -> str:
        """End the current block and begin a new one. Return its label."""
        name = self.fresh("b")
        self.jump(name)
        self.label(name)
        return name

    # ---- idioms -------------------------------------------------------------------------------------------------

    def binary(self, operation: str, type_name: str, a: str, b: str) -> str:
        """Return the result of an operation on two values of one type."""
        return self.op(f"{operation} {type_name} {a}, {b}")

    def compare(self, predicate: str, type_name: str, a: str, b: str) -> str:
        """Return an i1. `predicate` is one of icmp's, or of fcmp's for floating-point types."""
        kind = "fcmp" if type_name in _SUFFIX else "icmp"
        return self.op(f"{kind} {predicate} {type_name} {a}, {b}")

    def select(self, condition: str, type_name: str, a: str, b: str) -> str:
        """Return `a` if the i1 is true, otherwise `b`."""
        return a if a == b else self.op(f"select i1 {condition}, {type_name} {a}, {type_name} {b}")

    def cast(self, operation: str, value: str, source: str, target: str) -> str:
        """Return the value converted from type `source` to type `target`; the value itself if they are equal."""
        return value if source == target else self.op(f"{operation} {source} {value} to {target}")

    def resize(self, value: str, source: str, target: str, signed: bool = False) -> str:
        """Return an integer truncated or extended."""
        wide, narrow = int(target[1:]), int(source[1:])
        return self.cast("trunc" if wide < narrow else "sext" if signed else "zext", value, source, target)

    def intrinsic(self, name: str, result: str, *arguments: tuple[str, str]) -> str:
        """Call `llvm.NAME`. Arguments are (type, value)."""
        function = f"llvm.{name}"
        types = ", ".join(type_name for type_name, _ in arguments)
        self.module.declarations[function] = f"declare {result} @{function}({types})"
        return self.op(f"call {result} @{function}({', '.join(f'{t} {v}' for t, v in arguments)})")

    def math(self, name: str, type_name: str, *values: str) -> str:
        """Call an intrinsic whose operands and result have one type."""
        suffix = _SUFFIX.get(type_name, type_name)
        return self.intrinsic(f"{name}.{suffix}", type_name, *((type_name, value) for value in values))

    def pointer(self, base: str, offset: str) -> str:
        """Return the address `offset` (i64) bytes behind `base`."""
        return self.op(f"getelementptr i8, ptr {base}, i64 {offset}")

    def loop(self, count: str, name: str) -> Loop:
        """Begin a loop over i32 in [0, count). `count` is at least 1."""
        return Loop(self, count, name)


class Loop:
    """`with builder.loop(n, "t") as t:` runs the body n times. `metadata` goes on the back edge."""

    def __init__(self, builder: Builder, count: str, name: str) -> None:
        self._builder = builder
        self._count = count
        self._label = builder.fresh(name)
        self.metadata = ""
        self.index = f"%{self._label}.i"

    def __enter__(self) -> Loop:
        b, label = self._builder, self._label
        b.jump(f"{label}.entry")
        b.label(f"{label}.entry")
        b.jump(f"{label}.body")
        b.label(f"{label}.body")
        b.do(f"{self.index} = phi i32 [ 0, %{label}.entry ], [ %{label}.n, %{label}.latch ]")
        return self

    def __exit__(self, *_: object) -> None:
        b, label = self._builder, self._label
        b.jump(f"{label}.latch")
        b.label(f"{label}.latch")
        b.do(f"%{label}.n = add nuw nsw i32 {self.index}, 1")
        done = b.compare("uge", "i32", f"%{label}.n", self._count)
        b.do(f"br i1 {done}, label %{label}.done, label %{label}.body{self.metadata}")
        b.label(f"{label}.done")
