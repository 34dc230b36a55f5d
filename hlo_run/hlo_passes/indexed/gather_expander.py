"""Replace a gather of one slice by a loop of one iteration, which takes a dynamic-slice.

    g = f32[1,3,128] gather(f32[64,128] p, s32[1,1] i), offset_dims={1,2}, slice_sizes={3,128}
        =>   while (n < 1): start = row n of i;  result = result with slice of p at start, f32[3,128], as row n

Both clamp start indices so that the slice is in bounds. Leaves the loop to `simplify-while-loops`, which inlines it. A gather of
slices as large as the operand is a broadcast. XLA's `GatherExpander`, in its mode for simple gathers, or with `every` for all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, replace_each
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.views.indexed import Indexed
from hlo_run.hlo_passes.indexed.counted_loop import counted_loop
from hlo_run.hlo_passes.indexed.gather_scatter import (
    batch_starts,
    dynamic_window,
    index_vector,
    padded_row,
    reshaped,
    scalar_starts,
    window_start,
)
from hlo_run.pass_support.hlo_pass import PassContext


class GatherExpander(Struct, frozen=True):
    """The pass; see the module's docstring. With `every`, a gather of several slices becomes a loop, too."""

    name: ClassVar[str] = "gather_expander"

    every: bool = False

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        gathers = [g for g in module.in_post_order("gather") if not g.control_predecessors and 0 not in g.shape.dims]
        replaced = [gather for gather in gathers if self.every or _takes_all(gather) or Indexed.of(gather).row_count == 1]
        replace_each(module, replaced, lambda gather: _repeated(gather) if _takes_all(gather) else _looped(module, gather))


def _takes_all(gather: HloInstruction) -> bool:
    dims = gather.operands[0].shape.dims
    return gather.gather_slice_sizes == dims and 0 not in dims


def _repeated(gather: HloInstruction) -> HloInstruction:
    operand, editor = gather.operands[0], Editor(gather)
    kept = [operand.shape.dims[dim] for dim in Indexed.of(gather).kept_dims]
    # A reshape also where the dimensions are the same, as in XLA; algsimp removes it.
    return editor.add("broadcast", gather.shape, [reshaped(editor, operand, kept)], dimensions=gather.offset_dims)


def _looped(module: HloModule, gather: HloInstruction) -> HloInstruction:
    bare, view, (operand, indices) = Editor(gather, derives=False), Indexed.of(gather), gather.operands
    rows, count, kept = view.row_sizes, view.row_count, [view.slice_sizes[dim] for dim in view.kept_dims]
    listed = _index_rows(indices, gather.index_vector_dim)
    zeros = bare.broadcast(bare.constant(0, gather.shape.element_type), (count, *kept))

    def step(editor: Editor, row: HloInstruction, state: list[HloInstruction]) -> Sequence[HloInstruction]:
        return _one_slice(editor, gather, row, state)

    taken = counted_loop(module, gather, count, [operand, listed, zeros], step)[-1]
    slices = reshaped(Editor(taken), taken, (*rows, *kept))
    offsets, batches = iter(range(len(rows), slices.shape.rank)), iter(range(len(rows)))
    order = [next(offsets) if dim in gather.offset_dims else next(batches) for dim in range(slices.shape.rank)]
    return Editor(slices).transpose_view(slices, order)


def _index_rows(indices: HloInstruction, index_vector_dim: int) -> HloInstruction:
    """Return the indices as [rows, components], or as [rows] if a row is a scalar."""
    rank, moved = indices.shape.rank, indices
    if index_vector_dim < rank:
        order = [*(dim for dim in range(rank) if dim != index_vector_dim), index_vector_dim]
        moved = Editor(indices).transpose_view(indices, order)
    rows = rank - (index_vector_dim < rank)
    return reshaped(Editor(moved), moved, (math.prod(moved.shape.dims[:rows]), *moved.shape.dims[rows:]))


def _one_slice(
    editor: Editor, gather: HloInstruction, row: HloInstruction, state: list[HloInstruction]
) -> Sequence[HloInstruction]:
    """Add the body of the loop; return the next state."""
    operand, indices, taken = state
    row_vector = editor.broadcast(row, (1,))
    index = index_vector(editor, indices, row_vector)
    view = Indexed.of(gather)
    places = partial(batch_starts, editor, view.indices.shape.dims, view.index_vector_dim, view.batch_pairs)
    start = window_start(editor, index, row, view.index_map, operand.shape.rank, places)
    part = dynamic_window(editor, operand, start, view.slice_sizes)
    kept = [part.shape.dims[dim] for dim in view.kept_dims]
    part = reshaped(editor, reshaped(editor, part, kept), (1, *kept))
    place = scalar_starts(editor, padded_row(editor, row_vector, len(kept)))
    return [operand, indices, editor.add("dynamic-update-slice", taken.shape, [taken, part, *place])]
