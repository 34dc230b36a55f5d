"""Give every user of a constant a constant of its own, so that each can have its own sharding.

    c = f32[] constant(1); a = add(x, c); b = multiply(y, c)   =>   a = add(x, c1); b = multiply(y, c2)

XLA's `HloConstantSplitter`, without expressions.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import copy_instruction
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.shardy_annotations import is_annotated
from hlo_run.hlo_passes.hlo_pass import PassContext


class HloConstantSplitter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "hlo-constant-splitter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit all computations except fusion bodies in place."""
        constants = module.instructions_of("constant")
        if constants and ctx.options.use_shardy_partitioner and is_annotated(module):
            return  # Shardy splits constants itself
        for constant in constants:
            computation = constant.parent
            if computation is None or len(constant.users) <= 1:
                continue
            for user in list(constant.users):
                copy = copy_instruction(constant, ())
                copy.attrs.pop("sharding", None)
                user.replace_operand(constant, computation.add(copy))
            if constant is not computation.root:
                computation.remove(constant)
