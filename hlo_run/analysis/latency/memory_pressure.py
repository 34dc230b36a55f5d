"""Follows the memory in use while a schedule grows backwards: a use makes a buffer live, its definition ends it.

XLA's `MemoryPressureTracker`. Entry parameters do not count, since they exist before and after.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from msgspec import Struct

from hlo_run.analysis.buffers.alias_analysis import AliasAnalysis, HloBuffer
from hlo_run.analysis.buffers.dataflow_values import buffer_size_bytes
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode

_PARTS_ONLY: frozenset[Opcode] = frozenset(("get-tuple-element", "bitcast"))


class PressureChange(NamedTuple):
    """The memory that an instruction adds to the memory in use, and the most that it needs meanwhile, in bytes."""

    increase: int
    peak: int


class BufferOrigins(Struct, frozen=True):
    """The instruction that defines each buffer first, and the calls whose computations have that instruction."""

    aliases: AliasAnalysis
    by_buffer: dict[HloBuffer, tuple[HloInstruction, tuple[HloInstruction, ...]]]


def buffer_origins(aliases: AliasAnalysis) -> BufferOrigins:
    """Return the origins in the order of the module's schedule, which it must have. Callees come before their caller."""
    module = aliases.dataflow.module
    schedule = module.schedule
    assert schedule is not None, "the module is scheduled"
    found: dict[HloBuffer, tuple[HloInstruction, tuple[HloInstruction, ...]]] = {}

    def visit(computation: HloComputation, calls: tuple[HloInstruction, ...]) -> None:
        for instruction in schedule[computation]:
            for inner in instruction.called_computations:
                if inner in schedule:
                    visit(inner, (*calls, instruction))
            for _, value in aliases.dataflow.trees[instruction].walk():
                found.setdefault(aliases.buffer_of[value], (instruction, calls))

    visit(module.entry, ())
    return BufferOrigins(aliases, found)


class PressureState(Struct, frozen=True):
    """The buffers that are live after a computation, as its callers see them, and the most memory that it adds to them."""

    live_after: frozenset[HloBuffer]
    peak_bytes: int


class MemoryPressure:
    """The live buffers of a computation. `peaks` has the most memory in use of the computations that it calls.

    `live_after` has the buffers that are live when it ends. `history` has, for each instruction that `update` got, the bytes in
    use before it and the peak.
    """

    def __init__(
        self,
        origins: BufferOrigins,
        limit_bytes: int,
        peaks: dict[HloComputation, int],
        live_after: Collection[HloBuffer] = (),
    ) -> None:
        self.limit_bytes = limit_bytes
        self.outside_bytes = sum(map(_size, live_after))
        self.in_use_bytes = self.outside_bytes
        self.peak_bytes = 0
        self.history: dict[HloInstruction, tuple[int, int]] = {}
        self.origins = origins
        self._aliases = origins.aliases
        self._origins = origins.by_buffer
        self._peaks = peaks
        self._entry = origins.aliases.dataflow.module.entry
        self._live = set(live_after)

    @property
    def live(self) -> frozenset[HloBuffer]:
        """The buffers that are live now."""
        return frozenset(self._live)

    @property
    def is_high(self) -> bool:
        """True while more than half of the limit is in use."""
        return self.in_use_bytes > self.limit_bytes // 2

    def change(self, instruction: HloInstruction) -> PressureChange:
        """Return the memory that the instruction would add."""
        added = sum(_size(buffer) for buffer in self._used(instruction) if buffer not in self._live)
        freed = sum(_size(buffer) for buffer in self._defined(instruction) if buffer in self._live)
        return PressureChange(added - freed, max(added, self._inner(instruction)))

    def update(self, instruction: HloInstruction) -> None:
        """Put the instruction before the instructions that were scheduled so far."""
        self._raise_peak(self._inner(instruction))
        for buffer in self._used(instruction):
            if buffer not in self._live:
                self._live.add(buffer)
                self.in_use_bytes += _size(buffer)
        self._raise_peak(0)
        for buffer in self._defined(instruction):
            if buffer in self._live:
                self._live.remove(buffer)
                self.in_use_bytes -= _size(buffer)
        self.history[instruction] = self.in_use_bytes, self.peak_bytes

    def _raise_peak(self, inner_bytes: int) -> None:
        self.peak_bytes = max(self.peak_bytes, self.in_use_bytes - self.outside_bytes + inner_bytes)

    def _inner(self, instruction: HloInstruction) -> int:
        return max((self._peaks.get(computation, 0) for computation in instruction.called_computations), default=0)

    def _used(self, instruction: HloInstruction) -> list[HloBuffer]:
        found: dict[HloBuffer, None] = {}
        for operand in instruction.operands:
            for index, value in self._aliases.dataflow.trees[operand].walk():
                if index and instruction.opcode in _PARTS_ONLY:
                    continue
                buffer = self._aliases.buffer_of[value]
                if not any(v.instruction.opcode == "parameter" and v.instruction.parent is self._entry for v in buffer.values):
                    found[buffer] = None
        return list(found)

    def _defined(self, instruction: HloInstruction) -> list[HloBuffer]:
        if instruction.opcode == "parameter":
            return []
        found: dict[HloBuffer, None] = {}
        for _, value in self._aliases.dataflow.trees[instruction].walk():
            buffer = self._aliases.buffer_of[value]
            first, calls = self._origins[buffer]
            if first is instruction or instruction in calls:
                found[buffer] = None
        return list(found)


def pressure_states(origins: BufferOrigins) -> dict[HloComputation, PressureState]:
    """Return the states of the computations that run, in the order of the module's schedule, which it must have."""
    module = origins.aliases.dataflow.module
    schedule = module.schedule
    assert schedule is not None, "the module is scheduled"
    states: dict[HloComputation, PressureState] = {}
    peaks: dict[HloComputation, int] = {}

    def follow(computation: HloComputation, live_after: frozenset[HloBuffer]) -> None:
        pressure = MemoryPressure(origins, 0, peaks, live_after)
        for instruction in reversed(schedule[computation]):
            for inner in instruction.called_computations:
                if inner in schedule:
                    follow(inner, pressure.live)
            pressure.update(instruction)
        peaks[computation] = pressure.peak_bytes
        states[computation] = PressureState(live_after, pressure.peak_bytes)

    follow(module.entry, frozenset())
    return states


def _size(buffer: HloBuffer) -> int:
    return buffer_size_bytes(buffer.values[0])
