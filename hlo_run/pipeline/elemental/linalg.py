"""Emission of dot as a loop over its contracting dimensions."""

from __future__ import annotations

from collections.abc import Generator

from xdsl.dialects import arith, complex
from xdsl.dialects.builtin import ComplexType, Float32Type, IntegerType
from xdsl.ir import SSAValue

from hlo_run.errors import Unsupported
from hlo_run.hlo.dtype import DTYPES, DType
from hlo_run.hlo.graph import HloInstruction
from hlo_run.ops.index import operand_map
from hlo_run.pipeline.elemental.builder import IrBuilder
from hlo_run.pipeline.elemental.convert import convert, is_small
from hlo_run.pipeline.elemental.emission import Emission, EmissionContext, EmitStructured, Request, Values, element
from hlo_run.pipeline.elemental.reduce import loop_nest
from hlo_run.pipeline.elemental.types import element_type

_ALGORITHMS = ("dot_bf16_bf16_f32", "dot_f32_f32_f32")


def _dot(ctx: EmissionContext, instruction: HloInstruction, index: Values) -> Emission:
    """Products are added in the result's type, in f32 if that is bf16 or narrower."""
    b = ctx.builder
    algorithm = instruction.attrs.get("algorithm")
    if algorithm is not None and str(algorithm) not in _ALGORITHMS:
        raise Unsupported(f"'dot' with algorithm {algorithm} in a kernel", instruction.where, hint="leave the algorithm out")
    maps = [operand_map(instruction, number) for number in (0, 1)]
    result = instruction.shape.dtype
    total = DTYPES["f32"] if result.name == "bf16" or is_small(result) else result
    total_type = element_type(total.name, instruction.where)

    def body(symbols: Values, values: Values) -> Generator[Request, Values, Values]:
        factors: list[SSAValue] = []
        for operand, indexing_map in zip(instruction.operands, maps, strict=True):
            assert indexing_map is not None, "dot has index maps"
            value = yield from element(operand, b.apply(indexing_map, (*index, *symbols)))
            if str(algorithm) == "dot_bf16_bf16_f32" and operand.shape.element_type == "f32":
                value = _through_bf16(b, value)
            factors.append(convert(b, value, operand.shape.dtype, total, total_type))
        return (_multiply_add(b, total, values[0], *factors),)

    assert maps[0] is not None, "dot has index maps"
    (value,) = yield from loop_nest(b, maps[0], (b.constant(total_type, 0),), body)
    return (convert(b, value, total, result, element_type(result.name, instruction.where)),)


def _multiply_add(b: IrBuilder, dtype: DType, total: SSAValue, left: SSAValue, right: SSAValue) -> SSAValue:
    match total.type:
        case IntegerType():
            is_pred = dtype.kind == "pred"
            product = b.binary(arith.AndIOp if is_pred else arith.MuliOp, left, right)
            return b.binary(arith.OrIOp if is_pred else arith.AddiOp, total, product)
        case ComplexType():
            return b.binary(complex.AddOp, total, b.binary(complex.MulOp, left, right))
        case _:
            return b.binary(arith.AddfOp, total, b.binary(arith.MulfOp, left, right))


def _through_bf16(b: IrBuilder, value: SSAValue) -> SSAValue:
    rounded = b.cast(arith.TruncFOp, value, element_type("bf16"))
    return b.cast(arith.ExtFOp, rounded, Float32Type())


EMIT: dict[str, EmitStructured] = {"dot": _dot}
