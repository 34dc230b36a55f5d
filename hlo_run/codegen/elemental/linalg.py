"""Emits dot and convolution as loops of multiply-adds."""

from __future__ import annotations

from collections.abc import Generator

from msgspec import Struct
from xdsl.dialects import arith, complex
from xdsl.dialects.builtin import ComplexType, Float32Type, IntegerType
from xdsl.ir import SSAValue

from hlo_run.analysis.fusion_owner import is_block_level
from hlo_run.codegen.elemental.builder import IrBuilder
from hlo_run.codegen.elemental.convert import convert, is_small
from hlo_run.codegen.elemental.emission import Emission, EmissionContext, EmitStructured, Request, Values, element
from hlo_run.codegen.elemental.reduce import guarded, loop_nest
from hlo_run.codegen.elemental.types import element_type
from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.dtype import DTYPES, DType
from hlo_run.indexing import IndexingMap, dim
from hlo_run.ops.convolution import convolution_labels
from hlo_run.ops.index import operand_map
from hlo_run.ops.index_linalg import convolution_maps

# The algorithms that a kernel computes at least as precisely. Those of several parts are products of f32, which the parts
# only approach; `dot-algorithm-rewriter` splits what is not in a fusion of the module.
_ALGORITHMS = frozenset(
    """dot_any_f8_any_f8_f32 dot_any_f8_any_f8_f32_fast_accum dot_bf16_bf16_f32 dot_bf16_bf16_f32_x3 dot_bf16_bf16_f32_x6
    dot_bf16_bf16_f32_x9 dot_tf32_tf32_f32 dot_tf32_tf32_f32_x3 dot_f32_f32_f32 dot_f64_f64_f64""".split()
)


class _Sum(Struct, frozen=True):
    """The accumulation of products: in the result's type, or in f32 if that is bf16 or has at most 8 bits.

    In a block-level fusion f16 is summed in f32 too, as on tensor cores.
    """

    b: IrBuilder
    instruction: HloInstruction

    @property
    def dtype(self) -> DType:
        result = self.instruction.shape.dtype
        is_wider = result.name == "bf16" or is_small(result) or (result.name == "f16" and self._has_tiles)
        return DTYPES["f32"] if is_wider else result

    @property
    def _has_tiles(self) -> bool:
        body = self.instruction.parent
        return body is not None and any(is_block_level(caller) for caller in body.callers)

    @property
    def zero(self) -> SSAValue:
        return self.b.constant(element_type(self.dtype.name, self.instruction.where), 0)

    def factor(self, operand: HloInstruction, value: SSAValue) -> SSAValue:
        """Return an operand's element in the type of the products."""
        if self._algorithm == "dot_bf16_bf16_f32" and operand.shape.element_type == "f32":
            value = _through_bf16(self.b, value)
        return convert(self.b, value, operand.shape.dtype, self.dtype, element_type(self.dtype.name))

    def result(self, total: SSAValue) -> SSAValue:
        dtype = self.instruction.shape.dtype
        return convert(self.b, total, self.dtype, dtype, element_type(dtype.name, self.instruction.where))

    @property
    def _algorithm(self) -> str:
        return self.instruction.algorithm


def _check_algorithm(instruction: HloInstruction) -> None:
    algorithm = instruction.algorithm
    if algorithm != "unset" and algorithm not in _ALGORITHMS:
        message = f"'{instruction.opcode}' with algorithm {algorithm} in a kernel"
        raise Unsupported(message, instruction.where, hint="leave the algorithm out")


def _dot(ctx: EmissionContext, instruction: HloInstruction, index: Values) -> Emission:
    """Emit a loop over the contracting dimensions. The scales of a scaled-dot multiply its factors."""
    b, total = ctx.builder, _Sum(ctx.builder, instruction)
    _check_algorithm(instruction)
    maps = [operand_map(instruction, number) for number in range(len(instruction.operands))]

    def body(symbols: Values, values: Values) -> Generator[Request, Values, Values]:
        factors: list[SSAValue] = []
        for operand, indexing_map in zip(instruction.operands, maps, strict=True):
            assert indexing_map is not None, "dot has index maps"
            place = b.apply(indexing_map, (*index, *symbols)) if operand.shape.rank else ()
            factors.append(total.factor(operand, (yield from element(operand, place))))
        if len(factors) > 2:
            factors = [b.binary(arith.MulfOp, factor, scale) for factor, scale in zip(factors[:2], factors[2:], strict=True)]
        return (_multiply_add(b, total.dtype, values[0], *factors),)

    assert maps[0] is not None, "dot has index maps"
    (value,) = yield from loop_nest(b, maps[0], (total.zero,), body)
    return (total.result(value),)


def _convolution(ctx: EmissionContext, instruction: HloInstruction, index: Values) -> Emission:
    """Emit a loop over the window and the kernel's input features. Padding and base dilation contribute nothing."""
    b, total = ctx.builder, _Sum(ctx.builder, instruction)
    _check_algorithm(instruction)
    source, kernel = instruction.operands
    source_map, kernel_map = convolution_maps(instruction)
    if source_map.is_known_empty:
        return (total.result(total.zero),)
    group = _batch_group(b, instruction, index)

    def add(place: Values, symbols: Values, sum_so_far: SSAValue) -> Generator[Request, Values, Values]:
        left = yield from element(source, b.apply(source_map, place))
        right = yield from element(kernel, b.apply(kernel_map, (*index, *symbols)))
        return (_multiply_add(b, total.dtype, sum_so_far, total.factor(source, left), total.factor(kernel, right)),)

    def body(symbols: Values, values: Values) -> Generator[Request, Values, Values]:
        place = (*index, *symbols, *group)
        condition = b.in_bounds(source_map, instruction.shape.dims, place)
        return (yield from guarded(b, condition, values, lambda: add(place, symbols, values[0])))

    (value,) = yield from loop_nest(b, kernel_map, (total.zero,), body)
    return (total.result(value),)


def _batch_group(b: IrBuilder, instruction: HloInstruction, index: Values) -> Values:
    """Return the batch group of the output feature, which is the map's last symbol; empty without batch groups."""
    groups = instruction.batch_group_count
    if groups == 1:
        return ()
    feature = convolution_labels(instruction.dim_labels).output[1]
    dims = instruction.shape.dims
    return b.apply(IndexingMap.from_sizes((dim(feature) // (dims[feature] // groups),), dims), index)


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


EMIT: dict[Opcode, EmitStructured] = {"dot": _dot, "scaled-dot": _dot, "convolution": _convolution}
