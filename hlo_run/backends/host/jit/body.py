"""Write a phase as LLVM IR: the code that one thread runs from one meeting to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from hlo_run.backends.host.jit.affine_sum import Affine
from hlo_run.backends.host.jit.builder import Builder, ModuleText
from hlo_run.backends.host.jit.phases import Phase
from hlo_run.backends.host.jit.plan import CANCEL, PLACES, SLOTS, Plan
from hlo_run.backends.host.jit.registers import Registers, place_of
from hlo_run.backends.host.ptx.control_flow import (
    EFFECTS,
    Branch,
    Exit,
    FunctionBlocks,
    Invoke,
    Jump,
    Return,
    Switch,
    used_results,
)
from hlo_run.backends.host.ptx.instruction_set import WRONG_OPERANDS, Operation
from hlo_run.backends.host.ptx.purity import changes_memory
from hlo_run.backends.host.ptx.syntax import Register

Emitters: TypeAlias = "Mapping[type[Struct], Callable[[Body, Operation], None]]"
CANCELLED = 0x7FFFFFFF
"""The fault of a thread that was cancelled."""
PARAMETERS = "i32 %warp, i32 %lane, i32 %ctax, i32 %ctay, i32 %ctaz"
"""The parameters of every function about one thread, after the state."""


# Vectorised, a load becomes a gather: some 2 cycles an item instead of 0.5. This many lines of LLVM IR make up for it.
_LINES_PER_GATHER = 18
# Vector code runs all blocks, scalar code only those on a thread's path.
_MOST_BLOCKS = 16

_WORD = 8


class Body(Registers):
    """The function of one phase."""

    def __init__(
        self,
        plan: Plan,
        module: ModuleText,
        phase: Phase,
        emitters: Emitters,
        *,
        jumps: bool = False,
        path: tuple[str, Mapping[int, int]] = ("", {}),
        called: FunctionBlocks | None = None,
    ) -> None:
        """`path` is the suffix of the function's name, and the targets of blocks whose branch is already decided.

        With `called`, the blocks are those of a function that the kernel calls, which is code of a thread like any other.
        """
        super().__init__(plan, module, phase)
        self._called = called
        self._kept_results = KeptResults(plan, self.b)
        calls = any(isinstance(plan.graph.blocks[index].terminator, Invoke) for index in phase.blocks)
        self._has_record = calls or called is not None
        self._ending, self._decided = path
        self.jumps = jumps
        """Scalar code branches around loads that must not execute."""
        self._emitters = emitters
        self.result_is_used = True
        self.is_parallel = True
        """True while no thread of the phase is known to access data that another one writes, by the order of its code."""
        self.normal: set[str] = set()
        """Names of f32 values that are never subnormal, so they need no flush."""
        self.unit: set[str] = set()
        """Names of values in [0, 1]."""
        self.numbers: set[str] = set()
        """Names of values that are never NaN."""
        self.gathers = 0
        """The number of checked items that are not known to be adjacent for neighbouring threads."""
        self._straight = True
        self._written: set[str] = set()
        self._detours: list[tuple[str, int]] = []
        self._stored = self._registers_between_blocks()

    def _registers_between_blocks(self) -> dict[str, str]:
        """Return the registers that the function keeps in memory between blocks, with their LLVM types there."""
        plan = self.plan
        names: set[str] = set()
        for index in self.phase.blocks:
            block = plan.graph.blocks[index]
            names.update(block.live_in)
            for target in block.successors():
                names.update(plan.graph.blocks[target].live_in)
        return {name: f"i{plan.width(name)}" for name in sorted(names) if plan.is_stored(name)}

    # ---- faults -------------------------------------------------------------------------------------------------

    def fault(self, line: int, condition: str = "") -> None:
        """Record a fault at a PTX line, unless `condition` holds. The thread continues.

        Several faults are combined by `or`: the result is not 0, but may be no valid line. The emulator finds the correct one.
        """
        old = self.b.op("load i32, ptr %fault")
        code = self.b.select(condition, "i32", "0", str(line)) if condition else str(line)
        # No branch and no maximum: LLVM can vectorise this even if the access itself is in a branch.
        self.b.do(f"store i32 {self.b.binary('or', 'i32', old, code)}, ptr %fault")

    # ---- profitability of vectors -------------------------------------------------------------------------------

    def note_places(self, offset: Affine | None, size: int, count: int) -> None:
        """Count a checked load of `count` items of `size` bytes at an offset from a base."""
        by_lane = dict(offset.terms) if offset is not None else {}
        step = by_lane.pop(".lane", 0)
        depends = offset is None or any(self.plan.pure.depends_on_lane(name) for name in by_lane)
        if depends or step not in ((0, size, size * count) if self._straight else (0, size)):
            self.gathers += count

    @property
    def pays_as_vectors(self) -> bool:
        """False if scattered loads, which are slower in vectors, dominate the phase, or if it branches often."""
        if self.gathers and len(self.phase.blocks) > _MOST_BLOCKS:
            return False
        return len(self.b.lines) + len(self._prologue) >= _LINES_PER_GATHER * self.gathers

    # ---- order of accesses --------------------------------------------------------------------------------------

    def note_store(self, space: str) -> None:
        """Record that the phase writes a memory space ("": any)."""
        self._written.add(self.plan.shape.aliases(space))

    def note_load(self, space: str) -> None:
        """Record that the phase reads a memory space. If it may read its own writes, its accesses are not independent."""
        kind = self.plan.shape.aliases(space)
        if space != "constant" and self._written and (not kind or "" in self._written or kind in self._written):
            self.is_parallel = False

    # ---- the function -------------------------------------------------------------------------------------------

    def write(self) -> str:
        """Return the function's text."""
        for index in self.phase.blocks:
            self._block(index)
        for number in self.phase.successors:
            self._arrive(number)
        self.b.label("leave")
        self._leave()
        head = [self._head(), "start:"]
        kept = [f"  %{place_of(name)} = alloca {type_name}" for name, type_name in self._stored.items()]
        loads = self._load_slots()  # also writes to the prologue
        begin = self._begin()
        return "\n".join([*head, *kept, *self._prologue, *loads, *begin, *self.b.lines, "}"])

    def _begin(self) -> list[str]:
        """Return the lines that lead to the first block. A called function may return what it did at its last call."""
        here, self.b.lines = self.b.lines, []
        first = f"block{self.phase.entry}"
        if self._called is not None:
            self._kept_results.look_up(self._called, self._arguments(self._called), first)
        else:
            if self._has_record:
                self._kept_results.reserve()
            self.b.jump(first)
        lines, self.b.lines = self.b.lines, here
        return lines

    def _arguments(self, function: FunctionBlocks) -> list[str]:
        return [f"%{argument_of(name)}" for name, _ in self.plan.inputs(function)]

    def _head(self) -> str:
        if self._called is None:
            return f"define internal void @phase{self.phase.number}{self._ending}(ptr %st, ptr %fault, {PARAMETERS}) #0 {{"
        inputs = "".join(f", i{width} %{argument_of(name)}" for name, width in self.plan.inputs(self._called))
        inputs = self._kept_results.parameter + inputs
        result, name = self.plan.result_type(self._called), function_name(self._called)
        return f"define internal {result} {name}(ptr %st, ptr %fault, {PARAMETERS}{inputs}) noinline #0 {{"

    def _leave(self) -> None:
        """End the function; a called one returns its results."""
        if self._called is None:
            self._store_place(-1)
            self.b.do("ret void")
            return
        self._values.clear()
        results = [self.form(self.value(name), f"i{width}") for name, width in self.plan.outputs(self._called)]
        self._kept_results.keep(self._called, self._arguments(self._called), results)
        self._kept_results.return_from(self._called, results)

    def _load_slots(self) -> list[str]:
        """Load the registers that are live into the phase. At the kernel's start, unset registers are 0."""
        inputs = dict(self.plan.inputs(self._called)) if self._called else {}
        here, self.b.lines = self.b.lines, []
        for name in self.plan.graph.blocks[self.phase.entry].live_in:
            if name not in self._stored:
                continue
            type_name = self._stored[name]
            value = "0"
            if name in inputs:
                value = f"%{argument_of(name)}"
            elif self.phase.number and self._called is None:
                value = self.load_slot(name, self.thread(), self.plan.width(name))
            self.b.do(f"store {type_name} {value}, ptr %{place_of(name)}")
        lines, self.b.lines = self.b.lines, here
        return lines

    def slot(self, name: str, thread: str, width: int) -> str:
        """Return the address of a thread's value of a register."""
        size = max(1, width // 8)
        index = self.b.resize(thread, "i32", "i64")
        offset = self.b.op(f"mul nuw nsw i64 {index}, {size}")
        return self.b.pointer(self.b.pointer(self.state(SLOTS), str(self.plan.slots[name])), offset)

    def load_slot(self, name: str, thread: str, width: int) -> str:
        """Return a thread's value of a register from its slot."""
        place = self.slot(name, thread, width)
        if width == 1:
            return self.b.resize(self.b.op(f"load i8, ptr {place}, !llvm.access.group !1"), "i8", "i1")
        return self.b.op(f"load i{width}, ptr {place}, !llvm.access.group !1")

    def _block(self, index: int) -> None:
        plan, block = self.plan, self.plan.graph.blocks[index]
        self._straight = index == self.phase.entry or (plan.guard is not None and index == plan.guard.goes_on)
        self.b.label(f"block{index}")
        self._values.clear()
        self._defined.clear()
        for operation, is_used in zip(block.operations, used_results(block), strict=True):
            self.result_is_used = is_used
            if operation.opcode not in EFFECTS and not is_used:
                continue
            if any(not plan.is_stored(name) for name in operation.writes()):
                continue  # computed where it is needed
            self._emit(operation)
        for name in block.live_out:
            if name in self._defined and name in self._stored:
                self._keep(name)
        self._terminate(index)

    def _keep(self, name: str) -> None:
        value = self._values[name]
        if name in self.plan.dirty:
            self.b.do(f"store float {self.form(value, 'f32')}, ptr %{place_of(name)}")
        else:
            width = f"i{self.plan.width(name)}"
            self.b.do(f"store {width} {self.form(value, width)}, ptr %{place_of(name)}")

    def _emit(self, operation: Operation) -> None:
        try:
            self._emitters[type(operation.spec)](self, operation)
            if self._has_record and changes_memory(operation):
                self._kept_results.forget()
        except WRONG_OPERANDS as error:
            raise operation.unsupported() from error

    # ---- control flow -------------------------------------------------------------------------------------------

    def _terminate(self, index: int) -> None:
        block = self.plan.graph.blocks[index]
        if index == 0 and self.plan.guard is not None and self.plan.is_one_loop:
            self.b.jump(self._way(index, self.plan.guard.goes_on))  # the loop skips the other threads
            return
        if index in self._decided:
            self.b.jump(self._way(index, self._decided[index]))
            self._write_detours()
            return
        match block.terminator:
            case Jump(target):
                self.b.jump(self._way(index, target))
            case Branch(register, negated, taken, otherwise):
                places = (otherwise, taken) if negated else (taken, otherwise)
                condition = self.read(Register(register), "i1")
                yes, no = (self._way(index, place) for place in places)
                self.b.branch(condition, yes, no)
            case Switch(register, targets, line):
                self._switch(index, register, targets, line)
            case Invoke(function, _, following):
                self._invoke(self.plan.graph.functions[function])
                self.b.jump(self._way(index, following))
            case Exit() | Return():
                self.b.jump("leave")
        self._write_detours()

    def _invoke(self, function: FunctionBlocks) -> None:
        """Call a function with its inputs, and keep its outputs."""
        self.is_parallel = False
        plan, b = self.plan, self.b
        inputs = [f"i{width} {self.form(self.value(name), f'i{width}')}" for name, width in plan.inputs(function)]
        arguments = ", ".join((f"ptr %st, ptr %fault, {PARAMETERS}{self._kept_results.parameter}", *inputs))
        call = f"call {plan.result_type(function)} {function_name(function)}({arguments})"
        if not plan.outputs(function):
            b.do(call)
            return
        result = b.op(call)
        for number, (name, width) in enumerate(plan.outputs(function)):
            if name in self._stored:
                bits = b.op(f"extractvalue {plan.result_type(function)} {result}, {number}")
                b.do(f"store i{width} {bits}, ptr %{place_of(name)}")

    def _switch(self, index: int, register: str, targets: tuple[int, ...], line: int) -> None:
        bits = self.read(Register(register), "i32")
        outside = self.b.fresh("outside")
        cases = " ".join(f"i32 {number}, label %{self._way(index, target)}" for number, target in enumerate(targets))
        self.b.do(f"switch i32 {bits}, label %{outside} [ {cases} ]")
        self.b.label(outside)
        self.fault(line)
        self.b.jump("leave")

    def _way(self, index: int, target: int) -> str:
        """Return the label to jump to. A jump backwards may first test whether to stop."""
        if self.plan.graph.blocks[target].cut is not None:
            return f"arrive{target}"
        if target > index or not self.plan.shape.interruptible:
            return f"block{target}"
        label = self.b.fresh("back")
        self._detours.append((label, target))
        return label

    def _write_detours(self) -> None:
        for label, target in self._detours:
            self.b.label(label)
            flag = self.b.op(f"load volatile i32, ptr {self.state(CANCEL)}, align 4")
            stop = self.b.fresh("stop")
            self.b.branch(self.b.compare("eq", "i32", flag, "0"), f"block{target}", stop)
            self.b.label(stop)
            self.fault(CANCELLED)
            self.b.jump("leave")
        self._detours.clear()

    def _arrive(self, number: int) -> None:
        """Store live registers into slots, record the phase at which the thread waits, and end the phase."""
        plan = self.plan
        entry = plan.phases[number].entry
        self.b.label(f"arrive{entry}")
        self._values.clear()
        for name in plan.graph.blocks[entry].live_in:
            if name in self._stored:
                self._store_slot(name)
        self._store_place(number)
        self.b.do("ret void")

    def _store_slot(self, name: str) -> None:
        width = self.plan.width(name)
        bits = self.form(self.value(name), f"i{width}")
        place = self.slot(name, self.thread(), width)
        if width == 1:
            bits, width = self.b.resize(bits, "i1", "i8"), 8
        self.b.do(f"store i{width} {bits}, ptr {place}, !llvm.access.group !1")

    def _store_place(self, number: int) -> None:
        """Record the phase at which the thread waits (-1: it has ended)."""
        if self.plan.has_cuts:
            place = self.b.pointer(
                self.state(PLACES), self.b.op(f"mul nuw nsw i64 {self.b.resize(self.thread(), 'i32', 'i64')}, 4")
            )
            self.b.do(f"store i32 {number}, ptr {place}, align 4, !llvm.access.group !1")


def function_name(function: FunctionBlocks) -> str:
    """Return the name of a called function in LLVM IR."""
    return f'@"f {function.name}"'


def argument_of(name: str) -> str:
    """Return the name of the argument for a register."""
    return f'"a {name}"'


class KeptResults:
    """Writes the code that keeps the last results of each pure function, so that a thread does not compute equal calls again.

    The record of a thread's calls lies in the frame of its phase, in `%known`, which is a parameter of every called function. It
    has a word per function, which is not 0 if its record is valid, then per function its arguments and results, a word each.
    """

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
        """Return the kept results if the arguments equal the record's, else go to the block `unknown`."""
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
        self.return_from(function, results)

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

    def return_from(self, function: FunctionBlocks, results: Sequence[str]) -> None:
        """Return from a function."""
        kind, result = self._plan.result_type(function), "undef"
        for number, ((_, width), bits) in enumerate(zip(self._plan.outputs(function), results, strict=True)):
            result = self._b.op(f"insertvalue {kind} {result}, i{width} {bits}, {number}")
        self._b.do(f"ret {kind} {result}" if results else "ret void")

    def _place(self, number: int, word: int) -> str:
        offset = self._count + number * self._plan.record_words + word
        return self._b.pointer("%known", str(_WORD * offset))
