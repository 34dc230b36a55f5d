"""Convert the operands of a dot or convolution to the type of its result, if that is at least as wide.

    r = s32[8] dot(s8[8,4] a, s8[4] b)   =>   s32[8] dot(convert(a), convert(b))

Matrix products that a BLAS library supports stay. XLA's `OperandUpcaster`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.matrix_product import is_matrix_product
from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloModule
from hlo_run.ops.rule import wider_type
from hlo_run.pass_support.hlo_pass import PassContext


class OperandUpcaster(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "operand_upcaster"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for product in module.in_post_order("dot", "convolution"):
            types = [operand.shape.element_type for operand in product.operands]
            result = product.shape.element_type
            if is_matrix_product(product) or all(one == result for one in types):
                continue
            if all(one == result or wider_type(one, result) == result for one in types):
                editor = Editor(product)
                product.operands = tuple([editor.convert(operand, result) for operand in product.operands])
