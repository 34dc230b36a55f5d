"""Computes the live ranges of all values and of all copies that copy insertion might need, on one line of time.

    w = while(t)  =>  i = copy(t{0}) | condition | p = copy(parameter{0}) .. body .. r = copy(root{0}) | w

A copy may be needed wherever values meet in one buffer: before a loop, at the begin and end of its body, at the end of a
branch, before an operand is changed in place, at an aliased parameter, and before each result. `copy_plan.py` decides which
copies are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum

from msgspec import Struct, field

from hlo_run.analysis.buffers.alias_pairs import InPlacePair, in_place_pairs
from hlo_run.analysis.buffers.dataflow import Dataflow
from hlo_run.analysis.buffers.dataflow_values import HloUse, HloValue
from hlo_run.analysis.computation_order import nested_computations
from hlo_run.analysis.defining_value import ShapeIndex
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.verify.config import aliases


class CopyKind(IntEnum):
    """The place of a copy. Copies are tried for elision in this order."""

    PARAMETER = 0
    IN_PLACE = 1
    ROOT = 2
    INIT = 3
    RESULT = 4
    WRITTEN = 5


class Life(Struct, eq=False):
    """The live range of a value or a copy: its definition, its first and last time, and the instructions that read it.

    A copy has `copy` set. No instruction makes it yet, unless the module contains it (`CopyKind.WRITTEN`).
    """

    instruction: HloInstruction | None
    index: ShapeIndex
    start: int
    end: int
    size_bytes: int
    copy: Copy | None = None
    readers: list[HloUse] = field(default_factory=list[HloUse])


class Copy(Struct, eq=False):
    """A copy of `source`: before the instruction (INIT, IN_PLACE), at the begin (PARAMETER) or end of its computation.

    `instruction` is the while, the changing instruction, the parameter, the computation's root, or the copy itself.
    """

    kind: CopyKind
    instruction: HloInstruction
    operand_number: int
    index: ShapeIndex
    source: Life
    life: Life


class Lives(Struct, eq=False):
    """All lives. `together` are lives that one buffer must hold, `reads` the lives that each instruction reads."""

    values: dict[HloValue, Life] = field(default_factory=dict[HloValue, Life])
    copies: list[Copy] = field(default_factory=list[Copy])
    together: list[tuple[Life, Life]] = field(default_factory=list[tuple[Life, Life]])
    reads: dict[HloInstruction, list[tuple[HloUse, Life]]] = field(
        default_factory=dict[HloInstruction, list[tuple[HloUse, Life]]]
    )


Order = Callable[[HloComputation], list[HloInstruction]]


def find_lives(dataflow: Dataflow, order_of: Order) -> Lives:
    """Return the lives of all array values and of all copies that might be needed."""
    return _Builder(dataflow, order_of).run()


class _Builder:
    def __init__(self, dataflow: Dataflow, order_of: Order) -> None:
        self._dataflow = dataflow
        self._entry = dataflow.module.entry
        self._order_of = order_of
        self._lives = Lives()
        self._now = 0
        self._times: dict[HloInstruction, int] = {}
        self._spans: dict[HloComputation, tuple[int, int]] = {}
        self._callers: dict[HloComputation, HloInstruction] = {}
        # The times of the copies that might be needed.
        self._parameter_copies: dict[tuple[HloInstruction, ShapeIndex], int] = {}
        self._in_place_copies: dict[tuple[HloInstruction, InPlacePair], int] = {}
        self._init_copies: dict[tuple[HloInstruction, ShapeIndex], int] = {}
        self._root_copies: dict[tuple[HloComputation, ShapeIndex], int] = {}
        # The copy at the begin of a computation that the users of a value read instead.
        self._stand_ins: dict[HloValue, Life] = {}
        self._roots: dict[tuple[HloComputation, ShapeIndex], Copy] = {}

    def run(self) -> Lives:
        self._walk(self._entry)
        for value in self._dataflow.values:
            if value.instruction in self._times and value.shape.is_array:
                self._begin(value)
        for value in list(self._lives.values):
            self._use(value)
        self._join()
        return self._lives

    # ---- the line of time ---------------------------------------------------------------------------------------

    def _tick(self) -> int:
        self._now += 1
        return self._now

    def _walk(self, computation: HloComputation) -> None:
        begin = self._tick()
        for parameter, index in self._places_at_begin(computation):
            self._parameter_copies[parameter, index] = self._tick()
        for instruction in self._order_of(computation):
            if instruction.opcode == "parameter":
                self._times[instruction] = begin
                continue
            for pair in in_place_pairs(instruction):
                self._in_place_copies[instruction, pair] = self._tick()
            if instruction.opcode == "while":
                for index in self._joined_leaves(instruction):
                    self._init_copies[instruction, index] = self._tick()
            for inner in nested_computations(instruction):
                self._callers[inner] = instruction
                self._walk(inner)
            self._times[instruction] = self._tick()
        for index in self._places_at_end(computation):
            self._root_copies[computation, index] = self._tick()
        self._spans[computation] = (begin, self._tick())

    def _joined_leaves(self, join: HloInstruction) -> list[ShapeIndex]:
        """Return the leaves of a while or conditional at which different values meet."""
        tree = self._dataflow.trees[join]
        leaves = [(index, tree.at(index).value) for index, shape in join.shape.leaves() if shape.is_array]
        return [index for index, value in leaves if value.instruction is join]

    def _places_at_begin(self, computation: HloComputation) -> Iterator[tuple[HloInstruction, ShapeIndex]]:
        caller = self._callers.get(computation)
        if computation is self._entry:
            for _, number, index, _ in aliases(self._dataflow.module):
                yield computation.parameters[number], index
        elif caller is not None and caller.opcode == "while" and computation is caller.while_body:
            for index in self._joined_leaves(caller):
                yield computation.parameters[0], index

    def _places_at_end(self, computation: HloComputation) -> list[ShapeIndex]:
        caller = self._callers.get(computation)
        if computation is self._entry:
            return [index for index, shape in computation.root.shape.leaves() if shape.is_array]
        if caller is not None and caller.opcode == "while" and computation is caller.while_body:
            return self._joined_leaves(caller)
        if caller is not None and caller.opcode == "conditional":
            return self._joined_leaves(caller)
        return []

    # ---- lives --------------------------------------------------------------------------------------------------

    def _begin(self, value: HloValue) -> None:
        start = self._times[value.instruction]
        life = Life(value.instruction, value.index, start, start, value.shape.size_bytes)
        self._lives.values[value] = life
        place = (value.instruction, value.index)
        if place in self._parameter_copies:
            copy = self._copy(CopyKind.PARAMETER, value.instruction, 0, value.index, life, self._parameter_copies[place])
            self._stand_ins[value] = copy.life
        self._hold_state(value, life)

    def _hold_state(self, value: HloValue, life: Life) -> None:
        """Extend the life of a loop's state over the condition, since the body reads it afterwards."""
        computation = value.instruction.parent
        caller = self._callers.get(computation) if computation is not None else None
        is_state = value.instruction.opcode == "parameter" and value.is_phi
        if caller is not None and caller.opcode == "while" and is_state and computation is caller.while_condition:
            life.end = self._spans[caller.while_body][0]

    def _copy(self, kind: CopyKind, instruction: HloInstruction, number: int, index: ShapeIndex, source: Life, time: int) -> Copy:
        life = Life(None, (), time, time, source.size_bytes)
        life.copy = Copy(kind, instruction, number, index, source, life)
        source.end = max(source.end, time)
        self._lives.copies.append(life.copy)
        return life.copy

    def _use(self, value: HloValue) -> None:
        """Record all reads of a value, and make the copies that might be needed before them."""
        life = self._stand_ins.get(value, self._lives.values[value])
        for use in value.uses:
            self._read(use, life)
        for position in value.positions:
            computation = position.instruction.parent
            if not position.instruction.is_root or computation is None or computation not in self._spans:
                continue
            place = (computation, position.shape_index)
            if place in self._root_copies:
                kind = CopyKind.RESULT if computation is self._entry else CopyKind.ROOT
                copy = self._copy(kind, position.instruction, 0, position.shape_index, life, self._root_copies[place])
                copy.life.end = self._spans[computation][1]
                self._roots[place] = copy
            else:
                life.end = max(life.end, self._spans[computation][1])
        if value.instruction.opcode == "copy" and value.instruction.shape == value.instruction.operands[0].shape:
            source = self._dataflow.value(value.instruction.operands[0])
            own = self._lives.values[value]
            own.copy = Copy(
                CopyKind.WRITTEN, value.instruction, 0, (), self._stand_ins.get(source, self._lives.values[source]), own
            )
            self._lives.copies.append(own.copy)

    def _read(self, use: HloUse, life: Life) -> None:
        instruction = use.instruction
        if instruction not in self._times or (instruction.opcode == "tuple" and instruction.is_root):
            return  # values in a root are handled as positions
        if (instruction, use.operand_index) in self._init_copies and instruction.opcode == "while":
            time = self._init_copies[instruction, use.operand_index]
            copy = self._copy(CopyKind.INIT, instruction, 0, use.operand_index, life, time)
            body, condition = instruction.while_body, instruction.while_condition
            copy.life.end = min(self._spans[condition][0], self._spans[body][0])
            self._lives.together.append((copy.life, self._at(instruction, use.operand_index)))
            return
        pairs = [p for p in in_place_pairs(instruction) if p[:2] == (use.operand_number, use.operand_index)]
        for pair in pairs:
            copy = self._copy(CopyKind.IN_PLACE, instruction, *pair[:2], life, self._in_place_copies[instruction, pair])
            life_of_copy = copy.life
            self._note(use, life_of_copy)
            self._lives.together.append((life_of_copy, self._at(instruction, pair.output_index)))
        if not pairs:
            self._note(use, life)

    def _note(self, use: HloUse, life: Life) -> None:
        life.end = max(life.end, self._times[use.instruction])
        life.readers.append(use)
        self._lives.reads.setdefault(use.instruction, []).append((use, life))

    def _at(self, instruction: HloInstruction, index: ShapeIndex) -> Life:
        return self._lives.values[self._dataflow.value(instruction, index)]

    def _join(self) -> None:
        """Record the lives that share the buffers of loops, branches and aliased parameters."""
        together = self._lives.together
        for (computation, index), copy in self._roots.items():
            caller = self._callers.get(computation)
            if caller is not None:
                together.append((copy.life, self._at(caller, index)))
        for instruction in self._times:
            if instruction.opcode == "while":
                for index in self._joined_leaves(instruction):
                    for inner in nested_computations(instruction):
                        together.append((self._at(inner.parameters[0], index), self._at(instruction, index)))
        for output, number, index, _ in aliases(self._dataflow.module):
            result = self._roots.get((self._entry, output))
            if result is not None:
                together.append((result.life, self._at(self._entry.parameters[number], index)))
