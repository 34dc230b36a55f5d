"""Rewrite the custom calls of numbers with a scale per block to calls of computations of ordinary instructions.

    x = f32[10,256] custom-call(q, s), custom_call_target="__op$dequantize"
        =>   f32[10,256] multiply(convert(q), reshape(broadcast(convert(s)), dimensions={0,1})))

A block is a part of the last dimension: its size is that of the array divided by that of the scales. `__op$quantize` returns
numbers and scales, each the largest absolute value of its block over the largest power of two of the number's type.
`__op$block_scaled_dot` multiplies two such arrays, or one and a plain array, along their last dimensions. A fifth operand scales
the result. Scales may be longer than the array needs if the backend_config states `block_size`.

XLA's `BlockScalingRewriter`. With `cudnn`, a version such as 9.10, products that cuDNN knows become calls of it, with operands
padded to its tiles and scales in the order in which it reads them. XLA wants that on Blackwell GPUs; no library here runs it.
"""

from __future__ import annotations

import math
from typing import ClassVar

from msgspec import Struct

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.block_scaling import (
    BLOCK_SCALED_CALLS,
    DEQUANTIZE,
    QUANTIZE,
    block_size,
    stated_block_size,
    used_scales,
)
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.subgraphs.expansion import expand
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace

# The first versions of cuDNN with these products, and with a scale of the result.
_CUDNN_PRODUCTS, _CUDNN_RESULT_SCALES = (9, 10), (9, 13)
_CUDNN_TARGET = "__cudnn$blockScaledDot"
# Rows of an operand and columns of its scales that cuDNN reads at once; it reads the rows of a tile as 4 x 32.
_TILE_ROWS, _TILE_COLUMNS = 128, 4
# (type of the numbers, type of the scales, block size): the formats of cuDNN.
_FORMATS = {
    ("f8e4m3fn", "f8e8m0fnu", 32): "mxfp8",
    ("f8e5m2", "f8e8m0fnu", 32): "mxfp8e5",
    ("f4e2m1fn", "f8e4m3fn", 16): "nvfp4",
}
_PAIRS = {("mxfp8", "mxfp8"), ("mxfp8", "mxfp8e5"), ("mxfp8e5", "mxfp8"), ("nvfp4", "nvfp4")}


class BlockScalingRewriter(Struct, frozen=True):
    """The pass; see the module's docstring. `cudnn` is a version, empty for none."""

    name: ClassVar[str] = "block-scaling-rewriter"

    cudnn: str = ""

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        version = tuple(int(part) for part in self.cudnn.split(".") if part)

        def rewrite(b: HloBuilder, call: HloInstruction, *operands: HloValue) -> HloValue:
            match call.custom_call_target:
                case target if target == QUANTIZE:
                    return _quantized(b, operands[0].annotate(name="input"), *call.shape.tuple_shapes)
                case target if target == DEQUANTIZE:
                    numbers, scales = operands[0].annotate(name="input"), operands[1].annotate(name="scale")
                    return _dequantized(b, numbers, scales, call.shape.element_type)
                case _:
                    return _product(b, call, version, operands)

        expand(
            module,
            ("custom-call",),
            rewrite,
            lambda call: call.custom_call_target in BLOCK_SCALED_CALLS,
            called=lambda call: call.name,
        )


def _quantized(b: HloBuilder, source: HloValue, numbers: Shape, scales: Shape) -> HloValue:
    kind, dims = source.shape.element_type, source.shape.dims
    size = _size_of_blocks(numbers, scales)
    blocks = b.reshape(source, (*scales.dims, size))
    largest = b.reduce(blocks, b.constant(0, kind), [scales.rank], _largest_magnitude(kind))
    power = 2.0 ** (DTYPES[numbers.element_type].float_format.max_exponent - 1)
    norm = largest / b.broadcast(b.constant(power, kind), scales.dims)
    scale = b.convert(norm, scales.element_type)
    spread = b.reshape(_spread(b, _converted(b, scale, kind), size), dims)
    return b.tuple([_converted(b, source / spread, numbers.element_type), scale])


def _largest_magnitude(kind: str) -> HloComputation:
    b = HloBuilder("amax")
    a = b.abs(b.parameter(0, Shape.array(kind, ()), name="a"))
    return b.build_computation(b.maximum(a, b.abs(b.parameter(1, Shape.array(kind, ()), name="b"))))


def _spread(b: HloBuilder, scales: HloValue, size: int) -> HloValue:
    """Repeat each scale along a new last dimension. As in XLA, the outermost dimension of another layout stays outermost."""
    shape = scales.shape
    *inner, outer = shape.minor_to_major
    if shape.minor_to_major == tuple(reversed(range(shape.rank))):
        return b.broadcast(scales, (*shape.dims, size), range(shape.rank))
    order = (*(dim + (dim >= outer) for dim in (*inner, outer)), outer)
    wanted = Shape.array(shape.element_type, (*shape.dims, size), minor_to_major=order)
    return b.instruction("broadcast", [scales], wanted, dimensions=range(shape.rank))


def _converted(b: HloBuilder, value: HloValue, kind: str) -> HloValue:
    return value if value.shape.element_type == kind else b.convert(value, kind)


