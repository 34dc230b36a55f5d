"""Ragged products: each device multiplies its tiles, and sums over devices that divide a contracted dimension.

Needs operands and result that are divided alike along each dimension, as Shardy leaves them; others are computed whole. XLA's
`SpmdPartitioningVisitor::HandleRaggedDot`, which does not look whether they are,
and has other values after the last group of batches.
"""

from __future__ import annotations

import numpy as np

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.sharding import SingleSharding
from hlo_run.sharding.analysis.ragged_dims import RaggedDim, ragged_dims
from hlo_run.sharding.partitioning.collectives import all_reduce_dims, sum_of
from hlo_run.sharding.partitioning.handlers.visit import Visit
from hlo_run.sharding.partitioning.masks import as_type_of, zero_excess
from hlo_run.sharding.partitioning.offsets import partition_offsets
from hlo_run.sharding.partitioning.state import Part
from hlo_run.sharding.values.make import device_array, elements_of, shard_shape

_Places = dict[int, tuple[int, ...]]


def ragged_dot(v: Visit) -> Part:
    """Handle a ragged product."""
    hlo, dims = v.hlo, ragged_dims(v.hlo)
    leaves = [elements_of(part.sharding)[0] for part in v.parts]
    if not _is_divided_alike(v, dims, leaves):
        return v.by_default()
    left, right, groups = v.parts
    contracted = hlo.lhs_contracting_dims
    summed = [dim for dim in contracted if left.leaf.tiles is not None and left.leaf.dims[dim] > 1]
    if summed:
        left, right = zero_excess(left, contracted), zero_excess(right, hlo.rhs_contracting_dims)
    made = _product(v, [left.hlo, right.hlo, groups.hlo])
    if summed:
        made = all_reduce_dims(v.state, made, left.leaf, summed, sum_of(v.state.module, made.shape.element_type))
    return v.made(made)


def _product(v: Visit, operands: list[HloInstruction]) -> HloInstruction:
    """Add the product of tiles. One with a ragged batch is a dot, and zero after the last group."""
    hlo = v.hlo
    if hlo.lhs_ragged_dims[0] not in hlo.lhs_batch_dims:
        return v.clone(operands)
    names = "lhs_batch_dims lhs_contracting_dims rhs_batch_dims rhs_contracting_dims operand_precision".split()
    attributes = {name: hlo.attrs[name] for name in names if name in hlo.attrs}
    made = v.b.add_with("dot", shard_shape(hlo.shape, v.sharding), operands[:2], attributes)
    return _zero_after_groups(v, made, hlo.lhs_batch_dims.index(hlo.lhs_ragged_dims[0]))


def _zero_after_groups(v: Visit, value: HloInstruction, dim: int) -> HloInstruction:
    """Return the tile with zeros from the end of the last group along `dim`. XLA leaves this out."""
    b, groups = v.b, v.parts[2].replicate().hlo
    kind = groups.shape.element_type
    zero, dims = b.constant(0, kind), tuple(range(groups.shape.rank))
    end = b.add("reduce", zero.shape, [groups, zero], {"to_apply": [sum_of(v.state.module, kind)]}, dimensions=dims)
    index = value.shape.with_element_type(kind)
    places = b.add("iota", index, iota_dimension=dim)
    if v.leaf.tiles is not None and v.leaf.dims[dim] > 1:
        offset = partition_offsets(b, v.hlo.shape, v.leaf, v.state.partition_id, (dim,))[dim]
        places = b.binary("add", places, b.filled(as_type_of(b, offset, groups), index))
    return b.select(b.compare(places, b.filled(end, index), "LT"), value, b.zeros(value.shape))


def _is_divided_alike(v: Visit, dims: list[RaggedDim], leaves: list[SingleSharding]) -> bool:
    """True if every device has the same tile of each dimension in all arrays, and sums need only the devices along them."""
    arrays = [*leaves, v.leaf]
    if any(leaf.kind not in ("tiled", "replicated") or "manual" in leaf.subgroups for leaf in arrays):
        return False
    places = [_places(leaf, v.partitions) for leaf in arrays]
    if not all(_agrees(dim, arrays, places, v.partitions) for dim in dims):
        return False
    # Devices whose tiles of the left operand differ in contracted dimensions only must have one tile of the rest.
    left, right, result = places[0], places[1], places[3]
    contracted = {dim.dims[0] for dim in dims if dim.is_contracted}
    free = [dim.dims[1] for dim in dims if dim.dims[0] is None and dim.dims[1] is not None]
    known: dict[tuple[int, ...], object] = {}
    for device in range(v.partitions):
        key = tuple(place for n, place in enumerate(left[device]) if n not in contracted)
        rest = (result[device][: v.hlo.shape.rank], tuple(right[device][dim] for dim in free if right[device]))
        if known.setdefault(key, rest) != rest and contracted and _is_tiled_along(leaves[0], contracted):
            return False
    return True


def _is_tiled_along(leaf: SingleSharding, dims: set[int | None]) -> bool:
    return leaf.tiles is not None and any(leaf.dims[dim] > 1 for dim in dims if dim is not None)


def _places(leaf: SingleSharding, count: int) -> _Places:
    """Return the place of each device's tile, with the number among copies last; () if all have the whole array."""
    if leaf.tiles is None:
        return dict.fromkeys(range(count), ())
    return {int(device): tuple(map(int, place)) for place, device in np.ndenumerate(device_array(leaf))}


def _agrees(dim: RaggedDim, arrays: list[SingleSharding], places: list[_Places], count: int) -> bool:
    """True if all arrays that have this dimension are divided by it in one way."""
    found: list[tuple[int, ...]] = []
    for leaf, place, number in zip(arrays, places, (*dim.dims, dim.output), strict=True):
        if number is not None:
            found.append(tuple(place[device][number] if leaf.tiles is not None else 0 for device in range(count)))
    return len(set(found)) == 1 and not (dim.is_whole and any(found[0]))
