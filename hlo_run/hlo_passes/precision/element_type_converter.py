"""Compute in another element type.

    bf16[4] add(x, y)   =>   bf16[4] convert(f32[4] add(convert(x), convert(y)))      (bf16 to f32)

XLA's `HloElementTypeConverter`. Of instructions with computations (reductions, loops, ..) the computations are converted. Custom
calls, and instructions that neither read the type nor are without operands, stay.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.errors import UsageError
from hlo_run.hlo.edit import Editor, copy_instruction
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.shape import Shape
from hlo_run.pass_support.hlo_pass import PassContext

_KEPT = opcode_set("parameter constant tuple convert bitcast-convert get-tuple-element infeed outfeed custom-call")


class ElementTypeConverter(Struct, frozen=True):
    """The pass; see the module's docstring. `eliminate` and `replace_with` are element types; without them nothing changes."""

    name: ClassVar[str] = "element_type_converter"

    eliminate: str = ""
    replace_with: str = ""

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place. Raises UsageError for an unknown type."""
        del ctx
        old, new = self.eliminate, self.replace_with
        if old == new:
            return
        for name in (old, new):
            if name not in DTYPES:
                raise UsageError(f"'{name}' is no element type", hint=f"the types are {', '.join(DTYPES)}")
        for computation in module.computations:
            for value in computation.post_order():
                is_plain = value.opcode not in _KEPT and not value.called
                types = [operand.shape.element_type for operand in value.operands]
                if is_plain and (old in types or (not types and value.shape.element_type == old)):
                    self._convert(module, value)

    def _convert(self, module: HloModule, old: HloInstruction) -> None:
        editor = Editor(old)
        computation = editor.computation
        operands = [
            editor.convert(operand, self.replace_with) if operand.shape.element_type == self.eliminate else operand
            for operand in old.operands
        ]
        made = computation.add(copy_instruction(old, operands, old.shape.map_leaves(self._changed)))
        made.control_predecessors = list(old.control_predecessors)
        result = made
        if made.shape != old.shape and old.shape.is_tuple:
            parts = [editor.element(made, number) for number in range(len(old.shape.tuple_shapes))]
            kinds = [part.element_type for part in old.shape.tuple_shapes]
            result = editor.tuple([editor.convert(part, kind) for part, kind in zip(parts, kinds, strict=True)])
        elif made.shape != old.shape:
            result = editor.convert(made, self.eliminate)
        for other in computation.instructions:
            if old in other.control_predecessors:
                other.control_predecessors = [made if p is old else p for p in other.control_predecessors]
        module.replace_uses(old, result)
        computation.remove(old)

    def _changed(self, leaf: Shape) -> Shape:
        return leaf.with_element_type(self.replace_with) if leaf.element_type == self.eliminate else leaf
