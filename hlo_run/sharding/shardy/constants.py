"""Constants and broadcasts of scalars.

Loops and branches make the constants that they take, each user gets its own before the propagation, and equal ones are merged
after it.
"""

from __future__ import annotations

from hlo_run.hlo.edit import copy_instruction
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.sharding.shardy.annotations import GROUP, is_call
from hlo_run.sharding.shardy.constraints import Given
from hlo_run.sharding.shardy.rules import is_elementwise

_KEEPS_CONSTANTS: frozenset[Opcode] = frozenset(["broadcast", "reshape", "slice"])


def sink_constants(module: HloModule) -> None:
    """Let loops and branches read copies of the constants that they take and do not change, at any depth."""

    def visit(computation: HloComputation) -> None:
        for instruction in computation.post_order():
            if instruction.opcode == "while":
                _sink_into_loop(instruction)
            elif instruction.opcode == "conditional":
                for called, taken in zip(instruction.called_computations, instruction.operands[1:], strict=True):
                    _sink_into_branch(module, called, taken)
            if instruction.opcode in ("while", "conditional", "call"):
                for called in instruction.called_computations:
                    visit(called)

    visit(module.entry)


def _sink_into_loop(loop: HloInstruction) -> None:
    start, root = loop.operands[0], loop.while_body.root
    (state,) = loop.while_body.parameters
    if start.opcode != "tuple" or root.opcode != "tuple":
        return
    for computation in (loop.while_condition, loop.while_body):
        for element in _elements(computation):
            number = element.tuple_index
            value, own = start.operands[number], root.operands[number]
            is_kept = own.opcode == "get-tuple-element" and own.operands[0] is state and own.tuple_index == number
            if value.opcode == "constant" and is_kept:
                made = computation.add(copy_instruction(value, []))
                for user in [user for user in element.users if user is not root]:
                    user.replace_operand(element, made)


def _sink_into_branch(module: HloModule, branch: HloComputation, taken: HloInstruction) -> None:
    if taken.opcode == "constant" and taken.shape.is_array:
        module.replace_uses(branch.parameters[0], branch.add(copy_instruction(taken, [])))
    for element in _elements(branch) if taken.opcode == "tuple" else ():
        value = taken.operands[element.tuple_index]
        if value.opcode == "constant":
            module.replace_uses(element, branch.add(copy_instruction(value, [])))


def _elements(computation: HloComputation) -> list[HloInstruction]:
    return [user for user in computation.parameters[0].users if user.opcode == "get-tuple-element"]


def split_constants(computation: HloComputation, given: Given) -> None:
    """Give each use of a value that constants alone determine, or of a broadcast of a scalar, a separate copy.

    Scalars stay shared, as they are not divided. Copies get what `given` says about the originals.
    """
    constant: dict[HloInstruction, None] = {}
    expanded: dict[HloInstruction, None] = {}
    for instruction in computation.post_order():
        if is_call(instruction, GROUP):
            continue
        if _is_constant(instruction, constant):
            constant[instruction] = None
        elif _is_expanded(instruction):
            expanded[instruction] = None
        else:
            operands = [
                _copy(computation, operand, {}, given) if operand in constant or operand in expanded else operand
                for operand in instruction.operands
            ]
            if any(new is not old for new, old in zip(operands, instruction.operands, strict=True)):
                instruction.operands = tuple(operands)
    for unused in (*expanded, *reversed(constant)):
        if not unused.users and not unused.is_root:
            computation.remove(unused)


def values_split_for_good(computation: HloComputation) -> set[HloInstruction]:
    """Return the arrays of which each use gets a copy that `merge_constants` does not merge: constants compute them."""
    constant: dict[HloInstruction, None] = {}
    for instruction in computation.post_order():
        if not is_call(instruction, GROUP) and _is_constant(instruction, constant):
            constant[instruction] = None
    return {value for value in constant if value.shape.rank > 0 and value.opcode != "constant" and not _is_expanded(value)}


def _is_expanded(instruction: HloInstruction) -> bool:
    return instruction.opcode == "broadcast" and instruction.operands[0].shape.rank == 0


def _is_constant(instruction: HloInstruction, constant: dict[HloInstruction, None]) -> bool:
    if instruction.opcode in ("constant", "iota"):
        return instruction.shape.is_array
    keeps = instruction.opcode in _KEEPS_CONSTANTS or (is_elementwise(instruction) and instruction.opcode != "custom-call")
    return keeps and bool(instruction.operands) and all(operand in constant for operand in instruction.operands)


def _copy(
    computation: HloComputation, old: HloInstruction, made: dict[HloInstruction, HloInstruction], given: Given
) -> HloInstruction:
    """Return a copy of a value and of all that it depends on, except scalars and parameters."""
    if (old.shape.is_array and old.shape.rank == 0) or old.opcode == "parameter":
        return old
    if old not in made:
        new = copy_instruction(old, [_copy(computation, operand, made, given) for operand in old.operands])
        made[old] = computation.add(new)
        if old in given:
            given[new] = given[old]
        for user in list(old.users):
            if is_call(user, GROUP):
                computation.add(copy_instruction(user, [new]))
    return made[old]


def merge_constants(computation: HloComputation) -> None:
    """Merge equal constants, then equal broadcasts of scalars; equal ones have the same attributes, shardings among them."""
    first: dict[object, HloInstruction] = {}
    for instruction in computation.post_order():
        if instruction.opcode != "constant" and not _is_expanded(instruction):
            continue
        kept = first.setdefault(_key(instruction), instruction)
        if kept is not instruction and not instruction.is_root and computation.module is not None:
            computation.module.replace_uses(instruction, kept)
            computation.remove(instruction)


def _key(instruction: HloInstruction) -> object:
    data: object = None
    if instruction.opcode == "constant":
        literal = instruction.constant_array if instruction.shape.is_array else None
        data = (literal.dtype.str, literal.tobytes()) if literal is not None else id(instruction)
    sharding, attributes = instruction.sharding, instruction.frontend_attributes
    return instruction.opcode, instruction.shape, data, instruction.operands, sharding, attributes
