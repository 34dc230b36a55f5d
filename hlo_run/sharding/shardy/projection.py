"""Shardings of the operands and results of one instruction, seen along the factors of its rule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec import Struct, field

from hlo_run.hlo.values.mesh import AxisRef, Mesh
from hlo_run.hlo.values.sharding import DimSharding, NamedSharding
from hlo_run.sharding.shardy.axes import Axes, appended, is_strict_list_prefix, sub_axis
from hlo_run.sharding.shardy.rule import Mapping, Rule


class FactorSharding(Struct):
    """The axes along one factor of an array.

    `overflow` has axes that no longer fit the factor's size; factors that are minor to it have none then.
    """

    axes: Axes = ()
    is_closed: bool = False
    is_minor_most: bool = False
    overflow: Axes = ()


class ArrayProjection(Struct):
    """The axes of one array along its factors, the replicated and unreduced axes, and whether a factor got more axes."""

    factors: dict[int, FactorSharding]
    replicated: Axes = ()
    unreduced: Axes = ()
    is_changed: bool = False

    def expand(self, factor: int, axes: Axes) -> None:
        """Replace the axes of a factor by `axes` if they begin with them and are more."""
        found = self.factors.get(factor)
        if found is not None and is_strict_list_prefix(found.axes, axes):
            found.axes = axes
            self.is_changed = True

    def sharding(self, mapping: Mapping, sizes: Sequence[int], mesh: Mesh) -> NamedSharding:
        """Return the sharding of the array."""
        dims: list[DimSharding] = []
        for numbers in mapping:
            is_closed = False
            axes: Axes = ()
            for number in numbers:
                found = self.factors[number]
                is_closed |= found.is_closed
                axes, count = _joined(axes, found.axes, mesh)
                if found.overflow:
                    axes, _ = _joined(axes, found.overflow, mesh)
                    break
                if count < sizes[number]:
                    break
            dims.append(DimSharding(axes, is_closed))
        return NamedSharding(mesh, tuple(dims), self.replicated, self.unreduced)


class Projection(Struct):
    """The arrays of one instruction along its factors."""

    operands: list[ArrayProjection] = field(default_factory=list[ArrayProjection])
    results: list[ArrayProjection] = field(default_factory=list[ArrayProjection])

    @property
    def arrays(self) -> list[ArrayProjection]:
        """The operands, then the results."""
        return self.operands + self.results


def project(
    rule: Rule,
    operands: Sequence[NamedSharding | None],
    results: Sequence[NamedSharding | None],
    mesh: Mesh,
    is_closed: bool = False,
) -> Projection:
    """Return the shardings along the factors of a rule; `is_closed` tells whether dimensions without a sharding are closed."""
    pairs = (
        [_array(mapping, sharding, rule.sizes, mesh, is_closed) for mapping, sharding in zip(mappings, shardings, strict=True)]
        for mappings, shardings in ((rule.operands, operands), (rule.results, results))
    )
    return Projection(*pairs)


def _joined(axes: Axes, more: Axes, mesh: Mesh) -> tuple[Axes, int]:
    """Return the axes with more, and the number of devices along the additional ones."""
    if not more:
        return axes, 1
    return (*appended(axes, more[0], mesh), *more[1:]), math.prod(ref.size(mesh) for ref in more)


class _Supply:
    """The axes of a dimension that its factors have not taken yet."""

    def __init__(self, axes: Axes, mesh: Mesh) -> None:
        self._mesh = mesh
        self._axes: Iterator[AxisRef] = iter(axes)
        self.next = next(self._axes, None)

    def take(self, size: int) -> AxisRef:
        """Take the major part of this size from the next axis."""
        ref = self.next
        assert ref is not None, "an axis is left"
        full = ref.size(self._mesh)
        if size == full:
            self.next = next(self._axes, None)
            return ref
        self.next = sub_axis(self._mesh, ref.axis, ref.pre_size * size, full // size)
        return sub_axis(self._mesh, ref.axis, ref.pre_size, size)

    def rest(self) -> Axes:
        """Take all that is left."""
        found: Axes = ()
        while self.next is not None:
            found = appended(found, self.take(self.next.size(self._mesh)), self._mesh)
        return found


def _array(
    mapping: Mapping, sharding: NamedSharding | None, sizes: Sequence[int], mesh: Mesh, is_closed: bool
) -> ArrayProjection:
    factors: dict[int, FactorSharding] = {}
    for dim, numbers in enumerate(mapping):
        given = sharding.dims[dim] if sharding is not None else DimSharding((), is_closed)
        supply = _Supply(given.axes, mesh)
        for number in numbers:
            is_last = number == numbers[-1]
            found = factors.setdefault(number, FactorSharding())
            found.is_closed, found.is_minor_most = given.is_closed, is_last
            if is_last:
                found.axes = (*found.axes, *supply.rest())
                break
            left = sizes[number]
            while supply.next is not None:
                size = supply.next.size(mesh)
                shared = math.gcd(left, size)
                if size != 1 and shared == 1:
                    break
                found.axes = (*found.axes, supply.take(shared))
                left //= shared
            if left > 1 and supply.next is not None:
                found.overflow = supply.rest()
                after = numbers[numbers.index(number) + 1]
                factors[after] = FactorSharding(is_closed=True, is_minor_most=after == numbers[-1])
                break
    if sharding is None:
        return ArrayProjection(factors)
    return ArrayProjection(factors, sharding.replicated, sharding.unreduced)
