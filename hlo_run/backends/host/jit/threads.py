"""Operations across threads: the code between two phases, and the code with which a phase takes its results.

Before the phase behind a meeting runs, its `exchange` function reads the operand slots of all threads. It stores every thread's
result in separate slots, so that a phase never sees values of threads that have already continued.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from msgspec import Struct

from hlo_run.backends.host.jit.body import Body
from hlo_run.backends.host.jit.builder import Builder, ModuleText
from hlo_run.backends.host.jit.integer import Emit
from hlo_run.backends.host.jit.phases import Phase
from hlo_run.backends.host.jit.plan import PLACES, SLOTS, Plan, result_slot
from hlo_run.backends.host.ptx import specs
from hlo_run.backends.host.ptx.instruction_set import Operation, row
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
from hlo_run.target import WARP_THREADS

# ---- in the phase ---------------------------------------------------------------------------------------------------


def _take(e: Body, target: Operand, part: int, width: int) -> None:
    """Set a register to a result of the meeting that began this phase."""
    if not isinstance(target, Sink):
        e.define(target, f"i{width}", e.load_slot(result_slot(e.phase.number, part), e.thread(), width))


def _take_both(e: Body, target: Operand) -> None:
    """Set a register, or a register and a predicate."""
    if isinstance(target, Pair):
        _take(e, target.first, 0, 32)
        _take(e, target.second, 1, 1)
    else:
        _take(e, target, 0, 32)


def _word_and_flag(e: Body, op: Operation, spec: specs.Shuffle | specs.Match | specs.Elect) -> None:
    del spec
    _take_both(e, op.operands[0])


def _word(e: Body, op: Operation, spec: specs.ReduceWarp | specs.ActiveMask) -> None:
    del spec
    _take(e, op.operands[0], 0, 32)


def _word_or_flag(e: Body, target: Operand, is_word: bool) -> None:
    _take(e, target, *((0, 32) if is_word else (1, 1)))


def _vote(e: Body, op: Operation, spec: specs.Vote) -> None:
    _word_or_flag(e, op.operands[0], spec.mode == "ballot")


def _barrier(e: Body, op: Operation, spec: specs.Barrier) -> None:
    if spec.is_warp:
        return
    operands = op.operands[1:-1] if spec.reduction else op.operands
    if len(operands) > 1 and e.constant(operands[1]) != e.plan.threads:
        raise op.unsupported()
    if spec.reduction:
        _word_or_flag(e, op.operands[0], spec.reduction == "popc")


def _trap(e: Body, op: Operation, spec: specs.Trap) -> None:
    del spec
    e.fault(op.line)


def _nothing(e: Body, op: Operation, spec: specs.NoEffect) -> None:
    """Emit nothing: writes are visible behind the next meeting."""
    del e, op, spec


EMITTERS: Mapping[type[Struct], Emit] = dict(
    (
        row(specs.Shuffle, _word_and_flag),
        row(specs.Vote, _vote),
        row(specs.Match, _word_and_flag),
        row(specs.ReduceWarp, _word),
        row(specs.Elect, _word_and_flag),
        row(specs.ActiveMask, _word),
        row(specs.Barrier, _barrier),
        row(specs.Trap, _trap),
        row(specs.NoEffect, _nothing),
    )
)


# ---- between phases -------------------------------------------------------------------------------------------------


def write_exchange(plan: Plan, module: ModuleText, phase: Phase) -> bool:
    """Add the function `@exchangeN` of a phase to the module if the phase needs one. Return whether it does."""
    op = phase.meeting
    if op is None or (isinstance(op.spec, specs.Barrier) and not op.spec.reduction):
        return False
    _Exchange(plan, module, phase, op).write()
    return True


class _Exchange:
    def __init__(self, plan: Plan, module: ModuleText, phase: Phase, op: Operation) -> None:
        self._plan = plan
        self._module = module
        self._phase = phase
        self._op = op
        self.b = Builder(module)
        self._slots = ""
        self._places = ""

    def write(self) -> None:
        b = self.b
        b.label("start")
        self._slots, self._places = (b.op(f"load ptr, ptr {b.pointer('%st', str(8 * index))}") for index in (SLOTS, PLACES))
        spec = self._op.spec
        fixed = self._fixed_shuffle() if isinstance(spec, specs.Shuffle) else None
        match spec:
            case specs.Shuffle(mode) if fixed is not None:
                self._permute(mode, *fixed)
            case specs.Shuffle(mode):
                with b.loop(str(self._plan.threads), "t") as thread:
                    self._shuffle(mode, thread.index)
                    thread.metadata = self._module.parallel_loop()
            case specs.Barrier():
                self._reduce_block(spec)
            case _:
                with b.loop(str(self._plan.threads), "t") as thread:
                    self._fold(thread.index)
        b.do("ret void")
        head = f"define internal void @exchange{self._phase.number}(ptr %st) noinline #0 {{"
        self._module.functions.append("\n".join([head, *b.lines, "}"]))

    # ---- slots --------------------------------------------------------------------------------------------------

    def _slot(self, name: str, thread: str, width: int) -> str:
        wide = self.b.resize(thread, "i32", "i64")
        offset = self.b.op(f"mul nuw nsw i64 {wide}, {max(1, width // 8)}")
        return self.b.pointer(self.b.pointer(self._slots, str(self._plan.slots[name])), offset)

    def _operand(self, operand: Operand, thread: str, width: int) -> str:
        """Return a thread's value of an operand of the meeting."""
        b = self.b
        match operand:
            case Integer():
                value = operand.value & ((1 << width) - 1)
                return str(value - (1 << width) if value >> (width - 1) and width > 1 else value)
            case Negated():
                return b.binary("xor", "i1", self._operand(operand.register, thread, 1), "true")
            case Register() if not self._plan.is_stored(operand.name):
                affine = self._plan.pure.affine_of(operand)
                assert affine is not None, "an operand of a meeting without a slot is a constant"
                return self._operand(Integer(affine.constant), thread, width)
            case Register():
                place = self._slot(operand.name, thread, width)
                if width == 1:
                    return b.resize(b.op(f"load i8, ptr {place}, !llvm.access.group !1"), "i8", "i1")
                return b.op(f"load i{width}, ptr {place}, !llvm.access.group !1")
            case SpecialRegister("%laneid"):
                return b.binary("and", "i32", thread, "31")
            case SpecialRegister("%tid.x") if self._plan.pure.flat:
                return thread
            case SpecialRegister() | Float() | Symbol() | Address() | Vector() | Pair() | Sink() | OperandList():
                raise self._op.unsupported()
            case _:
                assert_never(operand)

    def _result(self, thread: str, part: int, width: int, value: str) -> None:
        place = self._slot(result_slot(self._phase.number, part), thread, width)
        if width == 1:
            value, width = self.b.resize(value, "i1", "i8"), 8
        self.b.do(f"store i{width} {value}, ptr {place}, !llvm.access.group !1")

    def _is_here(self, thread: str) -> str:
        """Return whether a thread of the block waits at this meeting."""
        offset = self.b.op(f"mul nuw nsw i64 {self.b.resize(thread, 'i32', 'i64')}, 4")
        place = self.b.op(f"load i32, ptr {self.b.pointer(self._places, offset)}, !llvm.access.group !1")
        return self.b.compare("eq", "i32", place, str(self._phase.number))

    # ---- shuffles -----------------------------------------------------------------------------------------------

    def _fixed_shuffle(self) -> tuple[int, int] | None:
        """Return (distance, bounds) if they are constants and all threads of whole warps meet, else None.

        None, too, if the source has no slot, as its value is the same in all threads.
        """
        _, source, distance, bounds, _ = self._op.operands
        constants = [self._plan.pure.affine_of(operand) for operand in (distance, bounds)]
        together = all(phase.is_uniform for phase in self._plan.phases) and self._plan.threads % WARP_THREADS == 0
        if not together or not isinstance(source, Register) or not self._plan.is_stored(source.name):
            return None
        known = [affine.constant for affine in constants if affine is not None and not affine.terms]
        return (known[0], known[1]) if len(known) == 2 else None

    def _permute(self, mode: str, distance: int, bounds: int) -> None:
        """Shuffle all lanes of a warp at once."""
        b, op = self.b, self._op
        sources = [_source_lane(mode, lane, distance & 31, bounds) for lane in range(WARP_THREADS)]
        mask = ", ".join(f"i32 {lane if source is None else source}" for lane, source in enumerate(sources))
        flags = ", ".join(f"i8 {int(source is not None)}" for source in sources)
        value = op.operands[1]
        assert isinstance(value, Register), "a fixed shuffle moves a register"
        with b.loop(str(self._plan.threads // WARP_THREADS), "w") as warp:
            first = b.op(f"shl i32 {warp.index}, 5")
            values = b.op(f"load <32 x i32>, ptr {self._slot(value.name, first, 32)}, align 64")
            moved = b.op(f"shufflevector <32 x i32> {values}, <32 x i32> poison, <32 x i32> <{mask}>")
            result = self._slot(result_slot(self._phase.number, 0), first, 32)
            b.do(f"store <32 x i32> {moved}, ptr {result}, align 64")
            if isinstance(op.operands[0], Pair):
                place = self._slot(result_slot(self._phase.number, 1), first, 1)
                b.do(f"store <32 x i8> <{flags}>, ptr {place}, align 1")

    def _shuffle(self, mode: str, thread: str) -> None:
        b, op = self.b, self._op
        _, value, distance_operand, bounds_operand, _ = op.operands
        lane = b.binary("and", "i32", thread, "31")
        distance = b.binary("and", "i32", self._operand(distance_operand, thread, 32), "31")
        bounds = self._operand(bounds_operand, thread, 32)
        segment = b.binary("and", "i32", b.binary("lshr", "i32", bounds, "8"), "31")
        clamp = b.binary("and", "i32", bounds, "31")
        beyond = b.binary("and", "i32", clamp, b.binary("xor", "i32", segment, "31"))
        highest = b.binary("or", "i32", b.binary("and", "i32", lane, segment), beyond)
        if mode == "idx":
            inner = b.binary("and", "i32", distance, b.binary("xor", "i32", segment, "31"))
            source = b.binary("or", "i32", b.binary("and", "i32", lane, segment), inner)
        else:
            source = b.binary({"up": "sub", "down": "add", "bfly": "xor"}[mode], "i32", lane, distance)
        in_range = b.compare("sge" if mode == "up" else "sle", "i32", source, highest)
        wanted = b.binary("add", "i32", b.binary("sub", "i32", thread, lane), source)
        is_thread = b.binary("and", "i1", in_range, b.compare("ult", "i32", wanted, str(self._plan.threads)))
        near = b.select(is_thread, "i32", wanted, thread)
        final = b.select(self._is_here(near), "i32", near, thread)
        self._result(thread, 0, 32, self._operand(value, final, 32))
        if isinstance(op.operands[0], Pair):
            self._result(thread, 1, 1, in_range)

    # ---- votes, matches, reductions -----------------------------------------------------------------------------

    def _fold(self, thread: str) -> None:
        """Loop over all lanes of the thread's warp and store the thread's result."""
        b, op = self.b, self._op
        lane = b.binary("and", "i32", thread, "31")
        first = b.binary("sub", "i32", thread, lane)
        active, chosen, total = (b.op("alloca i32") for _ in range(3))
        own = self._operand(op.operands[1], thread, op.spec.bits) if isinstance(op.spec, specs.Match) else "0"
        for place, value in ((active, "0"), (chosen, "0"), (total, self._identity())):
            b.do(f"store i32 {value}, ptr {place}")
        with b.loop(str(WARP_THREADS), "l") as other:
            self._look(b.binary("add", "i32", first, other.index), other.index, (active, chosen, total), own)
        present, hits = b.op(f"load i32, ptr {active}"), b.op(f"load i32, ptr {chosen}")
        bit = b.binary("shl", "i32", "1", lane)
        takes_part = b.compare("ne", "i32", b.binary("and", "i32", present, bit), "0")
        self._conclude(thread, lane, takes_part, present, hits, b.op(f"load i32, ptr {total}"))

    def _identity(self) -> str:
        match self._op.spec:
            case specs.ReduceWarp("min", is_signed):
                return str(2**31 - 1) if is_signed else "-1"
            case specs.ReduceWarp("max", is_signed=True):
                return str(-(2**31))
            case specs.ReduceWarp("and"):
                return "-1"
            case _:
                return "0"

    def _look(self, other: str, lane: str, places: tuple[str, str, str], own: str) -> None:
        """Include one lane, if it waits here and its own mask makes it a member."""
        b, op, spec = self.b, self._op, self._op.spec
        active, chosen, total = places
        is_thread = b.compare("ult", "i32", other, str(self._plan.threads))
        near = b.select(is_thread, "i32", other, "0")
        bit = b.binary("shl", "i32", "1", lane)
        here = b.binary("and", "i1", is_thread, self._is_here(near))
        if not isinstance(spec, specs.ActiveMask):
            members = self._operand(op.operands[-1], near, 32)
            here = b.binary("and", "i1", here, b.compare("ne", "i32", b.binary("and", "i32", members, bit), "0"))
        self._add_bit(active, here, bit)
        match spec:
            case specs.Vote():
                self._add_bit(chosen, b.binary("and", "i1", here, self._operand(op.operands[1], near, 1)), bit)
            case specs.Match(_, bits):
                same = b.compare("eq", f"i{bits}", self._operand(op.operands[1], near, bits), own)
                self._add_bit(chosen, b.binary("and", "i1", here, same), bit)
            case specs.ReduceWarp(operation, is_signed):
                value = b.select(here, "i32", self._operand(op.operands[1], near, 32), self._identity())
                old = b.op(f"load i32, ptr {total}")
                if operation in ("min", "max"):
                    combined = b.math(("s" if is_signed else "u") + operation, "i32", old, value)
                else:
                    combined = b.binary(operation, "i32", old, value)
                b.do(f"store i32 {combined}, ptr {total}")
            case _:
                pass

    def _add_bit(self, place: str, condition: str, bit: str) -> None:
        old = self.b.op(f"load i32, ptr {place}")
        new = self.b.binary("or", "i32", old, self.b.select(condition, "i32", bit, "0"))
        self.b.do(f"store i32 {new}, ptr {place}")

    def _conclude(self, thread: str, lane: str, takes_part: str, present: str, hits: str, total: str) -> None:
        b = self.b
        everybody = b.compare("eq", "i32", hits, present)
        nobody = b.compare("eq", "i32", hits, "0")
        word, flag = "0", "false"
        match self._op.spec:
            case specs.ActiveMask():
                word = present
            case specs.Vote(mode):
                word = hits
                some = b.binary("xor", "i1", nobody, "true")
                flags = {"any": some, "all": everybody, "uni": b.binary("or", "i1", everybody, nobody), "ballot": some}
                flag = flags[mode]
            case specs.Match(mode):
                word = hits if mode == "any" else b.select(everybody, "i32", present, "0")
                flag = everybody
            case specs.ReduceWarp():
                word = total
            case _:
                word = b.intrinsic("cttz.i32", "i32", ("i32", present), ("i1", "false"))
                flag = b.compare("eq", "i32", word, lane)
        self._result(thread, 0, 32, b.select(takes_part, "i32", word, "0"))
        self._result(thread, 1, 1, b.binary("and", "i1", takes_part, flag))

    def _reduce_block(self, spec: specs.Barrier) -> None:
        """`bar.red`: reduce over all threads of the block that wait here."""
        b, op = self.b, self._op
        count, hits = b.op("alloca i32"), b.op("alloca i32")
        for place in (count, hits):
            b.do(f"store i32 0, ptr {place}")
        with b.loop(str(self._plan.threads), "t") as thread:
            here = self._is_here(thread.index)
            holds = b.binary("and", "i1", here, self._operand(op.operands[-1], thread.index, 1))
            for place, condition in ((count, here), (hits, holds)):
                new = b.binary("add", "i32", b.op(f"load i32, ptr {place}"), b.resize(condition, "i1", "i32"))
                b.do(f"store i32 {new}, ptr {place}")
        total, found = b.op(f"load i32, ptr {count}"), b.op(f"load i32, ptr {hits}")
        flag = b.compare("eq", "i32", found, total) if spec.reduction == "and" else b.compare("ne", "i32", found, "0")
        with b.loop(str(self._plan.threads), "u") as thread:
            self._result(thread.index, 0, 32, found)
            self._result(thread.index, 1, 1, flag)


def _source_lane(mode: str, lane: int, distance: int, bounds: int) -> int | None:
    """Return the source lane of a lane; None if it is out of range."""
    segment, clamp = bounds >> 8 & 31, bounds & 31
    highest = (lane & segment) | (clamp & ~segment)
    match mode:
        case "up":
            source = lane - distance
            return source if source >= highest else None
        case "down":
            source = lane + distance
        case "bfly":
            source = lane ^ distance
        case _:
            source = (lane & segment) | (distance & ~segment & 31)
    return source if source <= highest else None
