"""Give the offsets and sizes of a ragged-all-to-all 64 bits.

    ragged-all-to-all(x, out, s32[4] i, s32[4] n, s32[4] o, s32[4] m)   =>   ragged-all-to-all(x, out, s64[4] convert(i), ..)

XLA's `RaggedAllToAllCanonicalizer`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, copy_instruction
from hlo_run.hlo.graph import HloModule
from hlo_run.pass_support.hlo_pass import PassContext

_OFFSETS_FROM = 2


class RaggedAllToAllCanonicalizer(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "ragged-all-to-all-canonicalizer"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for exchange in module.in_post_order("ragged-all-to-all"):
            arrays, offsets = exchange.operands[:_OFFSETS_FROM], exchange.operands[_OFFSETS_FROM:]
            if offsets[0].shape.element_type == "s64":
                continue
            editor = Editor(exchange, derives=False)
            wide = [editor.convert(offset, "s64") for offset in offsets]
            module.replace_uses(exchange, editor.computation.add(copy_instruction(exchange, [*arrays, *wide])))
            editor.computation.remove(exchange)
