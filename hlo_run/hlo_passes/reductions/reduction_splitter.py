"""Split a reduction over dimensions that are not adjacent: first reduce the largest, then the others.

    r = f32[3,5] reduce(f32[2,3,4,5,6] p), dimensions={0,2,4}
        =>   reduce(f32[2,3,4,5] reduce(p), dimensions={4}), dimensions={0,2}   =>   ..

A reduction that an emitter takes whole stays. XLA's `ReductionSplitter`, run until nothing changes.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.decision import Decision
from hlo_run.analysis.tiling.reduction_description import describe_reduction, init_may_repeat
from hlo_run.hlo.edit import Editor, replace_each
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.pass_support.hlo_pass import PassContext


class ReductionSplitter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "reduction-splitter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place; reductions of several arrays at once stay."""
        del ctx
        while waiting := [r for r in module.in_post_order("reduce") if not r.shape.is_tuple and _is_to_split(r)]:
            replace_each(module, waiting, _split)


def _is_to_split(reduce: HloInstruction) -> bool:
    if len(reduce.dimensions) < 2 or 0 in reduce.operands[0].shape.dims or not init_may_repeat(reduce):
        return False
    found = describe_reduction(reduce)
    return isinstance(found, Decision) or bool(found.is_elemental)


def _split(reduce: HloInstruction) -> HloInstruction:
    editor, value = Editor(reduce), reduce.operands[0]
    dimensions = reduce.dimensions
    largest = max(dimensions, key=lambda d: value.shape.dims[d])
    rest = [d - (d > largest) for d in dimensions if d != largest]
    return editor.reduce_again(reduce, editor.reduce_again(reduce, [value], [largest]), rest, [reduce.shape])[0]
