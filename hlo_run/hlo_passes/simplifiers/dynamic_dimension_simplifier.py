"""Simplify the computation of dynamic sizes: remove concatenates, slices and reshapes around scalars.

    concatenate(concatenate(a, b), c)                                =>   concatenate(a, b, c)
    slice(concatenate(a, b, c)), slice={[1:2]} of vectors            =>   b                      (if each has one element)
    reshape s32[] (broadcast s32[1] (a)), of a scalar                =>   a
    reshape s32[] (reshape s32[1] (a)), of a scalar                  =>   a
    convert(a) to its own type, reshape(a) to its own shape          =>   a

XLA's `DynamicDimensionSimplifier`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.hlo.edit import copy_instruction, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.hlo_pass import PassContext


@dataclass(frozen=True)
class DynamicDimensionSimplifier:
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "dynamic-dimension-simplifier"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit the executed computations in place, operands before their users."""
        del ctx
        replaced: list[HloInstruction] = []
        for computation in executed_computations(module):
            for instruction in computation.post_order():
                rule = _RULES.get(instruction.opcode)
                simpler = rule(instruction) if rule and not instruction.control_predecessors else None
                if simpler is not None:
                    module.replace(instruction, simpler)
                    replaced.append(instruction)
        remove_unused(replaced)


def _concatenate(joined: HloInstruction) -> HloInstruction | None:
    operands: list[HloInstruction] = []
    for operand in joined.operands:
        is_alike = operand.opcode == "concatenate" and operand.dimensions == joined.dimensions
        operands += operand.operands if is_alike else [operand]
    if len(operands) == len(joined.operands):
        return None
    assert joined.parent is not None, "the instruction is in a computation"
    return joined.parent.add(copy_instruction(joined, operands))


def _slice(part: HloInstruction) -> HloInstruction | None:
    joined = part.operands[0]
    if joined.opcode != "concatenate" or part.shape.dims != (1,):
        return None
    start, _, stride = part.slice_ranges[0]
    if stride != 1:
        return None
    for operand in joined.operands:
        (size,) = operand.shape.dims
        if start < size:
            return operand if size == 1 else None
        start -= size
    return None


def _reshape(value: HloInstruction) -> HloInstruction | None:
    source = value.operands[0]
    if source.shape == value.shape:
        return source
    if value.shape.dims or source.opcode not in ("broadcast", "reshape") or source.shape.dims != (1,):
        return None
    return source.operands[0] if not source.operands[0].shape.dims else None


def _convert(value: HloInstruction) -> HloInstruction | None:
    return value.operands[0] if value.operands[0].shape == value.shape else None


_RULES: dict[str, Callable[[HloInstruction], HloInstruction | None]] = {
    "concatenate": _concatenate,
    "slice": _slice,
    "reshape": _reshape,
    "convert": _convert,
}
