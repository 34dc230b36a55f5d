"""Expand a `bitcast-convert` between types of different widths that is not a bitcast of the same bytes.

    u16[33,2] bitcast-convert(u32[33] x)   =>   convert(shift-right-logical(x, {0,16}) and 0xffff)
    u32[33] bitcast-convert(u16[33,2] x)   =>   reduce(shift-left(convert(x), {0,16})) with or

Runs when those that the layout allows are `bitcast`s already: the others have another element order, or sub-byte elements
that are not packed. Values are treated as unsigned integers; the lowest bits come first. XLA's `BitcastDtypesExpander`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, Leftovers, scalar_reducer
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.pass_support.hlo_pass import PassContext


class BitcastDtypesExpander(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "bitcast_dtypes_expander"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        unused = Leftovers()
        for instruction in [i for i in module.in_post_order("bitcast-convert") if _is_to_do(i)]:
            value = instruction.operands[0]
            is_split = value.shape.dtype.bits > instruction.shape.dtype.bits
            module.replace(instruction, _split(instruction) if is_split else _joined(module, instruction))
            unused.add(instruction)
        unused.remove()


def _is_to_do(instruction: HloInstruction) -> bool:
    one, other = instruction.operands[0].shape.dtype, instruction.shape.dtype
    return one.bits != other.bits and not one.is_complex and not other.is_complex


def _split(old: HloInstruction) -> HloInstruction:
    """Return the parts of each element along a new last dimension."""
    editor, (value,) = Editor(old), old.operands
    wide, narrow = f"u{value.shape.dtype.bits}", f"u{old.shape.dtype.bits}"
    bits = _as_bits(editor, editor.broadcast(value, old.shape.dims, range(value.shape.rank)), wide)
    shifted = editor.binary("shift-right-logical", bits, _places(editor, old.shape, wide, old.shape.dtype.bits))
    mask = editor.broadcast(editor.constant((1 << old.shape.dtype.bits) - 1, wide), old.shape.dims)
    return _in_type_of(editor, editor.convert(editor.binary("and", shifted, mask), narrow), old.shape)


def _joined(module: HloModule, old: HloInstruction) -> HloInstruction:
    """Return the elements whose parts are along the last dimension."""
    editor, (value,) = Editor(old), old.operands
    wide, narrow = f"u{old.shape.dtype.bits}", f"u{value.shape.dtype.bits}"
    bits = editor.convert(_as_bits(editor, value, narrow), wide)
    shifted = editor.binary("shift-left", bits, _places(editor, value.shape, wide, value.shape.dtype.bits))
    zero = editor.constant(0, wide)
    shape = Shape.array(wide, value.shape.dims[:-1])
    union = {"to_apply": (_union(module, wide),)}
    found = editor.add("reduce", shape, [shifted, zero], union, dimensions=(value.shape.rank - 1,))
    return _in_type_of(editor, found, old.shape)


def _as_bits(editor: Editor, value: HloInstruction, element_type: str) -> HloInstruction:
    if value.shape.element_type != element_type:
        value = editor.add("bitcast-convert", value.shape.with_element_type(element_type), [value])
    return value if value.shape.has_default_layout else editor.add("copy", value.shape.in_default_order(), [value])


def _in_type_of(editor: Editor, value: HloInstruction, shape: Shape) -> HloInstruction:
    if value.shape.element_type != shape.element_type:
        value = editor.add("bitcast-convert", value.shape.with_element_type(shape.element_type), [value])
    return value if value.shape == shape else editor.add("copy", shape, [value])


def _places(editor: Editor, shape: Shape, element_type: str, bits: int) -> HloInstruction:
    """Return for each position of the last dimension its bit offset in the wide element."""
    number = editor.iota(element_type, shape.dims, shape.rank - 1)
    return editor.binary("multiply", editor.broadcast(editor.constant(bits, element_type), shape.dims), number)


def _union(module: HloModule, element_type: str) -> HloComputation:
    return module.add_computation(scalar_reducer(module.unique_computation_name("or"), "or", Shape.array(element_type, ())))
