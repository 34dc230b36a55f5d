"""Helpers for gather and scatter, and their simple form, with one row of indices for one slice or update."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.traits import ASSOCIATIVE
from hlo_run.hlo.values.attribute_values import AttributeValue
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.views.indexed import Indexed


def index_rows(indices: HloInstruction, index_vector_dim: int) -> HloInstruction:
    """Return the indices as a rank-2 array [slices, components], by the steps of XLA's `TransformStartIndices`."""
    editor, rank = Editor(indices), indices.shape.rank
    if index_vector_dim == rank:
        rows = editor.reshape(indices, (*indices.shape.dims, 1))
    else:
        others = [d for d in range(rank) if d != index_vector_dim]
        rows = editor.transpose(indices, [*others, index_vector_dim])
    return editor.reshape(rows, (math.prod(rows.shape.dims[:-1]), rows.shape.dims[-1]))


def depends_on_order(scatter: HloInstruction) -> bool:
    """Return True if the order of updates of one element may change the result. Mirrors XLA's `IsScatterDeterministic`."""
    if scatter.unique_indices or scatter.input_batching_dims or Indexed.of(scatter).row_count <= 1:
        return False
    body = scatter.to_apply
    is_one_op = len(scatter.operands) == 3 and len(body.instructions) == 3
    is_exact = body.root.opcode in ("maximum", "minimum") or not scatter.operands[0].shape.dtype.is_float
    return not (is_one_op and is_exact and body.root.opcode in ASSOCIATIVE)


def reshaped(editor: Editor, value: HloInstruction, dims: Sequence[int]) -> HloInstruction:
    """Reshape to `dims` in the default layout, even if the dimensions stay."""
    return editor.add("reshape", Shape.array(value.shape.element_type, tuple(dims)), [value])


def padded_row(editor: Editor, row: HloInstruction, zeros: int) -> HloInstruction:
    """Return a vector with `zeros` zeros behind its elements, a pad even if there are none."""
    return editor.pad(row, editor.constant(0, row.shape.element_type), [(0, zeros, 0)])


def scalar_starts(editor: Editor, start: HloInstruction) -> list[HloInstruction]:
    """Return the elements of a vector as scalars."""
    return [
        reshaped(editor, editor.slice(start, [number], [number + 1]), ())  # one after the other
        for number in range(start.shape.dims[0])
    ]


def dynamic_window(editor: Editor, value: HloInstruction, start: HloInstruction, sizes: Sequence[int]) -> HloInstruction:
    """Return the window of `sizes` of a value; `start` is a vector with an element per dimension."""
    shape, starts = Shape.array(value.shape.element_type, tuple(sizes)), scalar_starts(editor, start)
    return editor.add("dynamic-slice", shape, [value, *starts], dynamic_slice_sizes=tuple(sizes))


def index_vector(editor: Editor, indices: HloInstruction, row: HloInstruction) -> HloInstruction:
    """Return a row of indices, a vector, from [rows, components] or [rows]; `row` is its number, of shape [1]."""
    if indices.shape.rank == 1:
        return dynamic_window(editor, indices, row, (1,))
    size = indices.shape.dims[1]
    return reshaped(editor, dynamic_window(editor, indices, padded_row(editor, row, 1), (1, size)), (size,))


def window_start(
    editor: Editor,
    index: HloInstruction,
    row: HloInstruction,
    mapped: Sequence[int],
    rank: int,
    batch: Callable[[HloInstruction], Mapping[int, HloInstruction]] = lambda row: {},
) -> HloInstruction:
    """Return the start of a window, a vector with an element for each of the operand's `rank` dimensions.

    Element i of the index vector is for dimension `mapped[i]`. `batch` gives the scalars of batching dimensions, from the number
    of the row. The other elements are 0. XLA's `ExpandIndexVectorIntoOperandSpace`.
    """
    element_type = index.shape.element_type
    if not rank:
        return editor.constant(np.zeros(0), element_type)
    zero = editor.constant([0], element_type)
    given = batch(editor.convert(row, element_type))
    parts: list[HloInstruction] = []
    for dim in range(rank):
        if dim in mapped:
            column = list(mapped).index(dim)
            parts.append(editor.slice(index, [column], [column + 1]))
        else:
            parts.append(editor.broadcast(given[dim], (1,)) if dim in given else zero)
    return editor.add("concatenate", Shape.array(element_type, (rank,)), parts, dimensions=(0,))


def batch_starts(
    editor: Editor, sizes: Sequence[int], index_vector_dim: int, batching: Mapping[int, int], row: HloInstruction
) -> dict[int, HloInstruction]:
    """Return the place of row number `row` in each batching dimension of the operand, by these dimensions.

    `sizes` are those of the indices, and `batching` maps batching dimensions of the indices to those of the operand.
    """
    if not batching:
        return {}
    places: dict[int, HloInstruction] = {}
    major, *minor = [dim for dim in range(len(sizes)) if dim != index_vector_dim]
    rest = row
    for dim in reversed(minor):
        size = editor.constant(sizes[dim], row.shape.element_type)
        if dim in batching:
            places[dim] = editor.binary("remainder", rest, size)
        rest = editor.binary("divide", rest, size)
    places[major] = rest
    return {of_operand: places[dim] for dim, of_operand in batching.items()}


def simple_scatter(scatter: HloInstruction) -> HloInstruction:
    """Return the replacement of a scatter by one in the simple form (`Indexed.is_simple`)."""
    editor, attrs, count = Editor(scatter), scatter.attrs, len(scatter.operands) // 2
    inputs, indices, updates = scatter.operands[:count], scatter.operands[count], scatter.operands[count + 1 :]
    if 0 in updates[0].shape.dims:
        return editor.joined(inputs, scatter)
    rows = index_rows(indices, scatter.index_vector_dim)
    new_updates = [_with_all_dims(scatter, update) for update in updates]
    changed: dict[str, AttributeValue] = {
        "update_window_dims": tuple(range(1, inputs[0].shape.rank + 1)),
        "inserted_window_dims": (),
        "scatter_dims_to_operand_dims": scatter.scatter_dims_to_operand_dims,
        "index_vector_dim": 1,
    }
    flags: dict[str, AttributeValue] = {name: True for name in ("indices_are_sorted", "unique_indices") if attrs.get(name)}
    operands, called = [*inputs, rows, *new_updates], {"to_apply": scatter.called["to_apply"]}
    return editor.add_with("scatter", scatter.shape, operands, {**changed, **flags}, called)


def _with_all_dims(scatter: HloInstruction, update: HloInstruction) -> HloInstruction:
    """Return an update as [rows, all dimensions of the operand], with the update's metadata.

    One reshape merges the rows, another one adds the dimensions of size 1: the simplifier can then move the transpose behind the
    first.
    """
    editor, window = Editor(update), scatter.update_window_dims
    inserted = scatter.inserted_window_dims
    batch = [d for d in range(update.shape.rank) if d not in window]
    moved = editor.transpose(update, [*batch, *window])
    sizes = iter(moved.shape.dims[len(batch) :])
    full = [1 if d in inserted else next(sizes) for d in range(scatter.operands[0].shape.rank)]
    count, sizes_of_windows = math.prod(moved.shape.dims[: len(batch)]), moved.shape.dims[len(batch) :]
    return editor.reshape(editor.reshape(moved, (count, *sizes_of_windows)), (count, *full))
