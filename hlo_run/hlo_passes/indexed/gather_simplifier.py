"""Simplify gathers to the form in which one row of indices gives one slice, with all dimensions of the operand.

    gather(f32[8,16] p, s32[5] i), offset_dims={1}, collapsed_slice_dims={0}, slice_sizes={1,16}
        =>   reshape f32[5,16] (gather f32[5,1,16] (p, reshape s32[5,1] (i)), offset_dims={1,2}, index_vector_dim=1)

Gathers with batching dimensions stay; `batched_gather_scatter_normalizer` removes those before. XLA's `GatherSimplifier`.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct

from hlo_run.hlo.edit import Editor, replace_each
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.attribute_values import AttributeValue
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.views.indexed import Indexed
from hlo_run.hlo_passes.indexed.gather_scatter import index_rows
from hlo_run.pass_support.hlo_pass import PassContext


class GatherSimplifier(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "gather_simplifier"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        gathers = [g for g in module.in_post_order("gather") if not g.operand_batching_dims]
        replaced = [gather for gather in gathers if not Indexed.of(gather).is_simple]
        replace_each(module, replaced, _simple)


def _simple(gather: HloInstruction) -> HloInstruction:
    editor, element_type = Editor(gather), gather.shape.element_type
    sizes = gather.gather_slice_sizes
    if 0 in sizes:
        return editor.broadcast(editor.constant(np.zeros(()), element_type), gather.shape.dims)
    operand, indices = gather.operands
    rows = index_rows(indices, gather.index_vector_dim)
    shape = Shape.array(element_type, (rows.shape.dims[0], *sizes))
    attributes: dict[str, AttributeValue] = {
        "offset_dims": tuple(range(1, shape.rank)),
        "collapsed_slice_dims": (),
        "start_index_map": gather.start_index_map,
        "index_vector_dim": 1,
        "slice_sizes": sizes,
    }
    if gather.indices_are_sorted:
        attributes["indices_are_sorted"] = True
    result = editor.add_with("gather", shape, [operand, rows], attributes)
    return _with_result_dims(gather, result)


def _with_result_dims(gather: HloInstruction, result: HloInstruction) -> HloInstruction:
    """Drop collapsed dimensions, split the rows into the dimensions of the indices, and transpose to the result's order."""
    editor = Editor(result)
    view, collapsed = Indexed.of(gather), gather.collapsed_slice_dims
    kept = [size for d, size in enumerate(result.shape.dims[1:]) if d not in collapsed]
    batch = view.row_sizes
    if collapsed:
        result = editor.reshape(result, (result.shape.dims[0], *kept))
    if len(batch) != 1:
        result = editor.reshape(result, (*batch, *kept))
    offsets, rest = view.window_dims, view.batch_dims
    places = [offsets.index(d) + len(batch) if d in offsets else rest.index(d) for d in range(gather.shape.rank)]
    return editor.transpose(result, places)
