"""Reshards that Shardy inserts after the propagation, before GSPMD's partitioner: around some instructions and after products.

A concatenation whose operands are not all divided like its result gets operands and a result that are divided in one way, and so
does a ragged product. A product whose result is divided by the axes of the contracted dimension, instead of those of an operand,
is made in the operands' division first, if the result is not larger than the operand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from hlo_run.hlo.values.mesh import AxisRef, Mesh
from hlo_run.hlo.values.sharding import NamedSharding
from hlo_run.sharding.shardy.annotations import all_dims
from hlo_run.sharding.shardy.axes import Axes, appended, is_strict_list_prefix, prefix_apart, total_size
from hlo_run.sharding.shardy.graph import Node
from hlo_run.sharding.shardy.projection import ArrayProjection, Projection, project
from hlo_run.sharding.shardy.rule import Kind, Rule

_PRECEDENCE = {Kind.PASS: 3, Kind.REDUCTION: 2, Kind.PERMUTE: 1, Kind.REPLICATE: 0}


class Reshards(Struct, frozen=True):
    """The division of one instruction, where it differs from its values': shardings of operands, by number, and of the result."""

    operands: dict[int, NamedSharding]
    result: NamedSharding | None


def reshards_of(node: Node) -> Reshards | None:
    """Return the reshards around the instruction of a node, or None if it needs none."""
    instruction = node.instruction
    if instruction is None or instruction.opcode not in ("concatenate", "dot", "ragged-dot"):
        return None
    shardings = [value.place.sharding for value in (*node.operands, *node.results)]
    mesh = next((sharding.mesh for sharding in shardings if sharding is not None and sharding.mesh.axes), None)
    if mesh is None:
        return None
    # A mesh without axes divides nothing: any other mesh can do that.
    shardings = [
        all_dims(mesh, len(sharding.dims), is_closed=True) if sharding is not None and sharding.mesh == Mesh(()) else sharding
        for sharding in shardings
    ]
    if any(sharding is not None and sharding.mesh != mesh for sharding in shardings):
        return None
    projection = project(node.rule, shardings[:-1], shardings[-1:], mesh, is_closed=True)
    if instruction.opcode == "dot":
        return _after_dot(node, projection, mesh) if shardings[-1] is not None else None
    if instruction.opcode == "concatenate" and all(sharding == shardings[-1] for sharding in shardings[:-1]):
        return None
    sizes = [math.prod(value.dims) for value in (*node.operands, *node.results)]
    return _around(node, projection, shardings, _common_axes(node.rule, projection, sizes, mesh), mesh)


def _around(
    node: Node, projection: Projection, shardings: Sequence[NamedSharding | None], common: Sequence[Axes], mesh: Mesh
) -> Reshards | None:
    """Return the reshards that give all arrays the common axes of each factor."""
    made: dict[int, NamedSharding] = {}
    mappings = (*node.rule.operands, *node.rule.results)
    for number, (array, mapping) in enumerate(zip(projection.arrays, mappings, strict=True)):
        is_new = False
        for factor, own in array.factors.items():
            is_new |= own.axes != common[factor] or bool(own.overflow)
            own.axes, own.overflow = common[factor], ()
        if is_new:
            made[number] = array.sharding(mapping, node.rule.sizes, mesh)
    result = made.pop(len(node.operands), None)
    if result is not None and shardings[-1] is None:
        shardings = [*shardings[:-1], all_dims(mesh, len(node.results[0].dims), is_closed=True)]
        node.results[0].place.sharding = shardings[-1]
    return Reshards(made, result) if made or result is not None else None


def _common_axes(rule: Rule, projection: Projection, sizes: Sequence[int], mesh: Mesh) -> list[Axes]:
    """Return the axes of each factor by which all arrays can be divided; the factors of the largest arrays get theirs first."""
    compatible = _compatible(rule, projection, mesh)
    if compatible is not None:
        return compatible
    found: list[Axes] = [()] * len(rule.sizes)
    candidates: dict[tuple[int, Axes], int] = {}
    pairs = [
        (factor, own.axes, size)
        for array, size in zip(projection.arrays, sizes, strict=True)
        for factor, own in array.factors.items()
    ]
    for factor, axes, _ in pairs:
        for count in range(1, len(axes) + 1):
            candidates[factor, axes[:count]] = 0
    for (factor, axes), _ in list(candidates.items()):
        for other, source, size in pairs:
            if other == factor and (source == axes or is_strict_list_prefix(axes, source)):
                candidates[factor, axes] += size
    waiting = [(total, factor, axes) for (factor, axes), total in candidates.items()]
    while waiting:

        def key(candidate: tuple[int, int, Axes]) -> tuple[int, int, int, int, int, list[tuple[int, int]]]:
            total, factor, axes = candidate
            more = total_size(axes, mesh) // total_size(found[factor], mesh)
            names = [(ref.axis, ref.pre_size) for ref in axes]
            return total, _PRECEDENCE[rule.kinds[factor]], more, factor, len(axes), names

        _, best, chosen = max(waiting, key=key)
        found[best] = chosen
        left: list[tuple[int, int, Axes]] = []
        for total, factor, axes in waiting:
            if factor == best:
                if is_strict_list_prefix(chosen, axes):
                    left.append((total, factor, axes))
                continue
            kept = _apart(axes, chosen, mesh)
            if kept == axes or kept != found[factor]:
                left.append((total, factor, kept))
        waiting = left
    _spread_replicated(rule, projection, found, mesh)
    return found


