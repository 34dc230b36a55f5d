"""Let collectives of an iteration run in the next one, beside its work.

while: x = f(s); c = all-reduce(x); b = update(b, c, i)
  =>
x = f(s)
while: b = update(b, all-reduce(x), i - 1); x = f(s)          the state has x and the index
b = update(b, all-reduce(x), n - 1)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from hlo_run.hlo.edit import DETACHED, InstructionMaker, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.collectives.pipelining.cloning import (
    Copier,
    Map,
    clone_with,
    element,
    group_of,
    keep_order,
    made,
    set_group,
)
from hlo_run.hlo_passes.collectives.pipelining.counted_loops import CountedLoop
from hlo_run.hlo_passes.collectives.pipelining.forward_moves import Move, needed_values


class _State(Struct):
    """The elements of the new state: their values before the loop, and at the end of the old body.

    `index_at` and `value_at` are the places of a move's index and of its collective's operand. Elements from `first_needed` on
    are values that formatting needs.
    """

    inits: list[HloInstruction]
    results: list[HloInstruction]
    index_at: dict[HloInstruction, int]
    value_at: dict[int, int]
    first_needed: int


class _Place(Struct, frozen=True):
    """The destination of moved instructions: a computation, the state there, and the values that formatting needs."""

    computation: HloComputation
    state: HloInstruction
    needed: Map
    is_after: bool


def pipeline_forward(loop: CountedLoop, moves: Sequence[Move], copier: Copier, reuses_buffers: bool) -> HloInstruction:
    """Replace the loop, and return the new one.

    With `reuses_buffers` the operand of a collective waits in the buffer that the result goes to, if both have one shape.
    """
    special = [place for place, move in enumerate(moves) if not reuses_buffers or _changes_shape(move)]
    peeled = _peel(loop, moves, special, copier)
    state = _new_state(loop, moves, special, peeled)
    root = loop.body.root
    new, copies = _new_loop(loop, state, copier)
    keep_order(root, new.operands[0], peeled)
    inside = Map()
    behind = Map()
    body = new.while_body
    assert new.parent is not None, "the loop is in a computation"
    for n in range(state.first_needed, len(state.inits)):
        inside[body.root.operands[n]] = element(body, body.parameters[0], n)
        behind[body.root.operands[n]] = element(new.parent, new, n)
    for n, move in enumerate(moves):
        _move(
            _copied(move, copies),
            state.index_at[move.index],
            state.value_at.get(n),
            (_Place(body, body.parameters[0], inside, False), _Place(new.parent, new, behind, True)),
            copier,
        )
    return new


def _changes_shape(move: Move) -> bool:
    result = move.formatting[-1] if move.formatting else move.collectives[0]
    return result.shape != move.collectives[0].operands[0].shape


def _peel(loop: CountedLoop, moves: Sequence[Move], special: Sequence[int], copier: Copier) -> Map:
    """Copy the first iteration before the loop, without what moves; return the copies."""
    outer, init = loop.loop.parent, loop.loop.operands[0]
    assert outer is not None, "the loop is in a computation"
    passed = {move.collectives[0]: move.collectives[0].operands[0] for move in moves}
    passed |= {move.formatting[-1]: move.collectives[0] for move in moves if move.formatting}
    passed |= {moves[n].updates[0]: moves[n].updates[0].operands[0] for n in special}
    known: Map = {loop.parameter: init}
    for old in loop.body.post_order():
        if old in known:
            continue
        if old in passed:
            known[old] = known[passed[old]]
            continue
        if any(operand not in known or known[operand].shape.dims != operand.shape.dims for operand in old.operands):
            continue  # formatting of what moves, which nothing else uses
        known[old] = new = copier.copy(old, outer, [known[operand] for operand in old.operands], known)
        if ":" in (group_of(new) or ""):
            set_group(new, None)
        else:
            copier.renumber_group(new)
    return known


def _new_state(loop: CountedLoop, moves: Sequence[Move], special: Sequence[int], peeled: Map) -> _State:
    root, (init,) = loop.body.root, loop.loop.operands
    updates = {moves[n].updates[0] for n in special}
    inits = [init.operands[n] if old in updates else peeled[old] for n, old in enumerate(root.operands)]
    state = _State(inits, list(root.operands), {}, {}, 0)

    def add(value: HloInstruction) -> int:
        state.results.append(value)
        state.inits.append(peeled[value])
        return len(state.inits) - 1

    for move in moves:
        if move.index not in state.index_at:
            state.index_at[move.index] = add(move.index)
    for n in special:
        state.value_at[n] = add(moves[n].collectives[0].operands[0])
    state.first_needed = len(state.inits)
    for move in moves:
        for value in needed_values(move.collectives, move.formatting):
            add(value)
    return state


def _new_loop(loop: CountedLoop, state: _State, copier: Copier) -> tuple[HloInstruction, Map]:
    """Replace the loop by one with the new state; return it, and the copies of the body's instructions."""
    old, outer = loop.loop, loop.loop.parent
    assert outer is not None, "the loop is in a computation"
    shape = Shape.make_tuple(tuple(value.shape for value in state.results))
    parameter, tested = (DETACHED.parameter(0, shape, name) for name in _PARAMETERS)
    root = made("tuple", shape, state.results)
    condition, _ = clone_with(copier.module, old.while_condition, {old.while_condition.parameters[0]: tested})
    body, copies = clone_with(copier.module, loop.body, {loop.parameter: parameter, loop.body.root: root})
    root.operands = ()
    init = outer.add(made("tuple", shape, state.inits))
    new = InstructionMaker(outer, old.where).add("while", shape, [init], {"condition": (condition,), "body": (body,)})
    for user in list(old.users):
        user.replace_operand(old, new)
    outer.remove(old)
    return new, copies


