"""The view of a gather or scatter. A scatter is described as a gather: its updates are the slices."""

from __future__ import annotations

import math
from typing import Self

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape


class Indexed(Struct, frozen=True):
    """A gather or scatter. Dimensions of the operand are `collapsed`, batching, or in the slices at `window_dims`.

    `slice_sizes` has one entry per dimension of the operand. A scatter's inserted dimensions are collapsed ones. `slices` is
    the shape of a gather's result or of the first update; `operand` is the first array of a scatter of several.
    """

    operand: HloInstruction
    indices: HloInstruction
    slices: Shape
    index_vector_dim: int
    index_map: tuple[int, ...]
    operand_batching: tuple[int, ...]
    indices_batching: tuple[int, ...]
    collapsed: tuple[int, ...]
    window_dims: tuple[int, ...]
    slice_sizes: tuple[int, ...]

    @classmethod
    def of(cls, instruction: HloInstruction) -> Self:
        """Return the view of a gather or scatter."""
        i = instruction
        if i.opcode == "gather":
            return cls(
                i.operands[0],
                i.operands[1],
                i.shape,
                i.index_vector_dim,
                i.start_index_map,
                i.operand_batching_dims,
                i.start_indices_batching_dims,
                i.collapsed_slice_dims,
                i.offset_dims,
                i.gather_slice_sizes,
            )
        count = len(i.operands) // 2
        operand, update = i.operands[0], i.operands[count + 1].shape
        inserted, batching = i.inserted_window_dims, i.input_batching_dims
        windows = iter(i.update_window_dims)
        sizes = [1 if d in inserted or d in batching else update.dims[next(windows)] for d in range(operand.shape.rank)]
        return cls(
            operand,
            i.operands[count],
            update,
            i.index_vector_dim,
            i.scatter_dims_to_operand_dims,
            batching,
            i.scatter_indices_batching_dims,
            inserted,
            i.update_window_dims,
            tuple(sizes),
        )

    @property
    def kept_dims(self) -> tuple[int, ...]:
        """The operand's dimensions that a slice has, one for each of `window_dims`."""
        dims = range(self.operand.shape.rank)
        return tuple([d for d in dims if d not in self.collapsed and d not in self.operand_batching])

    @property
    def row_dims(self) -> tuple[int, ...]:
        """The dimensions of the indices that number index vectors."""
        return tuple([d for d in range(self.indices.shape.rank) if d != self.index_vector_dim])

    @property
    def row_sizes(self) -> tuple[int, ...]:
        """The sizes of `row_dims`."""
        return tuple([size for d, size in enumerate(self.indices.shape.dims) if d != self.index_vector_dim])

    @property
    def row_count(self) -> int:
        """The number of index vectors, and so of slices."""
        return math.prod(self.row_sizes)

    @property
    def batch_dims(self) -> tuple[int, ...]:
        """The dimensions of the slices that number them, one for each of `row_dims`."""
        return tuple([d for d in range(self.slices.rank) if d not in self.window_dims])

    @property
    def batch_pairs(self) -> dict[int, int]:
        """The operand's batching dimension by the batching dimension of the indices."""
        return dict(zip(self.indices_batching, self.operand_batching, strict=True))

    @property
    def is_simple(self) -> bool:
        """True for the form of XLA's simplifiers: one index vector per row, slices with all dimensions of the operand."""
        return (
            self.indices.shape.rank == 2
            and self.index_vector_dim == 1
            and not self.collapsed
            and not self.operand_batching
            and self.window_dims == tuple(range(1, self.slices.rank))
        )
