"""Index maps of the opcodes that move elements without computing on them."""

from __future__ import annotations

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape
from hlo_run.indexing import Expr, IndexingMap, Interval, Variable, dim, reshape_map, symbol, transpose_map
from hlo_run.indexing import bitcast_map as bitcast_indices
from hlo_run.indexing.reshape import inverse_permutation
from hlo_run.ops.index_rule import IndexRule, array_of, identity, operand_dims, output_dims, to_scalar
from hlo_run.records import replace


def bitcast_map(from_shape: Shape, to_shape: Shape) -> IndexingMap | None:
    """Return the map from an index of the first array to the index of the other with the same position in memory.

    Layouts matter, element types do not; None if the element counts differ.
    """
    return bitcast_indices(from_shape.dims, from_shape.minor_to_major, to_shape.dims, to_shape.minor_to_major)


def _bitcast_operand(instruction: HloInstruction, _: int) -> IndexingMap | None:
    return bitcast_map(array_of(instruction.shape), instruction.operands[0].shape)


def _bitcast_user(instruction: HloInstruction, _: int) -> IndexingMap | None:
    return bitcast_map(instruction.operands[0].shape, array_of(instruction.shape))


def _reshape_operand(instruction: HloInstruction, _: int) -> IndexingMap:
    return reshape_map(output_dims(instruction), operand_dims(instruction, 0))


def _reshape_user(instruction: HloInstruction, _: int) -> IndexingMap:
    return reshape_map(operand_dims(instruction, 0), output_dims(instruction))


def _broadcast_operand(instruction: HloInstruction, _: int) -> IndexingMap:
    dimensions = instruction.ints("dimensions")
    return IndexingMap.from_sizes(map(dim, dimensions), output_dims(instruction))


def _broadcast_user(instruction: HloInstruction, _: int) -> IndexingMap:
    dimensions = instruction.ints("dimensions")
    results: list[Expr] = []
    added: list[int] = []
    for number, size in enumerate(output_dims(instruction)):
        if number in dimensions:
            results.append(dim(dimensions.index(number)))
        else:
            results.append(symbol(len(added)))
            added.append(size)
    return IndexingMap.from_sizes(results, operand_dims(instruction, 0), added)


def _transpose_operand(instruction: HloInstruction, _: int) -> IndexingMap:
    return transpose_map(output_dims(instruction), inverse_permutation(instruction.dimensions))


def _transpose_user(instruction: HloInstruction, _: int) -> IndexingMap:
    return transpose_map(operand_dims(instruction, 0), instruction.dimensions)


def _reverse(instruction: HloInstruction, _: int) -> IndexingMap:
    reversed_dims = instruction.dimensions
    sizes = output_dims(instruction)
    results = [size - 1 - dim(d) if d in reversed_dims else dim(d) for d, size in enumerate(sizes)]
    return IndexingMap.from_sizes(results, sizes)


def _slice_operand(instruction: HloInstruction, _: int) -> IndexingMap:
    ranges = instruction.slice_ranges
    results = [dim(d) * stride + start for d, (start, _, stride) in enumerate(ranges)]
    return IndexingMap.from_sizes(results, output_dims(instruction))


