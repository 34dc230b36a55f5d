"""Rewrite dots of 8-bit floats to calls of cuBLASLt, which scales both operands.

    d = f32[16,32] dot(f8e4m3fn[16,32] a, f8e4m3fn[32,32] b)
        =>   custom-call(a, transpose(b), 1, 1), custom_call_target="__cublas$lt$matmul$f8"

The library needs both operands contiguous along the contracting dimension (except on Blackwell), and sizes that are multiples
of 16. It does not support two e5m2 operands, and needs Ada or later: other dots are computed in f16, or in bf16 if that is
the result's type. Follows XLA's `GemmRewriter`.
"""

from __future__ import annotations

from typing import cast

from hlo_run.hlo.edit import Editor, InstructionMaker, copy_instruction
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.backend_config import config_of
from hlo_run.hlo.values.shape import Layout, Shape
from hlo_run.hlo.views.dots import Side, dot_side
from hlo_run.hlo_passes.dots.gemm.edits import Edits
from hlo_run.hlo_passes.dots.gemm.f8_operands import F8Operand, match_f8_operand, moved_value
from hlo_run.hlo_passes.subgraphs.gemm_record import F8_MATMUL, F8_TYPES
from hlo_run.hlo_passes.subgraphs.library_calls import (
    gpu_backend_config,
    has_product,
    is_product_of_library,
    kept_attributes,
    product_record,
)
from hlo_run.records import replace
from hlo_run.target import TargetSpec

_FIRST_CAPABILITY = (8, 9)
_MULTIPLE = 16
_INPUTS = frozenset(("f8e4m3fn", "f8e5m2"))
_RESULTS = frozenset(("bf16", "f16", "f32", "f8e4m3fn", "f8e5m2"))
# XLA's number for one scale per operand.
_TENSOR_SCALING = 1


def rewrite_f8_dot(edits: Edits, dot: HloInstruction, target: TargetSpec) -> None:
    """Replace a dot of 8-bit floats, dequantised or not, by a call, or compute it in 16 bits if the library cannot."""
    if not is_product_of_library(dot, edits.smallest_product):
        return
    lhs, rhs = (match_f8_operand(operand) for operand in dot.operands)
    if lhs is not None and rhs is not None and _is_possible(dot, lhs, rhs, target):
        edits.replace(dot, _call(dot, lhs, rhs, target))
    elif all(operand.shape.element_type in F8_TYPES for operand in dot.operands):
        _compute_in_16_bits(edits, dot)


def _is_possible(dot: HloInstruction, lhs: F8Operand, rhs: F8Operand, target: TargetSpec) -> bool:
    types = {lhs.element_type, rhs.element_type}
    if target.compute_capability < _FIRST_CAPABILITY or not types <= _INPUTS or types == {"f8e5m2"}:
        return False
    if not has_product(dot) or dot.shape.element_type not in _RESULTS:
        return False
    for number, operand in enumerate((lhs, rhs)):
        side = dot_side(dot, number)
        if operand.scale is not None and operand.scale.shape.dims:
            return False
        if len(side.contracting) != 1 or len(side.free) != 1 or operand.rank != len(side.batch) + 2:
            return False
        if dot.operands[number].shape.minor_to_major[0] in side.batch:
            return False
    return True


def _call(dot: HloInstruction, lhs: F8Operand, rhs: F8Operand, target: TargetSpec) -> HloInstruction:
    """Add the call, and return its result in the shape of the dot."""
    editor = Editor(dot)
    record = product_record(dot)
    one: list[HloInstruction] = []
    operands: list[HloInstruction] = []
    scales: list[HloInstruction] = []
    for number, (name, operand) in enumerate((("lhs", lhs), ("rhs", rhs))):
        side = dot_side(dot, number)
        scales.append(_scale(editor, operand, one))
        value = moved_value(operand, editor)
        if not target.is_blackwell and not _lies_along_depth(dot, number, side):
            dimensions = cast("dict[str, object]", record["dot_dimension_numbers"])
            dimensions[f"{name}_contracting_dimensions"] = [str(side.free[0])]
            value = _transposed(Editor(value), value, side)
        operands.append(_padded(editor, value, side.batch))
    record["scale_mode"] = _TENSOR_SCALING
    batch = tuple(range(len(dot_side(dot, 0).batch)))
    shape = _rounded(dot.shape, batch)
    config = gpu_backend_config("gemm_backend_config", record, config_of(dot.backend_config))
    attributes = {"custom_call_target": F8_MATMUL, "backend_config": config}
    name = "cublas-batch-gemm" if batch else "cublas-gemm"
    maker = InstructionMaker(editor.computation, dot.where, attributes | kept_attributes(dot))
    call = maker.add("custom-call", shape, [*operands, *scales], name=name)
    return call if shape.dims == dot.shape.dims else editor.slice(call, [0] * shape.rank, dot.shape.dims)


