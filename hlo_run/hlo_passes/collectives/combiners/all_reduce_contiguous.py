"""Reduce several values in one buffer, for which they are concatenated.

    r = (f32[2,2], f32[6]) all-reduce(x, y), to_apply=add
        =>   c = f32[10] all-reduce(concatenate(f32[4] bitcast(x), f32[6] bitcast(y))), to_apply=add
             r = tuple(f32[2,2] bitcast(f32[4] slice(c)), f32[6] bitcast(f32[6] slice(c)))

The new instructions have neither metadata nor notes of the frontend, but for the tuple. Operands of several types stay, as do
those that the reducer reduces together. XLA's `AllReduceContiguous`, which makes wrong modules of them.
"""

from __future__ import annotations

import math
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.collectives.communication.channels import pins_layouts
from hlo_run.pass_support.hlo_pass import PassContext

_OWN = ("sharding", "metadata")


class AllReduceContiguous(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "all-reduce-contiguous"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        if not pins_layouts(module, "all-reduce"):
            for reduce in module.instructions_of("all-reduce"):
                if len(reduce.operands) > 1 and _is_of_one_array(reduce):
                    _reduce_one_buffer(module, reduce)


def _is_of_one_array(reduce: HloInstruction) -> bool:
    """True if the reducer reduces each element on its own, and all have one type."""
    return len({operand.shape.element_type for operand in reduce.operands}) == 1 and reduce.to_apply.root.shape.is_array


def _reduce_one_buffer(module: HloModule, reduce: HloInstruction) -> None:
    editor = Editor(reduce, derives=False)
    element_type = reduce.operands[0].shape.element_type
    sizes = [math.prod(operand.shape.dims) for operand in reduce.operands]
    flat = [
        editor.add("bitcast", Shape.array(element_type, (size,)), [o]) for o, size in zip(reduce.operands, sizes, strict=True)
    ]
    joined = editor.concatenate(flat, 0)
    attributes = {name: value for name, value in reduce.attrs.items() if name not in _OWN}
    whole = editor.add_with("all-reduce", joined.shape, [joined], attributes, dict(reduce.called))
    parts: list[HloInstruction] = []
    start = 0
    for operand, size in zip(reduce.operands, sizes, strict=True):
        part = editor.slice(whole, [start], [start + size])
        parts.append(editor.add("bitcast", operand.shape, [part]))
        start += size
    module.replace(reduce, editor.tuple(parts), keeps_frontend_attributes=False)
    editor.computation.remove(reduce)
