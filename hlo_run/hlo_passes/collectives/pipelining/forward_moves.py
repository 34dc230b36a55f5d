"""Find collectives whose results a loop writes, by slices, into an element of its state that has no other reader.

c = all-reduce(x)
s = reshape(c)                                                     formatting: instructions between the collective and the
u = dynamic-update-slice(element 1 of the state, s, i, 0)          update, and those that they alone need
root = tuple(.., u, ..)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from hlo_run.hlo.edit import has_side_effect
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.opcodes.traits import ELEMENTWISE
from hlo_run.hlo.views.slices import DynamicSlice
from hlo_run.hlo_passes.collectives.communication.channels import is_ordered
from hlo_run.hlo_passes.collectives.pipelining.counted_loops import CountedLoop, index_range
from hlo_run.walks import walk

# XLA's list of what may stand between a collective and the update, besides elementwise instructions.
_FORMATTING = opcode_set("""slice dynamic-slice pad collective-permute convert reshape all-reduce transpose broadcast all-gather
    get-tuple-element reduce concatenate reduce-scatter bitcast""")
# A reduction to a smaller value may move if its operand has fewer elements.
_MANY_ELEMENTS = 1024


class Rules(Struct, frozen=True):
    """The moves that options allow. `chosen` are the collectives, `may_format` the opcodes between one and its updates.

    With `follows_trees` their results may have several users, also elementwise ones. With `resizes` the shapes along the way may
    differ. With `sinks` a collective may be written into several elements, by slices of dimension 0, one per iteration.
    """

    chosen: Callable[[HloInstruction], bool]
    may_format: Callable[[HloInstruction], bool]
    follows_trees: bool = True
    resizes: bool = True
    sinks: bool = False


class Move(Struct):
    """Collectives that move together, with the updates that write them and the instructions between, in post-order.

    The updates slice dimension `dim`. `outputs` are their places in the body's root.
    """

    collectives: list[HloInstruction]
    updates: list[HloInstruction]
    formatting: list[HloInstruction]
    dim: int
    outputs: list[int]

    @property
    def index(self) -> HloInstruction:
        """The index at which the updates write."""
        return self.updates[0].operands[2 + self.dim]


def forward_moves(loop: CountedLoop, rules: Rules) -> list[Move]:
    """Return the moves out of each iteration, in post-order of the collectives; [] if the loop is a root."""
    if loop.loop.is_root:
        return []
    order = {instruction: place for place, instruction in enumerate(loop.body.post_order())}
    moves: list[Move] = []
    for collective in order:
        move = _move(collective, loop, rules) if rules.chosen(collective) else None
        if move is None:
            continue
        shared = [other for other in moves if any(update in other.updates for update in move.updates)]
        if not shared:
            moves.append(move)
        elif rules.sinks:
            _join_all(shared, move)
            moves = _without(moves, shared[1:])
        elif collective not in (*shared[0].collectives, *shared[0].formatting):
            known = {*shared[0].collectives, *shared[0].formatting}
            shared[0].formatting += [collective, *(one for one in move.formatting if one not in known)]
    for move in moves:
        move.formatting.sort(key=order.__getitem__)
    return moves


def _join_all(shared: Sequence[Move], move: Move) -> None:
    """Add several moves that share an update, and a new one, to the first of them."""
    first = shared[0]
    for other in (*shared[1:], move):
        known = {*first.collectives, *first.formatting}
        first.collectives += [one for one in other.collectives if one not in known]
        first.formatting += [one for one in other.formatting if one not in first.formatting]
        for update, output in zip(other.updates, other.outputs, strict=True):
            if update not in first.updates:
                first.updates.append(update)
                first.outputs.append(output)


def _without(moves: list[Move], gone: Sequence[Move]) -> list[Move]:
    """Return the moves that are left; the last one takes the place of one that goes, as in XLA."""
    left = list(moves)
    for place in reversed(range(len(moves))):
        if any(moves[place] is one for one in gone):
            left[place] = left[-1]
            left.pop()
    return left


def needed_values(sources: Iterable[HloInstruction], instructions: Sequence[HloInstruction]) -> list[HloInstruction]:
    """Return the operands of instructions that are neither among the instructions nor among the sources, each once."""
    known = {*sources, *instructions}
    found: list[HloInstruction] = []
    for instruction in instructions:
        for operand in instruction.operands:
            if operand not in known:
                known.add(operand)
                found.append(operand)
    return found


def _move(collective: HloInstruction, loop: CountedLoop, rules: Rules) -> Move | None:
    if len(collective.operands) != 1 or is_ordered(collective) or not (rules.follows_trees or len(collective.users) == 1):
        return None
    updates = _updates(collective, loop, rules)
    formatting = _formatting(collective, updates) if updates else None
    if formatting is None or len({update.operands[0] for update in updates}) < len(updates):
        return None
    dims = {sliced_dim(update) for update in updates}
    if len(dims) != 1 or None in dims:
        return None
    (dim,) = dims
    assert dim is not None, "the updates slice one dimension"
    if not rules.resizes and not _keeps_size(collective, formatting):
        return None
    if any(not _may_wait(update, dim, loop, rules) for update in updates):
        return None
    return Move([collective], updates, formatting, dim, [loop.body.root.operands.index(update) for update in updates])


def _is_update(user: HloInstruction, loop: CountedLoop) -> bool:
    """True for a dynamic-update-slice that becomes an element of the state, its only use."""
    root = loop.body.root
    return user.opcode == "dynamic-update-slice" and user.users == [root] and root.operands.count(user) == 1


def _updates(collective: HloInstruction, loop: CountedLoop, rules: Rules) -> list[HloInstruction]:
    """Return the updates in which the result ends; none if it has another use."""
    found: list[HloInstruction] = []
    seen: set[HloInstruction] = set()

    def visit(value: HloInstruction) -> bool:
        for user in value.users:
            if _is_update(user, loop):
                if user.operands[1] is not value or user.operands.count(value) > 1:
                    return False
                if user not in found:
                    found.append(user)
            elif not _may_be_between(user, collective, rules):
                return False
            elif user not in seen:
                seen.add(user)
                if not visit(user):
                    return False
        return True

    is_done = visit(collective) and (rules.sinks or len(found) == 1)
    return found if is_done else []


def _may_be_between(user: HloInstruction, collective: HloInstruction, rules: Rules) -> bool:
    if is_ordered(user) or user.is_root or not rules.may_format(user):
        return False
    if user.opcode == "reduce" and user.shape.is_array:
        before = collective.operands[0].shape.element_count
        if user.shape.element_count == before or before < _MANY_ELEMENTS:
            return True
    if rules.sinks and user.opcode in ("get-tuple-element", "reduce-scatter"):
        return False
    if user.opcode == "custom-call":
        return not has_side_effect(user)
    return user.opcode in _FORMATTING or (rules.follows_trees and user.opcode in ELEMENTWISE)


def _formatting(collective: HloInstruction, updates: Sequence[HloInstruction]) -> list[HloInstruction] | None:
    """Return the instructions between, with offsets of dynamic slices and broadcasts of constants; None if they may not move."""
    found: dict[HloInstruction, None] = {}
    waiting = [collective]
    for value in waiting:  # grows while we walk
        if value is not collective:
            own = _offsets(value) if value.opcode == "dynamic-slice" else _broadcasts(value)
            if own is None:
                return None
            found.update(dict.fromkeys(own))
            found[value] = None
        waiting += [user for user in value.users if user not in updates and user not in waiting]
    return list(found)


def _offsets(part: HloInstruction) -> list[HloInstruction] | None:
    """Return the offsets of a dynamic-slice and all that they need; None if they depend on the state or have an effect."""
    found = list(walk(part.operands[1:], lambda value: value.operands))
    return None if any(value.opcode == "parameter" or has_side_effect(value) for value in found) else found


def _broadcasts(value: HloInstruction) -> list[HloInstruction]:
    broadcasts = [operand for operand in value.operands if operand.opcode == "broadcast"]
    return [one for b in broadcasts for one in (*(o for o in b.operands if o.opcode == "constant"), b)]


def _keeps_size(collective: HloInstruction, formatting: Sequence[HloInstruction]) -> bool:
    before = collective.operands[0].shape
    if not formatting:
        return before == collective.shape
    is_scalar = [value.shape.is_array and value.shape.element_count == 1 for value in needed_values([collective], formatting)]
    return before == formatting[-1].shape and not any(is_scalar)


def sliced_dim(update: HloInstruction) -> int | None:
    """Return the only dimension whose index is not the constant 0."""
    starts = DynamicSlice.of(update).starts
    dims = [dim for dim, index in enumerate(starts) if index.opcode != "constant" or index.constant_array.any()]
    is_constant = [starts[dim].opcode == "constant" for dim in dims]
    return dims[0] if is_constant == [False] else None


def _may_wait(update: HloInstruction, dim: int, loop: CountedLoop, rules: Rules) -> bool:
    """True if the update may happen an iteration later: it alone reads its buffer, at an index that moves by equal steps."""
    buffer = update.operands[0]
    if rules.sinks and (dim != 0 or update.shape.dims[0] != loop.count):
        return False
    source = buffer.operands[0] if buffer.opcode == "opt-barrier" else buffer
    if source.opcode != "get-tuple-element" or source.operands[0] is not loop.parameter:
        return False
    reads = Counter(user.tuple_index for user in loop.parameter.users)
    if reads[source.tuple_index] != 1 or source.users != [buffer if source is not buffer else update]:
        return False
    if source.tuple_index != loop.body.root.operands.index(update):
        return False
    found = index_range(update.operands[2 + dim], loop)
    if found is None or buffer.users != [update]:
        return False
    return not rules.sinks or sorted((found.low, found.high)) == [0, loop.count - 1]
