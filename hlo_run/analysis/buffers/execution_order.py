"""Compares instructions of different computations by the time at which they run, and values by their lives.

    cond, body of w = while(init)           the condition runs before the body, both before w ends
    branch 0, branch 1 of a conditional     only one of the two runs

Instructions of one computation are ordered by its schedule, or by its dependencies if there is none. Mirrors XLA's `HloOrdering`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from hlo_run.analysis.buffers.buffer_sharing import BufferSharing
from hlo_run.analysis.buffers.dataflow import Dataflow
from hlo_run.analysis.buffers.dataflow_values import HloUse, HloValue
from hlo_run.analysis.computation_order import nested_computations
from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.hlo.async_ops import async_start
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.traits import ASYNC

RunsBefore: TypeAlias = "Callable[[HloInstruction, HloInstruction], bool]"


class Order(enum.Enum):
    """The times at which one instruction can run, seen from another."""

    SAME = enum.auto()
    BEFORE = enum.auto()
    # It runs inside the other, or in its condition.
    BEFORE_END = enum.auto()
    AFTER = enum.auto()
    # Only one of the two runs, in different branches.
    EARLIER_BRANCH = enum.auto()
    LATER_BRANCH = enum.auto()
    UNKNOWN = enum.auto()


_FIRST = (Order.BEFORE, Order.BEFORE_END, Order.EARLIER_BRANCH)


def by_dependencies(computation: HloComputation) -> RunsBefore:
    """Return the relation: the first instruction runs before the second in every schedule."""
    numbers: dict[HloInstruction, int] = {}
    before: dict[HloInstruction, int] = {}
    for instruction in computation.post_order():
        bits = 0
        for other in (*instruction.operands, *instruction.control_predecessors):
            bits |= before[other] | 1 << numbers[other]
        numbers[instruction], before[instruction] = len(numbers), bits
    return lambda one, two: bool(before[two] >> numbers[one] & 1)


def by_schedule(order: Sequence[HloInstruction]) -> RunsBefore:
    """Return the relation: the first instruction is before the second in the schedule."""
    places = {instruction: number for number, instruction in enumerate(order)}
    return lambda one, two: places[one] < places[two]


def by_regions(computation: HloComputation, regions: Mapping[HloInstruction, int]) -> RunsBefore:
    """Return the relation: dependencies order the instructions, or their regions do, which run in turn."""
    depends = by_dependencies(computation)
    return lambda one, two: depends(one, two) or regions[one] < regions[two]


class ExecutionOrder:
    """The order of the executed instructions of a module, as it is when this object is made.

    `relation` orders the instructions of a computation; by default the schedule does, or the dependencies if there is none.
    """

    def __init__(self, dataflow: Dataflow, relation: Callable[[HloComputation], RunsBefore] | None = None) -> None:
        module = dataflow.module
        schedule = module.schedule or {}
        self._dataflow = dataflow
        self._entry = module.entry
        self._sharing = BufferSharing()
        # The callers of a computation from the entry on, the innermost one last.
        self._callers: dict[HloComputation, tuple[HloInstruction, ...]] = {module.entry: ()}
        # The number of each of these computations among those of its innermost caller.
        self._turns: dict[HloComputation, int] = {}
        self._branches: dict[HloComputation, tuple[HloInstruction, int] | None] = {module.entry: None}
        self._runs_before: dict[HloComputation, RunsBefore] = {}
        for computation in executed_computations(module):
            known = schedule.get(computation)
            if relation is not None:
                runs_before = relation(computation)
            else:
                runs_before = by_dependencies(computation) if known is None else by_schedule(known)
            self._runs_before[computation] = runs_before
            for caller in computation.instructions:
                for turn, inner in enumerate(nested_computations(caller)):
                    self._callers[inner] = (*self._callers[computation], caller)
                    self._turns.setdefault(inner, turn)
                    own = (caller, self._turns[inner]) if caller.opcode == "conditional" else None
                    self._branches[inner] = self._branches[computation] or own

    def has(self, instruction: HloInstruction) -> bool:
        """Return True if the instruction is executed, rather than part of a kernel."""
        return instruction.parent in self._callers

    def compare(self, one: HloInstruction, two: HloInstruction) -> Order:
        """Return when `one` runs, seen from `two`."""
        if one is two or _is_wrapped(one, two) or _is_wrapped(two, one):
            return Order.SAME
        first, second = (*self._path(one), one), (*self._path(two), two)
        place = next((n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a is not b), min(len(first), len(second)))
        if place < min(len(first), len(second)) and first[place].parent is second[place].parent:
            return self._compare_neighbours(first[place], second[place])
        return self._compare_inside(first[place - 1], first[place:], second[place:])

    def branch(self, instruction: HloInstruction) -> tuple[HloInstruction, int] | None:
        """Return the outermost conditional around an instruction and the number of the branch, or None."""
        assert instruction.parent is not None, "an executed instruction is in a computation"
        return self._branches[instruction.parent]

    def is_defined_before(self, one: HloValue, two: HloValue) -> bool:
        """Return True if the value `one` begins before `two`, wherever phis begin."""
        source, target = one.instruction, two.instruction
        if target.opcode == "parameter" and target.parent is self._entry:
            return False
        if source.opcode == "parameter" and source.parent is self._entry:
            return True
        if _is_state(one) and not _is_state(two) and self.is_inside(target, source.parent):
            return True
        if _is_state(two) and self.is_inside(source, target.parent):
            return False
        if two.is_phi and any(self.is_inside(source, inner) for inner in nested_computations(target)):
            return True
        return self.compare(source, target) in _FIRST

    def are_read_before(self, uses: Iterable[HloUse], value: HloValue) -> bool:
        """Return True if all uses read their operands before `value` is written. The entry has its parameters from the start."""
        if value.instruction.opcode == "parameter" and value.instruction.parent is self._entry:
            return not list(uses)
        escapes = False
        for use in uses:
            order = self.compare(use.instruction, value.instruction)
            if order in _FIRST or (order is Order.LATER_BRANCH and not escapes):
                continue
            if order is Order.SAME and self._may_write_to_operand(use, value):
                continue
            if use.instruction.opcode == "conditional" and self._is_nested(value.instruction, use.instruction):
                escapes = escapes or self._comes_around(use, value)
                if not escapes:
                    continue
            if not self._is_passed_on(use.instruction, value.instruction):
                return False
        return True

    def _is_passed_on(self, reader: HloInstruction, writer: HloInstruction) -> bool:
        """Return True for an operand of control flow that is read before the callee's values, and for a result after them."""
        match reader.opcode:
            case "while":
                if self.is_inside(writer, reader.while_condition):
                    return writer is reader.while_condition.parameters[0]
                if self.is_inside(writer, reader.while_body):
                    return True
            case "call":
                if self._is_nested(writer, reader):
                    return True
            case "conditional" if reader is writer:
                return True
            case opcode if opcode in ASYNC and self._is_nested(writer, async_start(reader)):
                return True
            case _:
                pass
        return writer.opcode == "while" and self._is_nested(reader, writer)

    def _may_write_to_operand(self, use: HloUse, value: HloValue) -> bool:
        reader = use.instruction
        if reader is not value.instruction:
            return False
        if reader.opcode in ("while", "conditional"):
            return reader.operands[use.operand_number].opcode != "constant"
        # A copy may be written to its source: it then does nothing.
        return reader.opcode == "copy" or self._sharing.may_share(reader, use.operand_number, use.operand_index, value.index)

    def _comes_around(self, use: HloUse, value: HloValue) -> bool:
        """Return True if a value of a branch may be an operand of its conditional in the next iteration of a loop around it."""
        operand = use.instruction.operands[use.operand_number]
        is_forwarded = self._dataflow.value(operand).instruction is not operand
        return is_forwarded and any(inner.instruction.is_root for inner in value.uses)

    def _compare_inside(self, caller: HloInstruction, one: Sequence[HloInstruction], two: Sequence[HloInstruction]) -> Order:
        """Compare two places in one caller. An empty sequence is the caller itself."""
        first, second = (self._turns[part[0].parent] if part and part[0].parent is not None else None for part in (one, two))
        if caller.opcode == "while":
            return Order.BEFORE_END if first == 0 and second == 1 else Order.UNKNOWN
        if caller.opcode != "conditional":
            return Order.UNKNOWN
        if second is None:
            return Order.BEFORE_END
        if first is None:
            return Order.AFTER
        return Order.EARLIER_BRANCH if first < second else Order.LATER_BRANCH

    def _compare_neighbours(self, one: HloInstruction, two: HloInstruction) -> Order:
        assert one.parent is not None, "an executed instruction is in a computation"
        runs_before = self._runs_before[one.parent]
        if runs_before(one, two):
            return Order.BEFORE
        return Order.AFTER if runs_before(two, one) else Order.UNKNOWN

    def _path(self, instruction: HloInstruction) -> tuple[HloInstruction, ...]:
        assert instruction.parent is not None, "an executed instruction is in a computation"
        return self._callers[instruction.parent]

    def is_inside(self, instruction: HloInstruction, computation: HloComputation | None) -> bool:
        """Return True if the instruction is in a computation, or in one that runs there."""
        return instruction.parent is computation or any(caller.parent is computation for caller in self._path(instruction))

    def _is_nested(self, instruction: HloInstruction, caller: HloInstruction | None) -> bool:
        return caller in self._path(instruction)


def _is_wrapped(start: HloInstruction, inner: HloInstruction) -> bool:
    return start.opcode == "async-start" and start.called_computations[0].root is inner


def _is_state(value: HloValue) -> bool:
    """Return True for the phi of a loop's body or condition."""
    return value.is_phi and value.instruction.opcode == "parameter"
