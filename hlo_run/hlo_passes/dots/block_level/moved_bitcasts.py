"""Shapes for a bitcast that changes places with a broadcast or a transpose.

    result = bitcast(broadcast(x))   <=>   result = broadcast(bitcast(x))
    result = bitcast(transpose(x))   <=>   result = transpose(bitcast(x))

All four questions divide the two sides of the bitcast, from the minor dimension on, into the smallest groups of the same number
of elements. The exchange exists if each group stays together on the other side. XLA's `bitcast_utils.cc`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Layout, Shape
from hlo_run.indexing.reshape import inverse_permutation

# Of each side: the first dimension of the group, and the one behind its last, counted from the minor one.
Group: TypeAlias = "tuple[tuple[int, int], tuple[int, int]]"


class Moved(Struct, frozen=True):
    """The shape of the new bitcast or of the new broadcast or transpose, and the `dimensions` of the latter."""

    shape: Shape
    dimensions: tuple[int, ...]


def bitcast_before_broadcast(broadcast: HloInstruction, result: Shape) -> Moved | None:
    """Return the shape of the broadcast's operand after the bitcast; None if a group has old and new dimensions."""
    order = broadcast.shape.minor_to_major
    kept: list[int] = []
    for (first, last), (begin, end) in groups_of(_physical(result), _physical(broadcast.shape)):
        sizes = {order[n] in broadcast.dimensions for n in range(begin, end) if broadcast.shape.dims[order[n]] != 1}
        if sizes == {True, False}:
            return None
        if True in sizes:
            kept += result.minor_to_major[first:last]
    kept.sort()
    layout = tuple(kept.index(dimension) for dimension in result.minor_to_major if dimension in kept)
    return Moved(_shaped(result, tuple(result.dims[d] for d in kept), layout), tuple(kept))


def broadcast_before_bitcast(broadcast: HloInstruction, operand: Shape) -> Moved | None:
    """Return the shape of the broadcast of the bitcast's operand; None if the broadcast tears a group apart."""
    bitcast, result = broadcast.operands[0].shape, broadcast.shape
    position = {dimension: n for n, dimension in enumerate(result.minor_to_major)}
    ranges: dict[int, range] = {}
    for (begin, end), (first, last) in groups_of(_physical(bitcast), _physical(operand)):
        targets = [broadcast.dimensions[bitcast.minor_to_major[n]] for n in range(begin, end)]
        if not targets or not _is_run([position[dimension] for dimension in targets]):
            return None
        ranges |= {dimension: range(0) for dimension in targets[1:]} | {targets[0]: range(first, last)}
    sizes = dict(enumerate(operand.dims))
    order: list[int] = []
    for dimension in result.minor_to_major:
        if dimension in ranges:
            order += [operand.minor_to_major[n] for n in ranges[dimension]]
        else:
            new = len(sizes)
            sizes[new] = result.dims[dimension]
            order.append(new)
    dims = tuple(sizes[n] for n in range(len(sizes)))
    return Moved(_shaped(operand, dims, tuple(order)), tuple(range(operand.rank)))


def bitcast_before_transpose(transpose: HloInstruction, result: Shape) -> Moved | None:
    """Return the shape of the transpose's operand after the bitcast, and the dimensions of the transpose of it."""
    moved = _beyond_transpose(result, transpose.shape, transpose.operands[0].shape, transpose.dimensions)
    return None if moved is None else Moved(moved.shape, inverse_permutation(moved.dimensions))


def transpose_before_bitcast(transpose: HloInstruction, operand: Shape) -> Moved | None:
    """Return the shape of the transpose of the bitcast's operand, and its dimensions."""
    return _beyond_transpose(operand, transpose.operands[0].shape, transpose.shape, inverse_permutation(transpose.dimensions))


def _beyond_transpose(near: Shape, same: Shape, far: Shape, dimensions: Sequence[int]) -> Moved | None:
    """Carry the bitcast between `near` and `same` to the side of `far`, where dimension `dimensions[d]` is that of `same`'s d."""
    if same.layout != far.layout:
        return None
    position = {dimension: n for n, dimension in enumerate(far.minor_to_major)}
    ranges: dict[int, range] = {}
    for (first, last), (begin, end) in _without_trivial(groups_of(_physical(near), _physical(same))):
        is_one = all(near.dims[near.minor_to_major[n]] == 1 for n in range(first, last))
        places: list[int] = []
        for n in range(begin, end):
            dimension = same.minor_to_major[n]
            place = position[dimensions[dimension]]
            if same.dims[dimension] == 1 and not is_one:
                ranges[place] = range(0)
                continue
            ranges[place] = range(first, last)
            first = last
            places.append(place)
        if places and not _is_run(places):
            return None
    moved = [n for place in range(far.rank) for n in ranges.get(place, range(0))]
    if len(moved) != near.rank:
        return None
    sizes, found = [0] * near.rank, [0] * near.rank
    for place, n in enumerate(moved):
        new, old = near.minor_to_major[place], near.minor_to_major[n]
        sizes[new], found[new] = near.dims[old], old
    return Moved(_shaped(near, tuple(sizes), near.minor_to_major), tuple(found))


def groups_of(one: Sequence[int], two: Sequence[int]) -> list[Group]:
    """Divide two lists of sizes, of equal products, into the smallest groups of equal products (XLA's `CommonFactors`)."""
    bounds: list[tuple[int, int]] = []
    first = second = 0
    left = right = 1
    while True:
        if left == right and (not bounds or (first, second) != bounds[-1]):
            bounds.append((first, second))
        has_first, has_second = first < len(one), second < len(two)
        if not has_first and not has_second:
            break
        takes_first = left < right or (left == right and has_first and (not has_second or one[first] <= two[second]))
        takes_second = right < left or (left == right and has_second and (not has_first or two[second] <= one[first]))
        if takes_first:
            left *= one[first]
            first += 1
        if takes_second:
            right *= two[second]
            second += 1
    return [((a, c), (b, d)) for (a, b), (c, d) in pairwise(bounds)]


def _without_trivial(groups: list[Group]) -> list[Group]:
    """Merge a group that has no dimension on one side into the next one; the last one into the one before it."""
    bounds = [(one[0], two[0]) for one, two in groups] + [(one[1], two[1]) for one, two in groups[-1:]]
    n = 0
    while n + 1 < len(bounds) and len(bounds) > 2:
        if bounds[n][0] != bounds[n + 1][0] and bounds[n][1] != bounds[n + 1][1]:
            n += 1
        else:
            del bounds[n if n + 2 == len(bounds) else n + 1]
    return [((a, c), (b, d)) for (a, b), (c, d) in pairwise(bounds)]


def _physical(shape: Shape) -> list[int]:
    return [shape.dims[dimension] for dimension in shape.minor_to_major]


def _is_run(places: list[int]) -> bool:
    """True for ascending places next to each other."""
    return places == sorted(places) and places[-1] - places[0] < len(places)


def _shaped(like: Shape, dims: tuple[int, ...], minor_to_major: tuple[int, ...]) -> Shape:
    extra = like.layout.extra if like.layout else ""
    return Shape(like.element_type, dims, Layout(minor_to_major, extra))
