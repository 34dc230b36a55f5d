"""Handler of scatters: in groups of devices that share a part of the work, one way inside of the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.values.dtype import DTYPES
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
from hlo_run.sharding.partitioning.collectives import all_reduce_groups
from hlo_run.sharding.partitioning.grouping import aligned, base_in_group, pad_to_tiles
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
from hlo_run.sharding.partitioning.masks import fill_excess
from hlo_run.sharding.partitioning.offsets import in_group_id, partition_offsets
from hlo_run.sharding.partitioning.state import Part
from hlo_run.sharding.values.groups import GroupedSharding, group_on_dims, ungroup
from hlo_run.sharding.values.make import REPLICATED, device_array, divides_evenly, same_for_all
from hlo_run.sharding.values.merge import common
from hlo_run.sharding.values.moves import along_dims
from hlo_run.sharding.values.replicate import replicate_dims
from hlo_run.walks import walk

# An index that a scatter skips.
_SKIPPED = -1
_MOVES = opcode_set("all-gather all-to-all collective-permute copy dynamic-slice pad reshape slice transpose")


def scatter(v: Visit) -> Part:
    """Handle a scatter."""
    if v.leaf.kind == "maximal":
        return v.by_default()
    count = len(v.parts) // 2
    operands, indices, updates = v.parts[:count], v.parts[count], v.parts[count + 1 :]
    if any(not part.leaf.is_same(operands[0].leaf) or part.base != operands[0].base for part in operands):
        shared = common([part.leaf for part in operands])
        operands = tuple(part.reshard(shared) for part in operands)
    own = [part.hlo for part in operands]
    updates = tuple(_copied(part) if part.hlo in own else part for part in updates)
    if any(not part.leaf.is_same(updates[0].leaf) or part.base != updates[0].base for part in updates):
        shared = common([part.leaf for part in updates])
        updates = tuple(part.reshard(shared) for part in updates)
        if operands[0].base.rank == updates[0].base.rank:  # XLA reshards the operands, and not the updates
            operands = tuple(part.reshard(shared) for part in operands)
    if indices.hlo in (*own, *(part.hlo for part in updates)):
        indices = _copied(indices)
    what = Indexed.of(v.hlo)
    indices = wide_indices(operands[0], indices, what)
    if not divides_evenly(indices.base, indices.leaf):
        indices = _without_excess(indices)
    made = _partition(_Scatter(v.hlo, what, operands, indices, updates, v.hlo.shape, v.leaf), recurses=True)
    return v.made(made, same_for_all(v.hlo.shape, v.leaf))


def _copied(part: Part) -> Part:
    return part.with_value(part.builder.copy(part.hlo), part.sharding)


def _without_excess(indices: Part) -> Part:
    """Return the indices with -1 beyond the whole ones: a scatter skips those."""
    b, sharding = indices.builder, indices.leaf
    padded = pad_to_tiles(b, indices.replicate().hlo, sharding, fill=_SKIPPED)
    offsets = partition_offsets(b, indices.base, sharding, indices.state.partition_id)
    return indices.with_value(b.dynamic_slice(padded, offsets, indices.hlo.shape.dims), sharding)


class _Scatter(Struct, frozen=True):
    """A scatter with a result of shape `base` under `sharding`; `what` has the sizes of the updates' windows in a group."""

    hlo: HloInstruction
    what: Indexed
    operands: tuple[Part, ...]
    indices: Part
    updates: tuple[Part, ...]
    base: Shape
    sharding: SingleSharding

    @property
    def operand(self) -> Part:
        return self.operands[0]

    @property
    def update(self) -> Part:
        return self.updates[0]

    def resharded(self, made: HloInstruction, sharding: SingleSharding) -> HloInstruction:
        part = Part(made, self.base, same_for_all(self.base, sharding), self.operand.state)
        return part.reshard(same_for_all(self.base, self.sharding)).hlo

    def trial(self) -> tuple[Trial, _Scatter]:
        trial = Trial.like(self.operand.state)
        operands, updates = tuple(map(trial.part, self.operands)), tuple(map(trial.part, self.updates))
        return trial, replace(self, operands=operands, updates=updates, indices=trial.part(self.indices))

    def inside(
        self, indices: Part, by_operand: GroupedSharding, by_indices: GroupedSharding, by_update: GroupedSharding
    ) -> _Scatter:
        """Return the scatter of a group. The result is divided as the operands are."""
        return replace(
            self,
            operands=tuple(in_group(part, by_operand) for part in self.operands),
            indices=in_group(indices, by_indices),
            updates=tuple(in_group(part, by_update) for part in self.updates),
            base=self.base.map_leaves(lambda shape: base_in_group(by_operand, shape)),
            sharding=by_operand.sharding,
        )


