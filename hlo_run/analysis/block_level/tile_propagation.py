"""From the tile of an instruction's result to the tiles of its operands.

    ROOT s = f32[32,8] broadcast(r), dimensions={0}      (tid_0 * 4, size 4), (tid_1 * 8, size 8)
    r = f32[32] reduce(e, 0), dimensions={1}        =>   (tid_0 * 4, size 4)
    e = f32[32,100]                                 =>   (tid_0 * 4, size 4), (0, size 128)

Mirrors XLA's `codegen/tiling/experimental/tile_propagation.cc`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hlo_run.analysis.bitcast_kind import common_groups, reshape_is_bitcast
from hlo_run.analysis.block_level.dim_tile import (
    CollapsedDim,
    DimRule,
    ExpandedDim,
    JoinedDim,
    PaddedDim,
    RuntimeSlicedDim,
    ScaleDim,
    SlicedDim,
    SpaceDim,
    TileRule,
    WholeDim,
)
from hlo_run.analysis.block_level.fused_ops import FusedOp
from hlo_run.analysis.decision import Decision, no
from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.views.dots import dot_side
from hlo_run.indexing.reshape import inverse_permutation, physical_dims

# The dimension of the space for contracted or reduced dimension `position`, counted after those of the result.
SequentialDim = Callable[[int], SpaceDim]
_Tiles = tuple[TileRule, ...]


def operand_tiles(
    op: FusedOp, tile: TileRule, sequential: SequentialDim, runtime_offset: Callable[[int], int]
) -> _Tiles | Decision:
    """Return the tiles of the operands of an op, whose result has this tile, or why it cannot be tiled.

    `runtime_offset` returns the symbol of an operand of a dynamic-slice.
    """
    match op.opcode:
        case "broadcast":
            return (tuple([tile[dim] for dim in op.instruction.dimensions]),)
        case "transpose":
            return (_transposed(tile, op.instruction.dimensions),)
        case "slice":
            ranges = zip(tile, op.instruction.slice_ranges, strict=True)
            return (tuple([_sliced(part, start, stride) for part, (start, _, stride) in ranges]),)
        case "dynamic-slice":
            return _dynamic_slice(op, tile, runtime_offset)
        case "pad":
            return _pad(op, tile)
        case "concatenate":
            return _concatenate(op, tile)
        case "reduce":
            return _reduce(op, tile, sequential)
        case "dot":
            return _dot(op, tile, sequential)
        case "scaled-dot":
            lhs, rhs = _dot(op, tile, sequential)
            shapes = [operand.shape.dims for operand in op.operands]
            return lhs, rhs, _scales(lhs, shapes[0], shapes[2]), _scales(rhs, shapes[1], shapes[3])
        case "reshape":
            return _one(_reshaped(tile, op.shape.dims, op.operands[0].shape.dims))
        case "bitcast":
            return _one(_bitcast(tile, op.shape, op.operands[0].shape))
        case "get-tuple-element":
            return (tile,)
        case _:
            if is_elementwise(op.instruction):
                return (tile,) * len(op.operands)
            return no(f"{op.opcode} has no tiles")


def _one(tile: TileRule | Decision) -> _Tiles | Decision:
    return tile if isinstance(tile, Decision) else (tile,)


def _transposed(tile: TileRule, permutation: Sequence[int]) -> TileRule:
    """Return the tile of the operand, whose dimension `permutation[i]` is dimension i of the result."""
    return tuple([tile[dim] for dim in inverse_permutation(permutation)])


def _sliced(of: DimRule, start: int, stride: int) -> DimRule:
    return of if start == 0 and stride == 1 else SlicedDim(of, start, stride)


def _dynamic_slice(op: FusedOp, tile: TileRule, runtime_offset: Callable[[int], int]) -> _Tiles:
    source, *starts = op.operands
    parts: list[DimRule] = []
    for number, (part, start) in enumerate(zip(tile, starts, strict=True)):
        if start.opcode == "constant" and not start.is_input:
            last = source.shape.dims[number] - op.instruction.dynamic_slice_sizes[number]
            value = int(start.instruction.constant_array.flat[0])
            parts.append(_sliced(part, min(max(value, 0), last), 1))
        else:
            parts.append(RuntimeSlicedDim(part, runtime_offset(number + 1)))
    return tuple(parts), *[() for _ in starts]


def _pad(op: FusedOp, tile: TileRule) -> _Tiles | Decision:
    padding, sizes = op.instruction.padding, op.operands[0].shape.dims
    if any(interior for _, _, interior in padding):
        return no("a pad between elements has no tiles")
    return tuple([PaddedDim(part, low, size) for part, (low, _, _), size in zip(tile, padding, sizes, strict=True)]), ()


def _concatenate(op: FusedOp, tile: TileRule) -> _Tiles:
    dim = op.instruction.dimensions[0]
    sizes = tuple([operand.shape.dims[dim] for operand in op.operands])
    joined = [JoinedDim(tile[dim], sizes, position) for position in range(len(sizes))]
    return tuple([(*tile[:dim], part, *tile[dim + 1 :]) for part in joined])


def _reduce(op: FusedOp, tile: TileRule, sequential: SequentialDim) -> _Tiles | Decision:
    if op.shape.is_tuple:
        return no("a reduce of several arrays has no tiles")
    reduced = op.instruction.dimensions
    kept = iter(tile)
    source = [
        sequential(op.shape.rank + reduced.index(dim)) if dim in reduced else next(kept)
        for dim in range(op.operands[0].shape.rank)
    ]
    return tuple(source), ()


def _dot(op: FusedOp, tile: TileRule, sequential: SequentialDim) -> tuple[TileRule, TileRule]:
    lhs, rhs = dot_side(op.instruction, 0), dot_side(op.instruction, 1)
    batch = len(lhs.batch)
    contracted = [sequential(op.shape.rank + number) for number in range(len(lhs.contracting))]
    free_start = (batch, batch + len(lhs.free))
    tiles: list[TileRule] = []
    for side, start in zip((lhs, rhs), free_start, strict=True):
        parts = dict(zip(side.batch, tile, strict=False))
        parts.update(zip(side.free, tile[start:], strict=False))
        parts.update(zip(side.contracting, contracted, strict=True))
        tiles.append(tuple([parts[dim] for dim in range(len(parts))]))
    return tiles[0], tiles[1]


def _scales(tile: TileRule, dims: Sequence[int], scale_dims: Sequence[int]) -> TileRule:
    if not scale_dims:
        return ()
    triples = zip(tile, dims, scale_dims, strict=True)
    return tuple([part if size == scales else ScaleDim(part, size // scales) for part, size, scales in triples])


def _reshaped(tile: TileRule, source: tuple[int, ...], target: tuple[int, ...]) -> TileRule | Decision:
    """Return the tile of an array of dimensions `target` with the elements of a tile of one of dimensions `source`."""
    parts: list[DimRule] = [WholeDim(size) for size in target]
    if 0 in source:
        return no("an array without elements has no tiles")
    for ours, theirs in common_groups(source, target):
        if len(ours) == len(theirs) == 1:
            parts[theirs[0]] = tile[ours[0]]
        elif len(theirs) == 1:
            parts[theirs[0]] = CollapsedDim(tuple([tile[dim] for dim in ours]), tuple([source[dim] for dim in ours]))
        elif len(ours) == 1:
            sizes = tuple([target[dim] for dim in theirs])
            for position, dim in enumerate(theirs):
                parts[dim] = ExpandedDim(tile[ours[0]], sizes, position)
        else:
            return no(f"a reshape of {[source[dim] for dim in ours]} to {[target[dim] for dim in theirs]} has no tiles")
    return tuple(parts)


def _bitcast(tile: TileRule, source: Shape, target: Shape) -> TileRule | Decision:
    """Return the tile of the operand (`target`) of a bitcast (`source`): a transpose, a reshape, or both between two of them."""
    if source.element_count != target.element_count:
        return no("a bitcast to another number of elements has no tiles")
    permutation = bitcast_permutation(source, target)
    if permutation is not None:
        return tuple([tile[dim] for dim in permutation])
    if reshape_is_bitcast(source, target):
        return _reshaped(tile, source.dims, target.dims)
    physical = tuple([tile[dim] for dim in reversed(source.minor_to_major)])
    from_dims = physical_dims(source.dims, source.minor_to_major)
    reshaped = _reshaped(physical, from_dims, physical_dims(target.dims, target.minor_to_major))
    if isinstance(reshaped, Decision):
        return reshaped
    return tuple([reshaped[place] for place in inverse_permutation(tuple(reversed(target.minor_to_major)))])


def bitcast_permutation(source: Shape, target: Shape) -> tuple[int, ...] | None:
    """Return P with dimension i of `target` = dimension P[i] of `source`, if a bitcast between them is a transpose."""
    if source.rank != target.rank or not source.rank:
        return None
    pairs = sorted(zip(target.minor_to_major, source.minor_to_major, strict=True))
    permutation = tuple([dim for _, dim in pairs])
    return permutation if all(target.dims[i] == source.dims[dim] for i, dim in enumerate(permutation)) else None
