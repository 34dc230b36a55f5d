"""Compute convolutions of pred in f16, which libraries and emitters can sum.

    c = pred[..] convolution(a, b)   =>   convert pred (f16 convolution(convert f16 (a), convert f16 (b)))

XLA's `ConvolutionPredExpander`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, copy_instruction, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.pass_support.hlo_pass import PassContext


class ConvolutionPredExpander(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "convolution-pred-expander"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        replaced = [c for c in module.in_post_order("convolution") if _is_of_pred(c)]
        for convolution in replaced:
            editor = Editor(convolution)
            operands = [editor.convert(operand, "f16") for operand in convolution.operands]
            made = editor.computation.add(copy_instruction(convolution, operands, convolution.shape.with_element_type("f16")))
            # Any nonzero number converts to true.
            module.replace(convolution, editor.convert(made, "pred"))
        remove_unused(replaced)


def _is_of_pred(convolution: HloInstruction) -> bool:
    return all(value.shape.element_type == "pred" for value in (convolution, *convolution.operands))
