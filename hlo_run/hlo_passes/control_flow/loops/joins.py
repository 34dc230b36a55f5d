"""Plans which values of a loop's body become one array, so that a concatenation of them leaves the loop."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from msgspec import Struct

from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.analysis.value_keys import ValueKeys
from hlo_run.hlo.edit import has_side_effect
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.values.shape import Shape


class StackedDimension(Struct, frozen=True):
    """The places of values in their array: one after the other in a dimension that they have, or in a new one (`is_new`)."""

    dimension: int
    is_new: bool

    def dims(self, values: Sequence[HloInstruction]) -> tuple[int, ...]:
        """Return the sizes of the array."""
        sizes = list(values[0].shape.dims)
        if self.is_new:
            sizes.insert(self.dimension, len(values))
        else:
            sizes[self.dimension] = sum(value.shape.dims[self.dimension] for value in values)
        return tuple(sizes)


class Join(Struct, frozen=True, eq=False):
    """Values that become one array."""

    values: tuple[HloInstruction, ...]
    place: StackedDimension

    @property
    def shape(self) -> Shape:
        """The shape of the array, in the default layout."""
        return Shape.array(self.values[0].shape.element_type, self.place.dims(self.values))

    @property
    def is_shared(self) -> bool:
        """True if all are the same value, which needs no array."""
        return len(set(self.values)) == 1

    def bounds(self, number: int) -> tuple[list[int], list[int]]:
        """Return the first and the last indices, exclusive, of one value in the array."""
        d = self.place.dimension
        sizes = [1 if self.place.is_new else value.shape.dims[d] for value in self.values]
        starts, ends = [0] * self.shape.rank, list(self.shape.dims)
        starts[d] = sum(sizes[:number])
        ends[d] = starts[d] + sizes[number]
        return starts, ends


class Joins:
    """The arrays of a body. A value is in one of them at most.

    If values are joined, so are the operands that differ, up to slices that make up a whole value, and elements of the state.
    The values that the body returns for these elements are joined, too. `fixed` are elements of the state that stay apart.
    """

    def __init__(self, body: HloComputation, fixed: frozenset[int]) -> None:
        self._body = body
        self._fixed = fixed
        self._apart: set[HloInstruction] = set()
        self._keys = ValueKeys(sees_layouts=False)
        self.known: dict[HloInstruction, tuple[Join, int]] = {}

    def add_operands(self, concatenate: HloInstruction) -> bool:
        """Join the operands, and all that they need; return False, with no new join, if it cannot be done."""
        known = dict(self.known)
        waiting = [Join(concatenate.operands, StackedDimension(concatenate.dimensions[0], False))]
        if waiting[0].is_shared:
            return False
        for join in waiting:  # grows while we walk
            if join.is_shared:
                if join.values[0] in known:
                    return False
                self._apart.add(join.values[0])
                continue
            found = [known.get(value) for value in join.values]
            if any(found):
                if not _is_same(join, found):
                    return False
                continue
            needed = self._needed(join, known) if self._may_join(join.values) else None
            if needed is None:
                return False
            known.update((value, (join, n)) for n, value in enumerate(join.values))
            waiting += needed
        self.known = known
        return True

    def _may_join(self, values: Sequence[HloInstruction]) -> bool:
        if len(set(values)) < len(values) or any(value in self._apart for value in values):
            return False
        return all(v.shape.is_array and v.shape.has_default_layout and not any(v.shape.dynamic_dims) for v in values)

    def _needed(self, join: Join, known: dict[HloInstruction, tuple[Join, int]]) -> list[Join] | None:
        """Return what must be joined, too; None if the values cannot be computed as one."""
        first, (state,) = join.values[0], self._body.parameters
        if all(value.opcode == "get-tuple-element" and value.operands[0] is state for value in join.values):
            numbers = [value.tuple_index for value in join.values]
            if self._fixed.intersection(numbers):
                return None
            return [Join(tuple(self._body.root.operands[n] for n in numbers), join.place)]
        if first.opcode == "slice":
            source = first.operands[0]
            if source in known or not _make_up(join, source):
                return None
            self._apart.add(source)
            return []
        keys = {self._keys.of(value, tuple(operand.shape for operand in value.operands)) for value in join.values}
        if len(keys) > 1 or has_side_effect(first) or (first.opcode == "reduce" and not _reduce_alike(join.values)):
            return None
        needed: list[Join] = []
        for number in range(1 if first.opcode == "reduce" else len(first.operands)):
            place = operand_place(first, number, join.place)
            if place is None:
                return None
            needed.append(Join(tuple(value.operands[number] for value in join.values), place))
        return needed or None


def _is_same(join: Join, found: Sequence[tuple[Join, int] | None]) -> bool:
    """True if the values make one known join, in its order and dimension."""
    known = found[0][0] if found[0] is not None else None
    if known is None or len(known.values) != len(join.values) or known.place.dimension != join.place.dimension:
        return False
    return all(one is not None and one[0] is known and one[1] == n for n, one in enumerate(found))


def _make_up(join: Join, source: HloInstruction) -> bool:
    """True if the values are slices of one value, and make it up one after the other."""
    if join.place.is_new or join.place.dims(join.values) != source.shape.dims:
        return False
    for n, value in enumerate(join.values):
        parts = [(start, end, 1) for start, end in zip(*join.bounds(n), strict=True)]
        if value.opcode != "slice" or value.operands[0] is not source or [tuple(p) for p in value.slice_ranges] != parts:
            return False
    return True


def _reduce_alike(values: Sequence[HloInstruction]) -> bool:
    return all(len(value.operands) == 2 and value.operands[1] is values[0].operands[1] for value in values)


def operand_place(value: HloInstruction, number: int, place: StackedDimension) -> StackedDimension | None:
    """Return the places of an operand's values if the result's values lie at `place`; None for opcodes that compute otherwise."""
    operand = value.operands[number]
    if is_elementwise(value) or value.opcode == "all-reduce":
        return place if operand.shape.is_array and value.shape.same_dims(operand.shape) else None
    p = place.dimension
    if value.opcode == "broadcast":
        dimensions = value.dimensions
        if not place.is_new and p in dimensions:
            return StackedDimension(dimensions.index(p), False)
        return StackedDimension(next((n for n, d in enumerate(dimensions) if d >= p), len(dimensions)), True)
    if value.opcode == "reduce":
        for dimension in sorted(value.dimensions):
            p += dimension < p or (dimension == p and not place.is_new)
        return StackedDimension(p, place.is_new)
    return _reshaped_place(value.shape.dims, operand.shape.dims, place) if value.opcode == "reshape" else None


def _reshaped_place(dims: tuple[int, ...], operand: tuple[int, ...], place: StackedDimension) -> StackedDimension | None:
    """Return the place before a reshape that adds and removes dimensions of size 1."""
    if 0 in dims or [d for d in dims if d != 1] != [d for d in operand if d != 1]:
        return None
    outer = prod(dims[: place.dimension])
    spots = [q for q in range(len(operand) + 1) if prod(operand[:q]) == outer]
    if not place.is_new and dims[place.dimension] != 1:
        return StackedDimension(spots[-1], False)
    ones = next((n for n, d in enumerate(reversed(dims[: place.dimension])) if d != 1), place.dimension)
    spot = spots[min(ones, len(spots) - 1)]
    return StackedDimension(spot, is_new=not (spot < len(operand) and operand[spot] == 1))
