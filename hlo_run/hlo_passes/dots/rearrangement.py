"""Describes a chain of reshapes and transposes as one transpose between two reshapes.

    f32[6,35] p => reshape [2,3,35] => transpose [3,2,35] => reshape [3,70]

The elements are numbered in the order of the chain's first array. A part `(stride, extent)` of the result is a loop over `extent`
elements that are `stride` numbers apart; the parts, first the outermost, run through the result in its order. The example has
the parts (35, 3), (105, 2), (1, 35). A chain whose parts cannot be cut at the borders of dimensions raises `NotOneTranspose`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from msgspec import Struct

from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode

MOVES: frozenset[Opcode] = frozenset(("reshape", "transpose"))
"""The opcodes of a chain."""

Part = tuple[int, int]
Dims = tuple[int, ...]


class NotOneTranspose(Exception):
    """The chain needs more than one transpose."""


class Rearrangement(Struct, frozen=True):
    """The dimensions before and after, and the parts of the result."""

    source: Dims
    result: Dims
    parts: tuple[Part, ...]

    @staticmethod
    def none(dims: Sequence[int]) -> Rearrangement:
        """Return the chain without instructions."""
        count = math.prod(dims)
        return Rearrangement(tuple(dims), tuple(dims), ((1, count),) if count != 1 else ())

    @staticmethod
    def of(first: HloInstruction, last: HloInstruction) -> Rearrangement:
        """Return the rearrangement from the value `first` to the value `last`, which a chain makes of it."""
        chain: list[HloInstruction] = []
        while last is not first:
            chain.append(last)
            last = last.operands[0]
        found = Rearrangement.none(first.shape.dims)
        for instruction in reversed(chain):
            found = found.after(instruction)
        return found

    @staticmethod
    def beside(several: Sequence[Rearrangement]) -> Rearrangement:
        """Return the rearrangement of both values' dimensions, one group of dimensions after the other."""
        scale = math.prod(math.prod(each.source) for each in several)
        parts: list[Part] = []
        for each in several:
            scale //= math.prod(each.source)
            parts += [(stride * scale, extent) for stride, extent in each.parts]
        source = tuple(itertools.chain.from_iterable(each.source for each in several))
        result = tuple(itertools.chain.from_iterable(each.result for each in several))
        return Rearrangement(source, result, _joined(parts))

    def after(self, instruction: HloInstruction) -> Rearrangement:
        """Return the chain with one more reshape or transpose at its end."""
        if instruction.opcode == "reshape":
            return self.reshaped(instruction.shape.dims)
        return self.transposed(instruction.dimensions)

    def reshaped(self, dims: Sequence[int]) -> Rearrangement:
        """Return the chain with a reshape at its end."""
        return Rearrangement(self.source, tuple(dims), self.parts)

    def transposed(self, order: Sequence[int]) -> Rearrangement:
        """Return the chain with a transpose at its end."""
        pieces = _cut(self.parts, self.result)
        parts = itertools.chain.from_iterable(pieces[d] for d in order)
        return Rearrangement(self.source, tuple(self.result[d] for d in order), _joined(parts))

    def then(self, other: Rearrangement) -> Rearrangement:
        """Return this chain with another one behind it."""
        order = sorted(range(len(other.parts)), key=lambda n: -other.parts[n][0])
        pieces = dict(zip(order, _cut(self.parts, [other.parts[n][1] for n in order]), strict=True))
        parts = itertools.chain.from_iterable(pieces[n] for n in range(len(other.parts)))
        return Rearrangement(self.source, other.result, _joined(parts))

    def inverse(self) -> Rearrangement:
        """Return the chain that undoes this one."""
        strides = _packed([extent for _, extent in self.parts])
        order = sorted(range(len(self.parts)), key=lambda n: -self.parts[n][0])
        return Rearrangement(self.result, self.source, _joined((strides[n], self.parts[n][1]) for n in order))

    def only(self, dims: Sequence[int]) -> Rearrangement:
        """Return the effect of the chain on some dimensions of its source, given in the order of the new source.

        The result has a dimension for each part.
        """
        kept = sorted(dims)
        strides = _packed(self.source)
        found: list[Part] = []
        for stride, extent in self.parts:
            pieces = [_shared((stride, extent), (strides[d], self.source[d])) for d in kept]
            found += sorted((piece for piece in pieces if piece is not None), reverse=True)
        order = sorted(range(len(found)), key=lambda n: -found[n][0])
        packed = dict(zip(order, _packed([found[n][1] for n in order]), strict=True))
        parts = _joined((packed[n], extent) for n, (_, extent) in enumerate(found))
        inner = Rearrangement(tuple(self.source[d] for d in kept), tuple(extent for _, extent in parts), parts)
        first = Rearrangement.none([self.source[d] for d in dims])
        return first.transposed([list(dims).index(d) for d in kept]).then(inner)

    def dims_of(self, dims: Sequence[int]) -> Dims | None:
        """Return the dimensions of the result, larger than 1, that have the elements of these dimensions of the source.

        None if another dimension is mixed with them.
        """
        strides = _packed(self.source)
        try:
            pieces = _cut(self.parts, self.result)
            found: list[int] = []
            for d, parts in enumerate(pieces):
                shared = [_shared(part, (strides[s], self.source[s])) for part in parts for s in dims]
                covered = math.prod(piece[1] for piece in shared if piece is not None)
                if covered not in (1, self.result[d]):
                    return None
                found += [d] if covered > 1 else []
        except NotOneTranspose:
            return None
        return tuple(found)

    def make(self, value: HloInstruction) -> HloInstruction:
        """Add the shortest chain to the computation of `value`; return its end."""
        editor = Editor(value, derives=False)
        order = sorted(range(len(self.parts)), key=lambda n: -self.parts[n][0])
        if order != list(range(len(order))):
            extents, last = _uncombined([self.parts[n][1] for n in order], value.shape.dims)
            value = editor.reshape(value, extents)
            ranges = [range(last[n - 1] + 1 if n else 0, last[n] + 1) for n in range(len(order))]
            places = {part: ranges[n] for n, part in enumerate(order)}
            moved = itertools.chain.from_iterable(places[n] for n in range(len(order)))
            value = editor.transpose_view(value, list(moved))
        return editor.reshape(value, self.result)


