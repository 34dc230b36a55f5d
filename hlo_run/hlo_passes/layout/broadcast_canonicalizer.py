"""Sort the dimensions of a broadcast, and transpose its operand.

    b = f32[4,5,6]{2,1,0} broadcast(f32[6,4] p), dimensions={2,0}
        =>   f32[4,5,6]{2,1,0} broadcast(f32[4,6] transpose(p)), dimensions={0,2}

XLA's `BroadcastCanonicalizer`. Needs assigned layouts; leaves transposes.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, replace_each
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.pass_support.hlo_pass import PassContext


class BroadcastCanonicalizer(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "broadcast_canonicalizer"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place; a broadcast stays if its layout or its operand's is not the default."""
        del ctx
        replace_each(module, [b for b in module.instructions_of("broadcast") if _is_unsorted(b)], _sorted)


def _sorted(broadcast: HloInstruction) -> HloInstruction:
    editor, dims = Editor(broadcast), broadcast.dimensions
    target = sorted(dims)
    operand = editor.transpose(broadcast.operands[0], [dims.index(dim) for dim in target])
    return editor.broadcast(operand, list(broadcast.shape.dims), target)


def _is_unsorted(broadcast: HloInstruction) -> bool:
    dims = broadcast.dimensions
    return list(dims) != sorted(dims) and broadcast.shape.has_default_layout and broadcast.operands[0].shape.has_default_layout
