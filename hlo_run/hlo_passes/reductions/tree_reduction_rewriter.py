"""Split a reduction that one block cannot finish into two, since blocks do not combine results in one output.

    r = f32[] reduce(f32[1000000] p)               =>   reduce(f32[1000] reduce(f32[1000,1000] bitcast(p)), dimensions={1})
    r = f32[8] reduce(f32[16,8,20000]), {0,2}      =>   reduce(f32[16,8] reduce(p), dimensions={2}), dimensions={0}

If the size has no suitable divisor, it is padded with the init value. XLA's `TreeReductionRewriter`, run until nothing
changes. Needs the default layout and grouped dimensions.
"""

from __future__ import annotations

import math
from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.decision import Decision
from hlo_run.analysis.tiling.reduction_description import MAX_COLUMN_SIZE, MAX_ROW_SIZE, describe_reduction, init_may_repeat
from hlo_run.hlo.edit import Editor, replace_each
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.pass_support.hlo_pass import PassContext


class TreeReductionRewriter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "tree-reduction-rewriter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        while large := [reduce for reduce in module.in_post_order("reduce") if _is_too_large(reduce)]:
            replace_each(module, large, _in_two_steps)


def _is_too_large(reduce: HloInstruction) -> bool:
    inputs = [value.shape for value in reduce.operands[: len(reduce.operands) // 2]]
    if not all(shape.has_default_layout for shape in inputs) or 0 in inputs[0].dims or not init_may_repeat(reduce):
        return False
    found = describe_reduction(reduce)
    return not isinstance(found, Decision) and not found.is_elemental and not found.fits_block


def _in_two_steps(reduce: HloInstruction) -> HloInstruction:
    editor = Editor(reduce)
    inputs = reduce.operands[: len(reduce.operands) // 2]
    dimensions: tuple[int, ...] = tuple(sorted(reduce.dimensions))
    shapes = [shape for _, shape in reduce.shape.leaves()]
    found = describe_reduction(reduce)
    assert not isinstance(found, Decision)
    minor = dimensions[-1]
    if found.is_row and found.dims[0] > 8:
        inner = editor.reduce_again(reduce, inputs, [minor])
        return editor.joined(editor.reduce_again(reduce, inner, dimensions[:-1], shapes), reduce)
    outer_size, inner_size = _sizes(inputs[0].shape.dims[minor], found.is_row)
    views = [
        _view(editor, value, init, minor, outer_size, inner_size)
        for value, init in zip(inputs, reduce.operands[len(inputs) :], strict=True)
    ]
    inner = editor.reduce_again(reduce, views, [*dimensions[:-1], minor + 1])
    # The reduced dimensions before the split one are gone by now.
    outer = minor - (len(dimensions) - 1)
    return editor.joined(editor.reduce_again(reduce, inner, [outer], shapes), reduce)


def _sizes(size: int, is_row: bool) -> tuple[int, int]:
    """Return (number of parts, size of a part) of the reduced dimension; their product is `size` or slightly more."""
    bound = MAX_ROW_SIZE if is_row else MAX_COLUMN_SIZE
    first = min(math.isqrt(size), bound)
    best, least = first, _padding(size, first)
    for candidate in range(first - 1, first // 2, -1):
        padding = _padding(size, candidate)
        if padding < least or (padding == least and _is_power_of_two(candidate)):
            best, least = candidate, padding
    parts = -(-size // best)
    return (best, parts) if parts <= bound and (not is_row or _may_swap(size, parts, best)) else (parts, best)


def _may_swap(size: int, parts: int, part: int) -> bool:
    """Return True if threads load a row as well when its parts have the size `parts`, the larger number."""
    if part % 2 == 0 and size % 2 == 0:  # threads may load pairs of elements
        return part * 2 < parts or parts % 2 == 0
    return size % 2 == 0 or parts % 2 == 1


def _padding(size: int, part: int) -> int:
    return -size % part


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _view(
    editor: Editor, value: HloInstruction, init: HloInstruction, dim: int, outer_size: int, inner_size: int
) -> HloInstruction:
    """Return `value` with dimension `dim` split into two, padded with the init value."""
    dims = value.shape.dims
    missing = outer_size * inner_size - dims[dim]
    if missing:
        value = editor.pad(value, init, [(0, missing if d == dim else 0, 0) for d in range(len(dims))])
    return editor.bitcast(value, Shape.array(value.shape.element_type, (*dims[:dim], outer_size, inner_size, *dims[dim + 1 :])))
