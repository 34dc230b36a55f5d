"""Let the root of each scheduled computation be its last instruction.

    r = f32[4] negate(p);  s = .. (later)   =>   r = ..;  s = ..;  ROOT b = f32[4] bitcast(r)

A tuple becomes a tuple of its elements. XLA's `RootInstructionSinker`, for modules with a schedule.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.errors import Unsupported
from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloModule
from hlo_run.pass_support.hlo_pass import PassContext


class RootInstructionSinker(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "root-instruction-sinker"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place. Raises Unsupported without a schedule."""
        del ctx
        if module.schedule is None:
            raise Unsupported(f"{self.name} needs a module with a schedule", hint="run the pass schedule before")
        for computation, order in list(module.schedule.items()):
            root = computation.root
            if computation.is_fusion or not order or order[-1] is root:
                continue
            editor = Editor(root, derives=False)
            if root.shape.is_tuple:
                elements = [
                    editor.add("get-tuple-element", part, [root], index=number)
                    for number, part in enumerate(root.shape.tuple_shapes)
                ]
                computation.root = editor.tuple(elements)
            else:
                computation.root = editor.add("bitcast", root.shape, [root])
