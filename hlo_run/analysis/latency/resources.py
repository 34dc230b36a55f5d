"""The streams that asynchronous work occupies from its start to its done, and the number of each.

XLA's `GpuAsyncTracker`. The scheduler works backwards, so that a done occupies a resource and its start releases it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from hlo_run.analysis.latency.async_kinds import (
    AsyncKind,
    async_kind,
    copies_slice,
    is_on_collective_stream,
    overlaps_from,
    overlaps_until,
)
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.traits import COLLECTIVE, TRANSFER

Stream: TypeAlias = Literal["collectives", "computations", "copies", "p2p", "send-0", "send-1", "recv-0", "recv-1"]
_TRANSFERS_IN_FLIGHT = 4
_COPIES_IN_FLIGHT = 2**31 - 1  # no limit
_P2P_STREAM = "_xla_gpu_collective_stream"
_PIPELINE = "_xla_send_recv_pipeline"


class Resource(NamedTuple):
    """A use of a stream: its occupation by a done, else the release by a start."""

    stream: str
    occupies: bool


class Streams:
    """The streams that instructions use. `collectives` and `computations` limit the work in flight on these."""

    def __init__(self, collectives: int = 1, computations: int = 2) -> None:
        p2p = ("p2p", "send-0", "send-1", "recv-0", "recv-1")
        self.limits: dict[str, int] = {"collectives": collectives, "computations": computations, "copies": _COPIES_IN_FLIGHT}
        self.limits |= dict.fromkeys(p2p, _TRANSFERS_IN_FLIGHT)
        self._inside: dict[HloComputation, dict[str, int]] = {}

    def forget(self, computation: HloComputation) -> None:
        """Drop all knowledge about a computation: its order has changed."""
        self._inside.pop(computation, None)

    def uses(self, instruction: HloInstruction) -> tuple[Resource, ...]:
        """Return the streams that an instruction occupies and releases. A loop counts each stream of its body once."""
        if instruction.opcode == "while":
            return tuple(dict.fromkeys(use for inner in instruction.while_body.instructions for use in self.uses(inner)))
        kind = async_kind(instruction)
        return (Resource(_stream(instruction, kind), kind.phase == "done"),) if kind.phase else ()

    def needed(self, instruction: HloInstruction) -> dict[str, int]:
        """Return how much of each stream must be free for an instruction and the computations that it calls."""
        found: dict[str, int] = {}
        if not instruction.called_computations or instruction.opcode in ("async-start", "async-done"):
            for use in self.uses(instruction):
                if use.occupies:
                    found[use.stream] = found.get(use.stream, 0) + 1
        for computation in instruction.called_computations:
            for stream, count in self._in_flight(computation).items():
                found[stream] = max(found.get(stream, 0), count)
        return found

    def _in_flight(self, computation: HloComputation) -> dict[str, int]:
        """Return the most work in flight on each stream, in the order of the schedule if the computation has one."""
        if computation not in self._inside:
            module = computation.module
            order = module.schedule.get(computation) if module is not None and module.schedule is not None else None
            self._inside[computation] = self._unordered(computation) if order is None else self._ordered(order)
        return self._inside[computation]

    def _ordered(self, order: list[HloInstruction]) -> dict[str, int]:
        most: dict[str, int] = {}
        current: dict[str, int] = {}
        for instruction in reversed(order):
            if overlaps_until(instruction):
                for use in self.uses(instruction):
                    current[use.stream] = current.get(use.stream, 0) + 1
                    most[use.stream] = max(most.get(use.stream, 0), current[use.stream])
            elif overlaps_from(instruction):
                for use in self.uses(instruction):
                    current[use.stream] = current.get(use.stream, 0) - 1
            if instruction.called_computations:
                for stream, count in self.needed(instruction).items():
                    most[stream] = max(most.get(stream, 0), current.get(stream, 0) + count)
        return most

    def _unordered(self, computation: HloComputation) -> dict[str, int]:
        found: dict[str, int] = {}
        for instruction in computation.instructions:
            if overlaps_until(instruction):
                for use in self.uses(instruction):
                    found.setdefault(use.stream, 1)
            for inner in instruction.called_computations:
                for stream, count in self._in_flight(inner).items():
                    found.setdefault(stream, count)
        return found


def _stream(instruction: HloInstruction, kind: AsyncKind) -> str:
    start = instruction.operands[0] if kind.phase == "done" else instruction
    if frontend_attribute(start, _P2P_STREAM) == "p2p":
        return "p2p"
    if copies_slice(start):
        return "copies"
    if kind.inner in TRANSFER:
        return f"{kind.inner}-{1 if frontend_attribute(instruction, _PIPELINE) == '1' else 0}"
    return "collectives" if kind.inner in COLLECTIVE or is_on_collective_stream(instruction) else "computations"
