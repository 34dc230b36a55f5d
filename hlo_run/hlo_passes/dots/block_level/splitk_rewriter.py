"""Divide the contracting dimension of a product that has too few tiles for the GPU, and sum the parts.

    d = f32[64,192] dot(f32[64,128] a, f32[128,192] b)
      =>   p = f32[4,64,192] dot(reshape f32[64,4,32] (a), reshape f32[4,32,192] (b)), batch dimensions 1 and 0
           d = f32[64,192] reduce(p, 0), dimensions={0}, to_apply=add

A contracting dimension that cannot be divided in parts of 16 bytes is padded with zeros. The parts are summed in the type in
which the product is summed. The number of parts is that with the least estimated time. XLA's `SplitkRewriter`.
"""

from __future__ import annotations

import math
from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.block_level.support import accumulator_type
from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.hlo.edit import Editor, replace_each, scalar_reducer
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.shape import Layout, Shape
from hlo_run.hlo.views.dots import Dot, size_of
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace
from hlo_run.target import TargetSpec

_MOST_PARTS = 2048
_TILE = 128
_ALIGNMENT_BITS = 128
_MULTIPLICATIONS = {"x3": 12, "x6": 20, "x9": 28}


class SplitkRewriter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "splitk-rewriter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        forced = ctx.options.xla_gpu_experimental_force_split_k
        parts: dict[HloInstruction, int] = {}
        for dot in module.in_post_order("dot"):
            if dot.parent is None or dot.parent.is_fusion or len(Dot.of(dot).lhs.contracting) != 1:
                continue
            if all(operand.shape.element_type != "s32" for operand in dot.operands):
                parts[dot] = forced or _best_split(_Product.of(dot), ctx.target)
        replace_each(module, [dot for dot, count in parts.items() if count > 1], lambda dot: _split(module, dot, parts[dot]))


class _Product(Struct, frozen=True):
    """Sizes of a product, and the bits of an element of each array. An operand has the bits of what its converts start from."""

    batch: int
    rows: int
    columns: int
    depth: int
    lhs_bits: int
    rhs_bits: int
    sum_bits: int
    result_bits: int
    operations: int

    @staticmethod
    def of(dot: HloInstruction) -> _Product:
        view = Dot.of(dot)
        return _Product(
            size_of(dot, 0, view.lhs.batch),
            size_of(dot, 0, view.lhs.free),
            size_of(dot, 1, view.rhs.free),
            size_of(dot, 0, view.lhs.contracting),
            _source_bits(dot.operands[0]),
            _source_bits(dot.operands[1]),
            DTYPES[accumulator_type(dot.algorithm, dot.shape.element_type)].bits,
            dot.shape.dtype.bits,
            _MULTIPLICATIONS.get(dot.algorithm.rpartition("_")[2], 2),
        )


def _source_bits(value: HloInstruction) -> int:
    while len(value.operands) == 1 and is_elementwise(value):
        value = value.operands[0]
    return value.shape.dtype.bits


class _Weights(Struct, frozen=True):
    """What a byte and a launch cost on a GPU, beside 100 for an operation of a product."""

    memory: float
    sums: float
    launch: float


_OPERATION = 100.0


def _weights(target: TargetSpec) -> _Weights:
    if target.sm >= 100:
        return _Weights(0.0848863, 189.711, 1.21563e08)
    if target.sm >= 90:
        return _Weights(0.194136, 193.1384, 4.36e07)
    return _Weights(0.0666955, 467.815, 5.65307e07)


def _best_split(product: _Product, target: TargetSpec) -> int:
    counts = [1 << power for power in range(_MOST_PARTS.bit_length())]
    weights = _weights(target)
    return min(counts, key=lambda count: _cost(product, count, target.core_count, weights))


def _cost(product: _Product, parts: int, cores: int, weights: _Weights) -> float:
    rows, columns = min(product.rows, _TILE), min(product.columns, _TILE)
    batch = product.batch * parts
    tiles = batch * math.ceil(product.rows / _TILE) * math.ceil(product.columns / _TILE)
    slots = float(cores) * (_TILE * _TILE / (rows * columns))
    waves = max(1.0, tiles / slots)
    computing = product.operations * rows * columns * math.ceil(product.depth / parts) * waves * _OPERATION
    results = product.rows * product.columns
    read = (product.rows * product.lhs_bits + product.columns * product.rhs_bits) * product.depth * product.batch / 8
    written = results * batch * (product.sum_bits if parts > 1 else product.result_bits) / 8
    cost = max(computing, (read + written) * weights.memory)
    if parts == 1:
        return cost
    summed = (batch * product.sum_bits + product.batch * product.result_bits) * results / 8
    return cost + weights.launch + summed * weights.sums


def _split(module: HloModule, dot: HloInstruction, parts: int) -> HloInstruction:
    view, product, editor = Dot.of(dot), _Product.of(dot), Editor(dot)
    bare = Editor(dot, derives=False)
    step = parts * _ALIGNMENT_BITS // min(_ALIGNMENT_BITS, product.lhs_bits, product.rhs_bits)
    depth = -(-product.depth // step) * step
    place = sum(1 for dimension in view.lhs.batch if dimension < view.lhs.contracting[0])
    operands: list[HloInstruction] = []
    numbers: dict[str, tuple[int, ...]] = {}
    batch: list[int] = []
    free: list[int] = []
    for name, value, side in zip(("lhs", "rhs"), dot.operands, view.sides, strict=True):
        (contracting,) = side.contracting
        operands.append(_divided(bare, value, contracting, parts, depth))
        dims = operands[-1].shape.dims
        moved = [dimension + (dimension > contracting) for dimension in side.batch]
        numbers[f"{name}_batch_dims"] = (*moved[:place], contracting, *moved[place:])
        numbers[f"{name}_contracting_dims"] = (contracting + 1,)
        batch = [dims[dimension] for dimension in numbers[f"{name}_batch_dims"]]
        free += [dims[dimension + (dimension > contracting)] for dimension in side.free]
    total = accumulator_type(dot.algorithm, dot.shape.element_type)
    kept = {name: dot.attrs[name] for name in ("operand_precision", "algorithm") if name in dot.attrs}
    divided = editor.add_with("dot", Shape.array(total, (*batch, *free)), operands, {**numbers, **kept})
    zero = bare.constant(0, total)
    name = f"{divided.name}.reduce_sub_computation"
    adder = module.add_computation(scalar_reducer(name, "add", Shape.array(total, ()), ("lhs", "rhs")))
    shape = dot.shape.with_element_type(total)
    summed = editor.add("reduce", shape, [divided, zero], {"to_apply": [adder]}, dimensions=(place,))
    return editor.convert(summed, dot.shape.element_type)


def _divided(editor: Editor, value: HloInstruction, dimension: int, parts: int, depth: int) -> HloInstruction:
    """Pad dimension `dimension` to `depth` elements, and divide it into `parts`, a dimension of its own; no byte moves."""
    missing = depth - value.shape.dims[dimension]
    if missing:
        edges = [(0, missing if number == dimension else 0, 0) for number in range(value.shape.rank)]
        value = editor.pad(value, editor.constant(0, value.shape.element_type), edges)
    dims = value.shape.dims
    order: list[int] = []
    for number in value.shape.minor_to_major:
        order += [number + 1] if number >= dimension else []
        order += [number] if number <= dimension else []
    extra = value.shape.layout.extra if value.shape.layout else ""
    sizes = (*dims[:dimension], parts, depth // parts, *dims[dimension + 1 :])
    return editor.add("reshape", replace(value.shape, dims=sizes, layout=Layout(tuple(order), extra)), [value])
