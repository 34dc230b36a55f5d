"""Merge dots that share an operand into one dot.

    x = f32[8,4] dot(a, b);  y = f32[8,6] dot(a, c)   =>   m = f32[8,10] dot(a, concatenate(b, c));  x, y = slices of m

The operand is also shared if dots read it through reshapes and transposes that keep the dimensions of a kind together. The dots
of a group must agree in the kinds of the shared operand's dimensions, in types, precision and queue, and none may depend on
another. At most one may be larger, with its operands, than `--xla_gpu_dot_merger_threshold_mb`, and none may be more than 20
times as wide as the narrowest. XLA's `DotMerger`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.attribute_values import AttributeValue
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.views.dots import Side, dot_side, size_of
from hlo_run.hlo_passes.dots.rearrangement import MOVES, NotOneTranspose, Rearrangement
from hlo_run.pass_support.hlo_pass import PassContext

_QUEUE = re.compile(r'"operation_queue_id":"?(\d+)')
# A dot is not merged with one that is narrower by more than this factor.
_MOST_TIMES_WIDER = 20
_Key = tuple[int, int, tuple[int, ...], str, str, str, str]


class DotMerger(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "dot-merger"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        most_bytes = ctx.options.xla_gpu_dot_merger_threshold_mb << 20
        computations = dict.fromkeys(dot.parent for dot in module.instructions_of("dot") if dot.parent is not None)
        for computation in computations:
            if not computation.is_fusion:
                _merge_all(module, computation, most_bytes)


class _Usage(Struct, frozen=True):
    """A dot of a group: the number of its shared operand, and where both operands come from before reshapes and transposes."""

    dot: HloInstruction
    shared: int
    source: HloInstruction
    other_source: HloInstruction

    @property
    def sides(self) -> tuple[Side, Side]:
        """The dimensions of the shared operand and of the other one."""
        return dot_side(self.dot, self.shared), dot_side(self.dot, 1 - self.shared)

    @property
    def size(self) -> int:
        """The number of columns that the dot adds to the merged one."""
        return size_of(self.dot, 1 - self.shared, self.sides[1].free)

    def is_small(self, most_bytes: int) -> bool:
        """True if the dot with its operands is not too large to be merged with several others."""
        return self.dot.shape.size_bytes + sum(operand.shape.size_bytes for operand in self.dot.operands) <= most_bytes


def _merge_all(module: HloModule, computation: HloComputation, most_bytes: int) -> None:
    """Merge the dots of a computation that share an operand."""
    groups = [g for g in _groups(computation) if len(g) > 1 and any(usage.is_small(most_bytes) for usage in g)]
    if not groups:
        return
    order = _Order(computation, list(dict.fromkeys(usage.dot for group in groups for usage in group)))
    replaced: dict[HloInstruction, HloInstruction] = {}
    slices: list[HloInstruction] = []
    for group in groups:
        while True:
            left = [usage for usage in group if usage.dot not in replaced]
            chosen = _independent(left, order, most_bytes)
            if len(chosen) < 2:
                break
            try:
                made = _merge(chosen)
            except NotOneTranspose:
                break
            slices += [part for part, _ in made]
            replaced |= {usage.dot: value for usage, (_, value) in zip(chosen, made, strict=True)}
            order.merge([usage.dot for usage in chosen])
    for old, new in replaced.items():
        module.replace_uses(old, new)
    remove_unused(list(replaced))
    for part in slices:
        for user in dict.fromkeys(part.users):
            _shorten(module, part, user)


def _groups(computation: HloComputation) -> list[list[_Usage]]:
    """Return the dots that may be merged, by the creation of what they share."""
    places = {instruction: place for place, instruction in enumerate(computation.instructions)}
    ordered = {predecessor for i in computation.instructions for predecessor in i.control_predecessors}
    groups: dict[_Key, list[_Usage]] = {}
    for dot in computation.instructions:
        if dot.opcode != "dot" or dot.control_predecessors or dot in ordered or any(map(_has_tiny_elements, dot.operands)):
            continue
        if any(0 in operand.shape.dims or any(operand.shape.dynamic_dims) for operand in dot.operands):
            continue
        found = _source(dot, 0), _source(dot, 1)
        for shared in (0, 1):
            source, kinds = found[shared]
            types = dot.operands[shared].shape.element_type, dot.operands[1 - shared].shape.element_type, dot.shape.element_type
            key = places[source], _queue(dot), kinds, *types, f"{dot.operand_precision} {dot.algorithm}"
            groups.setdefault(key, []).append(_Usage(dot, shared, source, found[1 - shared][0]))
    for group in groups.values():
        group.sort(key=lambda usage: usage.size)
    return [group for _, group in sorted(groups.items(), key=lambda item: item[0])]


def _has_tiny_elements(value: HloInstruction) -> bool:
    """Return True for a value that is converted from elements of less than a byte."""
    while value.opcode in MOVES or value.opcode in ("bitcast", "convert"):
        source = value.operands[0]
        if value.opcode == "convert" and source.shape.element_type != "pred" and source.shape.dtype.bits < 8:
            return True
        value = source
    return False


def _source(dot: HloInstruction, number: int) -> tuple[HloInstruction, tuple[int, ...]]:
    """Return the value of which reshapes and transposes make an operand, and the kinds of its dimensions larger than 1."""
    side = dot_side(dot, number)
    groups = side.batch, side.free, side.contracting
    operand = value = dot.operands[number]
    kinds = _kinds(operand, [tuple(d for d in group if operand.shape.dims[d] > 1) for group in groups])
    while value.opcode in MOVES:
        try:
            back = Rearrangement.of(value.operands[0], operand).inverse()
        except NotOneTranspose:
            break
        mapped = [back.dims_of(group) for group in groups]
        if any(dims is None for dims in mapped):
            break
        value = value.operands[0]
        kinds = _kinds(value, [dims or () for dims in mapped])
    return value, kinds


def _kinds(value: HloInstruction, groups: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    kinds = {d: kind for kind, dims in enumerate(groups) for d in dims}
    return tuple(kinds[d] for d in range(value.shape.rank) if d in kinds)


def _queue(dot: HloInstruction) -> int:
    """Return the number of the stream on which the product shall run, as its config writes it."""
    found = _QUEUE.search(dot.backend_config)
    return int(found[1]) if found is not None else 0


class _Order:
    """The dependencies between some dots, direct or not, as bit masks."""

    def __init__(self, computation: HloComputation, dots: list[HloInstruction]) -> None:
        self._bit = {dot: 1 << number for number, dot in enumerate(dots)}
        self._dots = dots
        self._needed = dict.fromkeys(dots, 0)
        self._needing = dict.fromkeys(dots, 0)
        above: dict[HloInstruction, int] = {}
        order = computation.post_order()
        below = dict.fromkeys(order, 0)
        for instruction in order:
            bits = 0
            for operand in (*instruction.operands, *instruction.control_predecessors):
                bits |= above[operand]
            if instruction in self._bit:
                self._needed[instruction] = bits
                bits |= self._bit[instruction]
            above[instruction] = bits
        for instruction in reversed(order):
            bits = below[instruction]
            if instruction in self._bit:
                self._needing[instruction] = bits
                bits |= self._bit[instruction]
            for operand in (*instruction.operands, *instruction.control_predecessors):
                below[operand] |= bits

    def are_related(self, one: HloInstruction, two: HloInstruction) -> bool:
        """True if one dot needs the other, or they are the same."""
        return one is two or bool((self._needed[one] | self._needing[one]) & self._bit[two])

    def merge(self, dots: Sequence[HloInstruction]) -> None:
        """Make what needs one of the dots need all of them, and all that they need."""
        own = needed = needing = 0
        for dot in dots:
            own, needed, needing = own | self._bit[dot], needed | self._needed[dot], needing | self._needing[dot]
        for dot in self._dots:
            if self._bit[dot] & needing:
                self._needed[dot] |= needed | own
            if self._bit[dot] & needed:
                self._needing[dot] |= needing | own


def _independent(usages: Sequence[_Usage], order: _Order, most_bytes: int) -> list[_Usage]:
    """Return the narrowest dot and others that are not much wider, at most one of them large, that do not need each other."""
    chosen: list[_Usage] = []

    def add(usage: _Usage) -> bool:
        is_alike = not chosen or usage.size <= _MOST_TIMES_WIDER * chosen[0].size
        fits = is_alike and not any(order.are_related(usage.dot, other.dot) for other in chosen)
        chosen.extend([usage] if fits else [])
        return fits

    for usage in usages:
        if usage.is_small(most_bytes):
            add(usage)
    next((usage for usage in usages if not usage.is_small(most_bytes) and add(usage)), None)
    # Operands whose sizes are multiples of high powers of two first: their rows are aligned.
    return sorted(chosen, key=lambda usage: (-(usage.size & -usage.size), -usage.size))


class _Operand(Struct, frozen=True):
    """Dimension sizes of an operand and their kinds."""

    dims: tuple[int, ...]
    side: Side


def _merge(usages: Sequence[_Usage]) -> list[tuple[HloInstruction, HloInstruction]]:
    """Add a dot in place of several; return for each its slice of the new dot, and the value that replaces it."""
    first = usages[0]
    shared_target = _shared_target(first)
    shared_moves = [_moves(usage, shared_target) for usage in usages]
    is_last = first.dot.operands[1 - first.shared].shape.rank - 1 in first.sides[1].contracting
    others = [_other_moves(u, moves, shared_target.side, is_last) for u, moves in zip(usages, shared_moves, strict=True)]
    pieces = [Rearrangement.of(u.other_source, u.dot.operands[1 - u.shared]).then(o) for u, o in zip(usages, others, strict=True)]
    is_left = _is_left(usages)
    back = [_result_moves(u, m, shared_target.side, o, is_left) for u, m, o in zip(usages, shared_moves, others, strict=True)]
    # From here on nothing fails.
    shared = Editor(first.source, derives=False).reshape(first.source, shared_target.dims)
    batch = len(shared_target.side.batch)
    rank = batch + len(shared_target.side.contracting)
    free = batch if is_last else rank
    values = [piece.make(usage.other_source) for piece, usage in zip(pieces, usages, strict=True)]
    joined = Editor(shared).concatenate(values, free)
    side = Side(tuple(range(batch)), tuple(d for d in range(batch, rank + 1) if d != free), (free,))
    dot = _dot(usages, (shared, shared_target.side), (joined, side), is_left)
    place = dot.shape.rank - 1 if is_left else batch
    made: list[tuple[HloInstruction, HloInstruction]] = []
    start = 0
    for usage, moves in zip(usages, back, strict=True):
        starts, limits = [0] * dot.shape.rank, list(dot.shape.dims)
        starts[place], limits[place] = start, start + usage.size
        start += usage.size
        part = Editor(dot).slice(dot, starts, limits)
        made.append((part, moves.make(part)))
    return made


def _is_left(usages: Sequence[_Usage]) -> bool:
    """Return True if the shared operand of the new dot is the left one: most of the dots have it there."""
    return sum(usage.shared == 0 for usage in usages) * 2 > len(usages)


def _dot(
    usages: Sequence[_Usage], shared: tuple[HloInstruction, Side], other: tuple[HloInstruction, Side], is_left: bool
) -> HloInstruction:
    operands = (shared, other) if is_left else (other, shared)
    old = next((usage.dot for usage in usages if usage.dot.metadata), usages[0].dot)
    attributes: dict[str, AttributeValue] = {
        name: old.attrs[name] for name in ("operand_precision", "algorithm") if name in old.attrs
    }
    for name, (_, side) in zip(("lhs", "rhs"), operands, strict=True):
        attributes |= {f"{name}_batch_dims": side.batch} if side.batch else {}
        attributes[f"{name}_contracting_dims"] = side.contracting
    value, side = operands[0]
    dims = [value.shape.dims[d] for d in (*side.batch, *side.free)]
    dims += [operands[1][0].shape.dims[d] for d in operands[1][1].free]
    shape = Shape.array(old.shape.element_type, tuple(dims))
    return Editor(old).add_with("dot", shape, [one for one, _ in operands], attributes)


def _shared_target(usage: _Usage) -> _Operand:
    """Return the form in which the source is the operand of the new dot: no dimensions of size 1, contracting ones as one."""
    operand, source = usage.dot.operands[usage.shared], usage.source
    moves = Rearrangement.of(source, operand).inverse()
    batch, contracting = (moves.dims_of(dims) for dims in (usage.sides[0].batch, usage.sides[0].contracting))
    assert batch is not None, "the source was found by these dimensions"
    assert contracting is not None, "the source was found by these dimensions"
    large = [d for d in range(source.shape.rank) if source.shape.dims[d] > 1]
    sizes = [source.shape.dims[d] for d in large]
    places = [large.index(d) for d in contracting]
    gone = set[int]()
    if places and places == list(range(places[0], places[0] + len(places))):
        sizes[places[0]] = math.prod(source.shape.dims[d] for d in contracting)
        gone = set(places[1:])
    left = [n for n in range(len(large)) if n not in gone]
    numbers = {large[n]: place for place, n in enumerate(left)}
    side = Side(
        tuple(numbers[d] for d in batch),
        tuple(numbers[d] for d in contracting if d in numbers),
        tuple(numbers[d] for d in numbers if d not in batch and d not in contracting),
    )
    return _Operand(tuple(sizes[n] for n in left), side)


def _moves(usage: _Usage, target: _Operand) -> Rearrangement:
    """Return the way from the shared operand of a dot to that of the new one."""
    return Rearrangement.of(usage.source, usage.dot.operands[usage.shared]).inverse().reshaped(target.dims)


def _group(moves: Rearrangement, before: Sequence[int], after: Sequence[int]) -> Rearrangement:
    """Return what `moves` does to the dimensions `before`, which become `after`, both in the given order."""
    ascending = sorted(after)
    found = moves.only(before).reshaped([moves.result[d] for d in ascending])
    return found.transposed([ascending.index(d) for d in after])


def _other_moves(usage: _Usage, shared: Rearrangement, target: Side, is_last: bool) -> Rearrangement:
    """Return the way of a dot's other operand to batch, free and contracting dimensions, the free ones as one."""
    old, other = usage.sides
    dims = usage.dot.operands[1 - usage.shared].shape.dims
    free = Rearrangement.none([dims[d] for d in other.free]).reshaped([usage.size])
    groups = _group(shared, old.batch, target.batch), free, _group(shared, old.contracting, target.contracting)
    moves = (
        Rearrangement.none(dims).transposed((*other.batch, *other.free, *other.contracting)).then(Rearrangement.beside(groups))
    )
    if is_last:
        return moves
    batch, rank = len(target.batch), len(moves.result)
    return moves.transposed([*range(batch), *range(batch + 1, rank), batch])