def _scale(editor: Editor, operand: F8Operand, one: list[HloInstruction]) -> HloInstruction:
    """Return the scale of an operand as f32; operands without a scale share the constant in `one`."""
    if operand.scale is None:
        one[:] = one or [editor.constant(1, "f32")]
        return one[0]
    return reciprocal(editor, operand.scale) if operand.divides else editor.convert(operand.scale, "f32")


def reciprocal(editor: Editor, scale: HloInstruction) -> HloInstruction:
    """Return 1 / scale as f32; the division is in the scale's type."""
    element_type = scale.shape.element_type
    return editor.convert(editor.binary("divide", editor.constant(1, element_type), scale), "f32")


def _lies_along_depth(dot: HloInstruction, number: int, side: Side) -> bool:
    return dot.operands[number].shape.minor_to_major[0] == side.contracting[0]


def _transposed(editor: Editor, value: HloInstruction, side: Side) -> HloInstruction:
    """Swap the contracting and the free dimension of a matrix; the layout stays."""
    shape = value.shape
    turned = list(range(shape.rank))
    turned[side.free[0]], turned[side.contracting[0]] = side.contracting[0], side.free[0]
    if shape.has_default_layout:
        return editor.transpose(value, turned)
    # View the value in physical dimension order, so that the transpose is between default layouts.
    physical = tuple(reversed(shape.minor_to_major))
    flat = editor.bitcast(value, Shape.array(shape.element_type, tuple(shape.dims[d] for d in physical)))
    place = {dim: n for n, dim in enumerate(physical)}
    moved = editor.transpose(flat, [place[turned[dim]] for dim in physical])
    dims = tuple(shape.dims[d] for d in turned)
    return editor.bitcast(moved, replace(shape, dims=dims, layout=Layout(shape.minor_to_major)))


def _rounded(shape: Shape, batch: tuple[int, ...]) -> Shape:
    sizes = (n if dim in batch else -(-n // _MULTIPLE) * _MULTIPLE for dim, n in enumerate(shape.dims))
    return replace(shape, dims=tuple(sizes), layout=Layout(shape.minor_to_major))


def _padded(editor: Editor, value: HloInstruction, batch: tuple[int, ...]) -> HloInstruction:
    return padded_to(editor, value, _rounded(value.shape, batch))


def padded_to(editor: Editor, value: HloInstruction, shape: Shape) -> HloInstruction:
    """Return the value padded with trailing zeros to a shape; unchanged if the element types differ."""
    if value.shape.dims == shape.dims or value.shape.element_type != shape.element_type:
        return value
    zero = editor.constant(0, value.shape.element_type)
    return editor.pad(value, zero, [(0, after - n, 0) for n, after in zip(value.shape.dims, shape.dims, strict=True)])


def padded_vector(editor: Editor, value: HloInstruction) -> HloInstruction:
    """Return a vector padded with trailing zeros to a size that the library supports, a multiple of 16."""
    return _padded(editor, value, ())


def _compute_in_16_bits(edits: Edits, dot: HloInstruction) -> None:
    editor = Editor(dot)
    wide = "bf16" if dot.shape.element_type == "bf16" else "f16"
    operands = [editor.convert(operand, wide) for operand in dot.operands]
    is_narrow = dot.shape.element_type in F8_TYPES
    shape = dot.shape.with_element_type("f16") if is_narrow else dot.shape
    made = editor.computation.add(copy_instruction(dot, operands, shape))
    edits.replace(dot, editor.convert(made, dot.shape.element_type) if is_narrow else made)
