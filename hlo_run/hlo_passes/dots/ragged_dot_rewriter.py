"""Rewrite a ragged dot to a dense dot over all groups, with zeros outside of each group.

    ragged-dot(x[m,k], y[g,k,n], sizes[g]), lhs_ragged_dims={0}
        =>   masked[g,m,k] = select(start[g] <= row < end[g], x, 0);  dot(masked, y) over g and k

With a ragged contracting dimension, the groups become a batch dimension of the result, and both operands get zeros. With a
ragged batch dimension, rows after the last group are zero; XLA's `ragged_dot_rewriter.cc` omits this last mask. XLA also takes
for granted that the dimensions of the sizes lead those of the operands; other dots get the same result in another way.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.subgraphs.expansion import expand
from hlo_run.pass_support.hlo_pass import PassContext


class RaggedDotRewriter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "ragged_dot_rewriter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        expand(module, ("ragged-dot",), _dense)


class _Dims(Struct, frozen=True):
    """The dimension numbers of a dot."""

    lhs_batch: tuple[int, ...]
    lhs_contracting: tuple[int, ...]
    rhs_batch: tuple[int, ...]
    rhs_contracting: tuple[int, ...]

    def dot(self, b: HloBuilder, old: HloInstruction, lhs: HloValue, rhs: HloValue) -> HloValue:
        """Return the product with the result type and precision of `old`."""
        result = b.dot(
            lhs,
            rhs,
            lhs_batch_dims=self.lhs_batch,
            lhs_contracting_dims=self.lhs_contracting,
            rhs_batch_dims=self.rhs_batch,
            rhs_contracting_dims=self.rhs_contracting,
            element_type=old.shape.element_type,
        )
        if "operand_precision" in old.attrs:
            result.instruction.attrs["operand_precision"] = old.attrs["operand_precision"]
        return result


def _dense(b: HloBuilder, old: HloInstruction, lhs: HloValue, rhs: HloValue, sizes: HloValue) -> HloValue:
    dims = _Dims(old.lhs_batch_dims, old.lhs_contracting_dims, old.rhs_batch_dims, old.rhs_contracting_dims)
    ragged = old.lhs_ragged_dims[0]
    places = _dims_of_sizes(dims, ragged, lhs.shape.rank, sizes.shape.rank - 1)
    if ragged in dims.lhs_batch:
        return dims.dot(b, old, _mask_rest(b, lhs, sizes, ragged, places), rhs)
    if (led := _of_led_dims(b, old, dims, (lhs, rhs, sizes), places)) is not None:
        return led
    masked = _mask_groups(b, lhs, sizes, ragged, places)
    # The group dimension is first now, so every lhs dimension number grows by one.
    lhs_batch, lhs_contracting = _shifted(dims.lhs_batch), _shifted(dims.lhs_contracting)
    if ragged in dims.lhs_contracting:
        repeated = b.broadcast(rhs, (sizes.shape.dims[-1], *rhs.shape.dims), range(1, rhs.shape.rank + 1))
        rhs_batch, rhs_contracting = _shifted(dims.rhs_batch), _shifted(dims.rhs_contracting)
        return _Dims((0, *lhs_batch), lhs_contracting, (0, *rhs_batch), rhs_contracting).dot(b, old, masked, repeated)
    (group_dim,) = old.rhs_group_dims
    summed = _Dims(lhs_batch, (0, *lhs_contracting), dims.rhs_batch, (group_dim, *dims.rhs_contracting))
    return summed.dot(b, old, masked, rhs)


def _of_led_dims(
    b: HloBuilder, old: HloInstruction, dims: _Dims, operands: tuple[HloValue, HloValue, HloValue], places: list[int]
) -> HloValue | None:
    """Return the product in XLA's steps, None if the dimensions of the sizes do not lead the operands' dimensions."""
    lhs, rhs, sizes = operands
    count, ragged = len(places), old.lhs_ragged_dims[0]
    leading = tuple(range(count))
    if tuple(places) != leading or ragged < count or min(dims.lhs_contracting, default=count) < count:
        return None
    if any(dim >= count for dim in dims.lhs_batch):
        return None
    masked = _dense_groups(b, lhs, sizes, ragged)
    lhs_contracting = _shifted(dims.lhs_contracting)
    if ragged not in dims.lhs_contracting:
        group_dim = old.rhs_group_dims[0]
        summed = _Dims(dims.lhs_batch, (count, *lhs_contracting), dims.rhs_batch, (group_dim, *dims.rhs_contracting))
        return summed.dot(b, old, masked, rhs)
    if count > 1 or (dims.lhs_batch, dims.rhs_batch) != (leading, leading):
        return None
    other = dims.rhs_contracting[dims.lhs_contracting.index(ragged)]
    pair = [_leading(b, value, count) for value in (masked, _dense_groups(b, rhs, sizes, other))]
    batch = 0, *_shifted(dims.lhs_batch)
    return _Dims(batch, lhs_contracting, batch, _shifted(dims.rhs_contracting)).dot(b, old, *pair)


def _leading(b: HloBuilder, value: HloValue, dim: int) -> HloValue:
    """Return the value with dimension `dim`, 0 or 1, as the first."""
    if dim == 0:
        return value
    one, two, *rest = value.shape.dims
    shape = Shape.array(value.shape.element_type, (two, one, *rest))
    return b.instruction("transpose", [value], shape, dimensions=(1, 0, *range(2, value.shape.rank)))


def _dense_groups(b: HloBuilder, value: HloValue, sizes: HloValue, ragged: int) -> HloValue:
    """Return the value once per group, with zeros outside the group. The new dimension follows those that the sizes have."""
    *outer, count = sizes.shape.dims
    first = len(outer)
    kind, dims = sizes.shape.element_type, (*value.shape.dims[:first], count, *value.shape.dims[first:])
    ends = _running_sums(b, sizes)
    before = b.slice(ends, [(0, size) for size in (*outer, count - 1)])
    starts = b.concatenate([b.broadcast(b.constant(0, kind), (*outer, 1), ()), before], first)
    start = b.broadcast(starts, dims, range(first + 1))
    row = b.broadcast(b.iota(Shape.array(kind, (value.shape.dims[ragged],)), 0), dims, [ragged + 1])
    inside = b.and_(start <= row, row < b.broadcast(ends, dims, range(first + 1)))
    repeated = b.broadcast(value, dims, [dim + (dim >= first) for dim in range(value.shape.rank)])
    return b.select(inside, repeated, b.broadcast(b.constant(0, value.shape.element_type), dims, ()))


def _shifted(dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(dim + 1 for dim in dims)


def _dims_of_sizes(dims: _Dims, ragged: int, rank: int, count: int) -> list[int]:
    """Return the `count` lhs dimensions that the group sizes have: batch dimensions, then those outside the ragged one."""
    if ragged in dims.lhs_batch:
        before = dims.lhs_batch[: dims.lhs_batch.index(ragged)]
    elif ragged in dims.lhs_contracting:
        before = (*dims.lhs_batch, *dims.lhs_contracting[: dims.lhs_contracting.index(ragged)])
    else:
        taken = {*dims.lhs_batch, *dims.lhs_contracting}
        before = (*dims.lhs_batch, *(dim for dim in range(rank) if dim not in taken and dim < ragged))
    return list(before[len(before) - count :])


def _mask_groups(b: HloBuilder, lhs: HloValue, sizes: HloValue, ragged: int, places: list[int]) -> HloValue:
    """Return the lhs once per group (a new leading dimension), with zeros outside the group."""
    dims = (sizes.shape.dims[-1], *lhs.shape.dims)
    sizes_at = [*(dim + 1 for dim in places), 0]
    ends = _running_sums(b, sizes)
    starts = ends - sizes
    row = b.iota(Shape.array(sizes.shape.element_type, dims), ragged + 1)
    inside = b.and_(row >= _spread(b, starts, dims, sizes_at), row < _spread(b, ends, dims, sizes_at))
    return b.select(inside, b.broadcast(lhs, dims, range(1, len(dims))), b.constant(0, lhs.shape.element_type))


def _mask_rest(b: HloBuilder, lhs: HloValue, sizes: HloValue, ragged: int, places: list[int]) -> HloValue:
    """Return the lhs with zeros after the last group."""
    zero = b.constant(0, sizes.shape.element_type)
    total = b.reduce(sizes, zero, [sizes.shape.rank - 1], "add")
    row = b.iota(Shape.array(sizes.shape.element_type, lhs.shape.dims), ragged)
    inside = row < _spread(b, total, lhs.shape.dims, places)
    return b.select(inside, lhs, b.constant(0, lhs.shape.element_type))


def _spread(b: HloBuilder, value: HloValue, dims: tuple[int, ...], places: list[int]) -> HloValue:
    """Broadcast to `dims`; the value's dimensions become dimensions `places`, in any order."""
    order = sorted(range(len(places)), key=lambda number: places[number])
    if order != list(range(len(places))):
        shape = Shape.array(value.shape.element_type, tuple(value.shape.dims[number] for number in order))
        value = b.instruction("transpose", [value], shape, dimensions=order)
    return b.broadcast(value, dims, sorted(places))


def _running_sums(b: HloBuilder, sizes: HloValue) -> HloValue:
    """Return the inclusive prefix sums along the last dimension."""
    *outer, count = sizes.shape.dims
    window = {"size": [*[1] * len(outer), count], "pad": [*[(0, 0)] * len(outer), (count - 1, 0)]}
    inner = b.sub_builder("add")
    one, two = (inner.parameter(n, Shape.array(sizes.shape.element_type, ()), name) for n, name in enumerate(("lhs", "rhs")))
    return b.reduce_window(sizes, b.constant(0, sizes.shape.element_type), window, inner.build_computation(one + two))