_PARAMETERS = ("loop_peel_param", "loop_peel_cond_param")


def _copied(move: Move, copies: Map) -> Move:
    collectives, updates, formatting = (
        [copies[one] for one in group] for group in (move.collectives, move.updates, move.formatting)
    )
    return Move(collectives, updates, formatting, move.dim, move.outputs)


def _move(move: Move, index_at: int, value_at: int | None, places: tuple[_Place, _Place], copier: Copier) -> None:
    """Add the collective of the iteration before to the body, and the last iteration's collective behind the loop."""
    (update,), (output,) = move.updates, move.outputs
    inside, behind = places
    index = element(inside.computation, inside.state, index_at)
    last_index = element(behind.computation, behind.state, index_at)
    buffer, last_buffer = update.operands[0], element(behind.computation, behind.state, output)
    readers = [user for user in behind.state.users if user.tuple_index == output and user is not last_buffer]
    value, last_value = buffer, last_buffer
    if value_at is not None:
        value = element(inside.computation, inside.state, value_at)
        last_value = element(behind.computation, behind.state, value_at)
    written = _written(move, inside, (buffer, value, index), copier)
    last_written = _written(move, behind, (last_buffer, last_value, last_index), copier)
    if value_at is None:
        written = _insert(inside.computation, written, move.collectives[0].operands[0], move, move.index)
    copier.module.replace_uses(update, written)
    remove_unused([update])
    for reader in readers:
        copier.module.replace_uses(reader, last_written)
        remove_unused([reader])


def _written(
    move: Move, place: _Place, source: tuple[HloInstruction, HloInstruction, HloInstruction], copier: Copier
) -> HloInstruction:
    """Add the collective of a value that waits in `source`, formatted and written into the buffer at the index."""
    buffer, value, index = source
    collective, update = move.collectives[0], move.updates[0]
    zero = _zero(place.computation, index)
    shape = collective.operands[0].shape
    indices = [index if dim == move.dim else zero for dim in range(update.shape.rank)]
    if value.shape != shape:
        part = made("dynamic-slice", shape, [value, *indices], dynamic_slice_sizes=shape.dims)
        value = place.computation.add(part)
    known = dict(place.needed)
    for old in (collective, *move.formatting):
        operands = [value] if old is collective else [known[operand] for operand in old.operands]
        known[old] = copier.copy_moved(old, place.computation, operands, has_own_channel=old is collective)
        if place.is_after:
            set_group(known[old], None)
    result = known[move.formatting[-1] if move.formatting else collective]
    return place.computation.add(made("dynamic-update-slice", update.shape, [buffer, result, *indices]))


def _insert(
    computation: HloComputation, buffer: HloInstruction, value: HloInstruction, move: Move, index: HloInstruction
) -> HloInstruction:
    zero = _zero(computation, index)
    indices = [index if dim == move.dim else zero for dim in range(buffer.shape.rank)]
    return computation.add(made("dynamic-update-slice", buffer.shape, [buffer, value, *indices]))


def _zero(computation: HloComputation, index: HloInstruction) -> HloInstruction:
    return computation.add(made("constant", index.shape, literal=np.zeros((), index.shape.dtype.numpy)))
