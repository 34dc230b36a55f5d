"""Keep the last results of each pure function while a thread runs, so that a call with the same arguments is not computed again.

The record of a thread's calls lies in the frame of its phase: first a word per function, which is not 0 if its record is valid,
then per function its arguments and results, a word each.
"""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.backends.host.jit.builder import Builder
from hlo_run.backends.host.jit.plan import Plan
from hlo_run.backends.host.ptx.control_flow import FunctionBlocks

_WORD = 8


class KeptResults:
    """Writes the code that uses the record. It is in `%known`, which is a parameter of every called function."""

    def __init__(self, plan: Plan, b: Builder) -> None:
        self._plan = plan
        self._b = b
        self._count = len(plan.remembered)

    @property
    def parameter(self) -> str:
        """The parameter or argument that passes the record on; empty if no function is pure."""
        return ", ptr %known" if self._count else ""

    def reserve(self) -> None:
        """Reserve the record in a phase's frame."""
        if self._count:
            words = self._count * (1 + self._plan.record_words)
            self._b.do(f"%known = alloca [{words} x i64], align {_WORD}")
            self.forget()

    def forget(self) -> None:
        """Make all records invalid, as memory may have changed."""
        if self._count:
            name = "llvm.memset.p0.i64"
            self._b.module.declarations[name] = f"declare void @{name}(ptr, i8, i64, i1)"
            self._b.do(f"call void @{name}(ptr %known, i8 0, i64 {_WORD * self._count}, i1 false)")

    def look_up(self, function: FunctionBlocks, arguments: Sequence[str], unknown: str) -> None:
        """Return the kept results if the arguments are those of the record, else go to the block `unknown`."""
        number = self._plan.remembered.get(function.name)
        if number is None:
            self._b.jump(unknown)
            return
        b, plan = self._b, self._plan
        valid = b.op(f"load i64, ptr {b.pointer('%known', str(_WORD * number))}")
        same = b.compare("ne", "i64", valid, "0")
        for place, ((_, width), argument) in enumerate(zip(plan.inputs(function), arguments, strict=True)):
            kept = b.op(f"load i{width}, ptr {self._place(number, place)}")
            same = b.binary("and", "i1", same, b.compare("eq", f"i{width}", kept, argument))
        known = b.fresh("known")
        b.branch(same, known, unknown)
        b.label(known)
        first = len(plan.inputs(function))
        outputs = enumerate(plan.outputs(function), first)
        results = [b.op(f"load i{width}, ptr {self._place(number, place)}") for place, (_, width) in outputs]
        self.give(function, results)

    def keep(self, function: FunctionBlocks, arguments: Sequence[str], results: Sequence[str]) -> None:
        """Store arguments and results in the record."""
        number = self._plan.remembered.get(function.name)
        if number is None:
            return
        b, plan = self._b, self._plan
        widths = [width for _, width in (*plan.inputs(function), *plan.outputs(function))]
        for place, (width, value) in enumerate(zip(widths, (*arguments, *results), strict=True)):
            b.do(f"store i{width} {value}, ptr {self._place(number, place)}")
        b.do(f"store i64 1, ptr {b.pointer('%known', str(_WORD * number))}")

    def give(self, function: FunctionBlocks, results: Sequence[str]) -> None:
        """Return from a function."""
        kind, result = self._plan.result_type(function), "undef"
        for number, ((_, width), bits) in enumerate(zip(self._plan.outputs(function), results, strict=True)):
            result = self._b.op(f"insertvalue {kind} {result}, i{width} {bits}, {number}")
        self._b.do(f"ret {kind} {result}" if results else "ret void")

    def _place(self, number: int, word: int) -> str:
        offset = self._count + number * self._plan.record_words + word
        return self._b.pointer("%known", str(_WORD * offset))
