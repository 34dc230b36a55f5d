"""Moves converts of results behind a conditional if all its branches end with them."""

from __future__ import annotations

from hlo_run.hlo.edit import Editor, copy_instruction
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape


def move_converts_out(module: HloModule, conditional: HloInstruction, sees_layouts: bool) -> None:
    """Let the branches return the operands of converts, and convert behind the conditional.

    Converts beside other converts, and those that a branch returns twice, stay.
    """
    branches = conditional.called_computations
    if any(branch.root.opcode != "tuple" or branch.root.users for branch in branches):
        return
    found = [n for n in range(len(branches[0].root.operands)) if _can_move(conditional, n, sees_layouts)]
    if not found:
        return
    editor = Editor(conditional, derives=False)
    if conditional.is_root:
        elements = [editor.element(conditional, n) for n in range(len(conditional.shape.tuple_shapes))]
        editor.computation.root = editor.tuple(elements)
    converts = {number: branches[0].root.operands[number] for number in found}
    for branch in branches:
        root = branch.root
        root.operands = tuple([value.operands[0] if n in converts else value for n, value in enumerate(root.operands)])
        root.shape = Shape.make_tuple(tuple(value.shape for value in root.operands))
    conditional.shape = branches[0].root.shape
    conditional.attrs.pop("sharding", None)
    for user in list(conditional.users):
        if user.opcode == "get-tuple-element" and user.tuple_index in converts:
            _convert(module, user, converts[user.tuple_index])


def _convert(module: HloModule, element: HloInstruction, convert: HloInstruction) -> None:
    editor = Editor(element, derives=False)
    (conditional,) = element.operands
    source = editor.element(conditional, element.tuple_index)
    module.replace_uses(element, editor.computation.add(copy_instruction(convert, [source])))
    editor.computation.remove(element)


def _can_move(conditional: HloInstruction, number: int, sees_layouts: bool) -> bool:
    results = [branch.root.operands[number] for branch in conditional.called_computations]
    if any(not _is_lone_convert(result) for result in results):
        return False
    first = results[0]
    shapes = [(result.shape, result.operands[0].shape) for result in results]
    if sees_layouts:
        return len(set(shapes)) == 1
    return all(one.compatible(first.shape) and two.compatible(first.operands[0].shape) for one, two in shapes)


def _is_lone_convert(value: HloInstruction) -> bool:
    if value.opcode != "convert" or value.control_predecessors or value.operands[0].opcode == "convert":
        return False
    assert value.parent is not None, "the value is in a branch"
    return value.parent.root.operands.count(value) == 1 and all(user.opcode != "convert" for user in value.users)
