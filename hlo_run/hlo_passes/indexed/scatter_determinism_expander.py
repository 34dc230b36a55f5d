"""Rewrite scatters whose result depends on the order of the updates: combine the updates of each element first, by a sort.

    s = f32[8] scatter(f32[8] x, s32[5,1] i, f32[5] u), to_apply=add
        =>   k, v = sort(i, u) by i;  v = sums of equal k, in log2(5) steps;  k = 8 where the next k is the same
             s = f32[8] scatter(x, k, v), to_apply=add, unique_indices=true

Each element of a window becomes an update of its own, and positions are numbers in the flattened operand. Only the last of equal
positions has the whole sum; the others, and updates out of bounds, point behind the operand. The combiner must be one associative
instruction or return the update: XLA's `ScatterDeterminismExpander` also combines others in this way, which changes their
result. Several arrays and other index types than s32 and s64 stay.
"""

from __future__ import annotations

import itertools
import math
from typing import ClassVar

from msgspec import Struct

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import ASSOCIATIVE
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.views.indexed import Indexed
from hlo_run.hlo_passes.indexed.gather_scatter import depends_on_order
from hlo_run.hlo_passes.subgraphs.expansion import expand
from hlo_run.pass_support.hlo_pass import PassContext

_LARGEST_S32 = (1 << 31) - 1


class ScatterDeterminismExpander(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "scatter_determinism_expander"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        expand(module, ("scatter",), _expanded, _is_to_do)


def _is_to_do(scatter: HloInstruction) -> bool:
    if len(scatter.operands) != 3 or scatter.operands[1].shape.element_type not in ("s32", "s64"):
        return False
    return depends_on_order(scatter) and 0 not in scatter.operands[2].shape.dims and _may_combine_first(scatter.to_apply)


def _may_combine_first(body: HloComputation) -> bool:
    """Return True if updates can be combined with each other before they are combined with the operand."""
    root = body.root
    if root.opcode == "parameter":
        return root.parameter_number == 1
    return root.opcode in ASSOCIATIVE and set(root.operands) == set(body.parameters)


def _expanded(b: HloBuilder, old: HloInstruction, operand: HloValue, indices: HloValue, updates: HloValue) -> HloValue:
    total = math.prod(operand.shape.dims)
    keys, values = _sorted(b, *_single_updates(b, old, indices, updates))
    sums = _sums(b, old.to_apply, keys, values)
    flat = b.scatter(
        b.reshape(operand, (total,)),
        b.reshape(_last_of_equal(b, keys, total), (keys.shape.dims[0], 1)),
        sums,
        to_apply=old.to_apply,
        update_window_dims=(),
        inserted_window_dims=(0,),
        scatter_dims_to_operand_dims=(0,),
        index_vector_dim=1,
        unique_indices=True,
    )
    return b.reshape(flat, operand.shape.dims)


def _single_updates(b: HloBuilder, old: HloInstruction, indices: HloValue, updates: HloValue) -> tuple[HloValue, HloValue]:
    """Return the positions in the flattened operand, `total` or more if out of bounds, and the updates: both of rank 1."""
    view = Indexed.of(old)
    dims, window, rows_first = view.operand.shape.dims, view.window_dims, view.batch_dims
    moved = b.transpose(updates, [*rows_first, *window])
    window_dims = moved.shape.dims[len(rows_first) :]
    full = view.slice_sizes
    strides = [math.prod(dims[d + 1 :]) for d in range(len(dims))]
    row_keys = _row_keys(b, old, indices, full, strides)
    grid = (row_keys.shape.dims[0], *window_dims)
    keys = b.broadcast(row_keys, grid, (0,))
    for place, dim in enumerate(view.kept_dims, 1):
        keys += b.iota(Shape.array(keys.shape.element_type, grid), place) * strides[dim]
    count = math.prod(grid)
    return b.reshape(keys, (count,)), b.reshape(moved, (count,))


def _row_keys(b: HloBuilder, old: HloInstruction, indices: HloValue, full: tuple[int, ...], strides: list[int]) -> HloValue:
    """Return the position of the first element of each window; the size of the operand for windows out of bounds."""
    rank, dims = indices.shape.rank, old.operands[0].shape.dims
    if old.index_vector_dim == rank:
        rows = b.reshape(indices, (*indices.shape.dims, 1))
    else:
        rows = b.transpose(indices, [*(d for d in range(rank) if d != old.index_vector_dim), old.index_vector_dim])
    count, columns, total = math.prod(rows.shape.dims[:-1]), rows.shape.dims[-1], math.prod(dims)
    rows = b.reshape(rows, (count, columns))
    # An element of a window behind the operand has a position of up to twice the operand's size.
    wide = rows.shape.element_type == "s32" and 2 * total > _LARGEST_S32
    inside, keys = (
        b.broadcast(b.constant(True), (count,), ()),
        b.broadcast(b.constant(0, "s64" if wide else rows.shape.element_type), (count,), ()),
    )
    for column, dim in enumerate(old.scatter_dims_to_operand_dims):
        start = b.reshape(b.slice(rows, [(0, count), (column, column + 1)]), (count,))
        inside = b.and_(inside, b.and_(start >= 0, start <= dims[dim] - full[dim]))
        keys += (b.convert(start, "s64") if wide else start) * strides[dim]
    return b.select(inside, keys, total)


def _sorted(b: HloBuilder, keys: HloValue, values: HloValue) -> tuple[HloValue, HloValue]:
    def less(one: HloValue, two: HloValue, *_values: HloValue) -> HloValue:
        return one < two

    found = b.sort([keys, values], 0, less)
    return found[0], found[1]


def _sums(b: HloBuilder, combiner: HloComputation, keys: HloValue, values: HloValue) -> HloValue:
    """Return for each position the combination of its value with all earlier ones that have the same key."""
    count = keys.shape.dims[0]
    for step in itertools.takewhile(lambda step: step < count, (1 << bit for bit in itertools.count())):
        earlier_keys = b.concatenate(
            [b.broadcast(b.constant(-1, keys.shape.element_type), (step,), ()), _begin(b, keys, step)], 0
        )
        no_values = b.broadcast(b.constant(0, values.shape.element_type), (step,), ())
        earlier = b.concatenate([no_values, _begin(b, values, step)], 0)
        values = b.select(b.compare(keys, earlier_keys, "EQ"), b.map([earlier, values], combiner), values)
    return values


def _begin(b: HloBuilder, values: HloValue, step: int) -> HloValue:
    return b.slice(values, [(0, values.shape.dims[0] - step)])


def _last_of_equal(b: HloBuilder, keys: HloValue, total: int) -> HloValue:
    """Return the keys, with `total` in place of those that the next key repeats."""
    count = keys.shape.dims[0]
    following = b.slice(keys, [(1, count)])
    is_last = b.concatenate([b.compare(_begin(b, keys, 1), following, "NE"), b.broadcast(b.constant(True), (1,), ())], 0)
    return b.select(is_last, keys, total)
