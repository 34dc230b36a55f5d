"""Wrap every computing instruction outside a fusion into a separate fusion, since kernels are made from fusions only.

    ROOT add = f32[8] add(p, q)   =>   wrapped_add_computation { .. ROOT add = add(param_0, param_1) }
                                       ROOT wrapped_add = f32[8] fusion(p, q), kind=kLoop, calls=wrapped_add_computation

Edits the entry and the computations of control flow (bodies of call, while, conditional), not those embedded in a kernel
(reducers, comparators, fusion bodies). Leaves instructions without a kernel: copies that keep the layout, bitcasts, tuples,
constants, library calls. XLA's `fusion_wrapper.cc`. A copy that changes the layout is wrapped as well; XLA's layout
normalisation would have made it a transpose.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.computation_order import flat_post_order
from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.analysis.fusion.fusion_rules import LOOP_FUSIBLE
from hlo_run.analysis.tiling.node_facts import is_contiguous_reduction
from hlo_run.analysis.tiling.transpose_description import describe_transpose
from hlo_run.hlo.edit import InstructionMaker, copy_instruction
from hlo_run.hlo.fused_names import FusedNames
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.opcodes.traits import ELEMENTWISE
from hlo_run.pass_support.hlo_pass import PassContext

# In addition to the elementwise ops; a copy is wrapped only if it changes the layout.
WRAPPED = (ELEMENTWISE | LOOP_FUSIBLE | opcode_set("convolution dot reduce scaled-dot scatter")) - opcode_set("constant copy")


class FusionWrapper(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "fusion-wrapper"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place. In a schedule, each fusion takes the place of its instruction."""
        del ctx
        followers: dict[HloInstruction, list[HloInstruction]] = {}
        for computation in executed_computations(module):
            for instruction in computation.instructions:
                for first in instruction.control_predecessors:
                    followers.setdefault(first, []).append(instruction)
        wrapped: dict[HloComputation, dict[HloInstruction, HloInstruction]] = {}
        for instruction in flat_post_order(module):
            if _is_wrapped(instruction) and instruction.parent is not None:
                pairs = wrapped.setdefault(instruction.parent, {})
                pairs[instruction] = _wrap(module, instruction)
                _hand_on_order(instruction, pairs[instruction], followers)
        for computation, pairs in wrapped.items():
            order = (module.schedule or {}).get(computation)
            if order is not None:
                order[:] = [pairs.get(i, i) for i in order]
            computation.remove_all(pairs)
            for fusion in pairs.values():
                computation.add_named(fusion)


def _is_wrapped(instruction: HloInstruction) -> bool:
    if instruction.opcode == "copy":
        operand = instruction.operands[0].shape
        return instruction.shape.is_array and operand.minor_to_major != instruction.shape.minor_to_major
    return instruction.opcode in WRAPPED


def _hand_on_order(
    instruction: HloInstruction, fusion: HloInstruction, followers: dict[HloInstruction, list[HloInstruction]]
) -> None:
    """Let the fusion take over the control predecessors and successors of the instruction."""
    fusion.control_predecessors = list(instruction.control_predecessors)
    for first in instruction.control_predecessors:
        followers[first] = [fusion if other is instruction else other for other in followers[first]]
    for other in followers.get(instruction, ()):
        other.control_predecessors = [fusion if first is instruction else first for first in other.control_predecessors]
    followers[fusion] = followers.pop(instruction, [])


def _wrap(module: HloModule, instruction: HloInstruction) -> HloInstruction:
    """Replace the uses of the instruction by a fusion of it, which is in no computation yet. Takes the names that XLA takes."""
    module.unique_computation_name("fused_computation")
    names: FusedNames[HloInstruction] = FusedNames(module.instruction_names)
    names.append(instruction, instruction.name, instruction.operands)
    module.unique_instruction_name("fusion")
    wrapped = f"wrapped_{instruction.opcode}"
    fusion_name = module.unique_instruction_name(wrapped)
    body = HloComputation(module.unique_computation_name(f"{wrapped}_computation"), instruction.where)
    inner = body.add(copy_instruction(instruction, (), name=names[instruction]), is_root=True)
    parameters: dict[HloInstruction, HloInstruction] = {}
    for number, source in enumerate(names.parameters):
        parameters[source] = InstructionMaker(body).parameter(number, source.shape, names[source])
    inner.operands = tuple([parameters[operand] for operand in instruction.operands])
    module.add_named_computation(body)
    kept = {name: instruction.attrs[name] for name in ("metadata", "frontend_attributes") if name in instruction.attrs}
    kept["kind"] = "kInput" if _is_input_fusible(instruction) else "kLoop"
    fusion = InstructionMaker(where=instruction.where).add(
        "fusion", instruction.shape, names.parameters, {"calls": (body,)}, name=fusion_name, **kept
    )
    module.replace_uses(instruction, fusion)  # the fusion gets no sharding, as in XLA
    # Here, so that the fusion takes the instruction's place among the users of its operands.
    instruction.operands, instruction.called = (), {}
    return fusion


def _is_input_fusible(instruction: HloInstruction) -> bool:
    """Return True if a reduction, transpose or scatter emitter computes the instruction, as XLA sees it."""
    match instruction.opcode:
        case "reduce":
            return is_contiguous_reduction(instruction)
        case "transpose" | "copy":
            return describe_transpose(instruction) is not None
        case opcode:
            return opcode == "scatter"
