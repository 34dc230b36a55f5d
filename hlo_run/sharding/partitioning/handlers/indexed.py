"""The common parts of gathers and scatters: the ways to divide them, ordered by cost, and the bounds of a tile's indices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec import Struct

from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import SingleSharding
from hlo_run.records import replace
from hlo_run.sharding.analysis.indexed_dims import Indexed, MatchingDims
from hlo_run.sharding.partitioning.grouping import aligned, base_in_group, group_state
from hlo_run.sharding.partitioning.offsets import partition_offsets
from hlo_run.sharding.partitioning.state import Builder, Channels, Part, State
from hlo_run.sharding.values.groups import GroupedSharding, group_on_dims, group_on_replicated, ungroup
from hlo_run.sharding.values.make import REPLICATED, with_tiles
from hlo_run.sharding.values.merge import merged
from hlo_run.sharding.values.replicate import replicate_dims
from hlo_run.walks import walk

Job = TypeVar("Job")
# What a way of dividing costs: the memory of its largest step, then the bytes that move between devices.
Cost = tuple[float, float]
NO_WAY: Cost = (math.inf, math.inf)


def tiles_along(sharding: SingleSharding, dims: Sequence[int]) -> int:
    """Return the number of tiles along dimensions; 1 without tiles."""
    return 1 if sharding.tiles is None else math.prod(sharding.dims[dim] for dim in dims)


def refined(sharding: SingleSharding, by: SingleSharding) -> SingleSharding:
    """Return `sharding`, divided further by the dimensions of `by` where both fit together."""
    return merged(by, sharding, sharding.tile_count + 1) or sharding


def refined_inside(sharding: SingleSharding, by: SingleSharding, dims: Sequence[int]) -> SingleSharding:
    """Return `sharding`, divided further as by `refined` where the tiles along `dims` stay: they belong to groups."""
    made = refined(sharding, by)
    return made if tiles_along(made, dims) == tiles_along(sharding, dims) else sharding


def in_group(part: Part, grouped: GroupedSharding) -> Part:
    """Return the part inside its group, resharded as the groups need it."""
    part = part.reshard(ungroup(grouped))
    state = group_state(part.state, grouped.devices)
    return Part(part.hlo, base_in_group(grouped, part.base), grouped.sharding, state)


def trivial_dims(operand: Part, what: Indexed) -> tuple[int, ...]:
    """Return the indexed dimensions of which each index takes one element, if the operand is divided along some of them."""
    if operand.leaf.tiles is None:
        return ()
    dims = tuple(dim for dim in what.index_map if what.slice_sizes[dim] == 1)
    return dims if tiles_along(operand.leaf, dims) > 1 else ()


def operand_order(operand: Part, what: Indexed) -> list[int]:
    """Return the operand's dimensions that may be gathered, the best ones first."""
    return list(dict.fromkeys((*trivial_dims(operand, what), *what.passthrough().operand)))


def indices_order(what: Indexed) -> list[int]:
    """Return the dimensions of the indices that may be gathered, the best ones first."""
    rank, vector = what.indices.shape.rank, what.index_vector_dim
    plain = [dim for dim in range(rank) if dim != vector and dim not in what.indices_batching]
    return [*([vector] if vector < rank else []), *plain, *what.indices_batching]


def slices_order(rank: int, what: Indexed) -> list[int]:
    """Return the dimensions of the slices that may be gathered, the best ones first."""
    passing = what.passthrough().slices
    return [*(dim for dim in range(rank) if dim not in passing), *passing]


def replicated_like(
    sharding: SingleSharding, like: GroupedSharding, groups: int, devices: int, rank: int, order: Sequence[int]
) -> GroupedSharding:
    """Return groups, aligned with the groups of `like`, that each have the whole array; dimensions in `order` may be gathered."""
    return aligned(group_on_replicated(sharding, groups, devices, rank, order), like)


def index_bounds(operand: Part, indices: Part, what: Indexed, dims: Sequence[int]) -> tuple[HloInstruction, HloInstruction]:
    """Return the least and the greatest index into the device's tile of the operand along `dims`, shaped as the indices."""
    b, shape = indices.builder, indices.hlo.shape
    offsets = partition_offsets(b, operand.base, operand.leaf, operand.state.partition_id)
    index_type = shape.element_type
    least: list[HloInstruction] = []
    most: list[HloInstruction] = []
    for dim in what.index_map:
        if operand.leaf.dims[dim] == 1 or dim not in dims:
            least.append(b.constant(0, index_type))
            most.append(b.constant(operand.base.dims[dim], index_type))
            continue
        offset = offsets[dim]
        if index_type != "s32":
            offset = b.add("convert", Shape.array(index_type, ()), [offset])
        least.append(offset)
        most.append(b.binary("add", offset, b.constant(operand.hlo.shape.dims[dim] - 1, index_type)))
    return per_component(b, least, shape, what), per_component(b, most, shape, what)


