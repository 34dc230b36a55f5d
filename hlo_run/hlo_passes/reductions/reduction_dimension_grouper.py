"""Merge adjacent reduced dimensions into one, by a bitcast before the reduce.

    r = f32[3,4] reduce(f32[3,4,5,6] p), dimensions={2,3}   =>   f32[3,4] reduce(f32[3,4,30] bitcast(p)), dimensions={2}

XLA's `ReductionDimensionGrouper`. Needs the default layout (`reduction-layout-normalizer`).
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, replace_each
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.pass_support.hlo_pass import PassContext


class ReductionDimensionGrouper(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "reduction-dimension-grouper"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        replaced = [r for r in module.in_post_order("reduce") if _has_neighbours(r)]
        replace_each(module, replaced, _grouped)


def _has_neighbours(reduce: HloInstruction) -> bool:
    reduced = reduce.dimensions
    inputs = reduce.operands[: len(reduce.operands) // 2]
    return any(d + 1 in reduced for d in reduced) and all(value.shape.has_default_layout for value in inputs)


def _grouped(reduce: HloInstruction) -> HloInstruction:
    editor, reduced = Editor(reduce), set(reduce.dimensions)
    inputs = reduce.operands[: len(reduce.operands) // 2]
    dims = inputs[0].shape.dims
    # Each dimension that stays is a group of its own: its key is its number.
    runs = [list(run) for _, run in groupby(range(len(dims)), key=lambda d: -1 if d in reduced else d)]
    sizes = tuple(math.prod(dims[d] for d in run) for run in runs)
    shapes = [Shape.array(value.shape.element_type, sizes) for value in inputs]
    editors = [Editor(value, keeps_frontend_attributes=False) for value in inputs]
    views = [maker.bitcast(value, shape) for maker, value, shape in zip(editors, inputs, shapes, strict=True)]
    dimensions = [number for number, run in enumerate(runs) if run[0] in reduced]
    results = [shape for _, shape in reduce.shape.leaves()]
    return editor.joined(editor.reduce_again(reduce, views, dimensions, results), reduce)
