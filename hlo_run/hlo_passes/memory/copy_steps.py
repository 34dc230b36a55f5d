"""Steps of copy insertion before and after the schedule: remove copies, and copy values that must not share their buffer."""

from __future__ import annotations

from collections.abc import Container

from hlo_run.analysis.buffers.alias_analysis import AliasAnalysis, HloBuffer, analyze_aliases
from hlo_run.analysis.buffers.buffer_sharing import BufferSharing
from hlo_run.analysis.buffers.collective_memory import collective_buffers
from hlo_run.analysis.buffers.copy_chains import CopyChains
from hlo_run.analysis.buffers.dataflow import analyze_dataflow
from hlo_run.analysis.buffers.dataflow_values import HloUse, HloValue
from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.hlo.async_ops import is_async_wrapper
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import ASYNC
from hlo_run.hlo.tuple_edits import deep_copy
from hlo_run.hlo.values.shape import ShapeIndex
from hlo_run.hlo.verify.config import aliases
from hlo_run.ops.buffer_calls import is_buffer

_Marks = dict[HloInstruction, set[ShapeIndex]]


def remove_needless_copies(module: HloModule, given: Container[HloInstruction] = ()) -> None:
    """Let users of a copy read its source, where buffers can hold all values in turn; the copies stay, without users.

    A copy that goes loses its control dependencies. Those of a copy in `given`, which the pass did not make, go over to its
    users: `loop-schedule-linearizer` may have ordered them through the copy.
    """
    instructions = [i for c in executed_computations(module) for i in c.instructions]
    if not any(i.opcode == "copy" for i in instructions):
        return
    successors: dict[HloInstruction, list[HloInstruction]] = {}
    for instruction in instructions:
        for first in instruction.control_predecessors:
            successors.setdefault(first, []).append(instruction)
    for copy in CopyChains(analyze_dataflow(module)).removable_copies():
        if copy in given and copy.control_predecessors:
            for user in copy.users:
                user.control_predecessors = list(dict.fromkeys((*user.control_predecessors, *copy.control_predecessors)))
                for first in copy.control_predecessors:
                    successors.setdefault(first, []).append(user)
        copy.control_predecessors = []
        for other in successors.get(copy, ()):
            other.control_predecessors = [p for p in other.control_predecessors if p is not copy]
        module.replace_uses(copy, copy.operands[0])


def add_special_copies(module: HloModule, for_collectives: bool = False, every: bool = False) -> None:
    """Copy values that would share a buffer that they must not share: XLA's `AddSpecialCaseCopies`.

    Copied are: parameters and constants beside other values of their buffer; an operand that its user cannot overwrite;
    results of the entry that are parameters, constants or one buffer twice; results of a branch that are one buffer twice.
    `for_collectives`: also parameters, constants and results of the entry in a buffer of the memory space of collectives
    (`every`: see analysis/buffers/collective_memory.py).
    """
    analysis = analyze_aliases(analyze_dataflow(module))
    marks: _Marks = {}
    _mark_shared_values(module, analysis, marks)
    _mark_results(module, analysis, marks)
    if for_collectives:
        _mark_exchanged_ends(module, analysis, marks, every)
    places = {c: number for number, c in enumerate(module.computations)}
    ordered = {i: number for c in places for number, i in enumerate(c.instructions)}
    for value in sorted(marks, key=lambda value: (places[value.parent], ordered[value]) if value.parent else (0, 0)):
        copy_for_all(value, marks[value])


def copy_for_all(value: HloInstruction, leaves: set[ShapeIndex]) -> dict[ShapeIndex, HloInstruction]:
    """Let all users of a value, and its computation if it is the root, read copies of the leaves; return the copies."""
    computation = value.parent
    assert computation is not None, "the value is in a computation"
    users = list(value.users)
    made = deep_copy(computation, value, leaves)
    if made.value is value:
        return made.copies
    for user in users:
        user.replace_operand(value, made.value)
    if value.is_root:
        computation.root = made.value
    return made.copies


