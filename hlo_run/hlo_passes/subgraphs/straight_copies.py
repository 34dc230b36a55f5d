"""Insert the copies of an entry computation without loops and branches: XLA's steps, in its order and with its names.

Every operand that an instruction changes in place, and every aliased parameter and result, is copied first. Then copies go that
no order of the dependencies needs (`analysis/buffers/copy_chains.py`). At last, a parameter or constant that would be overwritten
is copied for all its users.
"""

from __future__ import annotations

from collections.abc import Container

from hlo_run.analysis.buffers.alias_pairs import in_place_pairs
from hlo_run.analysis.buffers.copy_chains import RunsBefore, by_dependencies, removable_copies, value_groups
from hlo_run.analysis.buffers.dataflow import analyze_dataflow
from hlo_run.analysis.buffers.dataflow_values import HloValue
from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.hlo.edit import remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.verify.config import aliases


def is_straight(module: HloModule) -> bool:
    """Return True if the entry has no loops, branches and calls, and only arrays are updated in place or aliased."""
    entry = module.entry
    if module.schedule is not None or len(executed_computations(module)) > 1 or any(p.shape.is_tuple for p in entry.parameters):
        return False
    if entry.root.shape.is_tuple and (entry.root.opcode != "tuple" or any(o.shape.is_tuple for o in entry.root.operands)):
        return False
    pairs = ((i, pair) for i in entry.instructions for pair in in_place_pairs(i))
    return all(i.opcode != "async-start" and not pair.operand_index for i, pair in pairs)


def insert_copies(module: HloModule) -> None:
    """Add the necessary copies to the entry of a module for which `is_straight` is true."""
    entry = module.entry
    _copy_operands(entry)
    if aliases(module):
        _copy_aliased(module)
    elide_copies(module, entry, by_dependencies(entry))
    _copy_overwritten(module)


def elide_copies(
    module: HloModule, computation: HloComputation, runs_before: RunsBefore, kept: Container[HloInstruction] = ()
) -> None:
    """Remove the copies of a computation that no order which `runs_before` allows needs; their control dependencies go too.

    Copies in `kept` stay.
    """
    if not any(i.opcode == "copy" for i in computation.instructions):
        return
    gone: list[HloInstruction] = []
    for copy in removable_copies(analyze_dataflow(module), computation, runs_before, kept):
        gone.append(copy)
        copy.control_predecessors = []
        for other in computation.instructions:
            if copy in other.control_predecessors:
                other.control_predecessors = [p for p in other.control_predecessors if p is not copy]
    for copy in gone:
        module.replace_uses(copy, copy.operands[0])
    remove_unused(gone)


def _copy(computation: HloComputation, value: HloInstruction) -> HloInstruction:
    return computation.add(HloInstruction("copy", "copy", value.shape, [value], where=value.where))


def _copy_operands(entry: HloComputation) -> None:
    """Copy every operand that is changed in place, for that use alone."""
    for instruction in entry.post_order():
        operands = list(instruction.operands)
        for number in dict.fromkeys(pair.operand_number for pair in in_place_pairs(instruction)):
            operands[number] = _copy(entry, operands[number])
        if operands != list(instruction.operands):
            instruction.operands = operands


def _copy_aliased(module: HloModule) -> None:
    """Copy aliased parameters for all users, and then the aliased results."""
    entry = module.entry
    made: dict[int, HloInstruction] = {}
    aliased = {number for _, number, _, _ in aliases(module)}
    for parameter in entry.parameters:
        if parameter.parameter_number not in aliased:
            continue
        copy = made[parameter.parameter_number] = _copy_for_all(parameter)
        if parameter.is_root:
            entry.root = copy
    pairs = {output: made[number] for output, number, _, _ in aliases(module)}
    root = entry.root
    if not root.shape.is_tuple:
        entry.root = _copy(entry, root)
        entry.root.control_predecessors = [pairs[()]]
        return
    results: list[HloInstruction] = []
    for number, value in enumerate(root.operands):
        # XLA reads the old root here; the value takes the name of that instruction if it has the same opcode.
        name = module.unique_instruction_name("get-tuple-element")
        if value.opcode == "get-tuple-element":
            value.name = name
        if (number,) in pairs:
            copy = _copy(entry, value)
            copy.control_predecessors = [pairs[number,]]
            value = copy
        results.append(value)
    entry.root = entry.add(HloInstruction("tuple", "tuple", root.shape, results, dict(root.attrs), where=root.where))
    entry.remove(root)


def _copy_for_all(value: HloInstruction) -> HloInstruction:
    """Return a copy of a value that all its users read instead."""
    assert value.parent is not None, "the value is in a computation"
    users = list(value.users)
    copy = _copy(value.parent, value)
    for user in users:
        user.replace_operand(value, copy)
    return copy


def _copy_overwritten(module: HloModule) -> None:
    """Copy parameters and constants that share a buffer with another value; an aliased parameter may be overwritten."""
    entry = module.entry
    aliased = {number for _, number, _, _ in aliases(module)}

    def is_read_only(value: HloValue) -> bool:
        source = value.instruction
        return source.opcode == "constant" or (source.opcode == "parameter" and source.parameter_number not in aliased)

    groups = value_groups(analyze_dataflow(module), entry)
    shared = {value.instruction for group in groups if len(group) > 1 for value in group if is_read_only(value)}
    for value in [i for i in entry.instructions if i in shared]:
        _copy_for_all(value)
