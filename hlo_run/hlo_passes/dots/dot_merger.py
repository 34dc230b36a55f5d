"""Merge dots that share an operand into one dot.

    x = f32[8,4] dot(a, b);  y = f32[8,6] dot(a, c)   =>   m = f32[8,10] dot(a, concatenate(b, c));  x, y = slices of m

    y = f32[6,8] dot(c, transpose(a))                 =>   as dot(a, transpose(c)), if both are plain products of matrices

The other operands must have one free dimension each, the dots one queue and no control dependencies. No dot may depend on
another, and at least one of two merged results must not be larger than 64 MiB. XLA's `DotMerger` as released; newer ones also
merge other dots whose shared operand was reshaped or transposed.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any, ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Layout
from hlo_run.hlo.views.dots import dot_side
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace

_QUEUE = re.compile(r'"operation_queue_id":"?(\d+)')


class DotMerger(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "dot-merger"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        most_bytes = ctx.options.xla_gpu_dot_merger_threshold_mb << 20
        computations = dict.fromkeys(dot.parent for dot in module.instructions_of("dot") if dot.parent is not None)
        for computation in computations:
            _merge_all(module, computation, most_bytes)


class _Cluster(Struct, frozen=True):
    """Two or more dots that may be merged, and which of the operands each shares: 0 or 1."""

    dots: list[HloInstruction]
    shared: dict[HloInstruction, int]


def _merge_all(module: HloModule, computation: HloComputation, most_bytes: int) -> None:
    """Merge the dots of a computation that share an operand."""
    clusters = _clusters(computation, most_bytes)
    while clusters:
        # Two clusters may each be valid but form a cycle together: then merge one and search again.
        chosen = clusters if _has_order(computation, clusters) else clusters[:1]
        replaced: list[HloInstruction] = []
        for cluster in chosen:
            merged, shared = cluster.dots[0], cluster.shared[cluster.dots[0]]
            for dot in cluster.dots[1:]:
                replaced += [merged, dot]
                if shared == cluster.shared[dot]:
                    merged = _merge(module, merged, dot, shared)
                else:
                    one, two = (merged, dot) if shared == 0 else (dot, merged)
                    merged, shared = _merge_turned(module, one, two), 0
        remove_unused(replaced)
        clusters = _clusters(computation, most_bytes) if len(chosen) < len(clusters) else []


def _clusters(computation: HloComputation, most_bytes: int) -> list[_Cluster]:
    """Return the sets of dots to merge, in the order of creation of the shared operands."""
    groups: dict[Hashable, _Cluster] = {}
    ordered = {predecessor for i in computation.instructions for predecessor in i.control_predecessors}
    for dot in [i for i in computation.instructions if i.opcode == "dot"]:
        if dot.control_predecessors or dot in ordered or dot.operands[0] is dot.operands[1]:
            continue
        for shared in (0, 1):
            group = groups.setdefault(_key(dot, shared), _Cluster([], {}))
            if dot not in group.shared:
                group.dots.append(dot)
                group.shared[dot] = shared
    candidates = [group for group in groups.values() if len(group.dots) > 1]
    if not candidates:
        return []
    places = {instruction: place for place, instruction in enumerate(computation.instructions)}
    candidates.sort(key=lambda group: places[group.dots[0].operands[group.shared[group.dots[0]]]])
    needs = _needs(computation, list(dict.fromkeys(dot for group in candidates for dot in group.dots)))
    clusters: list[_Cluster] = []
    merged = 0
    for group in candidates:
        left = sum(needs.bit[dot] for dot in group.dots) & ~merged
        while left:
            cluster = _independent(left, needs, most_bytes)
            bits = sum(needs.bit[dot] for dot in cluster)
            left &= ~bits
            if len(cluster) > 1:
                clusters.append(_Cluster(cluster, group.shared))
                merged |= bits
    return clusters


class _Needs(Struct, frozen=True):
    """Bit masks of `dots`: `bit` is a dot's own bit, `related` has the dots that it depends on or that depend on it."""

    dots: list[HloInstruction]
    bit: dict[HloInstruction, int]
    related: dict[HloInstruction, int]


def _needs(computation: HloComputation, dots: list[HloInstruction]) -> _Needs:
    """Return the dependencies between dots, direct or not, by one walk over the computation in each direction."""
    found = _Needs(dots, {dot: 1 << number for number, dot in enumerate(dots)}, dict.fromkeys(dots, 0))
    order = computation.post_order() if dots else []
    needed: dict[HloInstruction, int] = {}
    needing = dict.fromkeys(order, 0)
    for instruction in order:
        bits = 0
        for operand in (*instruction.operands, *instruction.control_predecessors):
            bits |= needed[operand]
        if instruction in found.bit:
            found.related[instruction] = bits
            bits |= found.bit[instruction]
        needed[instruction] = bits
    for instruction in reversed(order):
        bits = needing[instruction]
        if instruction in found.bit:
            found.related[instruction] |= bits
            bits |= found.bit[instruction]
        for operand in (*instruction.operands, *instruction.control_predecessors):
            needing[operand] |= bits
    return found


