"""The tile of one dimension of an array: as a rule for any tile sizes, and its numbers for chosen ones.

    e = f32[128,1000] exponential(p)              rule for e: dimensions 0 and 1 of the tiling space
    ROOT s = f32[128,500] slice(e[.., 500:])      sizes [2, 512]:  offset tid_0 * 2,          size 2
                                                                   offset tid_1 * 512 + 500,  size 512

Tile sizes and tile ids belong to the dimensions of a tiling space (`tiling.py`). Mirrors XLA's
`codegen/tiling/experimental/tile.cc` and `tile_propagation.cc`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod
from typing import TypeAlias

from msgspec import Struct

from hlo_run.analysis.decision import YES, Decision, no
from hlo_run.indexing.divisor import divisor_of
from hlo_run.indexing.expr import ZERO, Expr, constant, dim, maximum, minimum, symbol
from hlo_run.indexing.interval import Bounds
from hlo_run.indexing.reshape import linearize, strides_of
from hlo_run.indexing.simplify import Simplifier
from hlo_run.indexing.substitute import Substitution


class DimTile:
    """Elements offset, offset + stride, .. of a dimension, `size` of them; those at `upper_bound` or beyond are masked.

    Offset and bound are expressions of the tile ids, which are the dimensions of the tiling space, and of run-time offsets,
    which are symbols. They are computed when first read: estimates need only sizes.
    """

    __slots__ = ("_bounds", "size", "stride")

    def __init__(self, size: int, stride: int, bounds: tuple[Expr, Expr] | Callable[[], tuple[Expr, Expr]]) -> None:
        self.size = size
        self.stride = stride
        self._bounds = bounds

    @property
    def bounds(self) -> tuple[Expr, Expr]:
        """The offset and the upper bound."""
        bounds = self._bounds
        if callable(bounds):
            bounds = self._bounds = bounds()
        return bounds

    @property
    def offset(self) -> Expr:
        """The first element."""
        return self.bounds[0]

    @property
    def upper_bound(self) -> Expr:
        """One more than the last element that is not masked."""
        return self.bounds[1]

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, DimTile) or self.size != other.size or self.stride != other.stride:
            return False
        return self.bounds == other.bounds

    def __hash__(self) -> int:
        return hash((self.size, self.stride))

    def __repr__(self) -> str:
        return f"DimTile(offset {self.offset}, size {self.size}, stride {self.stride}, below {self.upper_bound})"


class SpaceDim(Struct, frozen=True, cache_hash=True):
    """The tile of dimension `number` of the tiling space."""

    number: int


class WholeDim(Struct, frozen=True, cache_hash=True):
    """All of a dimension, in one tile whose size is a power of two."""

    size: int


class SlicedDim(Struct, frozen=True, cache_hash=True):
    """The elements of the operand of a slice that begins at `start`."""

    of: DimRule
    start: int
    stride: int


class RuntimeSlicedDim(Struct, frozen=True, cache_hash=True):
    """The elements of the operand of a dynamic-slice that begins at run-time offset `number`."""

    of: DimRule
    number: int


class PaddedDim(Struct, frozen=True, cache_hash=True):
    """The elements of the operand of a pad, of `size` elements behind `low` new ones."""

    of: DimRule
    low: int
    size: int


class JoinedDim(Struct, frozen=True, cache_hash=True):
    """The elements of operand `position` of a concatenate, whose operands have these sizes."""

    of: DimRule
    sizes: tuple[int, ...]
    position: int


class CollapsedDim(Struct, frozen=True, cache_hash=True):
    """The tile of the dimension that a reshape makes of several ones, which have these sizes."""

    of: tuple[DimRule, ...]
    sizes: tuple[int, ...]


class ExpandedDim(Struct, frozen=True, cache_hash=True):
    """The tile of number `position` of the dimensions, of these sizes, that a reshape makes of one."""

    of: DimRule
    sizes: tuple[int, ...]
    position: int


class ScaleDim(Struct, frozen=True, cache_hash=True):
    """The tile of a dimension of the scales of a scaled-dot, one for each `block` elements."""

    of: DimRule
    block: int


DimRule: TypeAlias = (
    SpaceDim | WholeDim | SlicedDim | RuntimeSlicedDim | PaddedDim | JoinedDim | CollapsedDim | ExpandedDim | ScaleDim
)
TileRule: TypeAlias = tuple[DimRule, ...]
Tile: TypeAlias = tuple[DimTile, ...]


class TileNumbers:
    """Evaluates rules for tile sizes, one per dimension of the space; refuses tiles that no kernel can load.

    A tile is kept for the sizes of the dimensions that it depends on.
    """

    def __init__(self, space_sizes: Sequence[int]) -> None:
        self._space_sizes = space_sizes
        self._used: dict[DimRule, tuple[int, ...]] = {}
        self._dims: dict[tuple[DimRule, tuple[int, ...]], DimTile | Decision] = {}

    def tile(self, rule: TileRule, sizes: Sequence[int]) -> Tile | Decision:
        """Return the tile of an array."""
        dims: list[DimTile] = []
        for part in rule:
            found = self.dim(part, sizes)
            if isinstance(found, Decision):
                return found
            dims.append(found)
        return tuple(dims)

    def dim(self, rule: DimRule, sizes: Sequence[int]) -> DimTile | Decision:
        """Return the tile of a dimension."""
        used = self._used.get(rule)
        if used is None:
            used = self._used[rule] = tuple(sorted(used_dims(rule)))
        key = rule, tuple([sizes[number] for number in used])
        found = self._dims.get(key)
        if found is None:
            found = self._dims[key] = self._evaluate(rule, sizes)
        return found

    def _evaluate(self, rule: DimRule, sizes: Sequence[int]) -> DimTile | Decision:
        match rule:
            case SpaceDim():
                size, whole = sizes[rule.number], self._space_sizes[rule.number]
                return DimTile(size, 1, (ZERO if size >= whole else dim(rule.number) * size, constant(whole)))
            case WholeDim():
                return DimTile(power_of_two(rule.size), 1, (ZERO, constant(rule.size)))
            case CollapsedDim():
                return self._collapsed(rule, sizes)
            case _:
                of = self.dim(rule.of, sizes)
        if isinstance(of, Decision):
            return of
        match rule:
            case SlicedDim():
                offset, bound = of.offset * rule.stride + rule.start, of.upper_bound * rule.stride + rule.start
                return DimTile(of.size, of.stride * rule.stride, (offset, bound))
            case RuntimeSlicedDim():
                start = symbol(rule.number)
                return DimTile(of.size, of.stride, (of.offset + start, of.upper_bound + start))
            case PaddedDim():
                return DimTile(of.size, of.stride, (of.offset - rule.low, constant(rule.size)))
            case JoinedDim():
                return _joined(rule, of)
            case ExpandedDim():
                return self._expanded(rule, of, sizes)
            case ScaleDim():
                last = (of.offset + (of.size - 1) * of.stride) // rule.block
                first = of.offset // rule.block
                scales = self._number(last - first + 1, sizes)
                return scales if isinstance(scales, Decision) else DimTile(scales, 1, (first, of.upper_bound // rule.block))

    def _collapsed(self, rule: CollapsedDim, sizes: Sequence[int]) -> DimTile | Decision:
        parts: list[DimTile] = []
        for source in rule.of:
            part = self.dim(source, sizes)
            if isinstance(part, Decision):
                return part
            parts.append(part)
        contiguous = _judge_collapse(parts, rule.sizes)
        if not contiguous:
            return contiguous

        def bounds() -> tuple[Expr, Expr]:
            last = [minimum(part.offset + (part.size - 1) * part.stride, part.upper_bound - 1) for part in parts]
            offset = linearize([part.offset for part in parts], rule.sizes)
            return self._simplify(offset, sizes), self._simplify(linearize(last, rule.sizes) + 1, sizes)

        # The step is that of the innermost dimension with more than one element.
        steps = [part.stride * step for part, step in zip(parts, strides_of(rule.sizes), strict=True) if part.size != 1]
        return DimTile(prod([part.size for part in parts]), steps[-1] if steps else parts[-1].stride, bounds)

    def _expanded(self, rule: ExpandedDim, of: DimTile, sizes: Sequence[int]) -> DimTile | Decision:
        first = _indices(of.offset, rule.sizes)
        last = _indices(of.offset + (of.size - 1) * of.stride, rule.sizes)
        parts: list[DimTile] = []
        for low, high in zip(first, last, strict=True):
            size = self._number(high - low + 1, sizes)
            if isinstance(size, Decision):
                return size
            parts.append(DimTile(size, 1, (self._simplify(low, sizes), self._simplify(high + 1, sizes))))
        contiguous = _judge_expansion(of, parts, rule.sizes)
        return parts[rule.position] if contiguous else contiguous

    def _number(self, expr: Expr, sizes: Sequence[int]) -> int | Decision:
        simple = self._simplify(expr, sizes)
        return simple.value if simple.is_constant else no(f"the size of a tile, {simple}, is not a number")

    def _simplify(self, expr: Expr, sizes: Sequence[int]) -> Expr:
        pairs = zip(self._space_sizes, sizes, strict=True)
        bounds: list[Bounds] = [(0, -(-whole // size) - 1) for whole, size in pairs]
        return Simplifier(bounds, (), preserve_points=True)(expr)


def _joined(rule: JoinedDim, of: DimTile) -> DimTile | Decision:
    aligned = _judge_join(of, rule.sizes)
    if not aligned:
        return aligned
    start = sum(rule.sizes[: rule.position])
    bound = maximum(minimum(of.upper_bound - start, rule.sizes[rule.position]), 0)
    return DimTile(of.size, of.stride, (of.offset - start, bound))


def used_dims(rule: DimRule) -> frozenset[int]:
    """Return the dimensions of the space whose tile sizes a tile depends on."""
    match rule:
        case SpaceDim():
            return frozenset((rule.number,))
        case WholeDim():
            return frozenset()
        case CollapsedDim():
            return frozenset(dim for part in rule.of for dim in used_dims(part))
        case _:
            return used_dims(rule.of)


def power_of_two(size: int) -> int:
    """Return the smallest power of two that is not below `size`."""
    return 1 << (size - 1).bit_length() if size > 1 else 1


def _indices(linear: Expr, sizes: Sequence[int]) -> list[Expr]:
    """Return the row-major indices of element `linear` of an array. The first may be out of bounds, as in XLA."""
    indices: list[Expr] = []
    for stride in strides_of(sizes):
        indices.append(linear // stride)
        linear = linear % stride
    return indices


def _judge_join(tile: DimTile, sizes: tuple[int, ...]) -> Decision:
    """Refuse a tile of a concatenate that may hold elements of two operands. XLA's `VerifyConcatenateAlignment`."""
    at_origin = Substitution([ZERO] * tile.offset.dims_mask.bit_length())(tile.offset)
    if not at_origin.is_constant:
        return no(f"the first offset, {at_origin}, into a concatenate is not a number")
    base = at_origin.value
    ends = [*accumulate(sizes)]
    operand = next((number for number, end in enumerate(ends) if base < end), None)
    if base < 0 or operand is None:
        return no(f"the first offset, {base}, is outside of a concatenate")
    if divisor_of(tile.offset - base) % tile.size:
        return no(f"the steps of {tile.offset} in a concatenate are no multiples of the tile's {tile.size} elements")
    parts = [ends[operand] - base, *sizes[operand + 1 :]]
    odd = next((part for part in parts[:-1] if part % tile.size), None)
    return YES if odd is None else no(f"{odd} elements of an operand of a concatenate are no multiple of the tile's {tile.size}")


