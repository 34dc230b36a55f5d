"""Follows the memory in use while a schedule grows backwards: a use makes a buffer live, its definition ends it.

XLA's `MemoryPressureTracker`. Entry parameters do not count, since they exist before and after.
"""

from __future__ import annotations

from typing import NamedTuple

from hlo_run.analysis.buffers.alias_analysis import AliasAnalysis, HloBuffer
from hlo_run.analysis.buffers.dataflow_values import buffer_size_bytes
from hlo_run.hlo.graph import HloComputation, HloInstruction

_PARTS_ONLY = frozenset(("get-tuple-element", "bitcast"))


class PressureChange(NamedTuple):
    """What an instruction adds to the memory in use, and the most that it needs meanwhile, in bytes."""

    increase: int
    peak: int


class MemoryPressure:
    """The live buffers of a computation. `peaks` has the most memory in use of the computations that it calls."""

    def __init__(self, aliases: AliasAnalysis, limit_bytes: int, peaks: dict[HloComputation, int]) -> None:
        self.limit_bytes = limit_bytes
        self.in_use_bytes = 0
        self.peak_bytes = 0
        self._aliases = aliases
        self._peaks = peaks
        self._entry = aliases.dataflow.module.entry
        self._live: set[HloBuffer] = set()

    @property
    def is_high(self) -> bool:
        """True while more than half of the limit is in use."""
        return self.in_use_bytes > self.limit_bytes // 2

    def change(self, instruction: HloInstruction) -> PressureChange:
        """Return what the instruction would add."""
        added = sum(_size(buffer) for buffer in self._used(instruction) if buffer not in self._live)
        freed = sum(_size(buffer) for buffer in self._defined(instruction) if buffer in self._live)
        return PressureChange(added - freed, max(added, self._inner(instruction)))

    def update(self, instruction: HloInstruction) -> None:
        """Put the instruction before those that were scheduled so far."""
        self.peak_bytes = max(self.peak_bytes, self.in_use_bytes + self._inner(instruction))
        for buffer in self._used(instruction):
            if buffer not in self._live:
                self._live.add(buffer)
                self.in_use_bytes += _size(buffer)
        self.peak_bytes = max(self.peak_bytes, self.in_use_bytes)
        for buffer in self._defined(instruction):
            if buffer in self._live:
                self._live.remove(buffer)
                self.in_use_bytes -= _size(buffer)

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
            if any(v.instruction is instruction for v in buffer.values) and buffer.values[0].instruction is instruction:
                found[buffer] = None
        return list(found)


def _size(buffer: HloBuffer) -> int:
    return buffer_size_bytes(buffer.values[0])