def _has_order(computation: HloComputation, clusters: list[_Cluster]) -> bool:
    """Return True if the instructions have an order in which each cluster is one instruction."""
    leader = {dot: cluster.dots[0] for cluster in clusters for dot in cluster.dots}
    left: dict[HloInstruction, int] = {}
    users: dict[HloInstruction, list[HloInstruction]] = {}
    for instruction in computation.instructions:
        node = leader.get(instruction, instruction)
        sources = [leader.get(o, o) for o in (*instruction.operands, *instruction.control_predecessors)]
        left[node] = left.get(node, 0) + len(sources)
        for source in sources:
            users.setdefault(source, []).append(node)
    ready = [node for node, count in left.items() if not count]
    for node in ready:  # grows while we walk
        for user in users.get(node, ()):
            left[user] -= 1
            if not left[user]:
                ready.append(user)
    return len(ready) == len(left)


def _key(dot: HloInstruction, shared: int) -> Hashable:
    """Return a key that is equal for dots that may be merged, and unique for a dot that may not."""
    ours, theirs = dot_side(dot, shared), dot_side(dot, 1 - shared)
    other = dot.operands[1 - shared].shape
    if len(theirs.free) != 1 or 0 in other.dims or any(other.dynamic_dims) or dot.operands[shared].opcode == "constant":
        return dot
    kept = tuple((name, repr(dot.attrs[name])) for name in ("operand_precision", "algorithm") if name in dot.attrs)
    rest = _queue(dot), other.element_type, dot.shape.element_type, kept
    if _is_plain(dot):
        source = dot.operands[shared]
        is_turned = source.opcode == "transpose"
        return (source.operands[0] if is_turned else source), is_turned == (shared == 0), *rest
    return shared, dot.operands[shared], ours, theirs, *rest


def _is_plain(dot: HloInstruction) -> bool:
    """Return True for a product of two matrices that are not transposed."""
    ours, theirs = dot_side(dot, 0), dot_side(dot, 1)
    return (ours.free, ours.contracting, theirs.contracting, theirs.free) == ((0,), (1,), (0,), (1,))


def _queue(dot: HloInstruction) -> str:
    """Return the number of the stream on which the product shall run, as its config writes it."""
    config = dot.attrs.get("backend_config", "")
    found = _QUEUE.search(str(config)) if config else None
    return found[1] if found is not None else "0"


def _independent(left: int, needs: _Needs, most_bytes: int) -> list[HloInstruction]:
    """Return the first of the remaining dots, and those that do not depend on each other or make the result too large."""
    cluster: list[HloInstruction] = []
    while left:
        lowest = left & -left
        dot = needs.dots[lowest.bit_length() - 1]
        left &= ~lowest
        if not cluster or min(cluster[0].shape.size_bytes, dot.shape.size_bytes) <= most_bytes:
            cluster.append(dot)
            left &= ~needs.related[dot]
    return cluster


def _merge_turned(module: HloModule, one: HloInstruction, two: HloInstruction) -> HloInstruction:
    """Merge x = dot(a, b) and y = dot(c, transpose(a)), which is transpose(dot(a, transpose(c))); return the new dot."""
    editor, other = Editor(one), two.operands[0]
    turned = Editor(other).transpose_view(other, (1, 0))
    joined = Editor(one.operands[1]).concatenate([one.operands[1], turned], 1)
    rows, middle = one.shape.dims
    end = middle + two.shape.dims[0]
    attributes: dict[str, Any] = {name: value for name, value in one.attrs.items() if name not in ("metadata", "sharding")}
    merged = editor.add("dot", replace(one.shape, dims=(rows, end)), [one.operands[0], joined], **attributes)
    module.replace_uses(one, editor.slice(merged, [0, 0], [rows, middle]))
    part = replace(two.shape, dims=(rows, end - middle), layout=Layout(two.shape.minor_to_major[::-1]))
    own = Editor(two).add("slice", part, [merged], slice=((0, rows, 1), (middle, end, 1)))
    module.replace_uses(two, Editor(two).transpose_view(own, (1, 0)))
    return merged


def _merge(module: HloModule, one: HloInstruction, two: HloInstruction, shared: int) -> HloInstruction:
    """Replace the uses of two dots by slices of a new one, which is returned."""
    editor, side = Editor(one), dot_side(one, 1 - shared)
    others = [one.operands[1 - shared], two.operands[1 - shared]]
    joined = Editor(others[0]).concatenate(others, side.free[0])
    operands = [one.operands[0], joined] if shared == 0 else [joined, one.operands[1]]
    dim = one.shape.rank - 1 if shared == 0 else len(side.batch)
    middle, end = one.shape.dims[dim], one.shape.dims[dim] + two.shape.dims[dim]
    dims = tuple(end if d == dim else size for d, size in enumerate(one.shape.dims))
    attributes: dict[str, Any] = {name: value for name, value in one.attrs.items() if name not in ("metadata", "sharding")}
    merged = editor.add("dot", replace(one.shape, dims=dims), operands, **attributes)
    starts, limits = [0] * len(dims), list(dims)
    module.replace_uses(one, editor.slice(merged, starts, [middle if d == dim else size for d, size in enumerate(dims)]))
    starts[dim] = middle
    module.replace_uses(two, Editor(two).slice(merged, starts, limits))
    return merged
