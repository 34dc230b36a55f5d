"""Simplify the computation of dynamic sizes: remove concatenates, slices and reshapes around scalars.

    concatenate(concatenate(a, b), c)                                =>   concatenate(a, b, c)
    slice(concatenate(a, b, c)), slice={[1:2]} of vectors            =>   b                      (if each has one element)
    reshape s32[] (broadcast s32[1] (a)), of a scalar                =>   a
    reshape f32[4] (reshape f32[2,2] (f32[4] a))                     =>   a
    convert(a) to its own type, reshape(a) to its own shape          =>   a

XLA's `DynamicDimensionSimplifier`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import copy_instruction, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.pass_support.hlo_pass import PassContext


class DynamicDimensionSimplifier(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "dynamic-dimension-simplifier"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place: one walk per rule, operands before their users. Only replaced concatenates are removed."""
        del ctx
        for opcode, rule in _RULES:
            for computation in dict.fromkeys(i.parent for i in module.instructions_of(opcode)):
                assert computation is not None, "the instruction is in a computation"
                for instruction in computation.post_order():
                    simpler = rule(instruction) if instruction.opcode == opcode and not instruction.control_predecessors else None
                    if simpler is None:
                        continue
                    if opcode == "concatenate":
                        module.replace(instruction, simpler)
                        remove_unused([instruction])
                    else:
                        module.replace_uses(instruction, simpler)


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


def _reshape_of_broadcast(value: HloInstruction) -> HloInstruction | None:
    source = value.operands[0]
    if value.shape.dims or source.opcode != "broadcast" or source.shape.rank != 1:
        return None
    return source.operands[0] if not source.operands[0].shape.dims else None


def _reshape_back(value: HloInstruction) -> HloInstruction | None:
    source = value.operands[0]
    return source.operands[0] if source.opcode == "reshape" and source.operands[0].shape == value.shape else None


def _to_own_shape(value: HloInstruction) -> HloInstruction | None:
    return value.operands[0] if value.operands[0].shape == value.shape else None


_RULES: tuple[tuple[Opcode, Callable[[HloInstruction], HloInstruction | None]], ...] = (
    ("concatenate", _concatenate),
    ("slice", _slice),
    ("reshape", _reshape_of_broadcast),
    ("reshape", _reshape_back),
    ("convert", _to_own_shape),
    ("reshape", _to_own_shape),
)
