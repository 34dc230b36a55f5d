"""Copies a computation with some of its instructions replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hlo_run.hlo.edit import copy_instruction, remove_replaced
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.walks import post_order, post_order_of_all


def renamed_clone(old: HloInstruction) -> HloInstruction:
    """Return a copy, in no computation, with XLA's name for one."""
    return copy_instruction(old, old.operands, name=f"{old.name}.clone")


def cloned(old: HloComputation, replacements: Mapping[HloInstruction, HloInstruction | None]) -> HloComputation:
    """Return a copy, in no module, with other instructions in place of some; their operands are in no computation yet.

    None replaces an instruction that goes with all its users. An operand of a replacement may be an instruction of `old`. As in
    XLA, what replaces nothing comes last in the copy, and a parameter after the last one. The replacements are used up.
    """
    new = HloComputation(f"{old.name}.clone", old.where)
    new.execution_thread = old.execution_thread
    kept = [r for i in old.instructions if (r := replacements.get(i, i)) is not None]
    order = _copying_order(kept, replacements)
    copies: dict[HloInstruction, HloInstruction] = {}
    for instruction in order:
        operands = [copies[replacements.get(o, o) or o] for o in instruction.operands]
        copies[instruction] = copy_instruction(instruction, operands)
    listed = list(dict.fromkeys(kept))
    mapped = set(listed)
    rest = [i for i in order if i not in mapped]
    old_positions = [listed.index(replacements.get(parameter) or parameter) + 1 for parameter in old.parameters]
    last = max(old_positions, default=0)
    listed[last:last] = [i for i in rest if i.opcode == "parameter"]
    listed += [i for i in rest if i.opcode != "parameter"]
    for instruction in listed:
        new.add(copies[instruction])
    new.root = copies[replacements.get(old.root) or old.root]
    for instruction in old.instructions:
        copy = copies.get(replacements.get(instruction, instruction) or instruction)
        if copy is not None:
            copy.order_users(copies.get(replacements.get(user, user) or user) for user in instruction.users)
    for instruction in order:
        if instruction.parent is None:
            instruction.operands = ()
    return new


def _copying_order(
    starts: list[HloInstruction], replacements: Mapping[HloInstruction, HloInstruction | None]
) -> list[HloInstruction]:
    """Return the instructions, operands before users, in the order in which XLA copies a computation: last operands first."""
    return post_order_of_all(
        starts, lambda user: [r for o in reversed(user.operands) if (r := replacements.get(o, o)) is not None]
    )


def replace_by_form(
    module: HloModule,
    loop: HloInstruction,
    condition: HloComputation,
    body: HloComputation,
    init: HloInstruction,
    old_form: Callable[[HloInstruction], HloInstruction],
) -> HloInstruction:
    """Replace the loop by `old_form(new)` where `new`, which is returned, has another state. Both come into the module here.

    As in XLA, the loop comes first, then what replaces the old one, then their operands in the order in which they were made.
    """
    computation = loop.parent
    assert computation is not None, "the loop is in a computation"
    made = copy_instruction(loop, [init], init.shape, loop.opcode)
    made.called = {"condition": (module.add_computation(condition),), "body": (module.add_computation(body),)}
    result = old_form(made)
    for instruction in (made, result, *_unplaced(init), *_unplaced(result)):
        if instruction.parent is None:
            computation.add(instruction)
    module.replace(loop, result)
    remove_replaced(loop)
    return made


def _unplaced(root: HloInstruction) -> list[HloInstruction]:
    """Return the operands, direct or not, that no computation has, first operands first, each before its users."""
    if root.parent is not None:
        return []
    return post_order(root, lambda user: [operand for operand in user.operands if operand.parent is None])