def _dequantized(b: HloBuilder, numbers: HloValue, scales: HloValue, kind: str) -> HloValue:
    size = _size_of_blocks(numbers.shape, scales.shape)
    value = _converted(b, numbers, kind)
    spread = _spread(b, _converted(b, scales, kind), size)
    return value * b.instruction("reshape", [spread], replace(value.shape, element_type=kind))


def _size_of_blocks(numbers: Shape, scales: Shape) -> int:
    size = block_size(numbers, scales)
    assert size is not None, "the call was verified"
    return size


def _product(b: HloBuilder, call: HloInstruction, version: tuple[int, ...], operands: tuple[HloValue, ...]) -> HloValue:
    for value, name in zip(operands, ("lhs", "rhs", "lhs_scale", "rhs_scale", "global_scale"), strict=False):
        value.annotate(name=name)
    sides = [_Side(operands[0], operands[2]), _Side(operands[1], operands[3] if len(operands) > 3 else None)]
    result_scale = operands[4] if len(operands) > 4 else None
    kind, stated = call.shape.element_type, stated_block_size(call.backend_config)
    if version >= _CUDNN_PRODUCTS and (_format(sides[0], stated), _format(sides[1], stated)) in _PAIRS:
        return _library_product(b, call, version, sides, result_scale)
    factors = [_factor(b, side, kind, stated) for side in sides]
    rank = len(call.shape.dims)
    batch = (0,) if rank == 3 else ()
    result = b.dot(
        *factors,
        lhs_batch_dims=batch,
        rhs_batch_dims=batch,
        lhs_contracting_dims=(rank - 1,),
        rhs_contracting_dims=(rank - 1,),
        element_type=kind,
    )
    return result if result_scale is None else _scaled(b, result, result_scale)


class _Side(Struct, frozen=True):
    """An operand of a product: its numbers, and their scales if it has them."""

    numbers: HloValue
    scales: HloValue | None


def _factor(b: HloBuilder, side: _Side, kind: str, stated: int | None) -> HloValue:
    if side.scales is None:
        return side.numbers
    scales = side.scales
    used = used_scales(side.numbers.shape, scales.shape, stated)
    assert used is not None, "the call was verified"
    if used != scales.shape.dims:
        scales = b.slice(scales, [(0, size) for size in used])
    return _dequantized(b, side.numbers, scales, kind)


def _scaled(b: HloBuilder, value: HloValue, scale: HloValue) -> HloValue:
    return value * b.broadcast(scale, value.shape.dims)


def _format(side: _Side, stated: int | None) -> str | None:
    """Return cuDNN's name of an operand's format, None for another one or another layout."""
    if side.scales is None:
        return None
    numbers, scales = side.numbers.shape, side.scales.shape
    if any(shape.minor_to_major != tuple(reversed(range(shape.rank))) for shape in (numbers, scales)):
        return None
    size = stated or block_size(numbers, scales) or 0
    whole = size and numbers.dims[-1] % size == 0
    return _FORMATS.get((numbers.element_type, scales.element_type, size)) if whole else None


def _library_product(
    b: HloBuilder, call: HloInstruction, version: tuple[int, ...], sides: list[_Side], result_scale: HloValue | None
) -> HloValue:
    numbers = [_whole_tiles(b, side.numbers, side.numbers.shape.dims[-1]) for side in sides]
    scales = [_in_tiles(b, side) for side in sides]
    shape = call.shape
    rows, columns = (value.shape.dims[-2] for value in numbers)
    padded = Shape.array(shape.element_type, (*shape.dims[:-2], rows, columns))
    inside = result_scale is not None and version >= _CUDNN_RESULT_SCALES
    given = [*numbers, *scales, *([result_scale] if result_scale is not None and inside else ())]
    result = b.custom_call(_CUDNN_TARGET, given, Shape.make_tuple((padded, Shape.array("u8", (0,)))))[0]
    if result_scale is not None and not inside:
        result = _scaled(b, result, result_scale)
    return result if padded.dims == shape.dims else b.slice(result, [(0, size) for size in shape.dims])


def _whole_tiles(b: HloBuilder, value: HloValue, columns: int) -> HloValue:
    """Pad with zeros to whole tiles of rows, and to `columns`."""
    *batch, rows, given = value.shape.dims
    more = -rows % _TILE_ROWS
    if not more and given == columns:
        return value
    zero = b.constant(0, value.shape.element_type)
    return b.pad(value, zero, [*((0, 0) for _ in batch), (0, more), (0, columns - given)])


def _in_tiles(b: HloBuilder, side: _Side) -> HloValue:
    """Return the scales in cuDNN's order: tile by tile, in a tile by row of 32, then by quarter of the rows, then by column."""
    assert side.scales is not None, "the product has scales on both sides"
    *batch, rows, columns = side.scales.shape.dims
    tiles = _whole_tiles(b, side.scales, columns + -columns % _TILE_COLUMNS)
    *_, rows, columns = tiles.shape.dims
    parts = (math.prod(batch), rows // _TILE_ROWS, 4, 32, columns // _TILE_COLUMNS, _TILE_COLUMNS)
    return b.reshape(b.transpose(b.reshape(tiles, parts), (0, 1, 4, 3, 2, 5)), tiles.shape.dims)
