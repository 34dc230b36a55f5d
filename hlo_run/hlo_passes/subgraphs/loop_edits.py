"""Edits of loops whose state is a tuple: add elements to the state, and read them in the body."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape


def add_to_state(module: HloModule, loop: HloInstruction, values: Sequence[HloInstruction]) -> list[HloInstruction]:
    """Append values, which the loop does not change, to its state; return the body's get-tuple-elements of them.

    The loop alone must call its computations, and the body's root must be a tuple. Users of the loop that need the whole old
    state get a tuple of its elements.
    """
    if not values:
        return []
    body, condition = loop.while_body, loop.while_condition
    old_shapes = loop.shape.tuple_shapes
    _keep_old_state(module, loop)
    editor = Editor(loop)
    (init,) = loop.operands
    elements = [*(editor.element(init, n) for n in range(len(old_shapes))), *values]
    shape = Shape.make_tuple((*old_shapes, *(value.shape for value in values)))
    loop.operands = [editor.add("tuple", shape, elements)]
    loop.shape = shape
    for computation in (body, condition):
        computation.parameters[0].shape = shape
    read = [_element(body, len(old_shapes) + n) for n in range(len(values))]
    root = body.root
    body.root = Editor(root).add("tuple", shape, [*root.operands, *read])
    if not root.users:
        body.remove(root)
    if init.opcode == "tuple" and not init.users and not init.is_root and init.parent is not None:
        init.parent.remove(init)
    return read


def _element(computation: HloComputation, number: int) -> HloInstruction:
    return Editor(computation.parameters[0]).element(computation.parameters[0], number)


def _keep_old_state(module: HloModule, loop: HloInstruction) -> None:
    whole = [user for user in loop.users if user.opcode != "get-tuple-element"]
    if not whole and not loop.is_root:
        return
    editor = Editor(loop)
    elements = [editor.element(loop, n) for n in range(len(loop.shape.tuple_shapes))]
    state = editor.add("tuple", loop.shape, elements)
    for user in whole:
        user.replace_operand(loop, state)
    if loop.is_root:
        editor.computation.root = state
