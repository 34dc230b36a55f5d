"""Merge the contracting dimensions of a dot into one; optionally the free dimensions of each operand, too.

    dot(bf16[12,2,4] A, bf16[2,4,44] B), lhs_contracting_dims={1,2}, rhs_contracting_dims={0,1}
        =>   dot(reshape bf16[12,8] (A), reshape bf16[8,44] (B)), lhs_contracting_dims={1}, rhs_contracting_dims={0}

Dimensions that are not next to each other in this order are moved behind the others first. XLA's `DotDimensionNormalizer`.
"""

from __future__ import annotations

import math
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.views.dots import Side, dot_side
from hlo_run.pass_support.hlo_pass import PassContext


class DotDimensionNormalizer(Struct, frozen=True):
    """The pass; see the module's docstring. `normalize_noncontracting_dimensions` merges the free dimensions as well."""

    name: ClassVar[str] = "dot_dimension_normalizer"

    normalize_noncontracting_dimensions: bool = False

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for dot in module.instructions_of("dot"):
            sides = dot_side(dot, 0), dot_side(dot, 1)
            merges_free = self.normalize_noncontracting_dimensions and any(len(side.free) > 1 for side in sides)
            if len(sides[0].contracting) > 1 or merges_free:
                module.replace(dot, _normalized(dot, self.normalize_noncontracting_dimensions))
                remove_unused([dot])


def _normalized(dot: HloInstruction, merges_free: bool) -> HloInstruction:
    editor = Editor(dot)
    made = [_operand(editor, value, dot_side(dot, n), merges_free) for n, value in enumerate(dot.operands)]
    numbers: dict[str, tuple[int, ...]] = {}
    for name, (_, side) in zip(("lhs", "rhs"), made, strict=True):
        numbers |= {f"{name}_batch_dims": side.batch} if side.batch else {}
        numbers[f"{name}_contracting_dims"] = side.contracting
    batch = tuple(made[0][0].shape.dims[d] for d in made[0][1].batch)
    free = [tuple(value.shape.dims[d] for d in side.free) for value, side in made]
    shape = Shape.array(dot.shape.element_type, (*batch, *free[0], *free[1]))
    rest = {name: dot.attrs[name] for name in ("operand_precision", "algorithm") if name in dot.attrs}
    product = editor.add_with("dot", shape, [value for value, _ in made], {**numbers, **rest})
    return product if product.shape == dot.shape else editor.add("reshape", dot.shape, [product])


def _operand(editor: Editor, value: HloInstruction, side: Side, merges_free: bool) -> tuple[HloInstruction, Side]:
    """Return the operand with merged dimensions, and their new numbers."""
    value, side = _merge(editor, value, side, side.contracting)
    if merges_free and len(side.free) > 1:
        value, side = _merge(editor, value, side, side.free)
    return value, side


def _merge(editor: Editor, value: HloInstruction, side: Side, dims: tuple[int, ...]) -> tuple[HloInstruction, Side]:
    if len(dims) < 2:
        return value, side
    if dims != tuple(range(dims[0], dims[0] + len(dims))):
        order = [*(d for d in range(value.shape.rank) if d not in dims), *dims]
        minor_to_major = tuple(order.index(d) for d in value.shape.minor_to_major)
        value = editor.transpose(value, order)
        value.shape = Shape.array(value.shape.element_type, value.shape.dims, minor_to_major)
        side = Side(*(tuple(order.index(d) for d in group) for group in (side.batch, side.contracting, side.free)))
        dims = tuple(order.index(d) for d in dims)
    first, gone = dims[0], len(dims) - 1
    sizes = value.shape.dims
    merged = (*sizes[:first], math.prod(sizes[d] for d in dims), *sizes[first + gone + 1 :])
    while value.opcode == "reshape":
        value = value.operands[0]
    groups = (side.batch, side.contracting, side.free)
    numbers = (tuple(dict.fromkeys(first if d in dims else d - gone if d > first else d for d in group)) for group in groups)
    return editor.reshape(value, merged), Side(*numbers)
