"""Parts a schedule into regions: the instructions of one region may run at the same time, and regions run in turn.

    f = fusion(p);  g = fusion(q)     region 0
    c = custom-call(f)                region 1: calls of libraries run alone
    h = fusion(c);  k = fusion(g)     region 2

Mirrors XLA's `ConcurrentRegionsHloOrdering`.
"""

from __future__ import annotations

from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape

_ALWAYS: frozenset[Opcode] = frozenset(("parameter", "bitcast", "get-tuple-element", "tuple"))
_ALONE_IN_FUSION: tuple[Opcode, ...] = ("dot", "convolution")
_MOST_FUSED = 100
_MOST_BYTES = 20_000_000


def concurrent_regions(module: HloModule) -> dict[HloInstruction, int]:
    """Return the number of the region of every instruction in the module's schedule. The module has one."""
    schedule = module.schedule
    assert schedule is not None, "the module is scheduled"
    regions: dict[HloInstruction, int] = {}
    number = 0
    for computation in module.computations:
        was_alone = False
        for instruction in schedule.get(computation, ()):
            is_alone = not _runs_with_others(instruction)
            number += is_alone or was_alone
            regions[instruction] = number
            was_alone = is_alone
    return regions


def _runs_with_others(instruction: HloInstruction) -> bool:
    """Return False for what uses much of the device: calls of libraries, products, large fusions, and much memory."""
    if instruction.opcode in _ALWAYS:
        return True
    if instruction.opcode == "custom-call":
        return False
    if instruction.opcode == "fusion":
        inner = instruction.fused_computation.instructions
        if len(inner) > _MOST_FUSED or any(i.opcode in _ALONE_IN_FUSION for i in inner):
            return False
    return _bytes(instruction.shape) + sum(_bytes(operand.shape) for operand in instruction.operands) <= _MOST_BYTES


def _bytes(shape: Shape) -> int:
    return sum(leaf.size_bytes for _, leaf in shape.leaves() if leaf.is_array)
