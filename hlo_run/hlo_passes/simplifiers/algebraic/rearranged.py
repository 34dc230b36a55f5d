"""Algebraic rules of compositions of reshapes, transposes, broadcasts and reverses, before layout assignment."""

from __future__ import annotations

from itertools import pairwise

from hlo_run.analysis.bitcast_kind import common_groups
from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.views.slices import DynamicSlice
from hlo_run.hlo_passes.simplifiers.algebraic.rule import Rewriter, Rules

# The maximum length of a chain of reshapes and transposes.
_LONGEST = 8
# The maximum number of slices that replace a transpose.
_MOST_CHUNKS = 5


def chain_of_nothing(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reshape(transpose(reshape(A))) => A if all only permute, add and remove size-1 dimensions, and their composition is A."""
    order = _transposed_dims(i)
    value, steps = i.operands[0], 0
    while order is not None and value.opcode in ("reshape", "transpose") and steps < _LONGEST:
        inner = _transposed_dims(value)
        if inner is None:
            return None
        order, value, steps = [inner[d] for d in order], value.operands[0], steps + 1
        if order == sorted(order) and value.shape.dims == i.shape.dims:
            return value
    return None


def _transposed_dims(i: HloInstruction) -> list[int] | None:
    """Return for each result dimension > 1 the number of the operand's (among those > 1); None if some are split or merged."""
    before, after = i.operands[0].shape.dims, i.shape.dims
    large = [d for d, size in enumerate(before) if size != 1]
    if i.opcode == "transpose":
        return [large.index(d) for d in i.dimensions if before[d] != 1]
    return list(range(len(large))) if [before[d] for d in large] == [size for size in after if size != 1] else None


def reshape_of_transposed_reshape(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reshape(transpose(reshape(A))) => transpose(reshape(A)) if the dimensions merged by the outer reshape were adjacent."""
    transpose = i.operands[0]
    if transpose.opcode != "transpose" or transpose.operands[0].opcode != "reshape" or 0 in i.shape.dims:
        return None
    order = transpose.dimensions
    runs = _joined_runs(transpose.shape.dims, i.shape.dims)
    if runs is None or any(order[b] != order[a] + 1 for run in runs for a, b in pairwise(run)):
        return None
    starts = [order[run[0]] for run in runs]
    ranks = sorted(range(len(runs)), key=lambda n: starts[n])
    source = transpose.operands[0].operands[0]
    shape = Shape.array(i.shape.element_type, tuple(i.shape.dims[n] for n in ranks))
    permutation = tuple(ranks.index(n) for n in range(len(runs)))
    return rw.add("transpose", i.shape, [rw.add("reshape", shape, [source])], dimensions=permutation)


def reshape_of_moved_chunks(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reshape(transpose(reshape f32[8,14,14,2,64] (A))) => reshape(concatenate(slice(A), slice(A))).

    The inner reshape splits one dimension into a few chunks, the transpose moves their number alone, and the outer reshape merges
    it with the dimension before it.
    """
    transpose = i.operands[0]
    if transpose.opcode != "transpose" or len(transpose.users) > 1 or transpose.operands[0].opcode != "reshape":
        return None
    split = transpose.operands[0]
    source = split.operands[0]
    before, parts = source.shape.dims, split.shape.dims
    if len(parts) != len(before) + 1 or 0 in parts:
        return None
    dim = next((d for d in range(len(before)) if parts[d] != before[d]), None)
    if dim is None or parts[dim] * parts[dim + 1] != before[dim] or parts[dim + 2 :] != before[dim + 1 :]:
        return None
    order, chunks = list(transpose.dimensions), parts[dim]
    place = order.index(dim)
    if chunks > _MOST_CHUNKS or not 0 < place < len(before) or place in (dim, dim + 1):
        return None
    merged = list(before)
    merged[dim] //= chunks
    # Where the transpose puts the number of chunks, counted without it, the outer reshape multiplies the dimension before.
    merged[place - 1] *= chunks
    if [d for d in order if d != dim] != [d for d in range(len(parts)) if d != dim] or i.shape.dims != tuple(merged):
        return None
    size = parts[dim + 1]
    slices = [
        rw.slice(
            source,
            [n * size if d == dim else 0 for d in range(len(before))],
            [(n + 1) * size if d == dim else s for d, s in enumerate(before)],
        )
        for n in range(chunks)
    ]
    return rw.reshape(rw.concatenate(slices, place), i.shape.dims)


def _joined_runs(before: tuple[int, ...], after: tuple[int, ...]) -> list[list[int]] | None:
    """Return for each new dimension the adjacent old ones that it merges; None if the reshape does more than merge.

    As in XLA, an old dimension of size 1 that no larger new dimension takes counts as removed, which is more than merging.
    """
    runs: list[list[int]] = []
    i = j = 0
    while i < min(len(after), len(before)) and after[i] == before[i]:
        runs.append([i])
        i = j = i + 1
    one = two = 1
    start_i, start_j = i, j
    while i < len(after) or j < len(before):
        new, old = (after[i] if i < len(after) else 0), (before[j] if j < len(before) else 0)
        takes_new = one < two or (i < len(after) and (j == len(before) or (one == two and new <= old)))
        takes_old = two < one or (j < len(before) and (i == len(after) or (one == two and old <= new)))
        if takes_new:
            one, i = one * new, i + 1
        if takes_old:
            two, j = two * old, j + 1
        if one == two:
            if i - start_i != 1 or j == start_j:
                return None
            runs.append(list(range(start_j, j)))
            start_i, start_j = i, j
    return runs or None


def reshape_of_counting(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reshape s32[2,3] (iota[6]) => iota along 1 + iota along 0 * 3."""
    inner = i.operands[0]
    if inner.opcode != "iota" or 0 in i.shape.dims:
        return None
    dim = inner.iota_dimension
    groups = common_groups(inner.shape.dims, i.shape.dims)
    new = next((theirs for ours, theirs in groups if ours == [dim]), None)
    if new is None:
        return None
    total, stride = rw.add("iota", i.shape, iota_dimension=new[-1]), i.shape.dims[new[-1]]
    for d in reversed(new[:-1]):
        part = rw.mul(rw.add("iota", i.shape, iota_dimension=d), rw.splat(stride, i.shape))
        total, stride = rw.binary("add", total, part), stride * i.shape.dims[d]
    return total


def reshape_of_update(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reshape(dynamic-update-slice(A, B, at)) => dynamic-update-slice(reshape(A), reshape(B), at').

    Only if the reshape adds or removes dimensions of size 1 and the update has no other users.
    """
    update = i.operands[0]
    if update.opcode != "dynamic-update-slice" or len(update.users) > 1:
        return None
    view = DynamicSlice.of(update)
    if not view.starts or not view.has_scalar_starts:
        return None
    places = _places_of_ones(update.shape.dims, i.shape.dims)
    if places is None or "sharding" in update.attrs or "sharding" in view.whole.attrs:
        return None
    dims = [1 if d is None else view.sizes[d] for d in places]
    zero = rw.constant(0, view.starts[0].shape.element_type)
    at = [zero if d is None else view.starts[d] for d in places]
    return rw.like(update, [rw.reshape(view.whole, i.shape.dims), rw.reshape(view.part, dims), *at], i.shape)


def _places_of_ones(before: tuple[int, ...], after: tuple[int, ...]) -> list[int | None] | None:
    """Return for each new dimension the old one, None if it was added; None if a reshape does more than add and remove ones."""
    if [size for size in before if size != 1] != [size for size in after if size != 1] or before == after:
        return None
    large = iter([d for d, size in enumerate(before) if size != 1])
    return [None if size == 1 else next(large) for size in after]


def broadcast_of_ones(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """broadcast(f32[5,1] A) => broadcast(reshape f32[5] (A))."""
    value = i.operands[0]
    kept = [d for d, size in enumerate(value.shape.dims) if size != 1]
    if len(kept) == value.shape.rank:
        return None
    narrow = rw.at(value).reshape(value, [value.shape.dims[d] for d in kept])
    return rw.add("broadcast", i.shape, [narrow], dimensions=tuple(i.dimensions[d] for d in kept))


def reverse_twice(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reverse(reverse(A)) => reverse(A) along the dimensions that exactly one of them has."""
    inner = i.operands[0]
    if inner.opcode != "reverse":
        return None
    once = sorted(set(i.dimensions) ^ set(inner.dimensions))
    return rw.add("reverse", i.shape, inner.operands, dimensions=tuple(once)) if once else inner.operands[0]


def reverse_before_constant(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reverse(A + broadcast(scalar)) => reverse(A) + broadcast(scalar)."""
    inner = i.operands[0]
    if len(inner.operands) != 2 or not is_elementwise(inner) or inner.opcode in ("map", "compare"):
        return None
    for other, value in (inner.operands, inner.operands[::-1]):
        if other.opcode == "broadcast" and not other.operands[0].shape.dims:
            reverse = rw.add("reverse", value.shape, [value], dimensions=i.dimensions)
            return rw.like(inner, [other, reverse] if other is inner.operands[0] else [reverse, other])
    return None


def reverse_of_added_ones(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reverse(reshape(A)) => reshape(reverse(A)) if the reshape only adds dimensions of size 1."""
    inner = i.operands[0]
    if inner.opcode != "reshape":
        return None
    source = inner.operands[0]
    kept = [d for d, size in enumerate(inner.shape.dims) if size != 1]
    if tuple(inner.shape.dims[d] for d in kept) != source.shape.dims or source.shape.rank == inner.shape.rank:
        return None
    dims = tuple(kept.index(d) for d in i.dimensions if d in kept)
    reverse = rw.add("reverse", source.shape, [source], dimensions=dims) if dims else source
    return rw.reshape(reverse, i.shape.dims)


def shuffle_twice(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """shuffle(shuffle(A)) => shuffle(A) along the dimensions of both, by the sums of the shifts."""
    inner = i.operands[0]
    one, two = _shifts(i), _shifts(inner) if inner.opcode == "shuffle" else None
    if one is None or two is None:
        return None
    return _shuffled(rw, i, inner.operands[0], {dim: one.get(dim, 0) + two.get(dim, 0) for dim in (*two, *one)})


def shuffle_without_effect(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """shuffle(A) => A, or a shuffle along fewer dimensions: without whole rotations and rotations of equal elements."""
    value, given = i.operands[0], _shifts(i)
    if given is None:
        return None
    same = set(range(i.shape.rank)) - set(value.dimensions) if value.opcode == "broadcast" else set[int]()
    shifts = _least({dim: shift for dim, shift in given.items() if dim not in same}, i.shape.dims)
    return None if shifts and [*shifts.items()] == [*given.items()] else _shuffled(rw, i, value, shifts)


def _shifts(shuffle: HloInstruction) -> dict[int, int] | None:
    """Return the shift along each dimension; None for lists that do not fit, which XLA does not check."""
    dims, shifts = shuffle.dimensions, shuffle.ints("shifts")
    fits = len(dims) == len(shifts) == len(set(dims)) and all(0 <= dim < shuffle.shape.rank for dim in dims)
    return dict(zip(dims, shifts, strict=True)) if fits else None


def _least(shifts: dict[int, int], dims: tuple[int, ...]) -> dict[int, int]:
    """Return the same shifts by dimension, without whole rotations."""
    return {dim: shift % dims[dim] for dim, shift in sorted(shifts.items()) if dims[dim] and shift % dims[dim]}


def _shuffled(rw: Rewriter, old: HloInstruction, value: HloInstruction, shifts: dict[int, int]) -> HloInstruction:
    if not (shifts := _least(shifts, old.shape.dims)):
        return value
    mode, amounts = old.shuffle_mode, tuple(shifts.values())
    return rw.add("shuffle", old.shape, [value], dimensions=tuple(shifts), mode=mode, shifts=amounts)


FREE_RULES: Rules = {
    "broadcast": (broadcast_of_ones,),
    "reshape": (chain_of_nothing, reshape_of_transposed_reshape, reshape_of_moved_chunks, reshape_of_counting, reshape_of_update),
    "reverse": (reverse_twice, reverse_before_constant, reverse_of_added_ones),
    "shuffle": (shuffle_twice, shuffle_without_effect),
    "transpose": (chain_of_nothing,),
}
