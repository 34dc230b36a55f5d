"""Sharding rules of gathers, scatters, and slices at dynamic places."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction
from hlo_run.sharding.shardy.rule import Dim, Kind, Rule, RuleBuilder

# (dimension of the indexed array, of the indices, of the slices, size, kind, whether it is blocked)
_Add = Callable[[Dim, Dim, Dim, int, Kind, bool], None]
_REDUCERS = frozenset(["add", "multiply", "maximum", "minimum", "and", "or"])


class _Indexing(Struct, frozen=True):
    """The dimensions of an indexed access, with the names of a gather."""

    operand: tuple[int, ...]
    indices: tuple[int, ...]
    slices: tuple[int, ...]
    index_vector_dim: int
    offset_dims: tuple[int, ...]
    collapsed: tuple[int, ...]
    operand_batch: tuple[int, ...]
    indices_batch: tuple[int, ...]


def gather(instruction: HloInstruction) -> Rule:
    """Offsets that are whole, batches, and collapsed dimensions, along which partial results are summed."""
    operand, indices = instruction.operands
    builder = RuleBuilder([operand.shape.rank, indices.shape.rank], [instruction.shape.rank])
    access = _Indexing(
        operand.shape.dims,
        indices.shape.dims,
        instruction.shape.dims,
        instruction.index_vector_dim,
        instruction.offset_dims,
        instruction.collapsed_slice_dims,
        instruction.operand_batching_dims,
        instruction.start_indices_batching_dims,
    )

    def add(place: Dim, index: Dim, slice_dim: Dim, size: int, kind: Kind, is_blocked: bool) -> None:
        builder.factor([place, index], [slice_dim], size, kind, is_blocked)

    _add_factors(access, add, None)
    return builder.build()


def scatter(instruction: HloInstruction) -> Rule:
    """As a gather, whose slices are the updates; updates of different devices are summed if the reducer allows it."""
    count = len(instruction.operands) // 2
    operand, indices, update = instruction.operands[0], instruction.operands[count], instruction.operands[count + 1]
    ranks = [value.shape.rank for value in instruction.operands]
    builder = RuleBuilder(ranks, [operand.shape.rank] * count)
    access = _Indexing(
        operand.shape.dims,
        indices.shape.dims,
        update.shape.dims,
        instruction.index_vector_dim,
        instruction.update_window_dims,
        instruction.inserted_window_dims,
        instruction.input_batching_dims,
        instruction.scatter_indices_batching_dims,
    )

    def add(place: Dim, index: Dim, slice_dim: Dim, size: int, kind: Kind, is_blocked: bool) -> None:
        builder.factor([place] * count + [index] + [slice_dim] * count, [place] * count, size, kind, is_blocked)

    _add_factors(access, add, _scatter_kind(instruction))
    return builder.build()


def _scatter_kind(instruction: HloInstruction) -> Kind:
    """Return the kind of factors of the updates alone: a reduction if devices' results can be combined."""
    root = instruction.to_apply.root
    results = root.operands if root.opcode == "tuple" else (root,)
    opcodes = {result.opcode for result in results}
    return Kind.REDUCTION if len(opcodes) == 1 and opcodes <= _REDUCERS else Kind.REPLICATE


def _add_factors(access: _Indexing, add: _Add, scatter_kind: Kind | None) -> None:
    """Add the factors of an access; `scatter_kind` is None for a gather."""
    place, batch = 0, 0
    for slice_dim, size in enumerate(access.slices):
        if slice_dim in access.offset_dims:
            while place in access.collapsed or place in access.operand_batch:
                place += 1
            _add_offset(access.operand[place], place, size, slice_dim, add, scatter_kind is not None)
            place += 1
            continue
        index = batch if batch < access.index_vector_dim else batch + 1
        is_explicit = index in access.indices_batch
        of_operand = access.operand_batch[access.indices_batch.index(index)] if is_explicit else None
        kind = Kind.PASS if is_explicit or scatter_kind is None else scatter_kind
        add(of_operand, index, slice_dim, size, kind, False)
        batch += 1
    for dim in access.collapsed:
        size = access.operand[dim]
        kind = Kind.PASS if scatter_kind is not None else Kind.REPLICATE if size == 1 else Kind.REDUCTION
        add(dim, None, None, size, kind, False)
    if access.index_vector_dim < len(access.indices):
        add(None, access.index_vector_dim, None, access.indices[access.index_vector_dim], Kind.REPLICATE, False)


def _add_offset(whole: int, place: int, size: int, slice_dim: int, add: _Add, is_scatter: bool) -> None:
    if whole == size:
        add(place, None, slice_dim, whole, Kind.PASS, False)
    elif is_scatter or size == 1:
        add(place, None, None, whole, Kind.REPLICATE if is_scatter else Kind.REDUCTION, False)
        add(None, None, slice_dim, size, Kind.REPLICATE, False)
    else:
        add(place, None, slice_dim, whole, Kind.REPLICATE, True)


def dynamic_slice(instruction: HloInstruction) -> Rule:
    """Whole dimensions; sliced ones need all of their operand."""
    builder = RuleBuilder([value.shape.rank for value in instruction.operands], [instruction.shape.rank])
    before = instruction.operands[0].shape.dims
    builder.pointwise_where_equal(before, instruction.shape.dims, Kind.REPLICATE, is_blocked=True)
    return builder.build()


def dynamic_update_slice(instruction: HloInstruction) -> Rule:
    """Operand and result are divided alike; the update is whole along the dimensions that it does not fill."""
    builder = RuleBuilder([value.shape.rank for value in instruction.operands], [instruction.shape.rank])
    rest: Sequence[Dim] = [None] * (len(instruction.operands) - 2)
    is_constant = all(index.opcode == "constant" for index in instruction.operands[2:])
    sizes = zip(instruction.operands[0].shape.dims, instruction.operands[1].shape.dims, strict=True)
    for dim, (size, part) in enumerate(sizes):
        if size == part:
            builder.everywhere(dim, size)
        else:
            builder.factor([dim, None, *rest], [dim], size)
            builder.factor([None, dim, *rest], [None], part, Kind.PASS if is_constant else Kind.REPLICATE)
    return builder.build()
