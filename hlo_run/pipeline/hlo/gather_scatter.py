"""What the simplifiers of gather and scatter share: indices as a matrix with one row per slice."""

from __future__ import annotations

import math

from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloInstruction


def index_rows(editor: Editor, indices: HloInstruction, index_vector_dim: int) -> HloInstruction:
    """Return the indices as [slices, components]."""
    rank = indices.shape.rank
    if index_vector_dim == rank:
        return editor.reshape(indices, (indices.shape.element_count, 1))
    others = [d for d in range(rank) if d != index_vector_dim]
    moved = editor.transpose(indices, [*others, index_vector_dim])
    return editor.reshape(moved, (math.prod(moved.shape.dims[:-1]), moved.shape.dims[-1]))