def wide_indices(operand: Part, indices: Part, what: Indexed) -> Part:
    """Return indices whose type has the numbers of all places in the tiles; XLA's numbers become others in a narrower type."""
    leaf, dtype = operand.leaf, indices.hlo.shape.dtype
    if tiles_along(leaf, what.index_map) == 1:
        return indices
    places = max(-(-operand.base.dims[dim] // leaf.dims[dim]) * leaf.dims[dim] for dim in what.index_map)
    if places < 1 << (dtype.bits - dtype.is_signed):
        return indices
    shape = indices.hlo.shape.with_element_type("s32")
    wide = indices.builder.add("convert", shape, [indices.hlo])
    return Part(wide, indices.base.with_element_type("s32"), indices.sharding, indices.state)


def whole_components(indices: Part, what: Indexed) -> Part:
    """Return indices of which every device has all components."""
    vector, leaf = what.index_vector_dim, indices.leaf
    if vector >= indices.base.rank or leaf.tiles is None or leaf.dims[vector] == 1:
        return indices
    return indices.reshard(replicate_dims(leaf, [vector]))


def per_component(b: Builder, values: Sequence[HloInstruction], shape: Shape, what: Indexed) -> HloInstruction:
    """Return scalars, one per component of an index, shaped as the indices."""
    if what.index_vector_dim >= shape.rank:
        (value,) = values
        return b.filled(value, shape)
    joined = b.concatenate([b.reshape(value, (1,)) for value in values], 0)
    return b.add("broadcast", shape, [joined], dimensions=(what.index_vector_dim,))


def less(b: Builder, indices: Part, least: HloInstruction) -> Part:
    """Return the indices minus the start of the device's tile."""
    return indices.with_value(b.binary("subtract", indices.hlo, least), indices.sharding)


def from_tile(operand: Part, indices: Part, what: Indexed, dims: Sequence[int]) -> Part:
    """Return indices into the device's tile of the operand, which is divided along `dims` as the indices are."""
    b, shape = indices.builder, indices.hlo.shape
    offsets = partition_offsets(b, operand.base, operand.leaf, operand.state.partition_id, dims)
    chosen = [offsets[dim] for dim in what.index_map]
    if shape.element_type != "s32":
        scalar = Shape.array(shape.element_type, ())
        chosen = [b.add("convert", scalar, [offset]) for offset in chosen]
    return less(b, indices, per_component(b, chosen, shape, what))


def parallel_shardings(operand: Part, indices: Part, dims: MatchingDims) -> tuple[SingleSharding, SingleSharding] | None:
    """Return shardings of operand and indices that divide their parallel dimensions alike, or None if none does."""
    mine, theirs = operand.leaf, indices.leaf
    own, other = tiles_along(mine, dims.operand), tiles_along(theirs, dims.indices)
    if own == 1 and other == 1:
        return None
    if theirs.is_replicated:
        return mine, _matching(indices.base.rank, mine, dims.indices, dims.operand)
    if mine.is_replicated:
        return _matching(operand.base.rank, theirs, dims.operand, dims.indices), theirs
    if other < own:
        moved = _finer(theirs, dims.indices, mine, dims.operand)
        if moved is None:
            return None
        theirs = moved
    elif own < other:
        moved = _finer(mine, dims.operand, theirs, dims.indices)
        if moved is None:
            return None
        mine = moved
    sizes = list(mine.dims)
    for dim, indices_dim in zip(dims.operand, dims.indices, strict=True):
        sizes[dim] = theirs.dims[indices_dim]
    assert mine.tiles is not None, "not replicated"
    if math.prod(sizes) != mine.device_count:
        return None
    return _aligned_on(with_tiles(mine, mine.tiles.reshape(tuple(sizes))), dims.operand, theirs, dims.indices), theirs


def _finer(
    sharding: SingleSharding, dims: Sequence[int], like: SingleSharding, like_dims: Sequence[int]
) -> SingleSharding | None:
    """Divide `dims` as finely as `like`, by devices that had the same data."""
    if sharding.subgroups != ("replicated",) or sharding.tiles is None:
        return None
    sizes = list(sharding.dims)
    for dim, like_dim in zip(dims, like_dims, strict=True):
        wanted, own = like.dims[like_dim], sharding.dims[dim]
        if wanted % own or (wanted > own and sizes[-1] % (wanted // own)):
            return None
        sizes[dim] = wanted
        sizes[-1] //= wanted // own
    is_divided = sizes[-1] == 1
    tiles = sharding.tiles.reshape(tuple(sizes[:-1] if is_divided else sizes))
    return _aligned_on(with_tiles(sharding, tiles, () if is_divided else ("replicated",)), dims, like, like_dims)


def _matching(rank: int, source: SingleSharding, dims: Sequence[int], source_dims: Sequence[int]) -> SingleSharding:
    if source.tiles is None:
        return REPLICATED
    sizes = [1] * rank
    for dim, source_dim in zip(dims, source_dims, strict=True):
        sizes[dim] = source.dims[source_dim]
    copies = source.device_count // math.prod(sizes)
    subgroups = ("replicated",) if copies > 1 else ()
    tiles = source.tiles.reshape((*sizes, copies) if copies > 1 else tuple(sizes))
    return _aligned_on(with_tiles(source, tiles, subgroups), dims, source, source_dims)


def _aligned_on(sharding: SingleSharding, dims: Sequence[int], like: SingleSharding, like_dims: Sequence[int]) -> SingleSharding:
    return ungroup(aligned(group_on_dims(sharding, dims), group_on_dims(like, like_dims)))


class Trial(Struct, frozen=True):
    """A throw-away computation in which a way of dividing is tried."""

    state: State

    @staticmethod
    def like(state: State) -> Trial:
        """Return a trial with the devices of `state`."""
        b = Builder(HloComputation("trial"))
        place = b.add("parameter", Shape.array("u32", ()), parameter_number=0)
        module = HloModule("trial")
        made = replace(state, builder=b, module=module, partition_id=place, channels=Channels(1))
        return Trial(replace(made, cache={}, group_caches={}, windows={}))

    def part(self, part: Part) -> Part:
        """Return a parameter in place of a part."""
        b = self.state.builder
        number = sum(instruction.opcode == "parameter" for instruction in b.computation.instructions)
        hlo = b.add("parameter", part.hlo.shape, parameter_number=number)
        return replace(part, hlo=hlo, state=self.state)

    def cost(self, opcode: Opcode, result: HloInstruction | None) -> Cost:
        """Return the cost of the instructions that `result` needs, and end the trial. None costs more than all others."""
        for instruction in self.state.builder.computation.instructions:
            instruction.called = {}
        if result is None:
            return NO_WAY
        needed = list(walk([result], lambda i: i.operands))
        memory = max((_bytes_accessed(one) for one in needed if one.opcode == opcode or one.opcode in _SHARES), default=0)
        moved = sum(_bytes_sent(one) for one in needed)
        return (memory, moved) if memory else NO_WAY


# Per collective: the share of its result that moves.
_SHARES: dict[Opcode, Callable[[HloInstruction], float]] = {
    "all-reduce": lambda _: 2,
    "collective-permute": lambda _: 1,
    "all-gather": lambda one: 1 - one.operands[0].shape.size_bytes / max(1, one.shape.size_bytes),
    "all-to-all": lambda one: 1 - 1 / _group_size(one),
}


def _group_size(collective: HloInstruction) -> int:
    return len(collective.replica_groups.groups()[0])


def _bytes_sent(instruction: HloInstruction) -> float:
    share = _SHARES.get(instruction.opcode)
    return instruction.shape.size_bytes * share(instruction) if share is not None else 0


def _bytes_accessed(instruction: HloInstruction) -> int:
    own = sum(operand.shape.size_bytes for operand in instruction.operands)
    return own if instruction.opcode in ("all-reduce", "scatter") else own + instruction.shape.size_bytes


# A way to divide: whether it goes on inside of the groups that it makes; None if it is not possible.
Way = Callable[[Job, bool], HloInstruction | None]


def first_way(
    job: Job, trial: Callable[[], tuple[Trial, Job]], opcode: Opcode, ways: Sequence[Way[Job]]
) -> HloInstruction | None:
    """Return the result of the cheapest possible way. The first two ways cost nothing."""
    costs: dict[Way[Job], Cost] = dict.fromkeys(ways[:2], (0, 0))
    for way in ways[2:]:
        attempt, copy = trial()
        costs[way] = attempt.cost(opcode, way(copy, False))
    for way in sorted(ways, key=lambda way: costs[way]):
        made = way(job, True)
        if made is not None:
            return made
    return None
