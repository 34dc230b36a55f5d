"""Verify the structure of a module, parsed or made by a pass. `ops.infer` checks the shapes."""

from __future__ import annotations

import re

from hlo_run.errors import ParseError
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.table import OPCODES


def verify_module(module: HloModule) -> None:
    """Raise ParseError at the first error in the structure of a module.

    Checks the entry, parameter numbers, operand counts, required attributes, use lists, cycles of instructions and of
    calls, and callers of fusion bodies.
    """
    if module.entry_computation is None or module.entry_computation not in module.computations:
        raise ParseError(f"module '{module.name}' has no entry computation")
    _verify_calls(module)
    for computation in module.computations:
        _verify_computation(computation)


def _verify_calls(module: HloModule) -> None:
    """Raise ParseError for cycles of calls, calls out of the module, and bodies shared by a fusion and another caller."""
    known = set(module.computations)
    for computation in module.computations:
        for caller in computation.callers:
            if caller.parent not in known:
                raise ParseError(f"computation '{computation.name}' is called from outside of the module", computation.where)
    state: dict[HloComputation, bool] = {}
    for start in module.computations:
        _visit_calls(start, state, known)
    for computation in module.computations:
        if computation.is_fusion and any(caller.opcode != "fusion" for caller in computation.callers):
            other = next(caller for caller in computation.callers if caller.opcode != "fusion")
            raise ParseError(f"fusion computation '{computation.name}' is also called by '{other.name}'", other.where)


def _visit_calls(start: HloComputation, state: dict[HloComputation, bool], known: set[HloComputation]) -> None:
    """Visit the calls depth first; in `state` False means visiting, True means done."""
    stack = [start]
    while stack:
        top = stack[-1]
        if state.get(top):
            stack.pop()
            continue
        if top in state:
            state[top] = True
            stack.pop()
            continue
        state[top] = False
        for instruction in top.instructions:
            for called in instruction.called_computations:
                if called not in known:
                    raise ParseError(f"'{instruction.name}' calls '{called.name}', which the module lacks", instruction.where)
                if state.get(called) is False:
                    raise ParseError(f"'{instruction.name}' calls '{called.name}', which calls itself", instruction.where)
                if called not in state:
                    stack.append(called)


def _verify_computation(computation: HloComputation) -> None:
    if not computation.instructions:
        raise ParseError(f"computation '{computation.name}' is empty", computation.where)
    users = {instruction: set(instruction.users) for instruction in computation.instructions}
    if not computation.has_root or computation.root not in users:
        raise ParseError(f"computation '{computation.name}' has no root", computation.where)
    for instruction in computation.instructions:
        _verify_instruction(instruction, computation, users)
    numbers = [parameter.parameter_number for parameter in computation.parameters]
    if numbers != list(range(len(numbers))):
        raise ParseError(f"the parameters of '{computation.name}' are numbered {numbers}", computation.where)
    _verify_acyclic(computation)


def _verify_instruction(
    instruction: HloInstruction, computation: HloComputation, users: dict[HloInstruction, set[HloInstruction]]
) -> None:
    opcode = OPCODES.get(instruction.opcode)
    if opcode is None:
        raise instruction_error(instruction, f"Unknown opcode: {instruction.opcode}")
    if instruction.parent is not computation:
        raise instruction_error(instruction, f"is listed in '{computation.name}' but belongs elsewhere")
    if opcode.arity is not None and len(instruction.operands) != opcode.arity:
        raise instruction_error(instruction, f"expects {opcode.arity} operands, but has {len(instruction.operands)} operands")
    for name in sorted(opcode.required):
        if name not in instruction.attrs and name not in instruction.called:
            raise instruction_error(instruction, f"attribute {name} is expected but not seen")
    for other in (*instruction.operands, *instruction.control_predecessors):
        if other not in users:
            raise instruction_error(instruction, f"uses '{other.name}', which is not in its computation")
    for operand in instruction.operands:
        if instruction not in users[operand]:
            raise instruction_error(instruction, f"is not among the users of its operand '{operand.name}'")


def _verify_acyclic(computation: HloComputation) -> None:
    """Raise ParseError for a cycle of operands and control predecessors (Kahn's algorithm)."""
    waits = {i: {*i.operands, *i.control_predecessors} for i in computation.instructions}
    followers: dict[HloInstruction, list[HloInstruction]] = {i: [] for i in computation.instructions}
    for instruction, others in waits.items():
        for other in others:
            followers[other].append(instruction)
    missing = {instruction: len(others) for instruction, others in waits.items()}
    ready = [instruction for instruction, count in missing.items() if not count]
    while ready:
        done = ready.pop()
        del missing[done]
        for follower in followers[done]:
            missing[follower] -= 1
            if not missing[follower]:
                ready.append(follower)
    if missing:
        raise instruction_error(next(iter(missing)), "depends on itself: the instructions form a cycle")


def verify_entry_layout(module: HloModule) -> None:
    """Raise ParseError unless the entry_computation_layout has the shapes of the entry's parameters and root."""
    layout = module.entry_layout
    if layout is None:
        return
    entry = module.entry
    found = [parameter.shape for parameter in entry.parameters]
    if len(layout.parameters) != len(found):
        raise ParseError(
            f"entry_computation_layout has {len(layout.parameters)} parameters, but '{entry.name}' has {len(found)}", entry.where
        )
    pairs = [*zip(layout.parameters, found, strict=True), (layout.result, entry.root.shape)]
    for expected, actual in pairs:
        if not expected.compatible(actual):
            raise ParseError(
                f"entry_computation_layout does not fit '{entry.name}': expected {expected.to_string(layout=False)}, "
                f"found {actual.to_string(layout=False)}",
                entry.where,
            )


def written_name(instruction: HloInstruction) -> str:
    """Return the instruction's name in the source text, which may differ in the number that makes names unique."""
    where = instruction.where
    found = _NAME.match(where.source_line, where.column - 1) if where else None
    root = _NUMBER.sub("", instruction.name)
    return found[1] if found and _NUMBER.sub("", found[1]) == root else instruction.name


_NAME = re.compile(r"%?([A-Za-z_][\w.\-]*)")
_NUMBER = re.compile(r"\.\d+$")


def instruction_error(instruction: HloInstruction, message: str) -> ParseError:
    """Return an error with the instruction's name, opcode and source location."""
    return ParseError(f"'{written_name(instruction)}' ({instruction.opcode}): {message}", instruction.where)
