"""Let collectives of an iteration run in the iteration before, beside its work.

    while: g = all-gather(w[i]); s = f(s, g)
      =>
    g = all-gather(w[0])
    while, one iteration less: s = f(s, g); g = all-gather(w[i + 1])          the state has g and i + 1
    s = f(s, g)

The chain of a collective is what it depends on, up to elements of the state that no iteration changes, and the counter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from hlo_run.hlo.edit import InstructionMaker, has_side_effect
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.traits import COLLECTIVE
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.collectives.communication.channels import is_ordered
from hlo_run.hlo_passes.collectives.pipelining.cloning import Copier, Map, element, keep_order, made, set_group
from hlo_run.hlo_passes.collectives.pipelining.counted_loops import CountedLoop, is_element
from hlo_run.walks import post_order


class Chain(Struct, frozen=True):
    """A collective that moves, and the instructions that it depends on, operands first."""

    collective: HloInstruction
    before: tuple[HloInstruction, ...]


def chains(loop: CountedLoop, chosen: Callable[[HloInstruction], bool], shares: bool) -> list[Chain]:
    """Return the chosen collectives that may move. Without `shares`, no other instruction may use an array of their chains."""
    unchanged = loop.unchanged
    found: list[Chain] = []
    for collective in loop.body.post_order():
        if chosen(collective) and not is_ordered(collective):
            before = _before(collective, loop, unchanged)
            if before is not None and (shares or _is_closed(collective, before, unchanged)):
                found.append(Chain(collective, tuple(before)))
    return found


def _before(collective: HloInstruction, loop: CountedLoop, unchanged: set[int]) -> list[HloInstruction] | None:
    """Return what a collective depends on, operands first; None if it depends on what an iteration changes."""
    *chain, _ = post_order(collective, lambda value: [operand for operand in value.operands if operand.opcode != "parameter"])
    for value in chain:
        if is_element(value) and not (loop.is_counter(value) or value.tuple_index in unchanged or _is_single(value)):
            return None
        if has_side_effect(value) and value.opcode not in COLLECTIVE:
            return None
    return chain


def _is_single(value: HloInstruction) -> bool:
    return value.shape.is_array and value.shape.element_count == 1


def _is_closed(collective: HloInstruction, before: Sequence[HloInstruction], unchanged: set[int]) -> bool:
    known = {collective, *before}
    return all(
        all(user in known for user in value.users) or _is_single(value) or (is_element(value) and value.tuple_index in unchanged)
        for value in before
    )


def pipeline_backward(loop: CountedLoop, moved: Sequence[Chain], copier: Copier) -> HloInstruction:
    """Replace the loop, and return the new one."""
    old, outer, (init,) = loop.loop, loop.loop.parent, loop.loop.operands
    assert outer is not None, "the loop is in a computation"
    first: Map = {loop.parameter: init} | _counters(loop, init.operands[loop.counter.index])
    begun = [_copy_chain(chain, outer, first, copier) for chain in moved]
    dtype = init.operands[loop.counter.index].shape
    next_index = outer.add(_constant(loop.counter.init + loop.counter.step, dtype))
    shape = Shape.make_tuple(tuple(v.shape for v in (*loop.body.root.operands, *begun, next_index)))
    left_out = _only_for(moved)
    body = _new_body(loop, moved, shape, copier, left_out)
    condition = _new_condition(loop, shape)
    for computation in (body, condition):
        copier.module.add_computation(computation)
    state = outer.add(made("tuple", shape, [*init.operands, *begun, next_index]))
    keep_order(loop.body.root, state, first)
    new = InstructionMaker(outer, old.where).add("while", shape, [state], {"condition": (condition,), "body": (body,)})
    _peel_last(loop, moved, new, copier, left_out)
    return new


def _only_for(moved: Sequence[Chain]) -> set[HloInstruction]:
    """Return operands with an effect of collectives, their only users: an unused copy would wait for a partner in vain."""
    operands = [chain.collective.operands[0] for chain in moved if len(chain.collective.operands) == 1]
    return {operand for operand in operands if has_side_effect(operand) and len(operand.users) == 1}


def _counters(loop: CountedLoop, value: HloInstruction) -> Map:
    return {user: value for user in loop.parameter.users if loop.is_counter(user)}


def _copy_chain(chain: Chain, into: HloComputation, known: Map, copier: Copier) -> HloInstruction:
    """Copy a chain with its collective, except for instructions that are copied already; return the collective."""
    for old in (*chain.before, chain.collective):
        if old not in known:
            known[old] = new = copier.copy_moved(old, into, [known[operand] for operand in old.operands])
            keep_order(old, new, known)
            set_group(new, None)
    return known[chain.collective]


def _constant(value: int, shape: Shape) -> HloInstruction:
    return made("constant", shape, literal=np.full(shape.dims, value, shape.dtype.numpy))


def _new_body(
    loop: CountedLoop, moved: Sequence[Chain], shape: Shape, copier: Copier, left_out: set[HloInstruction]
) -> HloComputation:
    """Return the body that uses the collectives of the iteration before, and begins the collectives of the next one."""
    body = HloComputation(loop.body.name, loop.body.where)
    state = InstructionMaker(body).parameter(0, shape, "param")
    index = element(body, state, len(shape.tuple_shapes) - 1)
    old_root = loop.body.root
    width = len(old_root.operands)
    ahead: Map = {loop.parameter: state} | _counters(loop, index)
    copies: Map = {loop.parameter: state}
    places = {chain.collective: n for n, chain in enumerate(moved)}
    begun: list[HloInstruction] = []
    for old in loop.body.post_order():
        if old in copies or old is old_root or old in left_out:
            continue
        if old in places:
            begun.append(_copy_chain(moved[places[old]], body, ahead, copier))
            copies[old] = element(body, state, width + places[old])
        else:
            copies[old] = copier.copy(old, body, [copies[operand] for operand in old.operands], copies)
    # What the chains read of the state is that of the next iteration.
    for old, new in list(ahead.items()):
        if is_element(old) and new is not index:
            later = copies[old_root.operands[old.tuple_index]]
            for user in list(new.users):
                user.replace_operand(new, later)
            begun = [later if value is new else value for value in begun]
    step = body.add(_constant(loop.counter.step, index.shape))
    following = body.add(made("add", index.shape, [copies[old_root.operands[loop.counter.index]], step]))
    results = [*(copies[value] for value in old_root.operands), *begun, following]
    root = body.add(made("tuple", shape, results), is_root=True)
    keep_order(old_root, root, copies)
    return body


def _new_condition(loop: CountedLoop, shape: Shape) -> HloComputation:
    condition = HloComputation(loop.loop.while_condition.name, loop.loop.while_condition.where)
    state = InstructionMaker(condition).parameter(0, shape, "cond_param")
    limit = condition.add(_constant(loop.last, shape.tuple_shapes[loop.counter.index]))
    counter = element(condition, state, loop.counter.index)
    test = loop.loop.while_condition.root.shape
    direction = "LT" if loop.counter.step > 0 else "GT"
    condition.add(made("compare", test, [counter, limit], direction=direction), is_root=True)
    return condition


def _peel_last(
    loop: CountedLoop, moved: Sequence[Chain], new: HloInstruction, copier: Copier, left_out: set[HloInstruction]
) -> None:
    """Copy the last iteration behind the new loop, and let it replace the old one."""
    old, outer = loop.loop, new.parent
    assert outer is not None, "the loop is in a computation"
    width = len(loop.body.root.operands)
    copies: Map = {loop.parameter: new}
    places = {chain.collective: n for n, chain in enumerate(moved)}
    for value in loop.body.post_order():
        if value in copies or value is loop.body.root or value in left_out:
            continue
        if value in places:
            copies[value] = element(outer, new, width + places[value])
            continue
        copies[value] = copier.copy(value, outer, [copies[operand] for operand in value.operands], copies)
        copier.renumber_group(copies[value])
    result = outer.add(made("tuple", old.shape, [copies[value] for value in loop.body.root.operands]))
    copier.module.replace_uses(old, result)
    outer.remove(old)
