"""Finds the largest elements along a divided dimension: first of each tile, and then of all tiles' by a sort.

    v, i = TopK(x [4,256], k=5) on 8 devices   =>   v, i = TopK(x [4,32], k=5)
                                                    v, i = sort(all-gather(v), all-gather(i + 32 * tile)), and its first 5

XLA's `SpmdPartitioningVisitor::HandleCustomCallTopK`. XLA returns zeros as the indices of a call that is the root of its
computation, and loses elements if a tile has fewer than k: here the values are right.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
from msgspec import Struct

from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.literal import float_info
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import SingleSharding
from hlo_run.records import replace
from hlo_run.sharding.partitioning.grouping import group_state
from hlo_run.sharding.partitioning.handlers.one_device import on_one_device, only_device
from hlo_run.sharding.partitioning.handlers.visit import Visit
from hlo_run.sharding.partitioning.masks import fill_excess
from hlo_run.sharding.partitioning.state import Builder, Part
from hlo_run.sharding.values.groups import group_on_dims
from hlo_run.sharding.values.make import is_maximal, same_for_all
from hlo_run.sharding.values.replicate import replicate_dims

_BATCH, _SORTED = 0, 1


def top_k(v: Visit) -> Part:
    """Handle a call of TopK on a matrix. One whose tiles have no more than k elements is computed whole."""
    device = only_device(v)
    if device is not None:
        return on_one_device(v, device)
    part = v.parts[0]
    sharding = part.leaf
    if is_maximal(v.sharding) or sharding.tiles is None or sharding.subgroups or part.base.rank != 2:
        return v.by_default()
    count, wanted = sharding.dims[_SORTED], v.hlo.shape.tuple_shapes[0].dims[_SORTED]
    size = -(-part.base.dims[_SORTED] // count)
    if wanted >= size:
        return v.by_default()
    job = _Job(v, sharding, wanted, size)
    local = job.local()
    values = job.gathered(v.b.get_tuple_element(local, 0))
    if job.uses_indices():
        results = job.sorted_with(values, job.gathered(job.whole_indices(v.b.get_tuple_element(local, 1))))
    else:
        made = v.b.add("sort", values.shape, [values], {"to_apply": [job.comparator(False)]}, dimensions=(1,))
        first = job.first(made)
        results = [first, v.b.zeros(first.shape.with_element_type("s32"))]
    return v.made(v.b.tuple(results), same_for_all(v.hlo.shape, job.gathered_sharding))


class _Job(Struct, frozen=True):
    """One call: the sharding of its operand, how many elements it wants, and how many a tile has."""

    v: Visit
    sharding: SingleSharding
    wanted: int
    size: int

    @property
    def gathered_sharding(self) -> SingleSharding:
        return replicate_dims(self.sharding, [_SORTED])

    def local(self) -> HloInstruction:
        """Add the call on a tile; nothing comes after the elements that fill the excess."""
        part = self.v.parts[0]
        filled = fill_excess(part, _last_in_order(self.v.b, part.hlo.shape.element_type, self._has_total_order())).hlo
        dims = (filled.shape.dims[_BATCH], self.wanted)
        shape = self.v.hlo.shape.map_leaves(lambda leaf: replace(leaf, dims=dims))
        return self.v.b.clone(self.v.hlo, shape, [filled])

    def _has_total_order(self) -> bool:
        """True unless the call's comparison is a partial order, in which NaN has no place."""
        roots = [computation.root for computation in self.v.hlo.called_computations]
        return not any(root.opcode == "compare" and root.comparison_order != "TOTAL" for root in roots)

    def gathered(self, value: HloInstruction) -> HloInstruction:
        """Return what all tiles along the sorted dimension have."""
        whole = (self.v.hlo.shape.tuple_shapes[0].dims[_BATCH], self.wanted * self.sharding.dims[_SORTED])
        part = Part(value, replace(value.shape, dims=whole), self.sharding, self.v.state)
        return part.reshard(self.gathered_sharding).hlo

    def whole_indices(self, indices: HloInstruction) -> HloInstruction:
        """Return indices of the whole array."""
        b = self.v.b
        offset = b.filled(b.binary("multiply", self._tile(), b.constant(self.size, "s32")), indices.shape)
        return b.binary("add", indices, offset)

    def _tile(self) -> HloInstruction:
        """Return the number of the device's tile along the sorted dimension."""
        groups = group_on_dims(self.sharding, [_BATCH])
        return self.v.b.add("convert", Shape.array("s32", ()), [group_state(self.v.state, groups.devices).partition_id])

    def uses_indices(self) -> bool:
        """True if anything may read the indices."""
        hlo = self.v.hlo
        assert hlo.parent is not None, "the call is in a computation"
        root = hlo.parent.root
        elements = [user for user in hlo.users if user.opcode == "get-tuple-element"]
        return (
            hlo is root
            or len(elements) != len(hlo.users)
            or any(element.tuple_index and (element.users or element is root) for element in elements)
        )

    def sorted_with(self, values: HloInstruction, indices: HloInstruction) -> list[HloInstruction]:
        """Return the first values and their indices, the smaller index first among equal values."""
        b = self.v.b
        shape = Shape.make_tuple((values.shape, indices.shape))
        called = {"to_apply": [self.comparator(True)]}
        made = b.add("sort", shape, [values, indices], called, dimensions=(1,))
        return [self.first(b.get_tuple_element(made, number)) for number in range(2)]

    def first(self, value: HloInstruction) -> HloInstruction:
        """Return the first elements along the sorted dimension."""
        return self.v.b.slice(value, (0, 0), (value.shape.dims[_BATCH], self.wanted))

    def comparator(self, has_indices: bool) -> HloComputation:
        """Add a computation that is true if the first value is greater, or equal with a smaller index."""
        b = Builder(HloComputation("compare-value-and-index" if has_indices else "compare-value"))
        dtype = self.v.hlo.shape.tuple_shapes[0].dtype
        one, two = (b.add("parameter", Shape.array(dtype.name, ()), parameter_number=n) for n in range(2))
        # NaN, which may fill the excess, has no place in a partial order.
        root = _compared(b, one, two, "GT", is_total=dtype.is_float)
        if has_indices:
            left, right = (b.add("parameter", Shape.array("s32", ()), parameter_number=n) for n in (2, 3))
            is_equal = _compared(b, one, two, "EQ", is_total=dtype.is_float)
            root = b.select(is_equal, b.compare(left, right, "LT"), root)
        b.computation.root = root
        return self.v.state.module.add_computation(b.computation)


def _compared(b: Builder, one: HloInstruction, two: HloInstruction, direction: str, is_total: bool) -> HloInstruction:
    made = b.compare(one, two, direction)
    if is_total:
        made.attrs["order"] = "TOTAL"
    return made


def _last_in_order(b: Builder, element_type: str, is_total: bool) -> HloInstruction:
    """Add the value that comes last if the greatest come first; XLA has NaN in a partial order too, and loses elements."""
    if element_type == "f32" and is_total:
        return b.constant(np.copysign(np.float32(np.nan), np.float32(-1)), element_type)
    dtype = DTYPES[element_type]
    if not dtype.is_float:
        return b.constant(ml_dtypes.iinfo(dtype.numpy).min, element_type)
    lowest = np.asarray(-np.inf).astype(dtype.numpy)
    return b.constant(lowest if np.isinf(lowest) else -float(float_info(dtype).max), element_type)
