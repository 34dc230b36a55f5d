"""All opcodes that can be emitted inside a fusion, and how: point by point, or with their own index arithmetic."""

from __future__ import annotations

from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloInstruction
from hlo_run.pipeline.elemental import dynamic, elementwise, linalg, reduce, shaping
from hlo_run.pipeline.elemental.emission import Emission, EmissionContext, EmitStructured, Values

STRUCTURED: dict[str, EmitStructured] = {**shaping.EMIT, **dynamic.EMIT, **reduce.EMIT, **linalg.EMIT}


def emission(ctx: EmissionContext, instruction: HloInstruction, index: Values) -> Emission:
    """Return the generator that emits `instruction` at `index`; raises Unsupported if no emitter takes its opcode."""
    opcode = instruction.opcode
    structured = STRUCTURED.get(opcode)
    if structured is not None and (opcode != "bitcast-convert" or shaping.bitcast_convert_changes_rank(instruction)):
        return structured(ctx, instruction, index)
    if opcode not in elementwise.EMIT:
        raise Unsupported(
            f"'{opcode}' inside a fusion",
            instruction.where,
            hint="move it out of the fusion",
            notes=(f"instruction {instruction.name} of shape {instruction.shape}",),
        )
    return _pointwise(ctx, instruction, index)


def _pointwise(ctx: EmissionContext, instruction: HloInstruction, index: Values) -> Emission:
    values: list[Values] = []
    for operand in instruction.operands:
        values.append((yield operand, index if operand.shape.rank else ()))
    emit = elementwise.EMIT[instruction.opcode]
    return (emit(ctx.builder, instruction, [value for (value,) in values]),)