def _mark(marks: _Marks, instruction: HloInstruction, index: ShapeIndex) -> None:
    shape = instruction.shape
    for number in index:
        shape = shape.tuple_shapes[number]
    if not is_buffer(shape) and instruction.parent is not None and not is_async_wrapper(instruction.parent):
        marks.setdefault(instruction, set()).add(index)


def _mark_shared_values(module: HloModule, analysis: AliasAnalysis, marks: _Marks) -> None:
    sharing = BufferSharing()
    aliased = {(number, place) for _, number, place, _ in aliases(module)}
    executed = set(executed_computations(module))
    made_by: dict[HloBuffer, dict[HloInstruction, list[HloValue]]] = {}
    for value in analysis.dataflow.values:
        buffer = analysis.buffer_of[value]
        others = buffer.values
        if len(others) < 2 or value.instruction.parent not in executed:
            continue
        if _is_read_only(module, value, aliased):
            _mark(marks, value.instruction, value.index)
        if buffer not in made_by:
            made_by[buffer] = {}
            for other in others:
                made_by[buffer].setdefault(other.instruction, []).append(other)
        for use in value.uses:
            for other in made_by[buffer].get(use.instruction, ()):
                if other is not value and not _may_overwrite(sharing, use, other):
                    _mark(marks, use.instruction.operands[use.operand_number], use.operand_index)


def _is_read_only(module: HloModule, value: HloValue, aliased: set[tuple[int, ShapeIndex]]) -> bool:
    """Return True for a constant, and for a parameter of the entry that no result may overwrite."""
    source = value.instruction
    if source.opcode == "parameter" and source.parent is module.entry:
        return (source.parameter_number, value.index) not in aliased
    return source.opcode == "constant"


def _may_overwrite(sharing: BufferSharing, use: HloUse, value: HloValue) -> bool:
    user = use.instruction
    if user.opcode in ("while", "conditional"):
        return user.operands[use.operand_number].opcode != "constant"
    if user.opcode in (*ASYNC[1:], "copy") or is_buffer(value.shape):
        return True
    return sharing.may_share(user, use.operand_number, use.operand_index, value.index)


def _mark_results(module: HloModule, analysis: AliasAnalysis, marks: _Marks) -> None:
    entry = module.entry
    aliased = {(number, place) for _, number, place, _ in aliases(module)}
    outputs = {output for output, *_ in aliases(module)}
    for computation in executed_computations(module):
        root = computation.root
        callers = [caller for caller in computation.callers if caller.opcode == "conditional"]
        if computation is not entry and not callers:
            continue
        seen: dict[HloBuffer, ShapeIndex] = {}
        for index, value in analysis.dataflow.trees[root].walk():
            buffer = analysis.buffer_of[value]
            if buffer in seen and computation is entry and index in outputs:
                _mark(marks, root, seen[buffer])
            elif buffer in seen and (computation is entry or _is_joined(analysis, callers, index)):
                _mark(marks, root, index)
            seen.setdefault(buffer, index)
            if computation is entry and _is_read_only(module, value, aliased):
                _mark(marks, root, index)


def _mark_exchanged_ends(module: HloModule, analysis: AliasAnalysis, marks: _Marks, every: bool) -> None:
    entry = module.entry
    for buffer in collective_buffers(analysis, every):
        for value in buffer.values:
            source = value.instruction
            if source.opcode == "constant" or (source.opcode == "parameter" and source.parent is entry):
                _mark(marks, source, value.index)
            for instruction, index in value.positions:
                if instruction is entry.root and instruction.opcode != "copy":
                    _mark(marks, instruction, index)


def _is_joined(analysis: AliasAnalysis, callers: list[HloInstruction], index: ShapeIndex) -> bool:
    """Return True if a conditional returns values of several branches at the index."""
    return any(analysis.dataflow.value(caller, index).is_phi for caller in callers)
