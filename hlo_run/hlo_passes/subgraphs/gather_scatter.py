"""Helpers for gather and scatter, and their simple form, in which one row of indices is for one slice or update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.traits import ASSOCIATIVE


def index_rows(indices: HloInstruction, index_vector_dim: int) -> HloInstruction:
    """Return the indices as a rank-2 array [slices, components], by the steps of XLA's `TransformStartIndices`."""
    editor, rank = Editor(indices), indices.shape.rank
    if index_vector_dim == rank:
        rows = editor.reshape(indices, (*indices.shape.dims, 1))
    else:
        others = [d for d in range(rank) if d != index_vector_dim]
        rows = editor.transpose(indices, [*others, index_vector_dim])
    return editor.reshape(rows, (math.prod(rows.shape.dims[:-1]), rows.shape.dims[-1]))


def has_simple_gather_form(gather: HloInstruction) -> bool:
    """Return True for the form of `gather_simplifier`: one index row per slice, slices with all dimensions of the operand."""
    return (
        gather.operands[1].shape.rank == 2
        and gather.index_vector_dim == 1
        and not gather.collapsed_slice_dims
        and not gather.operand_batching_dims
        and gather.offset_dims == tuple(range(1, gather.shape.rank))
    )


def has_simple_scatter_form(scatter: HloInstruction) -> bool:
    """Return True for the form of `scatter_simplifier`: one index row per update, updates with all dimensions of the operand."""
    count = len(scatter.operands) // 2
    return (
        scatter.operands[count].shape.rank == 2
        and scatter.index_vector_dim == 1
        and not scatter.inserted_window_dims
        and not scatter.input_batching_dims
        and scatter.update_window_dims == tuple(range(1, scatter.operands[-1].shape.rank))
    )


def depends_on_order(scatter: HloInstruction) -> bool:
    """Return True if the order of updates of one element may change the result. Mirrors XLA's `IsScatterDeterministic`."""
    indices = scatter.operands[len(scatter.operands) // 2].shape
    rows = math.prod(size for dim, size in enumerate(indices.dims) if dim != scatter.index_vector_dim)
    if scatter.unique_indices or scatter.input_batching_dims or rows <= 1:
        return False
    body = scatter.to_apply
    is_one_op = len(scatter.operands) == 3 and len(body.instructions) == 3
    is_exact = body.root.opcode in ("maximum", "minimum") or not scatter.operands[0].shape.dtype.is_float
    return not (is_one_op and is_exact and body.root.opcode in ASSOCIATIVE)


def scalar_indices(editor: Editor, rows: HloInstruction, mapped: Sequence[int], rank: int) -> list[HloInstruction]:
    """Return a scalar index for each of the operand's `rank` dimensions from the only row; 0 for dimensions not in `mapped`."""
    indices: list[HloInstruction] = [editor.constant(0, rows.shape.element_type)] * rank if len(mapped) < rank else [rows] * rank
    for column, dim in enumerate(mapped):
        one = rows if len(mapped) == 1 else editor.slice(rows, (0, column), (1, column + 1))
        indices[dim] = editor.reshape(one, ())
    return indices


def simple_scatter(scatter: HloInstruction) -> HloInstruction:
    """Return the replacement of a scatter by one in the simple form (`has_simple_scatter_form`)."""
    editor, attrs, count = Editor(scatter), scatter.attrs, len(scatter.operands) // 2
    inputs, indices, updates = scatter.operands[:count], scatter.operands[count], scatter.operands[count + 1 :]
    if 0 in updates[0].shape.dims:
        return editor.joined(inputs, scatter)
    rows = index_rows(indices, scatter.index_vector_dim)
    new_updates = [_with_all_dims(scatter, update) for update in updates]
    changed: dict[str, Any] = {
        "update_window_dims": tuple(range(1, inputs[0].shape.rank + 1)),
        "inserted_window_dims": (),
        "scatter_dims_to_operand_dims": scatter.scatter_dims_to_operand_dims,
        "index_vector_dim": 1,
    }
    flags: dict[str, Any] = {name: True for name in ("indices_are_sorted", "unique_indices") if attrs.get(name)}
    return editor.add(
        "scatter", scatter.shape, [*inputs, rows, *new_updates], {"to_apply": scatter.called["to_apply"]}, **changed, **flags
    )


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
