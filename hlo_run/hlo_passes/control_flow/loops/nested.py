"""Flattens the state of a loop: the elements of inner tuples become elements of the state."""

from __future__ import annotations

from collections.abc import Iterator

from hlo_run.hlo.edit import DETACHED, has_order
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.subgraphs.loops.cloning import cloned, renamed_clone, replace_by_form


def flatten_state(module: HloModule, loop: HloInstruction) -> bool:
    """Replace a loop whose state has inner tuples by a loop without them; return True if it had some.

    As in XLA, the copies of condition and body make the old state of the new one where they begin, and users read the old one.
    """
    (init,), body, condition = loop.operands, loop.while_body, loop.while_condition
    if init.opcode != "tuple" or body.root.opcode != "tuple" or not any(s.is_tuple for s in init.shape.tuple_shapes):
        return False
    if has_order(loop) or any(i.control_predecessors for c in (body, condition) for i in c.instructions):
        return False
    old = init.shape
    flat = Shape.make_tuple(tuple(_leaf_shapes(old)))
    states = {c: DETACHED.parameter(0, flat, c.parameters[0].name) for c in (condition, body)}
    new_condition = cloned(condition, {condition.parameters[0]: _nested(states[condition], old)})
    root = DETACHED.tuple(list(_leaves(renamed_clone(body.root))))
    new_body = cloned(body, {body.parameters[0]: _nested(states[body], old), body.root: root})
    start = DETACHED.tuple(list(_leaves(init)))
    replace_by_form(module, loop, new_condition, new_body, start, lambda made: _nested(made, old))
    return True


def _leaf_shapes(shape: Shape) -> Iterator[Shape]:
    for inner in shape.tuple_shapes:
        if inner.is_tuple:
            yield from _leaf_shapes(inner)
        else:
            yield inner


def _leaves(value: HloInstruction) -> Iterator[HloInstruction]:
    """Make the elements of a tuple, and of the tuples in it, in order."""
    for number, shape in enumerate(value.shape.tuple_shapes):
        element = DETACHED.get_tuple_element(value, number)
        if shape.is_tuple:
            yield from _leaves(element)
        else:
            yield element


def _nested(flat: HloInstruction, shape: Shape) -> HloInstruction:
    """Make a tuple of the given shape of the elements of a flat one."""
    elements = iter([DETACHED.get_tuple_element(flat, number) for number in range(len(flat.shape.tuple_shapes))])

    def joined(part: Shape) -> HloInstruction:
        return DETACHED.tuple([joined(inner) if inner.is_tuple else next(elements) for inner in part.tuple_shapes])

    return joined(shape)
