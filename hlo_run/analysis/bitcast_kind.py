"""Decides whether a reshape or transpose moves no bytes, and is therefore a bitcast.

Ignores element types. Dimensions of size 1 have no influence on any layout.
"""

from __future__ import annotations

from itertools import pairwise

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape


def physical_dims(shape: Shape) -> tuple[int, ...]:
    """Return the logical dimension numbers from the slowest to the fastest varying, without dimensions of size 1."""
    return tuple(dim for dim in reversed(shape.minor_to_major) if shape.dims[dim] != 1)


def is_row_major(shape: Shape) -> bool:
    """True if the elements lie in the order of the logical index."""
    order = physical_dims(shape)
    return all(a < b for a, b in pairwise(order))


def reshape_is_bitcast(source: Shape, target: Shape) -> bool:
    """True if a reshape between these layouts moves no byte."""
    if source.element_count != target.element_count:
        return False
    if 0 in source.dims or (is_row_major(source) and is_row_major(target)):
        return True
    order = aligned_order(source, target.dims)
    return order is not None and physical_dims(Shape.array(target.element_type, target.dims, order)) == physical_dims(target)


def aligned_order(source: Shape, dims: tuple[int, ...], like: tuple[int, ...] | None = None) -> tuple[int, ...] | None:
    """Return the minor-to-major order in which `source` reshaped to `dims` keeps its bytes, None if no such order exists.

    The order is unique but for dimensions of size 1. Each is next to the larger dimension that it follows in the minor-to-major
    order `like`, row-major by default; the first ones are minor. XLA's `AlignLayoutsGPU`.
    """
    groups = common_groups(source.dims, dims)
    order = physical_dims(source)
    place = {dim: number for number, dim in enumerate(order)}
    starts: list[tuple[int, list[int]]] = []
    for ours, theirs in groups:
        # A group of dimensions that is split or joined must be contiguous in logical order.
        if any(place[b] != place[a] + 1 for a, b in pairwise(ours)):
            return None
        starts.append((place[ours[0]], theirs))
    followers: list[int] = []
    minor = followers
    behind: dict[int, list[int]] = {}
    for dim in like or reversed(range(len(dims))):
        if dims[dim] == 1:
            followers.append(dim)
        else:
            followers = behind[dim] = [dim]
    minor_to_major = [dim for _, theirs in sorted(starts, reverse=True) for dim in reversed(theirs)]
    return (*minor, *(follower for dim in minor_to_major for follower in behind[dim]))


def common_groups(one: tuple[int, ...], two: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Return the shortest pairs of runs of dimensions with equal numbers of elements, without dimensions of size 1."""
    first = [dim for dim, size in enumerate(one) if size != 1]
    second = [dim for dim, size in enumerate(two) if size != 1]
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(first):
        ours, theirs, left, right = [first[i]], [second[j]], one[first[i]], two[second[j]]
        i, j = i + 1, j + 1
        while left != right:
            if left < right:
                ours, left, i = [*ours, first[i]], left * one[first[i]], i + 1
            else:
                theirs, right, j = [*theirs, second[j]], right * two[second[j]], j + 1
        groups.append((ours, theirs))
    return groups


def unmodified_dims(one: tuple[int, ...], two: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the pairs of equal dimensions that a reshape keeps, as XLA's `DimensionsUnmodifiedByReshape`.

    Both sides have as many elements, but not 0. A size of 1 belongs to no other dimension.
    """
    pairs: list[tuple[int, int]] = []
    i = j = 0
    while i < len(one) or j < len(two):
        start, left, right = (i, j), 1, 1
        while (i, j) == start or left != right:
            ours, theirs = one[i] if i < len(one) else None, two[j] if j < len(two) else None
            is_even = left == right
            takes_ours = left < right or (is_even and ours is not None and (theirs is None or ours <= theirs))
            takes_theirs = right < left or (is_even and theirs is not None and (ours is None or theirs <= ours))
            if takes_ours and ours is not None:
                left, i = left * ours, i + 1
            if takes_theirs and theirs is not None:
                right, j = right * theirs, j + 1
        if (i, j) == (start[0] + 1, start[1] + 1):
            pairs.append(start)
    return pairs


def transpose_is_bitcast(source: Shape, target: Shape, permutation: tuple[int, ...]) -> bool:
    """True if the transpose (`target` dimension i is `source` dimension `permutation[i]`) moves no byte."""
    return tuple(permutation[dim] for dim in physical_dims(target)) == physical_dims(source)


def is_reshape_or_transpose_bitcast(source: Shape, target: Shape) -> bool:
    """True if one reshape or one transpose explains reading `source`'s bytes as `target`."""
    if reshape_is_bitcast(source, target):
        return True
    source_sizes = [source.dims[dim] for dim in physical_dims(source)]
    return source.rank == target.rank and source_sizes == [target.dims[dim] for dim in physical_dims(target)]


def is_bitcast(instruction: HloInstruction) -> bool:
    """True for a `bitcast`, and for a reshape or transpose that moves no bytes."""
    match instruction.opcode:
        case "bitcast":
            return True
        case "reshape":
            return reshape_is_bitcast(instruction.operands[0].shape, instruction.shape)
        case "transpose":
            return transpose_is_bitcast(instruction.operands[0].shape, instruction.shape, instruction.dimensions)
        case _:
            return False