def _slice_user(instruction: HloInstruction, _: int) -> IndexingMap:
    """Return the partial map: its domain is the elements in the slice."""
    ranges = instruction.slice_ranges
    results: list[Expr] = []
    constraints: list[tuple[Expr, Interval]] = []
    for d, ((start, _, stride), size) in enumerate(zip(ranges, output_dims(instruction), strict=True)):
        results.append((dim(d) - start) // stride)
        constraints.append((dim(d), Interval(start, start + (size - 1) * stride)))
        constraints.append(((dim(d) - start) % stride, Interval.point(0)))
    return IndexingMap.from_sizes(results, operand_dims(instruction, 0)).with_constraints(constraints)


def _pad_operand(instruction: HloInstruction, number: int) -> IndexingMap:
    if number == 1:
        return to_scalar(instruction)
    padding = instruction.padding
    dims: list[Variable] = []
    results: list[Expr] = []
    constraints: list[tuple[Expr, Interval]] = []
    for d, ((low, high, interior), size) in enumerate(zip(padding, output_dims(instruction), strict=True)):
        # Negative padding crops: the bounds are then those of the output.
        dims.append(Variable(Interval(max(0, low), min(size - 1, size - 1 - high))))
        results.append((dim(d) - low) // (interior + 1))
        constraints.append(((dim(d) - low) % (interior + 1), Interval.point(0)))
    return IndexingMap(tuple(dims), (), (), tuple(results)).with_constraints(constraints)


def _concatenate_offset(instruction: HloInstruction, number: int) -> int:
    dimension: int = instruction.dimensions[0]
    return sum(operand_dims(instruction, n)[dimension] for n in range(number))


def _concatenate_operand(instruction: HloInstruction, number: int) -> IndexingMap:
    dimension: int = instruction.dimensions[0]
    offset, size = _concatenate_offset(instruction, number), operand_dims(instruction, number)[dimension]
    whole = identity(instruction)
    results = tuple(r - offset if d == dimension else r for d, r in enumerate(whole.results))
    dims = list(whole.dims)
    dims[dimension] = Variable(Interval(offset, offset + size - 1))
    return replace(whole, dims=tuple(dims), results=results)


def _concatenate_user(instruction: HloInstruction, number: int) -> IndexingMap:
    dimension: int = instruction.dimensions[0]
    offset, sizes = _concatenate_offset(instruction, number), operand_dims(instruction, number)
    return IndexingMap.from_sizes((dim(d) + offset if d == dimension else dim(d) for d in range(len(sizes))), sizes)


def _runtime_offsets(instruction: HloInstruction, sizes: tuple[int, ...], slice_sizes: tuple[int, ...]) -> tuple[Variable, ...]:
    pairs = zip(sizes, slice_sizes, strict=True)
    return tuple(Variable(Interval(0, size - slice_size)) for size, slice_size in pairs)


def _start_index(instruction: HloInstruction, number: int) -> IndexingMap:
    """Return the map to a start index operand: a scalar, or (in the old form) the vector of all start indices."""
    sizes = operand_dims(instruction, number)
    return IndexingMap.from_sizes(map(symbol, range(len(sizes))), output_dims(instruction), sizes)


def _dynamic_slice_operand(instruction: HloInstruction, number: int) -> IndexingMap:
    if number:
        return _start_index(instruction, number)
    sizes = output_dims(instruction)
    offsets = _runtime_offsets(instruction, operand_dims(instruction, 0), sizes)
    whole = identity(instruction)
    return replace(whole, rts=offsets, results=tuple(dim(d) + symbol(d) for d in range(len(sizes))))


def _dynamic_update_slice_operand(instruction: HloInstruction, number: int) -> IndexingMap:
    """Return the maps; results of the update's map are not bounded, so users must check them against the update's size."""
    if number == 0:
        return identity(instruction)
    if number > 1:
        return _start_index(instruction, number)
    sizes = output_dims(instruction)
    offsets = _runtime_offsets(instruction, sizes, operand_dims(instruction, 1))
    return replace(identity(instruction), rts=offsets, results=tuple(dim(d) - symbol(d) for d in range(len(sizes))))


def _gather_operand(instruction: HloInstruction, number: int) -> IndexingMap | None:
    sizes = output_dims(instruction)
    if not is_simple_gather(instruction):
        return None
    vectors = operand_dims(instruction, 1)[1]
    if number == 1:
        return IndexingMap.from_sizes((dim(0), symbol(0)), sizes, (vectors,))
    source, slice_sizes = operand_dims(instruction, 0), instruction.gather_slice_sizes
    index_map = instruction.start_index_map
    rts = tuple(Variable(Interval(0, source[d] - slice_sizes[d])) for d in index_map)
    results = [dim(position) for position in instruction.offset_dims]
    for number_of_rt, d in enumerate(index_map):
        results[d] += symbol(number_of_rt)
    return replace(identity(instruction), rts=rts, results=tuple(results))


def is_simple_gather(instruction: HloInstruction) -> bool:
    """Return True for the form that XLA's gather simplifier makes: indices [n, k], output [n, slice..], nothing collapsed."""
    rank = len(operand_dims(instruction, 0))
    return (
        len(operand_dims(instruction, 1)) == 2
        and instruction.index_vector_dim == 1
        and not instruction.collapsed_slice_dims
        and not instruction.operand_batching_dims
        and instruction.offset_dims == tuple(range(1, rank + 1))
    )


def _bitcast_convert(from_rank: int, to_dims: tuple[int, ...], from_dims: tuple[int, ...]) -> IndexingMap:
    """Return the map between arrays of which one may have an additional last dimension for the parts of elements."""
    results = [dim(d) if d < from_rank else symbol(0) for d in range(len(to_dims))]
    return IndexingMap.from_sizes(results, from_dims, to_dims[from_rank:])


def _bitcast_convert_operand(instruction: HloInstruction, _: int) -> IndexingMap:
    sizes = output_dims(instruction)
    return _bitcast_convert(len(sizes), operand_dims(instruction, 0), sizes)


def _bitcast_convert_user(instruction: HloInstruction, _: int) -> IndexingMap:
    sizes = operand_dims(instruction, 0)
    return _bitcast_convert(len(sizes), output_dims(instruction), sizes)


def _all_gather_operand(instruction: HloInstruction, number: int) -> IndexingMap:
    """Return the index in a shard; the map does not say which replica has the shard."""
    dimension: int = instruction.dimensions[0]
    shard = operand_dims(instruction, number)[dimension]
    whole = identity(instruction)
    return whole.with_results(r % shard if d == dimension else r for d, r in enumerate(whole.results))


OPERAND: dict[Opcode, IndexRule] = {
    "bitcast": _bitcast_operand,
    "reshape": _reshape_operand,
    "broadcast": _broadcast_operand,
    "transpose": _transpose_operand,
    "reverse": _reverse,
    "slice": _slice_operand,
    "pad": _pad_operand,
    "concatenate": _concatenate_operand,
    "dynamic-slice": _dynamic_slice_operand,
    "dynamic-update-slice": _dynamic_update_slice_operand,
    "gather": _gather_operand,
    "bitcast-convert": _bitcast_convert_operand,
    "all-gather": _all_gather_operand,
}

USER: dict[Opcode, IndexRule] = {
    "bitcast": _bitcast_user,
    "reshape": _reshape_user,
    "broadcast": _broadcast_user,
    "transpose": _transpose_user,
    "reverse": _reverse,
    "slice": _slice_user,
    "concatenate": _concatenate_user,
    "bitcast-convert": _bitcast_convert_user,
}
