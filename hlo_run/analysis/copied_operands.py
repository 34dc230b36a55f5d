"""Is a fusion nothing but copies of its operands, which need no kernel?

    ROOT c = f32[8] copy(p1)      result 0 is operand 1

Mirrors the choice of XLA's `MemcpyFusion`.
"""

from __future__ import annotations

from hlo_run.analysis.fusion_roots_and_heroes import fusion_roots
from hlo_run.hlo.graph import HloInstruction


def copied_operands(fusion: HloInstruction) -> tuple[int, ...]:
    """Return the number of the operand that each result is a copy of, byte for byte; nothing if some result is not."""
    numbers: list[int] = []
    for root in fusion_roots(fusion):
        if root.opcode != "copy" or root.operands[0].opcode != "parameter" or root.shape != root.operands[0].shape:
            return ()
        number: int = root.operands[0].attrs["parameter_number"]
        if fusion.operands[number].shape.minor_to_major != root.shape.minor_to_major:
            return ()
        numbers.append(number)
    return tuple(numbers)
