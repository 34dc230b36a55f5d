"""Inline called computations: helpers of the passes that simplify control flow."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from hlo_run.hlo.attributes.table import OpMetadata
from hlo_run.hlo.edit import copy_instruction
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule

ControlSuccessors: TypeAlias = dict[HloInstruction, list[HloInstruction]]


def inline_call(module: HloModule, call: HloInstruction, successors: ControlSuccessors | None = None) -> HloInstruction:
    """Replace the uses of a `call` by copies of the called instructions; return the new root. The call stays, without users.

    `successors` is as in `inline`.
    """
    root = inline(module, call, call.to_apply, successors=successors)
    if "frontend_attributes" in call.attrs and "frontend_attributes" not in root.attrs:
        root.attrs["frontend_attributes"] = call.attrs["frontend_attributes"]
    return root


def control_successors(computation: HloComputation) -> ControlSuccessors:
    """Return the control successors of each instruction."""
    found: ControlSuccessors = {}
    for instruction in computation.instructions:
        _note_order(instruction, found)
    return found


def _note_order(instruction: HloInstruction, successors: ControlSuccessors) -> None:
    for predecessor in instruction.control_predecessors:
        successors.setdefault(predecessor, []).append(instruction)


def inline(
    module: HloModule,
    caller: HloInstruction,
    body: HloComputation,
    arguments: tuple[HloInstruction, ...] | None = None,
    successors: ControlSuccessors | None = None,
) -> HloInstruction:
    """Replace the uses of an instruction by copies of the instructions of `body`; `arguments` default to the caller's operands.

    Control dependencies are kept. In `op_name`, the caller's name becomes a prefix of the inlined instructions' names.
    `successors` are the control successors in the caller's computation, updated in place; a pass that inlines many instructions
    computes them once.
    """
    computation = caller.parent
    assert computation is not None, "the caller is in a computation"
    if successors is None:
        successors = control_successors(computation)
    operands = caller.operands if arguments is None else arguments
    made: dict[HloInstruction, HloInstruction] = {}
    for old in body.post_order():
        if old.opcode == "parameter":
            made[old] = operands[old.parameter_number]
            continue
        new = copy_instruction(old, [made[operand] for operand in old.operands])
        before = [made[predecessor] for predecessor in old.control_predecessors]
        new.control_predecessors = list(dict.fromkeys((*caller.control_predecessors, *before)))
        _name_after(new, caller)
        made[old] = computation.add(new)
        _note_order(new, successors)
    root = made[body.root]
    for other in successors.pop(caller, ()):
        if caller in other.control_predecessors:
            other.control_predecessors = [root if p is caller else p for p in other.control_predecessors]
            successors.setdefault(root, []).append(other)
    module.replace(caller, root)
    return root


def _name_after(new: HloInstruction, call: HloInstruction) -> None:
    """Prefix `op_name` with that of the call; an instruction without metadata gets the call's."""
    outer, inner = call.metadata, new.metadata
    if not isinstance(outer, OpMetadata):
        return
    if not isinstance(inner, OpMetadata):
        new.attrs["metadata"] = outer
    elif outer.op_name and inner.op_name:
        new.attrs["metadata"] = replace(inner, op_name=f"{outer.op_name}/{inner.op_name}")