def _partition(s: _Scatter, recurses: bool) -> HloInstruction:
    if recurses:
        ways = (_by_batching, _by_parallel, _by_operand, _by_trivial, _by_indices)
        made = first_way(s, s.trial, "scatter", ways)
        if made is not None:
            return made
    operands = [part.replicate().hlo for part in s.operands]
    updates = [part.replicate().hlo for part in s.updates]
    shapes = tuple(value.shape for value in operands)
    shape = shapes[0] if len(shapes) == 1 else Shape.make_tuple(shapes)
    values = [*operands, s.indices.replicate().hlo, *updates]
    return s.resharded(s.operand.builder.clone(s.hlo, shape, values, "scatter"), REPLICATED)


def _by_batching(s: _Scatter, recurses: bool) -> HloInstruction | None:
    dims = s.what.batching()
    return None if dims is None else _by_parallel_dims(s, recurses, dims, are_indexed=False)


def _by_parallel(s: _Scatter, recurses: bool) -> HloInstruction | None:
    dims = s.what.parallel()
    return None if dims is None else _by_parallel_dims(s, recurses, dims, are_indexed=True)


def _by_parallel_dims(s: _Scatter, recurses: bool, dims: MatchingDims, are_indexed: bool) -> HloInstruction | None:
    """Group by dimensions along which place i of the indices only updates place i of the operand."""
    found = parallel_shardings(s.operand, s.indices, dims)
    if found is None:
        return None
    operands, indices = tuple(part.reshard(found[0]) for part in s.operands), s.indices.reshard(found[1])
    wanted = slices_from_indices(indices.leaf, s.what)
    passing = slices_from_operand(replicate_dims(operands[0].leaf, dims.operand), s.what)
    if passing is not None:
        wanted = refined_inside(wanted, passing, dims.slices)
    updates = tuple(part.reshard(wanted) for part in s.updates)
    if are_indexed:
        indices = from_tile(operands[0], indices, s.what, dims.operand)
    by_indices = group_on_dims(indices.leaf, dims.indices)
    by_operand = aligned(group_on_dims(operands[0].leaf, dims.operand), by_indices)
    by_update = aligned(group_on_dims(updates[0].leaf, dims.slices), by_indices)
    inner = replace(s, operands=operands, updates=updates).inside(indices, by_operand, by_indices, by_update)
    return s.resharded(_partition(inner, recurses), ungroup(by_operand))


def _by_operand(s: _Scatter, recurses: bool) -> HloInstruction | None:
    """Group by the operand's dimensions of which each window has all."""
    source = s.operand.leaf
    passing = slices_from_operand(source, s.what) if source.tiles is not None else None
    if passing is None:
        return None
    dims = s.what.passthrough().operand
    update_dims = [dim for dim in range(passing.data_rank) if passing.dims[dim] != 1]
    own = s.operand.hlo.shape.dims
    sizes = tuple(own[dim] if dim in dims else size for dim, size in enumerate(s.what.slice_sizes))
    by_update = group_on_dims(refined_inside(passing, s.update.leaf, update_dims), update_dims)
    by_operand = aligned(group_on_dims(source, dims), by_update)
    groups, order = tiles_along(source, dims), indices_order(s.what)
    by_indices = replicated_like(s.indices.leaf, by_update, groups, source.device_count, s.indices.base.rank, order)
    inner = s.inside(s.indices, by_operand, by_indices, by_update)
    inner = replace(inner, what=replace(s.what, slice_sizes=sizes))
    return s.resharded(_partition(inner, recurses), ungroup(by_operand))


