"""Split a concatenate of more than 128 operands into several, since a kernel has a maximum number of parameters.

    concatenate(a0, .., a299)   =>   concatenate(concatenate(a0, .., a127), concatenate(a128, .., a255), a256, .., a299)

XLA's `VariadicOpSplitter`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, replace_each
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.pass_support.hlo_pass import PassContext

_MAX_OPERANDS = 128


class VariadicOpSplitter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "variadic-op-splitter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        large = [c for c in module.in_post_order("concatenate") if len(c.operands) > _MAX_OPERANDS]
        replace_each(module, large, _split)


def _split(concatenate: HloInstruction) -> HloInstruction:
    editor, values = Editor(concatenate), list(concatenate.operands)
    (dimension,) = concatenate.dimensions
    while len(values) > 1:
        joined: list[HloInstruction] = []
        for start in range(0, len(values), _MAX_OPERANDS):
            part = values[start : start + _MAX_OPERANDS]
            # An incomplete last group moves to the next level unchanged.
            is_rest = start > 0 and len(part) < _MAX_OPERANDS
            joined += part if is_rest else [editor.concatenate(part, dimension)]
        values = joined
    return values[0]
