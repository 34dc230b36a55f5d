"""Reduce 16-bit integers between devices in 32 bits, as NCCL has no 16-bit integers.

    r = u16[8] all-reduce(x), to_apply=add    =>   r = u16[8] convert(u32[8] all-reduce(u32[8] convert(x))), to_apply=add_promoted

Also for reduce-scatters. A reducer of several operations stays. XLA's `AllReducePromotion`, which drops all but the last of them.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, copy_instruction
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.collectives.communication.reductions import kind_of_reducer, reducer_of_type
from hlo_run.pass_support.hlo_pass import PassContext

_WIDE = {"u16": "u32", "s16": "s32"}


class AllReducePromotion(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "all-reduce-promotion"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for reduce in module.in_post_order("all-reduce", "reduce-scatter"):
            types = {operand.shape.element_type for operand in reduce.operands}
            if not reduce.shape.is_array or len(types) != 1 or reduce.shape.element_type not in _WIDE:
                continue
            if reduce.to_apply.root.operands != tuple(reduce.to_apply.parameters) and not kind_of_reducer(reduce.to_apply):
                continue
            narrow = reduce.shape.element_type
            editor, wide = Editor(reduce, keeps_frontend_attributes=False), _WIDE[narrow]
            operands = [editor.convert(operand, wide) for operand in reduce.operands]
            made = copy_instruction(reduce, operands, reduce.shape.with_element_type(wide))
            made.called = {"to_apply": (reducer_of_type(reduce.to_apply, wide, "_promoted"),)}
            editor.computation.add(made)
            module.replace(reduce, editor.convert(made, narrow))
            editor.computation.remove(reduce)
