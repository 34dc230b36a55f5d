"""Convert the narrower operand of a dot to the type of the wider one.

    dot(f32[8,4] a, bf16[4,8] b)   =>   dot(a, f32[4,8] convert(b))

Two 8-bit float types stay. f16 and bf16 cannot hold each other's values: both become f32, where XLA uses bf16. XLA's
`DotOperandConverter`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloModule
from hlo_run.ops.rule import wider_type
from hlo_run.pass_support.hlo_pass import PassContext


class OperandConverter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "operand_converter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for dot in module.in_post_order("dot"):
            lhs, rhs = (operand.shape.element_type for operand in dot.operands)
            if lhs == rhs or (lhs.startswith("f8") and rhs.startswith("f8")):
                continue
            common = "f32" if {lhs, rhs} == {"f16", "bf16"} else wider_type(lhs, rhs)
            editor = Editor(dot)
            dot.operands = tuple([editor.convert(operand, common) for operand in dot.operands])
