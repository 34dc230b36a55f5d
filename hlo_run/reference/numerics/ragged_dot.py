"""Evaluate `ragged-dot`: a dot whose lhs has groups along one dimension, with group sizes in an operand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from hlo_run.hlo.graph import HloInstruction
from hlo_run.reference.numerics.contraction import convert_sums, sum_type
from hlo_run.reference.numerics.dot import DotDims, contract, dot_dims, wide_operands
from hlo_run.reference.values import Array, arrays_row, table

_Index = list[slice]


def _ragged_dot(instruction: HloInstruction, operands: Sequence[Array]) -> Array:
    """Evaluate one of three forms, by the kind of the ragged dimension; g is the number of groups, sizes are [.., g].

    free: [b,m,k] x [g,b,k,n] -> [b,m,n], each row takes its group's matrix, rows after the last group are 0;
    contracting: [b,m,k] x [b,k,n] -> [g,b,m,n], each group sums its own range of k;
    batch: [b,m,k] x [b,k,n] -> [b,m,n], batches after the last group are 0.
    """
    lhs, rhs = wide_operands(instruction, operands)
    dims = dot_dims(instruction)
    (ragged,) = instruction.lhs_ragged_dims
    out = np.zeros(instruction.shape.dims, lhs.dtype)
    sizes = operands[2].astype(np.int64)
    before = _dims_before(lhs.ndim, dims, ragged)[-(sizes.ndim - 1) :] if sizes.ndim > 1 else []
    ends = np.clip(np.cumsum(sizes, axis=-1), 0, lhs.shape[ragged])
    # Sizes may depend on the indices of dimensions outside the ragged one: one step for each such index.
    for prefix in np.ndindex(*sizes.shape[:-1]):
        chosen = dict(zip(before, prefix, strict=True))
        bounds = [0, *(int(end) for end in ends[prefix])]
        if ragged in dims.lhs_contracting:
            _sum_ranges(out, lhs, rhs, dims, ragged, chosen, bounds)
        elif ragged in dims.lhs_batch:
            _multiply_batches(out, lhs, rhs, dims, ragged, chosen, bounds[-1])
        else:
            (group_dim,) = instruction.rhs_group_dims
            _multiply_rows(out, lhs, rhs, dims, ragged, chosen, bounds, group_dim)
    return convert_sums(out, sum_type(instruction), instruction.shape.dtype)


def _dims_before(rank: int, dims: DotDims, ragged: int) -> list[int]:
    """Return the lhs dimensions that sizes may depend on: batch ones, then the dimensions of the ragged one's kind before it."""
    if ragged in dims.lhs_batch:
        return list(dims.lhs_batch[: dims.lhs_batch.index(ragged)])
    if ragged in dims.lhs_contracting:
        return [*dims.lhs_batch, *dims.lhs_contracting[: dims.lhs_contracting.index(ragged)]]
    return [*dims.lhs_batch, *(d for d in _free_dims(rank, dims) if d < ragged)]


def _free_dims(rank: int, dims: DotDims) -> list[int]:
    return [d for d in range(rank) if d not in (*dims.lhs_batch, *dims.lhs_contracting)]


def _lhs_index(rank: int, chosen: dict[int, int], ragged: int, start: int, end: int) -> _Index:
    index = [slice(chosen[d], chosen[d] + 1) if d in chosen else slice(None) for d in range(rank)]
    index[ragged] = slice(start, end)
    return index


def _rhs_index(rank: int, dims: DotDims, lhs_index: _Index) -> _Index:
    """Return the index of the rhs for the same part of the batch and contracting dimensions."""
    index = [slice(None)] * rank
    left, right = (*dims.lhs_batch, *dims.lhs_contracting), (*dims.rhs_batch, *dims.rhs_contracting)
    for lhs_dim, rhs_dim in zip(left, right, strict=True):
        index[rhs_dim] = lhs_index[lhs_dim]
    return index


def _out_index(dims: DotDims, lhs_index: _Index) -> _Index:
    """Return the index of the result for the product; the lhs's batch and free dimensions are its first ones."""
    return [lhs_index[d] for d in (*dims.lhs_batch, *_free_dims(len(lhs_index), dims))]


def _multiply_rows(
    out: Array, lhs: Array, rhs: Array, dims: DotDims, ragged: int, chosen: dict[int, int], bounds: list[int], group_dim: int
) -> None:
    def without_group(found: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(d - (d > group_dim) for d in found)

    inner = DotDims(dims.lhs_batch, without_group(dims.rhs_batch), dims.lhs_contracting, without_group(dims.rhs_contracting))
    for group, (start, end) in enumerate(itertools.pairwise(bounds)):
        mine = _lhs_index(lhs.ndim, chosen, ragged, start, end)
        matrix = np.take(rhs, group, group_dim)
        product = contract(lhs[tuple(mine)], matrix[tuple(_rhs_index(matrix.ndim, inner, mine))], inner)
        out[tuple(_out_index(dims, mine))] = product


def _sum_ranges(
    out: Array, lhs: Array, rhs: Array, dims: DotDims, ragged: int, chosen: dict[int, int], bounds: list[int]
) -> None:
    for group, (start, end) in enumerate(itertools.pairwise(bounds)):
        mine = _lhs_index(lhs.ndim, chosen, ragged, start, end)
        product = contract(lhs[tuple(mine)], rhs[tuple(_rhs_index(rhs.ndim, dims, mine))], dims)
        out[(group, *_out_index(dims, mine))] += product


def _multiply_batches(out: Array, lhs: Array, rhs: Array, dims: DotDims, ragged: int, chosen: dict[int, int], end: int) -> None:
    mine = _lhs_index(lhs.ndim, chosen, ragged, 0, end)
    product = contract(lhs[tuple(mine)], rhs[tuple(_rhs_index(rhs.ndim, dims, mine))], dims)
    out[tuple(_out_index(dims, mine))] = product


EVALUATE = table(arrays_row("ragged-dot", _ragged_dot))
