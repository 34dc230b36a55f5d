"""Estimates of the time of instructions, and of the latency between an instruction and a user. XLA's `LatencyEstimator`s.

`TShirtSizes` knows three sizes of work and two of latency (`GpuLatencyEstimator`).
"""

from __future__ import annotations

from typing import Protocol

from hlo_run.analysis.latency.async_kinds import async_kind, overlaps_from, overlaps_until
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.opcodes.traits import DEVICE_ID

LOW_COST, MEDIUM_COST, HIGH_COST = 1.0, 1000.0, 5000.0
LOW_LATENCY, HIGH_LATENCY = 1.0, 5000.0
FREE = opcode_set("get-tuple-element bitcast constant parameter tuple opt-barrier") | DEVICE_ID
"""Instructions that cost nothing."""
_COSTLY_ALL_REDUCE_BYTES = 30 * 1024 * 1024
_COSTLY_FACTOR = 4
_P2P_STREAM = "_xla_gpu_collective_stream"
# Factors of the high latency, for collectives on the stream of pipelined transfers.
_P2P_SEND, _P2P_PERMUTE, _P2P_OTHER = 1024, 14, 6
_P2P_CYCLE = 8


class LatencyEstimator(Protocol):
    """The time of instructions and the latency between them, in one unit."""

    def cost(self, instruction: HloInstruction) -> float:
        """Return the time that an instruction takes."""
        ...

    def latency(self, first: HloInstruction, user: HloInstruction) -> float:
        """Return the time from the end of an instruction until `user` may begin."""
        ...


class TShirtSizes:
    """Estimates work as free, low, medium or high.

    The latency of an asynchronous pair is high. With `knows_costly_collectives`, that of an all-reduce of more than 30 MiB is
    four times as high.
    """

    def __init__(self, knows_costly_collectives: bool = False, partitions: int = 1) -> None:
        self._knows_costly_collectives = knows_costly_collectives
        self._partitions = partitions

    def cost(self, instruction: HloInstruction) -> float:
        """Return 0, 1, 1000 or 5000."""
        if instruction.opcode in FREE:
            return 0.0
        if instruction.opcode == "custom-call":
            given = metadata_nanoseconds(instruction)
            return MEDIUM_COST if given is None else given / 1000
        if instruction.opcode == "convolution":
            return HIGH_COST
        if instruction.opcode == "fusion":
            return {"kLoop": MEDIUM_COST, "kOutput": HIGH_COST}.get(instruction.fusion_kind, LOW_COST)
        return LOW_COST

    def latency(self, first: HloInstruction, user: HloInstruction) -> float:
        """Return a high latency for asynchronous pairs, else 1."""
        one, other = async_kind(first), async_kind(user)
        if one.inner != other.inner or not (overlaps_from(first) and overlaps_until(user)):
            return LOW_LATENCY
        if frontend_attribute(first, _P2P_STREAM) == "p2p":
            return self._p2p_factor(one.inner) * HIGH_LATENCY
        is_costly = first.opcode == "all-reduce-start" and first.shape.size_bytes > _COSTLY_ALL_REDUCE_BYTES
        return HIGH_LATENCY * (_COSTLY_FACTOR if is_costly and self._knows_costly_collectives else 1)

    def _p2p_factor(self, inner: str) -> int:
        """Return the factor of a collective on the stream for transfers. A permutation waits for its farthest peer."""
        if inner == "send":
            return _P2P_SEND
        waits = max(self._partitions // _P2P_CYCLE - 1, 1) * _P2P_OTHER
        return waits + _P2P_PERMUTE if inner == "collective-permute" else _P2P_OTHER


def metadata_nanoseconds(instruction: HloInstruction) -> int | None:
    """Return the time that the frontend attribute `latency_metadata` gives, in nanoseconds; None if it gives none."""
    text = frontend_attribute(instruction, "latency_metadata") or ""
    return int(text) if text.isdecimal() else None
