"""Handler of gathers: in groups of devices that share a part of the work, one way inside of the other."""

from __future__ import annotations

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import SingleSharding
from hlo_run.records import replace
from hlo_run.sharding.analysis.indexed_dims import (
    Indexed,
    MatchingDims,
    indices_from_slices,
    slices_from_indices,
    slices_from_operand,
)
from hlo_run.sharding.partitioning.collectives import all_reduce_dims, sum_of
from hlo_run.sharding.partitioning.grouping import aligned, base_in_group
from hlo_run.sharding.partitioning.handlers.indexed import (
    Trial,
    first_way,
    from_tile,
    in_group,
    index_bounds,
    indices_order,
    less,
    operand_order,
    parallel_shardings,
    per_component,
    refined,
    refined_inside,
    replicated_like,
    slices_order,
    tiles_along,
    trivial_dims,
    whole_components,
    wide_indices,
)
from hlo_run.sharding.partitioning.handlers.visit import Visit
from hlo_run.sharding.partitioning.state import Part
from hlo_run.sharding.values.groups import group_on_dims, ungroup
from hlo_run.sharding.values.make import REPLICATED
from hlo_run.sharding.values.moves import along_dims
from hlo_run.sharding.values.replicate import replicate_dims


def gather(v: Visit) -> Part:
    """Handle a gather."""
    if v.leaf.kind == "maximal":
        return v.by_default()
    operand, indices = v.parts
    if operand.hlo is indices.hlo:
        indices = indices.with_value(v.b.copy(indices.hlo), indices.sharding)
    what = Indexed.of(v.hlo)
    indices = wide_indices(operand, indices, what)
    return v.made(_partition(_Gather(v.hlo, what, operand, indices, v.hlo.shape, v.leaf), recurses=True))


class _Gather(Struct, frozen=True):
    """A gather with a result of shape `base` under `sharding`; `what` has the sizes of the slices in a group."""

    hlo: HloInstruction
    what: Indexed
    operand: Part
    indices: Part
    base: Shape
    sharding: SingleSharding

    def resharded(self, made: HloInstruction, sharding: SingleSharding) -> HloInstruction:
        return Part(made, self.base, sharding, self.operand.state).reshard(self.sharding).hlo

    def trial(self) -> tuple[Trial, _Gather]:
        trial = Trial.like(self.operand.state)
        return trial, replace(self, operand=trial.part(self.operand), indices=trial.part(self.indices))


def _partition(g: _Gather, recurses: bool) -> HloInstruction:
    if recurses:
        ways = (_by_batching, _by_parallel, _by_operand, _by_trivial, _by_indices)
        made = first_way(g, g.trial, "gather", ways)
        if made is not None:
            return made
    b = g.operand.builder
    made = b.clone(g.hlo, g.base, [g.operand.replicate().hlo, g.indices.replicate().hlo])
    made.attrs["slice_sizes"] = g.what.slice_sizes
    return g.resharded(made, REPLICATED)


def _by_batching(g: _Gather, recurses: bool) -> HloInstruction | None:
    dims = g.what.batching()
    return None if dims is None else _by_parallel_dims(g, recurses, dims, are_indexed=False)


def _by_parallel(g: _Gather, recurses: bool) -> HloInstruction | None:
    dims = g.what.parallel()
    return None if dims is None else _by_parallel_dims(g, recurses, dims, are_indexed=True)


def _by_parallel_dims(g: _Gather, recurses: bool, dims: MatchingDims, are_indexed: bool) -> HloInstruction | None:
    """Group by dimensions along which place i of the indices only reads place i of the operand."""
    found = parallel_shardings(g.operand, g.indices, dims)
    if found is None:
        return None
    operand, indices = g.operand.reshard(found[0]), g.indices.reshard(found[1])
    result = slices_from_indices(indices.leaf, g.what)
    passing = slices_from_operand(replicate_dims(operand.leaf, dims.operand), g.what)
    if passing is not None:
        result = refined_inside(result, passing, dims.slices)
    if are_indexed:
        indices = from_tile(operand, indices, g.what, dims.operand)
    by_indices = group_on_dims(indices.leaf, dims.indices)
    by_operand = aligned(group_on_dims(operand.leaf, dims.operand), by_indices)
    by_result = aligned(group_on_dims(result, dims.slices), by_indices)
    inner = replace(
        g,
        operand=in_group(operand, by_operand),
        indices=in_group(indices, by_indices),
        base=base_in_group(by_result, g.base),
        sharding=by_result.sharding,
    )
    return g.resharded(_partition(inner, recurses), ungroup(by_result))


def _by_operand(g: _Gather, recurses: bool) -> HloInstruction | None:
    """Group by the operand's dimensions of which each slice has all."""
    passing = slices_from_operand(g.operand.leaf, g.what) if g.operand.leaf.tiles is not None else None
    if passing is None:
        return None
    dims = g.what.passthrough().operand
    groups, devices = tiles_along(g.operand.leaf, dims), g.operand.leaf.device_count
    result_dims = [dim for dim in range(passing.data_rank) if passing.dims[dim] != 1]
    own = g.operand.hlo.shape.dims
    sizes = tuple(own[dim] if dim in dims else size for dim, size in enumerate(g.what.slice_sizes))
    result = refined_inside(passing, g.sharding, result_dims)
    by_result = group_on_dims(result, result_dims)
    by_operand = aligned(group_on_dims(g.operand.leaf, dims), by_result)
    order = indices_order(g.what)
    by_indices = replicated_like(g.indices.leaf, by_result, groups, devices, g.indices.base.rank, order)
    inner = replace(
        g,
        what=replace(g.what, slice_sizes=sizes),
        operand=in_group(g.operand, by_operand),
        indices=in_group(g.indices, by_indices),
        base=base_in_group(by_result, g.base),
        sharding=by_result.sharding,
    )
    return g.resharded(_partition(inner, recurses), result)


