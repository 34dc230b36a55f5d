"""Edits of loops whose state is a tuple: add elements to the state, and read them in the body."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.hlo.edit import Editor, clone_called, copy_instruction, next_channel_id
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
    loop.operands = (editor.add("tuple", shape, elements),)
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


def use_elements(
    loop: HloInstruction, users: Sequence[HloInstruction], was_root: bool, elements: Sequence[HloInstruction]
) -> None:
    """Let `users` of the loop read these values instead of its elements; with `was_root` a tuple of them becomes the root."""
    whole = [user for user in users if user.opcode != "get-tuple-element"]
    computation = loop.parent
    assert computation is not None, "the loop is in a computation"
    assert computation.module is not None, "the computation is in a module"
    if whole or was_root:
        state = Editor(loop).tuple(elements)
        for user in whole:
            user.replace_operand(loop, state)
        if was_root:
            computation.root = state
    for user in users:
        if user.opcode == "get-tuple-element":
            computation.module.replace_uses(user, elements[user.tuple_index])
            computation.remove(user)


def copy_body(
    body: HloComputation, into: HloComputation, state: HloInstruction, suffix: str = ""
) -> dict[HloInstruction, HloInstruction]:
    """Add a copy of a loop's body that begins with `state`. Return the copies by their originals; the parameter's is `state`.

    The copies are called `NAME.SUFFIX`. They keep the control dependencies among them, and collectives get new channels.
    """
    made: dict[HloInstruction, HloInstruction] = {body.parameters[0]: state}
    module, channels = into.module or body.module, dict[int, int]()
    following = next_channel_id(module) if module is not None else 1
    for old in body.post_order():
        if old in made:
            continue
        name = f"{old.name}.{suffix}" if suffix else old.name
        new = copy_instruction(old, [made[operand] for operand in old.operands], name=name)
        new.control_predecessors = [made[p] for p in old.control_predecessors if p in made]
        if new.channel_id is not None and not new.opcode.startswith(("recv", "send")):
            new.attrs["channel_id"] = channels.setdefault(new.channel_id, following + len(channels))
        if into.module is not None:
            clone_called(into.module, new)
        made[old] = into.add(new)
    return made
