"""Replace a small all-reduce by an all-gather, whose result each device reduces.

    r = f32[8] all-reduce(x), replica_groups={{0,1}}, to_apply=add
        =>   g = f32[2,8] all-gather(f32[1,8] reshape(x)), replica_groups={{0,1}}, dimensions={0}
             r = f32[8] reduce(g, 0), dimensions={0}, to_apply=add

XLA's `AllReduceDecomposer`.
"""

from __future__ import annotations

import math
from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.simple_reducer import identity_of
from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.attribute_values import AttributeValue
from hlo_run.hlo_passes.collectives.communication.reductions import kind_of_reducer
from hlo_run.ops.groups import group_size
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace

_MOST_ELEMENTS = 256 * 1024


class AllReduceDecomposer(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "all-reduce-decomposer"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for reduce in module.in_post_order("all-reduce"):
            is_small = reduce.shape.is_array and math.prod(reduce.shape.dims) <= _MOST_ELEMENTS
            if is_small and kind_of_reducer(reduce.to_apply):
                module.replace_uses(reduce, _gathered(reduce))
                assert reduce.parent is not None, "it is in a computation"
                reduce.parent.remove(reduce)


def _gathered(reduce: HloInstruction) -> HloInstruction:
    editor, (value,) = Editor(reduce, derives=False), reduce.operands
    one = editor.reshape(value, (1, *value.shape.dims))
    attributes: dict[str, AttributeValue] = {
        name: value for name, value in reduce.attrs.items() if name not in ("sharding", "metadata", "mode")
    }
    attributes["dimensions"] = (0,)
    shape = replace(one.shape, dims=(group_size(reduce), *value.shape.dims))
    gathered = editor.add_with("all-gather", shape, [one], attributes)
    init = editor.constant(identity_of(reduce.to_apply.root.opcode, value.shape.element_type), value.shape.element_type)
    return editor.add("reduce", reduce.shape, [gathered, init], dict(reduce.called), dimensions=(0,))