def _packed(extents: Sequence[int]) -> list[int]:
    """Return the strides of dimensions, the last of which is innermost."""
    strides = [1] * len(extents)
    for n in range(len(extents) - 2, -1, -1):
        strides[n] = strides[n + 1] * extents[n + 1]
    return strides


def _joined(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Return the parts, those that run on from one to the next as one."""
    found: list[Part] = []
    for stride, extent in parts:
        if found and found[-1][0] == stride * extent:
            extent *= found.pop()[1]
        found.append((stride, extent))
    return tuple(found)


def _cut(parts: Sequence[Part], sizes: Sequence[int]) -> list[list[Part]]:
    """Return the parts of each dimension of the given sizes."""
    pieces: list[list[Part]] = []
    left = list(reversed(parts))
    for size in sizes:
        pieces.append([])
        while size > 1:
            stride, extent = left.pop()
            taken = min(extent, size)
            if extent % taken or size % taken:
                raise NotOneTranspose
            pieces[-1].append((stride * (extent // taken), taken))
            size //= taken
            if extent > taken:
                left.append((stride, extent // taken))
    return pieces


def _shared(one: Part, two: Part) -> Part | None:
    """Return the loop that two loops over the source have in common; None if there is none."""
    low, high = max(one[0], two[0]), min(one[0] * one[1], two[0] * two[1])
    if high <= low:
        return None
    if low % min(one[0], two[0]) or high % low:
        raise NotOneTranspose
    return low, high // low


def _uncombined(sizes: Sequence[int], present: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the sizes with the present dimensions kept apart where they fit, and the place of the last piece of each size."""
    wanted, there = _products(sizes), _products(present)
    borders: list[int] = []
    last: list[int] = []
    for border in wanted:
        while there and there[0] < border:
            inner = there.pop(0)
            if border % inner == 0 and (not borders or inner % borders[-1] == 0):
                borders.append(inner)
        if there and there[0] == border:
            there.pop(0)
        last.append(len(borders))
        borders.append(border)
    return [border // before for before, border in zip([1, *borders], borders, strict=False)], last


def _products(sizes: Sequence[int]) -> list[int]:
    """Return the products of the first sizes: of one, of two, .."""
    found: list[int] = []
    for size in sizes:
        found.append(size * (found[-1] if found else 1))
    return found
