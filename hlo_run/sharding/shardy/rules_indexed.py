"""Sharding rules of gathers, scatters, and slices at dynamic places."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.views.indexed import Indexed
from hlo_run.hlo.views.slices import DynamicSlice
from hlo_run.sharding.shardy.rule import Dim, Kind, Rule, RuleBuilder

# (dimension of the indexed array, of the indices, of the slices, size, kind, whether it is blocked)
_Add = Callable[[Dim, Dim, Dim, int, Kind, bool], None]
_REDUCERS: frozenset[Opcode] = frozenset(["add", "multiply", "maximum", "minimum", "and", "or"])


def gather(instruction: HloInstruction) -> Rule:
    """Return the rule of a gather: whole offsets, batches, and collapsed dimensions, whose partial results are summed."""
    access = Indexed.of(instruction)
    builder = RuleBuilder([access.operand.shape.rank, access.indices.shape.rank], [instruction.shape.rank])

    def add(place: Dim, index: Dim, slice_dim: Dim, size: int, kind: Kind, is_blocked: bool) -> None:
        builder.factor([place, index], [slice_dim], size, kind, is_blocked)

    _add_factors(access, add, None)
    return builder.build()


def scatter(instruction: HloInstruction) -> Rule:
    """Return the rule of a scatter: as a gather whose slices are the updates, which are summed if the reducer allows it."""
    count = len(instruction.operands) // 2
    access = Indexed.of(instruction)
    ranks = [value.shape.rank for value in instruction.operands]
    builder = RuleBuilder(ranks, [access.operand.shape.rank] * count)

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


def _add_factors(access: Indexed, add: _Add, scatter_kind: Kind | None) -> None:
    """Add the factors of an access; `scatter_kind` is None for a gather."""
    sizes, kept, rows, batching = access.operand.shape.dims, iter(access.kept_dims), iter(access.row_dims), access.batch_pairs
    for slice_dim, size in enumerate(access.slices.dims):
        if slice_dim in access.window_dims:
            place = next(kept)
            _add_offset(sizes[place], place, size, slice_dim, add, scatter_kind is not None)
            continue
        index = next(rows)
        kind = Kind.PASS if index in batching or scatter_kind is None else scatter_kind
        add(batching.get(index), index, slice_dim, size, kind, False)
    for dim in access.collapsed:
        size = sizes[dim]
        kind = Kind.PASS if scatter_kind is not None else Kind.REPLICATE if size == 1 else Kind.REDUCTION
        add(dim, None, None, size, kind, False)
    vector_dim, indices = access.index_vector_dim, access.indices.shape.dims
    if vector_dim < len(indices):
        add(None, vector_dim, None, indices[vector_dim], Kind.REPLICATE, False)


def _add_offset(whole: int, place: int, size: int, slice_dim: int, add: _Add, is_scatter: bool) -> None:
    if whole == size:
        add(place, None, slice_dim, whole, Kind.PASS, False)
    elif is_scatter or size == 1:
        add(place, None, None, whole, Kind.REPLICATE if is_scatter else Kind.REDUCTION, False)
        add(None, None, slice_dim, size, Kind.REPLICATE, False)
    else:
        add(place, None, slice_dim, whole, Kind.REPLICATE, True)


def dynamic_slice(instruction: HloInstruction) -> Rule:
    """Return the rule of a dynamic-slice: whole dimensions; sliced ones need all of their operand."""
    builder = RuleBuilder([value.shape.rank for value in instruction.operands], [instruction.shape.rank])
    before = instruction.operands[0].shape.dims
    builder.pointwise_where_equal(before, instruction.shape.dims, Kind.REPLICATE, is_blocked=True)
    return builder.build()


def dynamic_update_slice(instruction: HloInstruction) -> Rule:
    """Return the rule of an update: operand and result alike; the update is whole along the dimensions that it does not fill."""
    builder = RuleBuilder([value.shape.rank for value in instruction.operands], [instruction.shape.rank])
    rest: Sequence[Dim] = [None] * (len(instruction.operands) - 2)
    view = DynamicSlice.of(instruction)
    is_constant = all(index.opcode == "constant" for index in view.starts)
    sizes = zip(view.whole.shape.dims, view.sizes, strict=True)
    for dim, (size, part) in enumerate(sizes):
        if size == part:
            builder.everywhere(dim, size)
        else:
            builder.factor([dim, None, *rest], [dim], size)
            builder.factor([None, dim, *rest], [None], part, Kind.PASS if is_constant else Kind.REPLICATE)
    return builder.build()
