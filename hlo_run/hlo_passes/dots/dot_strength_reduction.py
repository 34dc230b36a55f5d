"""Replace a product of a matrix and a vector, or of two vectors, by a multiply and a reduce.

    d = f32[64] dot(f32[64,128] a, f32[128] v)   =>   reduce(multiply(a, broadcast(v)), 0), to_apply=add

A matrix is transposed if necessary, so that the contracting dimensions come last: layout assignment runs later, and picks
layouts in which the transpose moves no byte where possible. bf16 and f16 are summed in f32; integers are converted before
they are multiplied. The library keeps a matrix of ten million elements or more of a type that XLA's Triton kernels know. Products
of two s32 matrices whose rows are multiplied are replaced, too. XLA's `DotStrengthReduction`, but for results of f8, whose
factors would be rounded to f8, and for algorithms of several parts, which become one product.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, replace_each, scalar_adder
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.views.dots import Side, dot_side, size_of
from hlo_run.pass_support.hlo_pass import PassContext

_MOST_ELEMENTS = 10_000_000
_TRITON_RESULTS = frozenset(("bf16", "f16", "f32"))
_SUMMED_IN_F32 = frozenset(("bf16", "f16"))


class DotStrengthReduction(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "dot-strength-reduction"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        replaced = [dot for dot in module.in_post_order("dot") if _is_reduced(dot)]
        replace_each(module, replaced, partial(_reduced, module))


def _is_reduced(dot: HloInstruction) -> bool:
    lhs, rhs = dot_side(dot, 0), dot_side(dot, 1)
    if dot.control_predecessors:
        return False
    if dot.shape.dtype.bits < 16 and dot.shape.dtype.is_float:
        return False
    if any(operand.shape.dtype.bits < 8 or 0 in operand.shape.dims for operand in dot.operands):
        return False
    if not lhs.free and not rhs.free:
        return True
    kinds = {value.shape.element_type for value in (dot, *dot.operands)}
    if lhs.free and rhs.free and not (kinds == {"s32"} and rhs.contracting == (1,)):
        return False
    elements = (size_of(dot, 0, lhs.free) + size_of(dot, 1, rhs.free)) * size_of(dot, 0, lhs.contracting)
    return elements < _MOST_ELEMENTS or not _is_for_triton(dot)


def _is_for_triton(dot: HloInstruction) -> bool:
    """True if XLA's Triton kernels have the product's types and precision, about which XLA asks here in every case."""
    if "algorithm" not in dot.attrs and any(word != "default" for word in dot.operand_precision):
        return False
    lhs, rhs = (operand.shape for operand in dot.operands)
    if lhs.element_type != rhs.element_type:
        return lhs.dtype.is_float and rhs.dtype.is_float and lhs.dtype.bits == rhs.dtype.bits == 8
    if dot.shape.element_type == "s32":
        return lhs.element_type == "s8"
    return dot.shape.element_type in _TRITON_RESULTS and lhs.dtype.is_float and lhs.dtype.bits <= 32


def _reduced(module: HloModule, dot: HloInstruction) -> HloInstruction:
    editor, sides = Editor(dot), (dot_side(dot, 0), dot_side(dot, 1))
    factor_type = dot.shape.element_type
    sum_type = "f32" if factor_type in _SUMMED_IN_F32 else factor_type
    factors = [
        _factor(editor, editor.convert(operand, factor_type), side) for operand, side in zip(dot.operands, sides, strict=True)
    ]
    # Both get the dimensions of the result, then the contracting ones.
    batch, lhs_free, rhs_free = len(sides[0].batch), len(sides[0].free), len(sides[1].free)
    lhs, rhs = factors
    wide = _with_dims(editor, lhs, batch + lhs_free, rhs.shape.dims[batch : batch + rhs_free])
    factors = [wide, _with_dims(editor, rhs, batch, lhs.shape.dims[batch : batch + lhs_free])]
    product = editor.binary("multiply", *factors)
    if not sides[0].contracting:
        return product
    product = editor.convert(product, sum_type)
    zero, adder = Editor(editor.origin, derives=False).constant(0, sum_type), module.add_computation(scalar_adder(sum_type))
    kept = batch + lhs_free + rhs_free
    shape = Shape.array(sum_type, product.shape.dims[:kept])
    total = editor.add("reduce", shape, [product, zero], {"to_apply": [adder]}, dimensions=tuple(range(kept, product.shape.rank)))
    return editor.convert(total, factor_type)


def _with_dims(editor: Editor, value: HloInstruction, before: int, sizes: tuple[int, ...]) -> HloInstruction:
    """Broadcast to new dimensions that precede dimension `before`; in memory, they come next to it on the major side."""
    if not sizes:
        return value
    count, order = len(sizes), list[int]()
    for dim in value.shape.minor_to_major:
        order.append(dim + count if dim >= before else dim)
        if dim == before:
            order += range(before + count - 1, before - 1, -1)
    dims = (*value.shape.dims[:before], *sizes, *value.shape.dims[before:])
    shape = Shape.array(value.shape.element_type, dims, tuple(order))
    places = tuple(dim + count if dim >= before else dim for dim in range(value.shape.rank))
    return editor.add("broadcast", shape, [value], dimensions=places)


def _factor(editor: Editor, value: HloInstruction, side: Side) -> HloInstruction:
    """Return an operand with its batch dimensions first, then the free ones, then the contracting ones."""
    return editor.transpose_view(value, (*side.batch, *side.free, *side.contracting))
