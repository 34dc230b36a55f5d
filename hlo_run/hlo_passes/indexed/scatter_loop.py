"""Expand a scatter to a loop with one update per iteration.

    s = f32[8,16] scatter(p, i, u), to_apply=f
        =>   while (n < rows): start = row n of i;  old = slice of p at start
                               p = old with map(old, row n of u), to_apply=f, if the window is in bounds

XLA's `ScatterExpander`: its instructions, in its order. XLA wraps the largest valid start round if the type of the indices is too
narrow for it; here it is the type's maximum then, so that all starts up to it are valid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from hlo_run.hlo.edit import Editor, scalar_reducer
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.shape import Shape
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
from hlo_run.hlo_passes.subgraphs.inlining import one_result


def scatter_loop(module: HloModule, scatter: HloInstruction) -> HloInstruction:
    """Return the replacement of a scatter: a loop's result, or a tuple of its results.

    A scatter of empty updates returns its inputs.
    """
    bare, count = Editor(scatter, derives=False), len(scatter.operands) // 2
    inputs, indices, updates = scatter.operands[:count], scatter.operands[count], scatter.operands[count + 1 :]
    if 0 in updates[0].shape.dims:
        return _joined(bare, inputs)
    rows = _index_rows(indices, scatter.index_vector_dim)
    rows_of_updates = [_update_rows(scatter, update) for update in updates]

    def step(editor: Editor, row: HloInstruction, state: list[HloInstruction]) -> Sequence[HloInstruction]:
        return _one_update(module, editor, scatter, row, state)

    results = counted_loop(module, scatter, Indexed.of(scatter).row_count, [*inputs, rows, *rows_of_updates], step)
    return _joined(bare, results[:count])


def _joined(editor: Editor, values: Sequence[HloInstruction]) -> HloInstruction:
    return values[0] if len(values) == 1 else editor.tuple(values)


def _index_rows(indices: HloInstruction, index_vector_dim: int) -> HloInstruction:
    """Return the indices as [rows, components], or as [rows] if a row is a scalar."""
    editor, dims = Editor(indices), indices.shape.dims
    rank, moved = indices.shape.rank, indices
    if index_vector_dim + 1 < rank:
        moved = editor.transpose_view(indices, [*(d for d in range(rank) if d != index_vector_dim), index_vector_dim])
    is_scalar = index_vector_dim == rank
    if rank == index_vector_dim + 1 and dims[-1] == 1:
        reshaped(editor, indices, dims[:-1])  # without users, as in XLA
        is_scalar = True
    last = moved.shape.rank - (not is_scalar)
    return reshaped(Editor(moved), moved, (math.prod(moved.shape.dims[:last]), *moved.shape.dims[last:]))


def _update_rows(scatter: HloInstruction, update: HloInstruction) -> HloInstruction:
    """Return the updates as [rows, window dimensions]."""
    window = scatter.update_window_dims
    order = (*(d for d in range(update.shape.rank) if d not in window), *window)
    moved = _transpose(Editor(update), update, order)
    rows = len(order) - len(window)
    return reshaped(Editor(moved), moved, (math.prod(moved.shape.dims[:rows]), *moved.shape.dims[rows:]))


def _transpose(editor: Editor, value: HloInstruction, order: Sequence[int]) -> HloInstruction:
    """Transpose even if nothing moves."""
    if list(order) == sorted(order):
        return editor.add("transpose", value.shape, [value], dimensions=tuple(order))
    return editor.transpose_view(value, order)


def _one_update(
    module: HloModule, editor: Editor, scatter: HloInstruction, row: HloInstruction, state: list[HloInstruction]
) -> Sequence[HloInstruction]:
    """Add the body of the loop; return the next state."""
    count = len(scatter.operands) // 2
    inputs, indices, updates = state[:count], state[count], state[count + 1 :]
    row_vector = editor.broadcast(row, (1,))
    index = index_vector(editor, indices, row_vector)
    view = Indexed.of(scatter)
    places = partial(batch_starts, editor, view.indices.shape.dims, view.index_vector_dim, view.batch_pairs)
    start = window_start(editor, index, row, view.index_map, inputs[0].shape.rank, places)
    inserted = (*scatter.inserted_window_dims, *scatter.input_batching_dims)
    place = padded_row(editor, row_vector, updates[0].shape.rank - 1)
    old, new = list[HloInstruction](), list[HloInstruction]()
    for value, update in zip(inputs, updates, strict=True):
        part = dynamic_window(editor, update, place, (1, *update.shape.dims[1:]))
        part = reshaped(editor, part, part.shape.dims[1:])
        new.append(reshaped(editor, part, _with_inserted(part.shape.dims, inserted)))
        old.append(dynamic_window(editor, value, start, new[-1].shape.dims))
    window = new[0].shape.dims
    limits = [size - taken for size, taken in zip(inputs[0].shape.dims, window, strict=True)]
    flag = editor.broadcast(_is_valid(module, editor, start, limits), window)
    results: list[HloInstruction] = []
    for number, value in enumerate(inputs):
        combiner = one_result(module, scatter.to_apply, number)
        shape = Shape.array(value.shape.element_type, window)
        dimensions = tuple(range(len(window)))
        combined = editor.add("map", shape, [*old, *new], {"to_apply": [combiner]}, dimensions=dimensions)
        chosen = editor.select(flag, combined, old[number])
        scalars = scalar_starts(editor, start)
        results.append(editor.add("dynamic-update-slice", value.shape, [value, chosen, *scalars]))
    return [*results, indices, *updates]


def _with_inserted(dims: Sequence[int], inserted: Sequence[int]) -> tuple[int, ...]:
    sizes = iter(dims)
    return tuple(1 if dim in inserted else next(sizes) for dim in range(len(dims) + len(inserted)))


def _is_valid(module: HloModule, editor: Editor, start: HloInstruction, limits: Sequence[int]) -> HloInstruction:
    """Return a pred that is true if each element of `start` is in [0, limit]."""
    element_type = start.shape.element_type
    largest = int(np.iinfo(DTYPES[element_type].numpy).max)
    low = editor.compare(editor.broadcast(editor.constant(0, element_type), start.shape.dims), start, "LE")
    last = editor.constant([min(limit, largest) for limit in limits], element_type)
    both = editor.binary("and", low, editor.compare(last, start, "GE"))
    init = editor.constant(np.True_, "pred")
    conjunction = scalar_reducer(f"{both.name}.reduce_sub_computation", "and", Shape.array("pred", ()), ("lhs", "rhs"))
    called = {"to_apply": [module.add_computation(conjunction)]}
    return editor.add("reduce", Shape.array("pred", ()), [both, init], called, dimensions=(0,))
