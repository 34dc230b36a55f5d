"""Lists of axes and sub-axes of a mesh, from major to minor: prefixes, overlaps and merges."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from hlo_run.hlo.values.mesh import AxisRef, Mesh

Axes = tuple[AxisRef, ...]


def sub_axis(mesh: Mesh, axis: int, pre_size: int, size: int) -> AxisRef:
    """Return the part of an axis after `pre_size` major devices, with `size` devices, or the whole axis if that is it."""
    if pre_size == 1 and size == mesh.axes[axis][1]:
        return AxisRef(axis)
    return AxisRef(axis, pre_size, size)


def total_size(axes: Iterable[AxisRef], mesh: Mesh) -> int:
    """Return the number of devices along all the axes together."""
    return math.prod(ref.size(mesh) for ref in axes)


def contains(outer: AxisRef, inner: AxisRef) -> bool:
    """True if `inner` is the axis `outer` or a part of it."""
    if outer.axis != inner.axis:
        return False
    if outer.next_pre_size is None:
        return True
    return inner.next_pre_size is not None and outer.pre_size <= inner.pre_size and inner.next_pre_size <= outer.next_pre_size


def is_prefix(first: AxisRef, second: AxisRef) -> bool:
    """True if `first` is the major part of `second`, or all of it."""
    return contains(second, first) and first.pre_size == second.pre_size


def can_merge(major: AxisRef, minor: AxisRef) -> bool:
    """True if the two sub-axes are neighbours, so that they are one larger part of their axis."""
    return major.axis == minor.axis and major.next_pre_size is not None and major.next_pre_size == minor.pre_size


def merged(major: AxisRef, minor: AxisRef, mesh: Mesh) -> AxisRef:
    """Return the part of the axis that two neighbours form together."""
    return sub_axis(mesh, major.axis, major.pre_size, major.size(mesh) * minor.size(mesh))


def appended(axes: Axes, ref: AxisRef, mesh: Mesh) -> Axes:
    """Return the axes with one more, merged with the last one if they are neighbours."""
    if axes and can_merge(axes[-1], ref):
        return (*axes[:-1], merged(axes[-1], ref, mesh))
    return (*axes, ref)


def in_mesh_order(axes: Iterable[AxisRef], mesh: Mesh) -> Axes:
    """Return a set of axes in the order of the mesh, with neighbours merged."""
    found: Axes = ()
    for ref in sorted(axes, key=lambda ref: (ref.axis, ref.pre_size)):
        found = appended(found, ref, mesh)
    return found


def difference(axes: Iterable[AxisRef], others: Sequence[AxisRef], mesh: Mesh) -> Axes:
    """Return the parts of a set of axes that none of the others has, in the order of the mesh."""
    found: list[AxisRef] = []
    for ref in axes:
        end = ref.pre_size * ref.size(mesh)
        same = [other for other in others if other.axis == ref.axis]
        borders = {border for other in same for border in (other.pre_size, other.pre_size * other.size(mesh))}
        cuts = sorted({ref.pre_size, end, *(border for border in borders if ref.pre_size < border < end)})
        pieces = (sub_axis(mesh, ref.axis, low, high // low) for low, high in itertools.pairwise(cuts))
        found += [piece for piece in pieces if not any(contains(other, piece) for other in same)]
    return in_mesh_order(found, mesh)


def _can_coexist(one: AxisRef, other: AxisRef) -> bool:
    """True if both may be cut from one axis: their borders divide each other."""
    if one.axis != other.axis or one.next_pre_size is None or other.next_pre_size is None:
        return True
    low_pre, high_pre = sorted((one.pre_size, other.pre_size))
    low_next, high_next = sorted((one.next_pre_size, other.next_pre_size))
    if low_next > high_pre:  # they overlap
        return low_next % high_pre == 0 and high_pre % low_pre == 0 and high_next % low_next == 0
    return high_pre % low_next == 0


def _overlap(one: AxisRef, other: AxisRef) -> bool:
    if one.axis != other.axis:
        return False
    if one.next_pre_size is None or other.next_pre_size is None:
        return True
    return one.pre_size < other.next_pre_size and other.pre_size < one.next_pre_size


def prefix_apart(ref: AxisRef, others: Iterable[AxisRef], mesh: Mesh) -> AxisRef | None:
    """Return the largest major part of `ref` that overlaps none of the others, or None."""
    for other in others:
        if other.axis != ref.axis:
            continue
        if not _can_coexist(ref, other):
            return None
        if not _overlap(ref, other):
            continue
        if ref.pre_size >= other.pre_size:
            return None
        ref = sub_axis(mesh, ref.axis, ref.pre_size, other.pre_size // ref.pre_size)
    return ref


def is_list_prefix(first: Sequence[AxisRef], second: Sequence[AxisRef]) -> bool:
    """True if `first` is the major part of the list `second`, or all of it."""
    if not first:
        return True
    if len(first) > len(second):
        return False
    last = len(first) - 1
    return tuple(first[:last]) == tuple(second[:last]) and is_prefix(first[last], second[last])


def is_strict_list_prefix(first: Sequence[AxisRef], second: Sequence[AxisRef]) -> bool:
    """True if `first` is the major part of the list `second`, and not all of it."""
    return is_list_prefix(first, second) and tuple(first) != tuple(second)
