"""Expand LU decomposition with row pivoting to a loop that eliminates one column per iteration.

    (f32[8,8], s32[8], s32[8]) custom-call(a), custom_call_target="LuDecomposition"   =>   call(a), to_apply=xla.lu_f32_8_8_

The results are L (below the diagonal) and U (on and above it) in one matrix, the pivot row of each step, and the permutation of
the rows, both from 0. Of equal magnitudes, the first row is the pivot; a column of zeros is skipped. XLA:GPU does not expand
this call. Leaves a call for the inliner, and a loop.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.linalg.matrices import dynamic_block, minor_iota, spread_batch
from hlo_run.hlo_passes.subgraphs.expansion import expand, shaped_name
from hlo_run.pass_support.hlo_pass import PassContext


class LuExpander(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "lu_expander"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        expand(module, ("custom-call",), _factor, _is_lu, called=shaped_name("lu"))


def _is_lu(call: HloInstruction) -> bool:
    return call.custom_call_target == "LuDecomposition"


def _factor(b: HloBuilder, old: HloInstruction, a: HloValue) -> HloValue:
    del old
    *batch, rows, columns = a.shape.dims
    steps = min(rows, columns)
    pivots = b.broadcast(b.constant(0, "s32"), (*batch, steps))
    state = b.tuple([b.constant(0, "s32"), a, pivots, minor_iota(b, (*batch, rows), 1)])
    result = b.while_(state, lambda value: value[0] < steps, _eliminate)
    return b.tuple([result[1], result[2], result[3]])


def _eliminate(state: HloValue) -> HloValue:
    b = state.builder
    assert isinstance(b, HloBuilder), "the loop is built by an HloBuilder"
    k, a, pivots, order = (state[number] for number in range(4))
    *batch, rows, columns = a.shape.dims
    column = b.reshape(dynamic_block(b, a, b.constant(0, "s32"), k, (rows, 1)), (*batch, rows))
    pivot = _largest(b, b.abs(column), k)
    place = minor_iota(b, (*batch, rows), 1)
    is_pivot = b.compare(place, spread_batch(b, pivot, place.shape.dims), "EQ")
    is_step = b.compare(place, k, "EQ")
    row = dynamic_block(b, a, k, b.constant(0, "s32"), (1, columns))
    a, pivot_row = _exchange(b, a, is_step, is_pivot, b.reshape(row, (*batch, columns)))
    new_order, _ = _exchange(b, order, is_step, is_pivot, b.reshape(_element(b, order, k), batch))
    one, zero = b.constant(1, a.shape.element_type), b.constant(0, a.shape.element_type)
    head = b.reshape(_element(b, pivot_row, k), batch)
    divisor = b.select(b.compare(head, zero, "EQ"), one, head)
    below = b.reshape(dynamic_block(b, a, b.constant(0, "s32"), k, (rows, 1)), (*batch, rows)) / spread_batch(
        b, divisor, (*batch, rows)
    )
    factor = spread_batch(b, b.select(place > k, below, zero), a.shape.dims)
    lead = b.broadcast(pivot_row, a.shape.dims, [*range(len(batch)), len(batch) + 1])
    row_of, column_of = minor_iota(b, a.shape.dims, 2), minor_iota(b, a.shape.dims, 1)
    rest = b.select(b.and_(row_of > k, column_of > k), a - factor * lead, a)
    packed = b.select(b.and_(row_of > k, b.compare(column_of, k, "EQ")), factor, rest)
    is_new = b.compare(minor_iota(b, pivots.shape.dims, 1), k, "EQ")
    return b.tuple([k + 1, packed, b.select(is_new, spread_batch(b, pivot, pivots.shape.dims), pivots), new_order])


def _largest(b: HloBuilder, magnitude: HloValue, k: HloValue) -> HloValue:
    """Return the position of the first largest element from `k` on; NaN counts as the largest."""
    dims = magnitude.shape.dims
    place = minor_iota(b, dims, 1)
    known = b.select(place < k, b.constant(-1, magnitude.shape.element_type), magnitude)

    def better(value: HloValue, at: HloValue, other: HloValue, there: HloValue) -> tuple[HloValue, HloValue]:
        inner = value.builder
        assert isinstance(inner, HloBuilder), "the reducer is built by an HloBuilder"
        nan, other_nan = inner.compare(value, value, "NE"), inner.compare(other, other, "NE")
        same = inner.or_(inner.and_(nan, other_nan), inner.compare(value, other, "EQ"))
        ahead = inner.or_(value > other, inner.and_(nan, inner.not_(other_nan)))
        keeps = inner.or_(ahead, inner.and_(same, at < there))
        return inner.select(keeps, value, other), inner.select(keeps, at, there)

    inits = [b.constant(-2, magnitude.shape.element_type), b.constant(0, "s32")]
    return b.reduce([known, place], inits, [len(dims) - 1], better)[1]


def _element(b: HloBuilder, value: HloValue, k: HloValue) -> HloValue:
    """Return element `k` of the last dimension, which keeps size 1."""
    *batch, _ = value.shape.dims
    return b.dynamic_slice(value, [*[b.constant(0, "s32")] * len(batch), k], (*batch, 1))


def _exchange(
    b: HloBuilder, value: HloValue, is_step: HloValue, is_pivot: HloValue, step_row: HloValue
) -> tuple[HloValue, HloValue]:
    """Exchange the step's and the pivot's row (elements, for vectors); return the result and the old pivot row."""
    dims, at = value.shape.dims, is_step.shape.rank - 1
    masks = [spread_batch(b, flags, dims) for flags in (is_step, is_pivot)]
    zero = b.constant(0, value.shape.element_type)
    pivot_row = b.reduce(b.select(masks[1], value, zero), zero, [at], "add")
    kept = [dim for dim in range(len(dims)) if dim != at]
    incoming, outgoing = (b.broadcast(row, dims, kept) for row in (pivot_row, step_row))
    return b.select(masks[0], incoming, b.select(masks[1], outgoing, value)), pivot_row