def _result_moves(usage: _Usage, shared: Rearrangement, target: Side, other: Rearrangement, is_left: bool) -> Rearrangement:
    """Return the way from a slice of the new dot to the result of an old one."""
    old, old_other = usage.sides
    back = shared.inverse()
    batch = _group(back, target.batch, old.batch)
    free = [
        _group(back, target.free, old.free),
        Rearrangement.none([usage.size]).reshaped([other.source[d] for d in old_other.free]),
    ]
    if not is_left:
        free.reverse()
    moves = Rearrangement.beside((batch, *free))
    if is_left == (usage.shared == 0):
        return moves
    start, rank = len(batch.result), len(moves.result)
    middle = start + len(free[0].result)
    return moves.transposed([*range(start), *range(middle, rank), *range(start, middle)])


def _shorten(module: HloModule, part: HloInstruction, user: HloInstruction) -> None:
    """Replace the reshapes and transposes that begin with `user` by as few as possible."""
    chain: list[HloInstruction] = []
    assert part.parent is not None, "a slice is in a computation"
    ordered = {first for i in part.parent.instructions for first in i.control_predecessors}
    while user.opcode in MOVES and not user.control_predecessors and user not in ordered:
        chain.append(user)
        if len(user.users) != 1:
            break
        user = user.users[0]
    if not chain:
        return
    try:
        moves = Rearrangement.of(part, chain[-1])
    except NotOneTranspose:
        return
    module.replace_uses(chain[-1], moves.make(part))
    remove_unused([chain[-1]])