def _by_indices(g: _Gather, recurses: bool) -> HloInstruction | None:
    """Group by the dimensions of the indices."""
    indices = g.indices
    if indices.leaf.is_whole or indices.leaf.tiles is None:
        return None
    dims = g.what.free()
    indices = _refined_indices(indices, along_dims(g.sharding, dims.slices, dims.indices, indices.base.rank))
    result = along_dims(indices.leaf, dims.indices, dims.slices, g.hlo.shape.rank)
    if result.is_whole:
        return None
    result = refined_inside(result, g.sharding, dims.slices)
    by_result = group_on_dims(result, dims.slices)
    by_indices = aligned(group_on_dims(indices.leaf, dims.indices), by_result)
    groups, devices = tiles_along(indices.leaf, dims.indices), indices.leaf.device_count
    order = operand_order(g.operand, g.what)
    by_operand = replicated_like(g.operand.leaf, by_result, groups, devices, g.operand.base.rank, order)
    inner = replace(
        g,
        operand=in_group(g.operand, by_operand),
        indices=in_group(indices, by_indices),
        base=base_in_group(by_result, g.base),
        sharding=by_result.sharding,
    )
    return g.resharded(_partition(inner, recurses), result)


def _refined_indices(indices: Part, by: SingleSharding) -> Part:
    wanted = refined(indices.leaf, by)
    return indices if wanted is indices.leaf else indices.reshard(wanted)


def _by_trivial(g: _Gather, recurses: bool) -> HloInstruction | None:
    """Let each device gather what lies in its tile, zeros else, and add the results."""
    dims = trivial_dims(g.operand, g.what)
    if not dims:
        return None
    g = replace(g, indices=whole_components(g.indices, g.what))
    b, state, source = g.operand.builder, g.operand.state, g.operand.leaf
    groups, devices = tiles_along(source, dims), source.device_count
    by_operand = group_on_dims(source, dims)
    order, result_order = indices_order(g.what), slices_order(g.base.rank, g.what)
    by_indices = replicated_like(g.indices.leaf, by_operand, groups, devices, g.indices.base.rank, order)
    by_result = replicated_like(g.sharding, by_operand, groups, devices, g.base.rank, result_order)
    if not by_indices.sharding.is_whole and by_result.sharding.is_whole:
        moved = slices_from_indices(g.indices.leaf, g.what)
        by_result = replicated_like(moved, by_operand, groups, devices, g.base.rank, result_order)
    if by_indices.sharding.is_whole and not by_result.sharding.is_whole:
        moved = indices_from_slices(g.sharding, g.what)
        by_indices = replicated_like(moved, by_operand, groups, devices, g.indices.base.rank, order)
    indices = _clamped(g, g.indices.reshard(ungroup(by_indices)))
    least, most = index_bounds(g.operand, indices, g.what, dims)
    inner = replace(
        g,
        operand=in_group(g.operand, by_operand),
        indices=in_group(less(b, indices, least), by_indices),
        base=base_in_group(by_result, g.base),
        sharding=by_result.sharding,
    )
    made = _partition(inner, recurses)
    outside = b.binary("or", b.compare(indices.hlo, least, "LT"), b.compare(indices.hlo, most, "GT"))
    part = Part(outside, indices.base.with_element_type("pred"), indices.sharding, indices.state)
    outside = in_group(part, by_indices).reshard(indices_from_slices(by_result.sharding, g.what)).hlo
    vector = g.what.index_vector_dim
    if vector < outside.shape.rank:
        kept = tuple(size for dim, size in enumerate(outside.shape.dims) if dim != vector)
        any_of = {"to_apply": [sum_of(state.module, "pred")]}
        outside = b.add("reduce", Shape.array("pred", kept), [outside, b.constant(False, "pred")], any_of, dimensions=(vector,))
    batch = tuple(dim for dim in range(made.shape.rank) if dim not in g.what.window_dims)
    mask = b.add("broadcast", made.shape.with_element_type("pred"), [outside], dimensions=batch)
    masked = b.select(mask, b.zeros(made.shape), made)
    total = all_reduce_dims(state, masked, source, dims, sum_of(state.module, masked.shape.element_type))
    return g.resharded(total, ungroup(by_result))


def _clamped(g: _Gather, indices: Part) -> Part:
    b, shape = indices.builder, indices.hlo.shape
    index_type = shape.element_type
    last = [g.operand.base.dims[dim] - 1 for dim in g.what.index_map]
    if g.what.index_vector_dim < shape.rank:
        most = b.add("broadcast", shape, [b.constant(last, index_type)], dimensions=(g.what.index_vector_dim,))
    else:
        most = per_component(b, [b.constant(last[0], index_type)], shape, g.what)
    least = b.filled(b.constant(0, index_type), shape)
    return indices.with_value(b.add("clamp", shape, [least, indices.hlo, most]), indices.sharding)
