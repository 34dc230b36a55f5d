"""Handlers of elementwise instructions, constants, tuples and others that move no element, or nearly none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hlo_run.hlo.fused_names import clone_name
from hlo_run.hlo.values.shape import Shape
from hlo_run.sharding.partitioning.grouping import group_state
from hlo_run.sharding.partitioning.handlers.one_device import on_one_device, only_device
from hlo_run.sharding.partitioning.handlers.visit import Visit
from hlo_run.sharding.partitioning.masks import zero_excess
from hlo_run.sharding.partitioning.offsets import tile_ordinals
from hlo_run.sharding.partitioning.state import Part, key_of
from hlo_run.sharding.values.groups import group_on_dims
from hlo_run.sharding.values.make import REPLICATED, divides_evenly, elements_of, maximal, part_of, shard_shape
from hlo_run.sharding.values.moves import move_tiles, remove_dims, target_for_tiles
from hlo_run.sharding.values.replicate import replicate_dims, transpose


def elementwise(v: Visit) -> Part:
    """Compute each tile from the operands' tiles; operands of one sharding keep it, and the result is resharded."""
    if len(v.parts) > 1 and len({key_of(part.sharding) for part in v.parts}) == 1:
        sharding = v.parts[0].sharding
        return v.made(v.clone([part.hlo for part in v.parts], sharding), sharding)
    # Bounds of a clamp and conditions of a select may be scalars.
    rank = v.hlo.shape.rank
    parts = [part.reshard(v.sharding if part.hlo.shape.rank == rank else REPLICATED) for part in v.parts]
    return v.made(v.clone([part.hlo for part in parts]))


def without_dims(v: Visit, dims: Sequence[int]) -> Part:
    """Compute each tile where `dims` are not divided: their tiles move to another dimension, if one divides evenly."""
    if v.is_whole:
        return v.by_default()
    between = v.leaf
    others = [dim for dim in range(v.hlo.shape.rank) if dim not in dims]
    for dim in dims:
        target = target_for_tiles(v.hlo.shape.dims, between, dim, others)
        between = move_tiles(between, dim, target) if target is not None else replicate_dims(between, [dim])
    return v.made(v.clone([part.reshard(between).hlo for part in v.parts], between), between)


def concatenate(v: Visit) -> Part:
    """Handle a concatenation."""
    return without_dims(v, v.hlo.dimensions)


def matrix_solve(v: Visit) -> Part:
    """Handle instructions on matrices in the last two dimensions."""
    rank = v.hlo.shape.rank
    return without_dims(v, (rank - 2, rank - 1))


def transposed(v: Visit) -> Part:
    """Handle a transpose."""
    if v.is_whole:
        return v.by_default()
    back = [v.hlo.dimensions.index(dim) for dim in range(v.hlo.shape.rank)]
    return v.made(v.clone([v.parts[0].reshard(transpose(v.leaf, back)).hlo]))


def broadcast(v: Visit) -> Part:
    """Handle a broadcast."""
    if v.is_whole:
        return v.by_default()
    new = [dim for dim in range(v.hlo.shape.rank) if dim not in v.hlo.dimensions]
    kept = replicate_dims(v.leaf, new)
    wanted = remove_dims(kept, new) if kept.tiles is not None else kept
    return v.made(v.clone([v.parts[0].reshard(wanted).hlo]))


def iota(v: Visit) -> Part:
    """Handle an iota: each tile begins at its number."""
    if v.is_whole:
        return v.by_default()
    b, dim = v.b, v.hlo.iota_dimension
    made = v.clone([])
    if v.leaf.dims[dim] == 1:
        return v.made(made)
    ordinals = tile_ordinals(b, v.leaf, v.state.partition_id)
    offset = b.binary("multiply", ordinals[dim], b.constant(made.shape.dims[dim], "s32"))
    if made.shape.element_type != "s32":
        offset = b.add("convert", Shape.array(made.shape.element_type, ()), [offset])
    return v.made(b.binary("add", made, b.filled(offset, made.shape)))


