"""Slice the operands of a binary elementwise operation, or of a transpose, instead of its result.

    slice(add(x, y)), slice={[2:4]}   =>   add(slice(x), slice(y))
    slice(transpose(x))               =>   transpose(slice(x))

XLA's `SliceHoister`. Equal slices are left to `cse`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, copy_instruction, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import ELEMENTWISE
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace


class SliceHoister(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "slice-hoister"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place, until no slice moves."""
        del ctx
        waiting = module.in_post_order("slice")
        while waiting:
            old = waiting.pop()
            if old.parent is None:
                continue
            made = _through_binary(old) or _through_transpose(old)
            if made is not None:
                module.replace(old, made)
                remove_unused([old])
                waiting += [operand for operand in made.operands if operand.opcode == "slice"]


def _through_binary(old: HloInstruction) -> HloInstruction | None:
    (source,) = old.operands
    if source.opcode not in ELEMENTWISE - {"map"} or len(source.operands) != 2:
        return None
    one, two = source.operands
    if one.shape != two.shape or one.shape.element_type != old.shape.element_type:
        return None
    editor = Editor(old, derives=False)
    slices = [editor.add("slice", old.shape, [operand], slice=old.slice_ranges) for operand in (one, two)]
    return editor.computation.add(copy_instruction(source, slices, old.shape))


def _through_transpose(old: HloInstruction) -> HloInstruction | None:
    (source,) = old.operands
    if source.opcode != "transpose":
        return None
    order = source.dimensions
    # Dimension order[i] of the operand is dimension i of the result.
    places = [order.index(dim) for dim in range(len(order))]
    ranges = tuple(old.slice_ranges[place] for place in places)
    shape = replace(source.operands[0].shape, dims=tuple(old.shape.dims[place] for place in places))
    editor = Editor(old, derives=False)
    inner = editor.add("slice", shape, source.operands, slice=ranges)
    return editor.add("transpose", old.shape, [inner], dimensions=order)
