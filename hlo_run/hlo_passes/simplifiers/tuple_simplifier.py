"""Simplify tuples: replace an element of a tuple by the operand, and a tuple of all elements of a value by the value.

    get-tuple-element(tuple(a, b)), index=1                                     =>   b
    tuple(get-tuple-element(t), index=0, get-tuple-element(t), index=1)         =>   t      (if t has no more elements)

XLA's `TupleSimplifier`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hlo_run.hlo.edit import remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.hlo_pass import PassContext


@dataclass(frozen=True)
class TupleSimplifier:
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "tuple-simplifier"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit all computations except fusion bodies in place, operands before their users."""
        del ctx
        replaced: list[HloInstruction] = []
        computations = dict.fromkeys(i.parent for i in module.instructions_of("get-tuple-element", "tuple"))
        for computation in computations:
            assert computation is not None
            for instruction in computation.post_order():
                simpler = _simpler(instruction)
                if simpler is not None:
                    module.replace(instruction, simpler)
                    replaced.append(instruction)
        remove_unused(replaced)


def _simpler(instruction: HloInstruction) -> HloInstruction | None:
    """Return the existing value that `instruction` is equal to; None if it is not known."""
    if instruction.control_predecessors:
        return None
    if instruction.opcode == "get-tuple-element" and instruction.operands[0].opcode == "tuple":
        index = instruction.tuple_index
        return instruction.operands[0].operands[index]
    if instruction.opcode != "tuple" or not instruction.operands:
        return None
    sources = {operand.operands[0] if operand.opcode == "get-tuple-element" else operand for operand in instruction.operands}
    (source,) = sources if len(sources) == 1 else (None,)
    if source is None or source.shape != instruction.shape:
        return None
    is_in_order = all(
        operand.opcode == "get-tuple-element" and operand.tuple_index == number
        for number, operand in enumerate(instruction.operands)
    )
    return source if is_in_order else None
