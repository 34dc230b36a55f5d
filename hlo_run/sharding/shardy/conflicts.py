"""Spreads the axes along each factor to all arrays of an instruction, and decides which axes win a conflict.

Each array gets what fits it; factors of larger arrays come first. XLA runs this strategy of Shardy, the aggressive one, alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum

from hlo_run.hlo.values.mesh import AxisRef, Mesh
from hlo_run.sharding.shardy.axes import (
    Axes,
    contains,
    is_list_prefix,
    is_prefix,
    is_strict_list_prefix,
    prefix_apart,
    sub_axis,
    total_size,
)
from hlo_run.sharding.shardy.projection import ArrayProjection, FactorSharding, Projection


class Direction(IntEnum):
    """The directions in which shardings may move: none, from operands to results, from results to operands, or both."""

    NONE = 0
    FORWARD = 1
    BACKWARD = 2
    BOTH = 3


# Returns the direction along a factor.
Directions = Callable[[int], Direction]


def spread(projection: Projection, directions: Directions, sizes: Sequence[int], mesh: Mesh, is_elementwise: bool) -> None:
    """Give each array the axes of each factor that do not contradict its axes; edits the projection."""
    agreed = [_agreed(projection, factor, directions(factor)) for factor in range(len(sizes))]
    if not any(agreed):
        return
    order = _preferred(projection, agreed, sizes, mesh, is_elementwise)
    for array in projection.results:
        for factor in order:
            if axes := _fitting(array, factor, agreed[factor], sizes[factor], mesh):
                array.expand(factor, axes)
    for array in projection.operands:
        for factor in order:
            axes = _fitting(array, factor, agreed[factor], sizes[factor], mesh)
            if axes and is_elementwise:
                # What the result cannot have is of no use for the other operands.
                for result in projection.results:
                    found = result.factors.get(factor)
                    if found is not None and is_strict_list_prefix(found.axes, axes):
                        axes = found.axes
            if axes:
                array.expand(factor, axes)


def _agreed(projection: Projection, factor: int, direction: Direction) -> Axes:
    """Return the axes along a factor on which all arrays agree; those that receive only can shorten the list."""
    if direction is Direction.NONE:
        return ()
    groups = (projection.operands, projection.results)
    first, second = reversed(groups) if direction is Direction.BACKWARD else groups
    found: Axes = ()
    can_expand = True
    for array in first:
        if (own := array.factors.get(factor)) is not None:
            found, can_expand = _compatible(found, own.axes, can_expand)
    can_expand = can_expand and direction is Direction.BOTH
    for array in second:
        if (own := array.factors.get(factor)) is not None:
            found, can_expand = _compatible(found, own.axes, can_expand)
    return found


def _compatible(old: Axes, new: Axes, can_expand: bool) -> tuple[Axes, bool]:
    """Return the common major part of two lists, with the rest of one if it extends the other, and if more may follow."""
    found: list[AxisRef] = []
    shared = min(len(old), len(new))
    for place in range(shared):
        one, other = old[place], new[place]
        if one == other:
            found.append(one)
        elif one.axis != other.axis:
            return tuple(found), False
        elif is_prefix(other, one):
            if place + 1 < len(new):
                return (*found, other), False
            found.append(one)
        elif is_prefix(one, other):
            if not can_expand or place + 1 < len(old):
                return (*found, one), False
            found.append(other)
        else:
            return tuple(found), False
    found += old[shared:]
    if can_expand:
        found += new[shared:]
    return tuple(found), can_expand


def _truncated(axes: Axes, compatible: Callable[[AxisRef, int], AxisRef | None], mesh: Mesh) -> Axes:
    """Return the axes up to the first that is not compatible, with the part of that one that is."""
    sharded = 1
    for place, ref in enumerate(axes):
        kept = compatible(ref, sharded)
        if kept is None:
            return axes[:place]
        if kept != ref:
            return (*axes[:place], kept)
        sharded *= kept.size(mesh)
    return axes


def _apart_from_others(ref: AxisRef, factors: Mapping[int, FactorSharding], factor: int, mesh: Mesh) -> AxisRef | None:
    """Return the part of an axis that no other factor of the array has."""
    found: AxisRef | None = ref
    for number, other in factors.items():
        if number != factor and (other.axes or other.overflow):
            found = prefix_apart(found, (*other.overflow, *other.axes), mesh)
            if found is None:
                return None
    return found


def _within(ref: AxisRef, array: ArrayProjection, own: FactorSharding, sharded: int, size: int, mesh: Mesh) -> AxisRef | None:
    """Return the part of an axis by which a factor of an array may be divided, after it is divided by `sharded`."""
    found = prefix_apart(ref, (*array.replicated, *array.unreduced), mesh)
    if found is None:
        return None
    if any(contains(one, found) for one in own.axes):
        return found
    if not own.is_closed and not own.overflow:
        if own.is_minor_most:
            return found
        if size % sharded == 0:
            count = found.size(mesh)
            shared = math.gcd(size // sharded, count)
            if shared == count:
                return found
            if shared != 1:
                return sub_axis(mesh, found.axis, found.pre_size, shared)
    if own.axes and is_prefix(own.axes[-1], found):
        return own.axes[-1]
    return None


def _fitting(array: ArrayProjection, factor: int, axes: Axes, size: int, mesh: Mesh) -> Axes:
    """Return the axes that a factor of an array can have in the place of its axes, or ()."""
    own = array.factors.get(factor)
    if own is None or not axes:
        return ()
    axes = _truncated(axes, lambda ref, sharded: _within(ref, array, own, sharded, size, mesh), mesh)
    if not is_strict_list_prefix(own.axes, axes):
        return ()
    return _truncated(axes, lambda ref, _: _apart_from_others(ref, array.factors, factor, mesh), mesh)


def _preferred(
    projection: Projection, agreed: Sequence[Axes], sizes: Sequence[int], mesh: Mesh, is_elementwise: bool
) -> list[int]:
    """Return the factors in the order in which arrays get their axes: those from the largest arrays first."""
    source: list[tuple[int, int]] = [(-1, -1)] * len(sizes)
    for number, array in enumerate(projection.arrays):
        elements = math.prod(sizes[factor] for factor in array.factors)
        for factor, own in array.factors.items():
            if agreed[factor] and is_list_prefix(agreed[factor], own.axes) and elements > source[factor][0]:
                source[factor] = (elements, number)

    def key(factor: int) -> tuple[int, int, int, int]:
        elements, number = source[factor]
        return -elements, -total_size(agreed[factor], mesh) if is_elementwise else 0, number, factor

    return sorted(range(len(sizes)), key=key)
