"""Rewrite batching dimensions of gathers and scatters as components of the index vectors.

    gather(x, i), operand_batching_dims={0}, start_indices_batching_dims={0}, start_index_map={1}
        =>   gather(x, concatenate(iota, i)), start_index_map={0,1}, collapsed_slice_dims={0,..}

Those whose index vectors already have a component for a batching dimension stay. XLA's
`batched_gather_scatter_normalizer.cc`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from msgspec import Struct

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.dtype import DTYPES, DType
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.subgraphs.expansion import expand
from hlo_run.pass_support.hlo_pass import PassContext


class BatchedGatherScatterNormalizer(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "batched_gather_scatter_normalizer"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        for opcode, build, batching, index_map in _FORMS:
            matches = partial(_is_normalised, batching=batching, index_map=index_map)
            expand(module, (opcode,), build, matches, described=True, bare=_BARE)


def _is_normalised(old: HloInstruction, batching: str, index_map: str) -> bool:
    """Return True if the instruction has batching dimensions and its index vectors have no component for one of them."""
    dims = set(old.ints(batching))
    return bool(dims) and dims.isdisjoint(old.ints(index_map))


def _gather(b: HloBuilder, old: HloInstruction, operand: HloValue, indices: HloValue) -> HloValue:
    batching = old.operand_batching_dims
    where = old.start_indices_batching_dims
    vector_dim = old.index_vector_dim
    return b.gather(
        operand,
        _with_batch_places(b, indices, vector_dim, where),
        offset_dims=old.offset_dims,
        collapsed_slice_dims=sorted((*old.collapsed_slice_dims, *batching)),
        start_index_map=(*batching, *old.start_index_map),
        index_vector_dim=vector_dim,
        slice_sizes=old.gather_slice_sizes,
        indices_are_sorted=_stay_sorted(old.indices_are_sorted, where, (*batching, *old.start_index_map)),
    )


def _scatter(b: HloBuilder, old: HloInstruction, *values: HloValue) -> HloValue:
    batching = old.input_batching_dims
    where = old.scatter_indices_batching_dims
    vector_dim = old.index_vector_dim
    count = len(values) // 2
    return b.scatter(
        values[:count],
        _with_batch_places(b, values[count], vector_dim, where),
        values[count + 1 :],
        to_apply=old.to_apply,
        update_window_dims=old.update_window_dims,
        inserted_window_dims=sorted((*old.inserted_window_dims, *batching)),
        scatter_dims_to_operand_dims=(*batching, *old.scatter_dims_to_operand_dims),
        index_vector_dim=vector_dim,
        indices_are_sorted=_stay_sorted(old.indices_are_sorted, where, (*batching, *old.scatter_dims_to_operand_dims)),
        unique_indices=old.unique_indices,
    )


_FORMS: tuple[tuple[Opcode, Callable[..., HloValue], str, str], ...] = (
    ("gather", _gather, "operand_batching_dims", "start_index_map"),
    ("scatter", _scatter, "input_batching_dims", "scatter_dims_to_operand_dims"),
)
# XLA gives these no metadata.
_BARE: tuple[Opcode, ...] = ("iota", "convert")


def _stay_sorted(sorted_before: bool, where: Sequence[int], index_map: Sequence[int]) -> bool:
    """Return True if index vectors stay sorted that begin with their places in the dimensions `where`."""
    return sorted_before and list(where) == sorted(where) and list(index_map) == sorted(index_map)


def _fits(size: int, dtype: DType) -> bool:
    return size < 1 << (dtype.bits - int(dtype.is_signed))


def _with_batch_places(b: HloBuilder, indices: HloValue, vector_dim: int, where: Sequence[int]) -> HloValue:
    """Return index vectors that begin with their own positions in the batching dimensions `where` of the indices."""
    dims = indices.shape.dims
    dtype = indices.shape.dtype
    largest = max(dims[dim] for dim in where)
    if not _fits(largest, dtype):
        indices = b.convert(indices, "s32" if _fits(largest, DTYPES["s32"]) else "s64")
    if vector_dim == len(dims):
        indices = b.reshape(indices, (*dims, 1))
    thin = tuple(1 if dim == vector_dim else size for dim, size in enumerate(indices.shape.dims))
    places = [b.iota(Shape.array(indices.shape.element_type, thin), dim) for dim in where]
    return b.concatenate([*places, indices], vector_dim)
