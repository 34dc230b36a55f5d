"""Replace a chain of conversions to float types by one conversion, or by none if first and last type are equal.

    c = f32[8] convert(bf16[8] convert(f32[8] x))    =>   x
    c = f32[8] convert(f16[8] convert(bf16[8] x))    =>   f32[8] convert(x)
    c = f16[8] convert(f8e5m2[8] convert(s32[8] x))  =>   f16[8] convert(x)

The result is not rounded to the types in between, so the pass runs only with `--xla_allow_excess_precision`. XLA's
`SimplifyFPConversions`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.pass_support.hlo_pass import PassContext


class SimplifyFpConversions(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "simplify-fp-conversions"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit all computations except fusion bodies in place."""
        del ctx
        replaced: list[HloInstruction] = []
        for last in module.instructions_of("convert"):
            if not _makes_float(last) or not _makes_float(last.operands[0]):
                continue
            source = last.operands[0].operands[0]
            while _makes_float(source):
                source = source.operands[0]
            if source.shape == last.shape:
                module.replace(last, source)
            else:
                module.replace(last, Editor(last).add("convert", last.shape, [source]))
            replaced.append(last)
        remove_unused(replaced)


def _makes_float(value: HloInstruction) -> bool:
    return value.opcode == "convert" and value.shape.dtype.is_float
