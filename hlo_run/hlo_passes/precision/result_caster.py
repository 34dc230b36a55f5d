"""Compute a dot or convolution in the type of its operands if the result's is narrower, and convert the result.

    r = s8[8] dot(s32[8,4] a, s32[4] b)   =>   convert(s32[8] dot(a, b))

Matrix products that a BLAS library supports stay, since it converts itself. XLA's `ResultCaster`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.matrix_product import is_matrix_product
from hlo_run.hlo.edit import Editor, Leftovers, copy_instruction
from hlo_run.hlo.graph import HloModule
from hlo_run.ops.rule import wider_type
from hlo_run.pass_support.hlo_pass import PassContext


class ResultCaster(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "result_caster"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        unused = Leftovers()
        for product in module.in_post_order("dot", "convolution"):
            lhs, rhs = (operand.shape.element_type for operand in product.operands)
            inferred = lhs if lhs == rhs else wider_type(lhs, rhs)
            narrow = product.shape.element_type
            if is_matrix_product(product) or inferred == narrow or wider_type(inferred, narrow) != inferred:
                continue
            wide = copy_instruction(product, product.operands, product.shape.with_element_type(inferred), product.opcode)
            editor = Editor(product)
            module.replace(product, editor.convert(editor.computation.add(wide), narrow))
            unused.add(product)
        unused.remove()
