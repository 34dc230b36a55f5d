"""Inline called computations: helpers of the passes that simplify control flow."""

from __future__ import annotations

from typing import TypeAlias

from hlo_run.hlo.attributes.stack_frames import StackFrames
from hlo_run.hlo.attributes.table import OpMetadata
from hlo_run.hlo.edit import Editor, InstructionMaker, clone_called, copy_instruction, has_side_effect
from hlo_run.hlo.frontend_attributes import frontend_attribute, set_frontend_attribute
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.opcodes.traits import CONTROL_FLOW
from hlo_run.hlo.printer import callees_in_order
from hlo_run.records import replace

# Of `op_name`, as in XLA.
_LONGEST_NAME = 1024
# Frontend attributes that say of which composite a call stands for.
_COMPOSITE = ("composite.name", "composite.attributes", "composite.version")
# Frontend attributes of a call that its instructions get; the first makes the second void.
_WISHES = ("MUST_FUSE", "MAXIMAL_FUSE", "mosaic_fusion_group")
_NEVER_FUSED = opcode_set("call conditional domain parameter while")

ControlSuccessors: TypeAlias = dict[HloInstruction, list[HloInstruction]]


def inline_call(module: HloModule, call: HloInstruction, successors: ControlSuccessors | None = None) -> HloInstruction:
    """Replace the uses of a `call` by copies of the called instructions; return the new root. The call stays, without users.

    `successors` is as in `inline`. The instructions get the call's wishes about fusion (`_WISHES`), the root all of its frontend
    attributes if it has none, but not those of a composite.
    """
    for name in _COMPOSITE if call.attrs.get("is_composite") else ():
        set_frontend_attribute(call, name, None)
    _hand_down_wishes(call)
    root = inline(module, call, call.to_apply, successors=successors)
    if "frontend_attributes" in call.attrs and "frontend_attributes" not in root.attrs:
        root.attrs["frontend_attributes"] = call.attrs["frontend_attributes"]
    return root


def _hand_down_wishes(call: HloInstruction) -> None:
    """Give the called instructions that can be fused the attributes of the call that ask for it, beside their own."""
    asked = [name for name in _WISHES if frontend_attribute(call, name) is not None]
    for name in asked if asked[:2] != list(_WISHES[:2]) else asked[:1] + asked[2:]:
        for instruction in call.to_apply.instructions:
            is_free = frontend_attribute(instruction, name) is None
            if is_free and instruction.opcode not in _NEVER_FUSED and not has_side_effect(instruction):
                set_frontend_attribute(instruction, name, frontend_attribute(call, name))


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

    Control dependencies are kept. A fusion gets a body of its own, because `body` may stay in the module. In `op_name`, the
    caller's name becomes a prefix of the inlined instructions' names.
    `successors` are the control successors in the caller's computation, updated in place; a pass that inlines many instructions
    computes them once.
    """
    computation = caller.parent
    assert computation is not None, "the caller is in a computation"
    if successors is None:
        successors = control_successors(computation)
    operands = caller.operands if arguments is None else arguments
    frames = module.stack_frames
    made: dict[HloInstruction, HloInstruction] = {}
    for old in body.visit_order():
        if old.opcode == "parameter":
            made[old] = operands[old.parameter_number]
            continue
        new = copy_instruction(old, [made[operand] for operand in old.operands])
        clone_called(module, new)
        before = [made[predecessor] for predecessor in old.control_predecessors]
        new.control_predecessors = list(dict.fromkeys((*caller.control_predecessors, *before)))
        made[old] = computation.add(new)
        name_after(new, caller, frames)
        _note_order(new, successors)
    root = made[body.root]
    for other in successors.pop(caller, ()):
        if caller in other.control_predecessors:
            other.control_predecessors = [root if p is caller else p for p in other.control_predecessors]
            successors.setdefault(root, []).append(other)
    module.replace(caller, root)
    return root


def name_after(new: HloInstruction, call: HloInstruction, frames: StackFrames | None) -> None:
    """Prefix `op_name` with the call's name and the stack with the call's stack, unless they begin so already.

    Loops and branches pass it on to the instructions in their computations. XLA's `PropagateCallMetadata`.
    """
    outer = call.metadata
    if not isinstance(outer, OpMetadata) or not (outer.op_name or outer.stack_frame_id):
        return
    if new.opcode in CONTROL_FLOW and new.opcode != "call":
        # XLA's order decides the numbers of new frames.
        for computation in callees_in_order(new):
            for inner in computation.instructions:
                name_after(inner, call, frames)
    old = new.metadata if isinstance(new.metadata, OpMetadata) else OpMetadata()
    frame = old.stack_frame_id
    if outer.stack_frame_id and frames is not None and not frames.is_prefix(outer.stack_frame_id, frame):
        frame = frames.concatenate(outer.stack_frame_id, frame)
    made = replace(old, op_name=_joined_name(outer.op_name, old.op_name), stack_frame_id=frame)
    if made != old:
        new.attrs["metadata"] = made


def _joined_name(prefix: str, name: str) -> str:
    prefix, inner = prefix.removesuffix("/"), name.removeprefix("/").removesuffix("/")
    if not prefix or inner.startswith(prefix) or len(prefix) + len(inner) >= _LONGEST_NAME:
        return name
    return f"{prefix}/{inner}" if inner else prefix


def one_result(module: HloModule, reducer: HloComputation, number: int) -> HloComputation:
    """Return a computation of one result of a reducer: the reducer itself if it returns no tuple."""
    if not reducer.root.shape.is_tuple:
        return reducer
    made = HloComputation(f"{reducer.name}.dup.{number}")
    parameters = [InstructionMaker(made).parameter(place, p.shape, p.name) for place, p in enumerate(reducer.parameters)]
    made.root = parameters[0]
    module.add_computation(made)
    editor = Editor(parameters[0])
    call = editor.add("call", reducer.root.shape, parameters, {"to_apply": [reducer]})
    made.root = editor.element(call, number)
    inline_call(module, call)
    made.remove(call)
    return made