def _judge_collapse(parts: Sequence[DimTile], sizes: tuple[int, ...]) -> Decision:
    """Refuse tiles of dimensions that have no constant step in the dimension that a reshape makes of them."""
    strided = [number for number, part in enumerate(parts[:-1]) if part.stride > 1]
    return _judge_parts(parts, sizes, strided, is_collapse=True)


def _judge_expansion(of: DimTile, parts: Sequence[DimTile], sizes: tuple[int, ...]) -> Decision:
    """Refuse a tile that a reshape does not turn into a block of its new dimensions."""
    if of.stride == 1:
        return _judge_parts(parts, sizes, [], is_collapse=False)
    strides = strides_of(sizes)[:-1]
    if of.stride not in strides:
        return no(f"a step of {of.stride} is that of none of the dimensions {list(sizes)}")
    # The innermost of equal ones, which differ by dimensions of one element.
    strided = max(number for number, stride in enumerate(strides) if stride == of.stride)
    return _judge_parts(parts, sizes, [strided], is_collapse=False)


def _judge_parts(parts: Sequence[DimTile], sizes: tuple[int, ...], strided: Sequence[int], is_collapse: bool) -> Decision:
    if len(strided) > 1:
        return no(f"dimensions {list(strided)} of {list(sizes)} both have steps")
    if strided:
        others = (part.size for number, part in enumerate(parts) if number != strided[0])
        return YES if all(size == 1 for size in others) else no(f"a tile of {list(sizes)} has a step and other dimensions")
    # Outer dimensions with one element, at most one that is covered in part, inner ones that are covered.
    first, last = 0, len(parts) - 1
    while first <= last and parts[first].size == 1:
        first += 1
    is_single = True
    while last >= 0:
        part = parts[last]
        is_covered = sizes[last] in (part.size, part.size * part.stride)
        if not is_covered and not (is_collapse and part.size == 1 and is_single):
            break
        is_single = is_single and part.size == 1
        last -= 1
    return no(f"a tile of {[part.size for part in parts]} of {list(sizes)} is not contiguous") if first < last else YES