def _compatible(rule: Rule, projection: Projection, mesh: Mesh) -> list[Axes] | None:
    """Return the axes of each factor if all arrays agree already, and no factor that needs replication has any."""
    found: list[Axes] = []
    seen: list[AxisRef] = []
    for factor, kind in enumerate(rule.kinds):
        lists = {array.factors[factor].axes for array in projection.arrays if factor in array.factors}
        if len(lists) > 1:
            return None
        axes = next(iter(lists), ())
        if kind is Kind.REPLICATE and axes:
            return None
        if any(prefix_apart(ref, seen, mesh) != ref for ref in axes):
            return None
        found.append(axes)
        seen += axes
    return found


def _apart(axes: Axes, taken: Axes, mesh: Mesh) -> Axes:
    """Return the leading axes that overlap none of those taken."""
    for place, ref in enumerate(axes):
        kept = prefix_apart(ref, taken, mesh)
        if kept != ref:
            return (*axes[:place], kept) if kept is not None else axes[:place]
    return axes


def _spread_replicated(rule: Rule, projection: Projection, found: list[Axes], mesh: Mesh) -> None:
    """Let other dimensions of all arrays have the axes of factors that need replication, as far as they divide them."""
    arrays = [array for array in projection.arrays if array.factors]
    everywhere = [factor for factor in range(len(rule.sizes)) if all(factor in array.factors for array in arrays)]
    for factor in [factor for factor, kind in enumerate(rule.kinds) if kind is Kind.REPLICATE]:
        waiting = list(found[factor])
        found[factor] = ()
        if factor not in everywhere:
            continue
        for other in [other for other in everywhere if rule.passes(other)]:
            size, count = rule.sizes[other], total_size(found[other], mesh)
            if size == 0 or size % count:
                continue
            room = size // count
            while waiting and room % waiting[0].size(mesh) == 0:
                room //= waiting[0].size(mesh)
                found[other] = appended(found[other], waiting.pop(0), mesh)


def _after_dot(node: Node, projection: Projection, mesh: Mesh) -> Reshards | None:
    left, right = projection.operands
    result = projection.results[0]
    sizes = [math.prod(value.dims) for value in node.operands]
    found = _conflict(node.rule, left, right, result, sizes, math.prod(node.results[0].dims))
    if found is None:
        return None
    factor, reduced = found
    own = result.factors[factor]
    if not own.axes or own.axes != reduced:
        return None
    own.axes = (left.factors.get(factor) or right.factors[factor]).axes
    return Reshards({}, result.sharding(node.rule.results[0], node.rule.sizes, mesh))


def _conflict(
    rule: Rule, left: ArrayProjection, right: ArrayProjection, result: ArrayProjection, sizes: Sequence[int], size: int
) -> tuple[int, Axes] | None:
    """Return the only factor along which the result differs from an operand, and the axes of the contracted dimensions."""
    found: int | None = None
    reduced: Axes = ()
    free: list[AxisRef] = []
    for factor in range(len(rule.sizes)):
        one, other = left.factors.get(factor), right.factors.get(factor)
        if one is not None and other is not None:
            if one.axes != other.axes:
                return None
            if rule.kinds[factor] is Kind.REDUCTION:
                reduced += one.axes
                continue
            axes, largest = one.axes, max(sizes)
        else:
            own = one or other
            if own is None:
                continue
            axes, largest = own.axes, sizes[0] if one is not None else sizes[1]
            for ref in axes:
                if any(ref.overlaps(seen) for seen in free):
                    return None
                free.append(ref)
        if result.factors[factor].axes != axes:
            if not axes or found is not None or size > largest:
                return None
            found = factor
    return (found, reduced) if found is not None else None
