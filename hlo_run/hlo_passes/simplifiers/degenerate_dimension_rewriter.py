"""Compute elementwise instructions without their dimensions of size 1, where the operands come without them at no cost.

    a = f32[8,1] reshape(f32[8] p);  b = f32[8,1] broadcast(f32[] c);  m = f32[8,1] multiply(a, b)
      =>   b = f32[8] broadcast(c);  m.1 = f32[8] multiply(p, b);  reshape f32[8,1] (m.1) for the users

Each operand must be of one of two kinds. The pass makes reshapes, broadcasts, concatenations and constants again without these
dimensions. It adds a reshape to the result of a gather, iota, reduce or reduce-window. A parameter or a slice stops the rewrite.
Arrays of one element stay. XLA's `DegenerateDimensionRewriter`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.elementwise import is_element_operation
from hlo_run.hlo.edit import Editor, Leftovers, copy_instruction
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape
from hlo_run.pass_support.hlo_pass import PassContext

_SOURCES: frozenset[Opcode] = frozenset(
    ("broadcast", "concatenate", "constant", "gather", "iota", "reduce", "reduce-window", "reshape")
)


class DegenerateDimensionRewriter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "degenerate-dimension-rewriter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit all computations except fusion bodies in place, by one walk over each."""
        del ctx
        computations = dict.fromkeys(i.parent for i in module.instructions_of(*sorted(_SOURCES)))
        for computation in computations:
            if computation is not None and not computation.is_fusion:
                _rewrite(module, computation)


def _rewrite(module: HloModule, computation: HloComputation) -> None:
    unused = Leftovers()
    for i in computation.post_order():
        if not _fits(i):
            continue
        operands = [_without(Editor(operand), operand) for operand in i.operands]
        made = computation.add(copy_instruction(i, operands, _squeezed(i.shape)))
        made.attrs.pop("sharding", None)
        module.replace(i, Editor(i).add("reshape", i.shape, [made]))
        unused.add(i)
    unused.remove()


def _fits(i: HloInstruction) -> bool:
    if not is_element_operation(i) or not i.operands or not i.shape.is_array or 1 not in i.shape.dims or i.control_predecessors:
        return False
    if not any(size != 1 for size in i.shape.dims):  # XLA makes no scalars
        return False
    if i.shape.dynamic_dims or any(operand.shape.dims != i.shape.dims for operand in i.operands):
        return False
    return all(map(_is_source, i.operands))


def _is_source(value: HloInstruction) -> bool:
    if value.opcode == "concatenate" and value.shape.dims[value.dimensions[0]] == 1:
        return False
    return value.opcode in _SOURCES


def _squeezed(shape: Shape) -> Shape:
    return Shape.array(shape.element_type, tuple(size for size in shape.dims if size != 1))


def _without(editor: Editor, value: HloInstruction) -> HloInstruction:
    """Return a value without its dimensions of size 1. What the pass makes has the metadata of the value."""
    dims = value.shape.dims
    left = [d for d, size in enumerate(dims) if size != 1]
    shape = _squeezed(value.shape)
    match value.opcode:
        case "broadcast":
            source = value.operands[0]
            source = editor.reshape(source, [size for size in source.shape.dims if size != 1])
            places = [left.index(d) for d in value.dimensions if dims[d] != 1]
            return editor.broadcast(source, shape.dims, places) if shape.dims != source.shape.dims else source
        case "concatenate":
            pieces = [editor.reshape(o, [o.shape.dims[d] for d in left]) for o in value.operands]
            return editor.concatenate(pieces, left.index(value.dimensions[0]))
        case "constant":
            return editor.constant(value.constant_array.reshape(shape.dims), shape.element_type)
        case "reshape":
            return editor.reshape(value.operands[0], shape.dims)
        case _:
            return editor.reshape(value, shape.dims)
