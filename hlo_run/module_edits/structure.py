"""Edits of structure: inline computations, run a loop's body once, make a computation the entry, drop state of loops."""

from __future__ import annotations

from hlo_run.hlo.edit import Editor, InstructionMaker, copy_instruction, remove_uncalled, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.module_edits.values import drop_unneeded, is_data, ones

_INLINED: tuple[Opcode, ...] = ("call", "fusion")


def inline(instruction: HloInstruction) -> bool:
    """Replace a call or a fusion by the instructions of its computation."""
    if instruction.opcode not in _INLINED or instruction.parent is None:
        return False
    (computation,) = instruction.called_computations
    parent, module = instruction.parent, instruction.parent.module
    assert module is not None
    made: dict[HloInstruction, HloInstruction] = {}
    for old in computation.post_order():
        if old.opcode == "parameter":
            made[old] = instruction.operands[old.parameter_number]
        else:
            made[old] = parent.add(copy_instruction(old, [made[operand] for operand in old.operands]))
    module.replace(instruction, made[computation.root])
    return True


def run_once(instruction: HloInstruction) -> bool:
    """Replace a while by a call of its body."""
    if instruction.opcode != "while":
        return False
    return _call(instruction, instruction.while_body, instruction.operands[0])


def take_branch(instruction: HloInstruction, number: int) -> bool:
    """Replace a conditional by a call of one branch."""
    if instruction.opcode != "conditional" or number >= len(instruction.called_computations):
        return False
    return _call(instruction, instruction.called_computations[number], instruction.operands[1 + number])


def _call(old: HloInstruction, computation: HloComputation, operand: HloInstruction) -> bool:
    assert old.parent is not None
    assert old.parent.module is not None
    call = InstructionMaker(where=old.where).add("call", old.shape, [operand], {"to_apply": (computation,)})
    old.parent.module.replace(old, old.parent.add(call))
    return True


def make_entry(module: HloModule, computation: HloComputation) -> bool:
    """Make a called computation the entry, if it takes and returns data."""
    values = (*computation.parameters, computation.root)
    if computation is module.entry or not all(is_data(value.shape) for value in values):
        return False
    module.entry_computation = computation
    remove_uncalled(module)
    return True


def without_state(loop: HloInstruction, dropped: set[int]) -> bool:
    """Drop elements of a while's state. Inside the loop, ones replace their values; behind it, the initial values do."""
    if loop.opcode != "while" or not dropped or loop.is_root:
        return False
    body, condition, initial = loop.while_body, loop.while_condition, loop.operands[0]
    states = [body.parameters[0], condition.parameters[0], loop]
    if body.root.opcode != "tuple" or any(len(c.callers) != 1 or c.root in states for c in (body, condition)):
        return False
    if any(user.opcode != "get-tuple-element" for state in states for user in state.users):
        return False
    kept = [n for n in range(len(loop.shape.tuple_shapes)) if n not in dropped]
    if len(kept) == len(loop.shape.tuple_shapes) or not kept:
        return False
    module = loop.parent.module if loop.parent is not None else None
    assert module is not None
    for state in states:
        for user in list(state.users):
            number = user.tuple_index
            if number in dropped:
                if state is not loop and not user.shape.is_array:
                    return False
                module.replace(user, Editor(user).element(initial, number) if state is loop else ones(user))
    editor = Editor(initial)
    start = editor.tuple([editor.element(initial, n) for n in kept])
    root = Editor(body.root).tuple([body.root.operands[n] for n in kept])
    body.root = root
    loop.operands = (start,)
    for state in states:
        state.shape = start.shape
        for user in list(state.users):
            if user.tuple_index in dropped:
                continue
            user.attrs["index"] = kept.index(user.tuple_index)
    for computation in (body, condition):
        drop_unneeded(computation)
    if loop.parent is not None:
        drop_unneeded(loop.parent)
    return True


def tidy(module: HloModule) -> None:
    """Remove unused instructions, computations, parameters of the entry, and operands of calls and fusions."""
    remove_uncalled(module)
    for computation in list(module.computations):
        remove_unused(list(computation.instructions))
    for computation in list(module.computations):
        if len(computation.callers) == 1 and computation.callers[0].opcode in _INLINED:
            _drop_unused_operands(computation.callers[0], computation)
    _drop_unused_parameters(module.entry)
    remove_unused(list(module.entry.instructions))
    _drop_unused_parameters(module.entry)
    remove_uncalled(module)
    shapes = (*(parameter.shape for parameter in module.entry.parameters), module.entry.root.shape)
    if module.entry_layout is not None and shapes:
        del module.attrs["entry_computation_layout"]
    if module.schedule is not None:
        module.schedule = {c: _scheduled(c, module.schedule.get(c)) for c in module.computations if not c.is_fusion}


def _scheduled(computation: HloComputation, old: list[HloInstruction] | None) -> list[HloInstruction]:
    """Return the old order if it is still valid, else one with operands before users."""
    if old is not None and set(old) == set(computation.instructions):
        places = {instruction: n for n, instruction in enumerate(old)}
        if all(places[operand] < places[i] for i in old for operand in i.operands):
            return old
    return computation.post_order()


def _drop_unused_parameters(computation: HloComputation) -> list[int]:
    """Remove parameters without users, renumber the others, and return the old numbers of those that stay."""
    parameters = computation.parameters
    kept = [p for p in parameters if p.users or p is computation.root]
    numbers = [parameters.index(p) for p in kept]
    for parameter in parameters:
        if parameter not in kept:
            computation.remove(parameter)
    for number, parameter in enumerate(kept):
        if parameter.parameter_number != number:
            parameter.attrs["parameter_number"] = number
    computation.forget_parameters()
    return numbers


def _drop_unused_operands(caller: HloInstruction, computation: HloComputation) -> None:
    before = len(computation.parameters)
    kept = _drop_unused_parameters(computation)
    if len(kept) != before:
        caller.operands = tuple([caller.operands[n] for n in kept])