def _by_trivial(s: _Scatter, recurses: bool) -> HloInstruction | None:
    """Let each device make the updates that lie in its tile."""
    dims = trivial_dims(s.operand, s.what)
    if not dims:
        return None
    s = replace(s, indices=whole_components(s.indices, s.what))
    source, rank = s.operand.leaf, s.indices.base.rank
    groups, devices = tiles_along(source, dims), source.device_count
    by_operand = group_on_dims(source, dims)
    order, update_order = indices_order(s.what), slices_order(s.update.base.rank, s.what)
    by_indices = replicated_like(s.indices.leaf, by_operand, groups, devices, rank, order)
    by_update = replicated_like(s.update.leaf, by_operand, groups, devices, s.update.base.rank, update_order)
    if not by_indices.sharding.is_whole and by_update.sharding.is_whole:
        moved = slices_from_indices(s.indices.leaf, s.what)
        by_update = replicated_like(moved, by_operand, groups, devices, s.update.base.rank, update_order)
    if by_indices.sharding.is_whole and not by_update.sharding.is_whole:
        moved = indices_from_slices(s.update.leaf, s.what)
        by_indices = replicated_like(moved, by_operand, groups, devices, rank, order)
    indices = s.indices.reshard(ungroup(by_indices))
    least, _ = index_bounds(s.operand, indices, s.what, dims)
    inner = s.inside(less(indices.builder, indices, least), by_operand, by_indices, by_update)
    return s.resharded(_partition(inner, recurses), ungroup(by_operand))


def _by_indices(s: _Scatter, recurses: bool) -> HloInstruction | None:
    """Group by the dimensions of the indices: each device makes its updates, all but one of an array of identities."""
    b, indices, updates = s.operand.builder, s.indices, s.updates
    dims = s.what.free()
    if recurses:
        conflicts = {dim for one, two in zip(s.operands, updates, strict=True) for dim in _conflicts(s, one, two)}
        updates = tuple(
            part.reshard(replicate_dims(part.leaf, conflicts)) if part.leaf.tiles is not None and conflicts else part
            for part in updates
        )
    wanted = refined(indices.leaf, along_dims(updates[0].leaf, dims.slices, dims.indices, indices.base.rank))
    if wanted is not indices.leaf:
        indices = indices.reshard(wanted)
    update = along_dims(indices.leaf, dims.indices, dims.slices, updates[0].base.rank)
    if update.is_whole:
        return None
    by_update = group_on_dims(refined_inside(update, updates[0].leaf, dims.slices), dims.slices)
    groups, devices = tiles_along(indices.leaf, dims.indices), indices.leaf.device_count
    rank, order = s.operand.base.rank, operand_order(s.operand, s.what)
    by_operand = replicated_like(s.operand.leaf, by_update, groups, devices, rank, order)
    by_indices = aligned(group_on_dims(indices.leaf, dims.indices), by_update)
    operand = in_group(s.operand, by_operand)
    identity = _identity_of(s.hlo)
    if identity is None:
        return None
    fill = b.filled(b.constant(identity, operand.hlo.shape.element_type), operand.hlo.shape)
    place = indices.state.partition_id
    # XLA forgets a divided dimension of index components: its groups without device 0 lose the operand.
    others = [dim for dim, count in enumerate(indices.leaf.dims) if count > 1 and dim not in dims.indices]
    if others:
        place = in_group_id(b, group_on_dims(indices.leaf, others).groups(), place)
    is_other = b.filled(b.add("convert", Shape.array("pred", ()), [place]), operand.hlo.shape.with_element_type("pred"))
    operand = operand.with_value(b.select(is_other, fill, operand.hlo), operand.sharding)
    # XLA lets updates beyond the whole array, where uneven tiles end, go to some place of the operand.
    own = updates[0].reshard(ungroup(by_update))
    skips = bool(s.what.index_map) and _ends_in_skips(indices.hlo)
    if not skips and (identity or not _ends_in_zeros(own.hlo)):
        own = fill_excess(own, b.constant(identity, own.base.element_type), dims.slices)
    inner = replace(
        s,
        operands=(operand,),
        indices=in_group(indices, by_indices),
        updates=(in_group(own, by_update),),
        base=base_in_group(by_operand, s.base),
        sharding=by_operand.sharding,
    )
    made = _partition(inner, recurses)
    state, inside = s.operand.state, (by_operand.sharding,)
    total = all_reduce_groups(state, made, indices.leaf, dims.indices, s.hlo.to_apply, by_operand.devices, inside)
    return s.resharded(total, ungroup(by_operand))


