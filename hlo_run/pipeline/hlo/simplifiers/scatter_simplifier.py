"""Bring a scatter into the form that one row of indices takes one update, with all the dimensions of the operand.

    scatter(f32[8,16] p, s32[5] i, f32[5,16] u), update_window_dims={1}, inserted_window_dims={0}
        =>   scatter(p, reshape s32[5,1] (i), reshape f32[5,1,16] (u)), update_window_dims={1,2}, index_vector_dim=1

XLA's `ScatterSimplifier`; batching dimensions are gone by then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from hlo_run.hlo.edit import Editor, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.pipeline.hlo.gather_scatter import index_rows
from hlo_run.pipeline.passes import PassContext


@dataclass(frozen=True)
class ScatterSimplifier:
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "scatter_simplifier"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        replaced = [s for s in module.instructions_of("scatter") if not _is_simple(s) and not s.attrs.get("input_batching_dims")]
        for scatter in replaced:
            module.replace(scatter, _simple(scatter))
        remove_unused(replaced)


def _is_simple(scatter: HloInstruction) -> bool:
    attrs, count = scatter.attrs, len(scatter.operands) // 2
    if not all(shape.has_default_layout for shape in (o.shape for o in scatter.operands)):
        return True
    return (
        scatter.operands[count].shape.rank == 2
        and attrs["index_vector_dim"] == 1
        and not attrs["inserted_window_dims"]
        and tuple(attrs["update_window_dims"]) == tuple(range(1, scatter.operands[-1].shape.rank))
    )


def _simple(scatter: HloInstruction) -> HloInstruction:
    editor, attrs, count = Editor(scatter), scatter.attrs, len(scatter.operands) // 2
    inputs, indices, updates = scatter.operands[:count], scatter.operands[count], scatter.operands[count + 1 :]
    if 0 in updates[0].shape.dims:
        return editor.joined(inputs, scatter)
    rows = index_rows(editor, indices, attrs["index_vector_dim"])
    new_updates = [_with_all_dims(editor, scatter, update) for update in updates]
    changed: dict[str, Any] = {
        "update_window_dims": tuple(range(1, inputs[0].shape.rank + 1)),
        "inserted_window_dims": (),
        "scatter_dims_to_operand_dims": attrs["scatter_dims_to_operand_dims"],
        "index_vector_dim": 1,
    }
    flags: dict[str, Any] = {name: True for name in ("indices_are_sorted", "unique_indices") if attrs.get(name)}
    return editor.add(
        "scatter", scatter.shape, [*inputs, rows, *new_updates], {"to_apply": scatter.called["to_apply"]}, **changed, **flags
    )


def _with_all_dims(editor: Editor, scatter: HloInstruction, update: HloInstruction) -> HloInstruction:
    """Return an update with its rows first, then every dimension of the operand."""
    window: tuple[int, ...] = scatter.attrs["update_window_dims"]
    inserted: tuple[int, ...] = scatter.attrs["inserted_window_dims"]
    batch = [d for d in range(update.shape.rank) if d not in window]
    moved = editor.transpose(update, [*batch, *window])
    sizes = iter(moved.shape.dims[len(batch) :])
    full = [1 if d in inserted else next(sizes) for d in range(scatter.operands[0].shape.rank)]
    return editor.reshape(moved, (math.prod(moved.shape.dims[: len(batch)]), *full))
