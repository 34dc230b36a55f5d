"""Checks a buffer assignment: simulates the schedule and verifies that every instruction finds its operands in memory.

The simulation represents each value by a number. Every loop runs two iterations, and each branch is taken once. An
instruction writes its numbers to its slices and overwrites what they held. Before it runs, the slices of its operands must
hold the operands' numbers. The check does not use live ranges, so it finds errors in them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container
from typing import TypeAlias

from msgspec import Struct, field

from hlo_run.analysis.buffers.alias_pairs import in_place_pairs
from hlo_run.analysis.buffers.buffer_sharing import BufferSharing
from hlo_run.analysis.computation_order import nested_computations
from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.artifact import BufferSlice
from hlo_run.errors import InternalError
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import FORWARDED_PART
from hlo_run.hlo.values.braces import braces
from hlo_run.hlo.values.shape import Shape
from hlo_run.runtime.buffers import BufferAssignment

# The content of a value: a number, or a tuple of the contents of its elements.
Content: TypeAlias = "int | tuple[Content, ...]"
_Index = tuple[int, ...]
_LOOP_TURNS = 2


def check_buffers(module: HloModule, buffers: BufferAssignment) -> None:
    """Raise an InternalError for the first instruction whose operand was overwritten in memory."""
    branches = [len(i.called_computations) for i in module.instructions if i.opcode == "conditional"]
    for branch in range(max(branches, default=1)):
        _Run(module, buffers, branch).run()


class _Memory(Struct):
    """The contents of an allocation: sorted slices that do not overlap, each with its number."""

    begins: list[int] = field(default_factory=list[int])
    held: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])

    def write(self, place: BufferSlice, content: int) -> None:
        begin, end = place.offset_bytes, place.offset_bytes + place.size_bytes
        first = bisect_right(self.begins, begin)
        if first and self.held[self.begins[first - 1]][0] > begin:
            first -= 1
        last = bisect_left(self.begins, end)
        for old in self.begins[first:last]:
            del self.held[old]
        self.begins[first:last] = [begin]
        self.held[begin] = (end, content)


class _Run:
    def __init__(self, module: HloModule, buffers: BufferAssignment, branch: int) -> None:
        schedule = module.schedule
        assert schedule is not None, "buffers are assigned to scheduled modules"
        self._schedule = schedule
        self._module = module
        self._buffers = buffers
        self._branch = branch
        self._sharing = BufferSharing()
        self._memory = [_Memory() for _ in buffers.allocations]
        self._next = 0

    def run(self) -> None:
        entry = self._module.entry
        kept: list[tuple[HloInstruction, Content]] = []
        for computation in executed_computations(self._module):
            for constant in computation.instructions:
                if constant.opcode == "constant":
                    kept.append((constant, self._make(constant)))
        arguments = [self._make(parameter) for parameter in entry.parameters]
        constants = dict(kept)
        result = self._computation(entry, arguments, constants)
        for constant, content in kept:
            self._check(constant, content, constant)
        self._check(entry.root, result, entry.root)
        for parameter, content in zip(entry.parameters, arguments, strict=True):
            for index, _ in parameter.shape.leaves():
                place = self._buffers.slice(parameter, index)
                if not self._buffers.allocations[place.allocation].alias:
                    self._check_leaf(parameter, index, _at(content, index), parameter)

    # ---- memory -------------------------------------------------------------------------------------------------

    def _new(self, shape: Shape) -> Content:
        if shape.is_tuple:
            return tuple(self._new(part) for part in shape.tuple_shapes)
        self._next += 1
        return self._next

    def _make(self, instruction: HloInstruction, forwarded: dict[int, Content] | None = None) -> Content:
        """Write new numbers to the parts of an instruction's result, except to the forwarded parts."""
        if not forwarded:
            content = self._new(instruction.shape)
        else:
            content = tuple(
                forwarded[n] if n in forwarded else self._new(shape) for n, shape in enumerate(instruction.shape.tuple_shapes)
            )
        self._write(instruction, content, forwarded or {})
        return content

    def _write(self, instruction: HloInstruction, content: Content, forwarded: Container[int] = ()) -> None:
        for index, shape in instruction.shape.leaves():
            if shape.size_bytes and (not index or index[0] not in forwarded):
                place = self._buffers.slice(instruction, index)
                number = _at(content, index)
                assert isinstance(number, int), "leaves hold numbers"
                self._memory[place.allocation].write(place, number)

    def _check(self, instruction: HloInstruction, content: Content, reader: HloInstruction) -> None:
        for index, shape in instruction.shape.leaves():
            if shape.size_bytes:
                self._check_leaf(instruction, index, _at(content, index), reader)

    def _check_leaf(self, instruction: HloInstruction, index: _Index, content: Content, reader: HloInstruction) -> None:
        place = self._buffers.slice(instruction, index)
        held = self._memory[place.allocation].held.get(place.offset_bytes)
        if place.size_bytes and held != (place.offset_bytes + place.size_bytes, content):
            at = braces(index)
            raise InternalError(
                f"%{reader.name} does not find %{instruction.name}{at} in memory: another value was written to "
                f"allocation {place.allocation}, offset {place.offset_bytes}, {place.size_bytes} bytes",
                reader.where,
            )

    # ---- instructions -------------------------------------------------------------------------------------------

    def _computation(
        self, computation: HloComputation, arguments: list[Content], constants: dict[HloInstruction, Content]
    ) -> Content:
        contents: dict[HloInstruction, Content] = {}
        for instruction in self._schedule[computation]:
            if instruction.opcode == "parameter":
                contents[instruction] = arguments[instruction.parameter_number]
            elif instruction.opcode == "constant":
                contents[instruction] = constants[instruction]
            else:
                operands = [contents[operand] for operand in instruction.operands]
                contents[instruction] = self._instruction(instruction, operands, constants)
        return contents[computation.root]

    def _instruction(
        self, instruction: HloInstruction, operands: list[Content], constants: dict[HloInstruction, Content]
    ) -> Content:
        opcode = instruction.opcode
        inner = nested_computations(instruction)
        match opcode:
            case "tuple":
                return tuple(operands)
            case "get-tuple-element":
                return _at(operands[0], (instruction.tuple_index,))
            case "call":
                return self._computation(inner[0], operands, constants)
            case "while":
                return self._loop(instruction, operands[0], constants)
            case "conditional":
                self._check(instruction.operands[0], operands[0], instruction)
                branch = min(self._branch, len(inner) - 1)
                return self._computation(inner[branch], [operands[branch + 1]], constants)
            case "async-start":
                return self._make(instruction, {0: tuple(operands), 1: self._computation(inner[0], operands, constants)})
            case "async-done" if instruction.operands[0].opcode == "async-start":
                self._check_started(instruction, operands[0])
            case "copy":
                self._check(instruction.operands[0], operands[0], instruction)
                self._write(instruction, operands[0])
                return operands[0]
            case _:
                for operand, content in zip(instruction.operands, operands, strict=True):
                    self._check(operand, content, instruction)
        if opcode in FORWARDED_PART:
            return _at(operands[0], FORWARDED_PART[opcode])
        return self._make(instruction, _forwarded(opcode, operands))

    def _check_started(self, done: HloInstruction, content: Content) -> None:
        """Check what a start began with and returns, but for operands that it changes in place, writes over or does not read."""
        (start,) = done.operands
        started = start.called_computations[0]
        root = started.root
        changed = {operand for number, operand in enumerate(root.operands) if self._writes_over(root, number)}
        unread = [parameter for parameter in started.parameters if not parameter.users and parameter is not root]
        gone = {operand.parameter_number for operand in (*changed, *unread) if operand.opcode == "parameter"}
        for index, shape in start.shape.leaves():
            if shape.size_bytes and not (index[0] == 0 and index[1] in gone):
                self._check_leaf(start, index, _at(content, index), done)

    def _writes_over(self, user: HloInstruction, number: int) -> bool:
        """True if a result takes the place of an operand, in one of the ways in which it may."""
        operand = user.operands[number]
        if any(pair.operand_number == number for pair in in_place_pairs(user)):
            return True
        outputs = [index for index, _ in user.shape.leaves()] if operand.shape.is_array else []
        place = self._buffers.slice(operand) if outputs else None
        return any(self._buffers.slice(user, i) == place and self._sharing.may_share(user, number, (), i) for i in outputs)

    def _loop(self, loop: HloInstruction, state: Content, constants: dict[HloInstruction, Content]) -> Content:
        condition, body = nested_computations(loop)
        for _ in range(_LOOP_TURNS):
            self._check(condition.root, self._computation(condition, [state], constants), loop)
            state = self._computation(body, [state], constants)
        self._check(condition.root, self._computation(condition, [state], constants), loop)
        return state


def _forwarded(opcode: Opcode, operands: list[Content]) -> dict[int, Content]:
    """Return the parts of a result that are operands or parts of operands, by tuple index."""
    match opcode:
        case "copy-start":
            return {1: operands[0]}
        case "all-gather-start" | "collective-permute-start":
            return {0: operands[0] if len(operands) == 1 else tuple(operands)}
        case "send":
            return {0: operands[0]}
        case "recv-done":
            return {0: _at(operands[0], (0,))}
        case _:
            return {}


def _at(content: Content, index: _Index) -> Content:
    for number in index:
        assert isinstance(content, tuple), "the content is as the shape"
        content = content[number]
    return content