def constant(v: Visit) -> Part:
    """Handle a constant: each tile makes a constant of equal elements."""
    if v.hlo.shape.is_tuple:
        return v.by_default()
    if v.is_whole:
        return v.made(v.b.clone(v.hlo, v.hlo.shape, [], clone_name(v.hlo.name)))
    array = np.asarray(v.hlo.constant_array)
    is_equal = array.size > 0 and bool(np.all(array == array.reshape(-1)[0]))
    if v.leaf.tiles is not None and (not divides_evenly(v.hlo.shape, v.sharding) or not is_equal):
        return v.by_default()
    shape = shard_shape(v.hlo.shape, v.sharding)
    made = v.b.add("constant", shape, literal=np.full(shape.dims, array.reshape(-1)[0], array.dtype))
    return v.made(made)


def bitcast_convert(v: Visit) -> Part:
    """Handle a bitcast-convert; one that adds or removes a dimension does not divide that."""
    source, target = v.hlo.operands[0].shape, v.hlo.shape
    if source.rank == target.rank:
        return elementwise(v)
    if v.is_whole:
        return v.by_default()
    if source.rank > target.rank:
        before = replicate_dims(v.parts[0].leaf, [target.rank])
        after = remove_dims(before, [target.rank])
    else:
        after = replicate_dims(v.leaf, [source.rank])
        before = remove_dims(after, [source.rank])
    return v.made(v.clone([v.parts[0].reshard(before).hlo], after), after)


def parameter(v: Visit) -> Part:
    """Handle a parameter: it is a part."""
    made = v.clone([])
    made.name = "param"
    return v.made(made)


def make_tuple(v: Visit) -> Part:
    """Handle a tuple."""
    shape = v.hlo.shape
    return v.made(v.b.tuple([part.reshard(part_of(v.sharding, shape, n)).hlo for n, part in enumerate(v.parts)]))


def element(v: Visit) -> Part:
    """Handle an element of a tuple."""
    part, index = v.parts[0], v.hlo.tuple_index
    made = v.b.get_tuple_element(part.hlo, index)
    return v.made(made, part_of(part.sharding, part.base, index))


def loop(v: Visit) -> Part:
    """Handle a while; its computations are partitioned already."""
    return v.made(v.clone([v.parts[0].reshard(v.sharding).hlo], name="while"))


def call(v: Visit) -> Part:
    """Handle a call; its computation is partitioned already."""
    return v.made(v.clone([part.hlo for part in v.parts], name="call"))


def conditional(v: Visit) -> Part:
    """Handle a conditional: all devices know which branch is taken."""
    predicate, *arguments = v.parts
    chosen = predicate.hlo if predicate.leaf.is_manual else predicate.replicate().hlo
    return v.made(v.clone([chosen, *(part.hlo for part in arguments)], name="conditional"))


def custom_call(v: Visit) -> Part:
    """Handle a custom call: the borders of manual regions, calls on one device, and calls that are elementwise."""
    target = v.hlo.custom_call_target
    if target == "SPMDFullToShardShape":
        part = v.parts[0]
        return v.made(v.b.copy(zero_excess(part).hlo if part.leaf.tiles is not None else part.hlo))
    if target == "SPMDShardToFullShape":
        return v.made(v.b.copy(v.parts[0].hlo))
    device = only_device(v)
    if device is not None:
        return on_one_device(v, device)
    if target in ("MoveToHost", "LayoutConstraint"):
        return elementwise(v)
    if target in ("MoveToDevice", "PinToDevice", "PinToDeviceSram"):
        part = v.parts[0]
        return v.made(v.clone([part.hlo], part.sharding), part.sharding)
    return v.by_default()


def rng(v: Visit) -> Part:
    """Handle a random number generator: replicated numbers are made by device 0, tiles by their devices."""
    device = only_device(v)
    if device is not None:
        return on_one_device(v, device)
    if all(leaf.is_manual for leaf in elements_of(v.sharding)):
        return v.by_default()
    if v.is_whole:
        first = maximal(0)
        made = v.b.clone(v.hlo, v.hlo.shape, [part.reshard(first).hlo for part in v.parts])
        return v.made(made, first)
    made = v.clone(v.whole_operands())
    if "replicated" not in v.leaf.subgroups:
        return v.made(made)
    last = v.leaf.subgroup_dim("replicated")
    groups = group_on_dims(v.leaf, [dim for dim in range(len(v.leaf.dims)) if dim != last])
    inside = Part(made, made.shape, maximal(0), group_state(v.state, groups.devices))
    return v.made(inside.replicate().hlo)