def _ends_in_skips(indices: HloInstruction) -> bool:
    """True for indices of `_without_excess`: a scatter skips those beyond the whole array, so their updates go nowhere."""
    pad = indices.operands[0] if indices.opcode == "dynamic-slice" else None
    if pad is None or pad.opcode != "pad" or pad.operands[1].opcode != "constant":
        return False
    return int(pad.operands[1].constant_array) == _SKIPPED


def _ends_in_zeros(tile: HloInstruction) -> bool:
    """True if a tile surely has zeros beyond the whole array: it is moved from parameters, whose tiles end so, and zeros."""

    def moved(one: HloInstruction) -> Sequence[HloInstruction]:
        return one.operands[:1] if one.opcode == "dynamic-slice" else one.operands

    def may_end(one: HloInstruction) -> bool:
        if one.opcode == "constant":
            return not np.any(np.asarray(one.constant_array))
        return one.opcode == "parameter" or one.opcode in _MOVES

    return all(may_end(one) for one in walk([tile], moved))


def _conflicts(s: _Scatter, operand: Part, update: Part) -> list[int]:
    """Return the updates' dimensions, other than window dimensions, that the same devices divide as an indexed dimension."""
    mine, theirs = operand.leaf, update.leaf
    if not s.what.window_dims or mine.tiles is None or theirs.tiles is None:
        return []
    if sorted(_strides(mine).values()) != sorted(_strides(theirs).values()):
        return []
    own = {_strides(mine).get(dim) for dim in s.what.index_map} - {None}
    free = [dim for dim in range(update.base.rank) if dim not in s.what.window_dims]
    return [dim for dim in free if _strides(theirs).get(dim) in own]


def _strides(sharding: SingleSharding) -> dict[int, tuple[int, int]]:
    """Return per divided tile dimension the step between its devices and their number."""
    devices = device_array(sharding)
    found: dict[int, tuple[int, int]] = {}
    for dim, size in enumerate(sharding.dims):
        if size > 1:
            line = np.moveaxis(devices, dim, 0).reshape(size, -1)[:, 0]
            found[dim] = (int(line[1] - line[0]), size)
    return found


def _identity_of(hlo: HloInstruction) -> float | int | bool | None:
    """Return the identity of the scatter's reduction, or None if its computation is not a reduction with a known one."""
    element_type = hlo.shape.element_type if hlo.shape.is_array else ""
    kind = _kind_of(hlo.to_apply)
    if not element_type or kind is None:
        return None
    if kind in ("and", "or"):
        return kind == "and" if element_type == "pred" else None
    if kind in ("add", "multiply"):
        return 0 if kind == "add" else 1
    if element_type == "pred" or element_type.startswith("c"):
        return None
    dtype = np.dtype(DTYPES[element_type].numpy)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return int(limits.max if kind == "minimum" else limits.min)
    return np.inf if kind == "minimum" else -np.inf


def _kind_of(reduction: HloComputation) -> str | None:
    root = reduction.root
    if root.opcode not in ("add", "multiply", "minimum", "maximum", "and", "or"):
        return None
    numbers: Sequence[int] = sorted(operand.parameter_number for operand in root.operands if operand.opcode == "parameter")
    return root.opcode if numbers == [0, 1] else None
