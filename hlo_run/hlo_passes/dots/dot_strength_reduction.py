"""Replace a product of a matrix and a vector, or of two vectors, by a multiply and a reduce.

    d = f32[64] dot(f32[64,128] a, f32[128] v)   =>   reduce(multiply(a, broadcast(v)), 0), to_apply=add

A matrix is transposed if necessary, so that the contracting dimensions come last: layout assignment runs later, and picks
layouts in which the transpose moves no byte where possible. bf16 and f16 are summed in f32; integers are converted before
they are multiplied. The library keeps a matrix of ten million elements or more. XLA's `DotStrengthReduction`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.dot_dims import Side, dot_side, size_of
from hlo_run.hlo.edit import Editor, replace_each
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.hlo_pass import PassContext

_MOST_ELEMENTS = 10_000_000
_SUMMED_IN_F32 = frozenset(("bf16", "f16"))


class DotStrengthReduction(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "dot-strength-reduction"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        replaced = [dot for dot in module.in_post_order("dot") if _has_a_vector(dot)]
        replace_each(module, replaced, partial(_reduced, module))


def _has_a_vector(dot: HloInstruction) -> bool:
    sides = dot_side(dot, 0), dot_side(dot, 1)
    if dot.control_predecessors or not sides[0].contracting or (sides[0].free and sides[1].free):
        return False
    if dot.shape.dtype.bits < 16 and dot.shape.dtype.is_float:
        return False
    if any(operand.shape.dtype.bits < 8 or 0 in operand.shape.dims for operand in dot.operands):
        return False
    depth = size_of(dot, 0, sides[0].contracting)
    return depth > 1 and (size_of(dot, 0, sides[0].free) + size_of(dot, 1, sides[1].free)) * depth < _MOST_ELEMENTS


def _reduced(module: HloModule, dot: HloInstruction) -> HloInstruction:
    editor, sides = Editor(dot), (dot_side(dot, 0), dot_side(dot, 1))
    factor_type = dot.shape.element_type
    sum_type = "f32" if factor_type in _SUMMED_IN_F32 else factor_type
    factors = [
        _factor(editor, editor.convert(operand, factor_type), side) for operand, side in zip(dot.operands, sides, strict=True)
    ]
    # The operand with free dimensions has all dimensions of the product; the other one lacks them.
    whole = 1 if sides[1].free else 0
    kept, rank = len(sides[whole].batch) + len(sides[whole].free), factors[whole].shape.rank
    if sides[whole].free:
        dims = (*range(len(sides[whole].batch)), *range(kept, rank))
        factors[1 - whole] = editor.broadcast(factors[1 - whole], factors[whole].shape.dims, dims)
    product = editor.convert(editor.binary("multiply", *factors), sum_type)
    zero, adder = replace(editor, derives=False).constant(0, sum_type), _adder(module, sum_type)
    shape = Shape.array(sum_type, product.shape.dims[:kept])
    total = editor.add("reduce", shape, [product, zero], {"to_apply": [adder]}, dimensions=tuple(range(kept, rank)))
    return editor.convert(total, factor_type)


def _factor(editor: Editor, value: HloInstruction, side: Side) -> HloInstruction:
    """Return an operand with its batch dimensions first, then the free ones, then the contracting ones."""
    return editor.transpose_view(value, (*side.batch, *side.free, *side.contracting))


def _adder(module: HloModule, element_type: str) -> HloComputation:
    made, scalar = HloComputation("scalar_add_computation"), Shape.array(element_type, ())
    sides = [
        made.add(HloInstruction(name, "parameter", scalar, attrs={"parameter_number": number}))
        for number, name in enumerate(("scalar_lhs", "scalar_rhs"))
    ]
    made.add(HloInstruction("add", "add", scalar, sides), is_root=True)
    return module.add_computation(made)
