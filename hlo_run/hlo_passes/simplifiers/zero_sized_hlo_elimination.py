"""Replace arrays without elements by constants, so that later passes need not handle computations on size 0.

    n = f32[0,4] negate(p)   =>   constant = f32[0,4] constant({})

XLA's `ZeroSizedHloElimination`.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct

from hlo_run.hlo.edit import Editor, has_side_effect, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.pass_support.hlo_pass import PassContext


class ZeroSizedHloElimination(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "zero_sized_hlo_elimination"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit all computations except fusion bodies in place."""
        del ctx
        replaced: list[HloInstruction] = []
        for computation in module.computations:
            if computation.is_fusion:
                continue
            for instruction in list(computation.instructions):
                if _has_no_elements(instruction):
                    shape = instruction.shape
                    literal = np.zeros(shape.dims, shape.dtype.numpy)
                    module.replace(instruction, Editor(instruction).add("constant", shape, literal=literal))
                    replaced.append(instruction)
        remove_unused(replaced)


def _has_no_elements(instruction: HloInstruction) -> bool:
    shape = instruction.shape
    if not shape.is_array or 0 not in shape.dims or any(shape.dynamic_dims):
        return False
    return instruction.opcode not in ("constant", "parameter") and not has_side_effect(instruction)
