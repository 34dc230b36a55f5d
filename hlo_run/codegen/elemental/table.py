"""The table of all opcodes that can be emitted inside a fusion: elementwise, or with their own index arithmetic."""

from __future__ import annotations

from hlo_run.codegen.elemental import dynamic, elementwise, linalg, reduce, shaping
from hlo_run.codegen.elemental.complex_numbers import emit_complex
from hlo_run.codegen.elemental.convert import convert, is_small
from hlo_run.codegen.elemental.emission import Emission, EmissionContext, EmitStructured, Values
from hlo_run.codegen.elemental.types import element_type
from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.dtype import DTYPES

# Opcodes that move or convert elements of every type, so small floats need no conversion to f32.
_ON_ANY_BITS: frozenset[Opcode] = frozenset(("convert", "copy", "bitcast-convert", "reduce-precision", "select"))
_F32 = DTYPES["f32"]
_F32_TYPE = element_type("f32")

STRUCTURED: dict[Opcode, EmitStructured] = {**shaping.EMIT, **dynamic.EMIT, **reduce.EMIT, **linalg.EMIT}


def emission(ctx: EmissionContext, instruction: HloInstruction, index: Values) -> Emission:
    """Return the generator that emits `instruction` at `index`. Raises Unsupported if no emitter supports its opcode."""
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
    """Emit an elementwise opcode. Floats of at most 8 bits are computed in f32 and rounded once to the result's type."""
    values: list[Values] = []
    for operand in instruction.operands:
        values.append((yield operand, index if operand.shape.rank else ()))
    emit, b = elementwise.EMIT[instruction.opcode], ctx.builder
    scalars = [value for (value,) in values]
    if instruction.opcode in _ON_ANY_BITS:
        return (emit(b, instruction, scalars),)
    if instruction.operands[0].shape.dtype.is_complex:
        return (emit_complex(b, instruction, scalars),)
    scalars = [
        convert(b, value, operand.shape.dtype, _F32, _F32_TYPE) if is_small(operand.shape.dtype) else value
        for value, operand in zip(scalars, instruction.operands, strict=True)
    ]
    result, dtype = emit(b, instruction, scalars), instruction.shape.dtype
    if is_small(dtype):
        result = convert(b, result, _F32, dtype, element_type(dtype.name))
    return (result,)
