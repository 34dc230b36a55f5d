"""Wrap every computing instruction outside a fusion into a fusion of its own, since kernels are made from fusions only.

    ROOT add = f32[8] add(p, q)   =>   wrapped_add_computation { .. ROOT add = add(param_0, param_1) }
                                       ROOT wrapped_add = f32[8] fusion(p, q), kind=kLoop, calls=wrapped_add_computation

Edits the entry and the computations of control flow (bodies of call, while, conditional), not those embedded in a kernel
(reducers, comparators, fusion bodies). Leaves instructions without a kernel: copies that keep the layout, bitcasts, tuples,
constants, library calls. XLA's `fusion_wrapper.cc`. A copy that changes the layout is wrapped as well; XLA's layout
normalisation would have made it a transpose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.analysis.fusion.fusion_rules import LOOP_FUSIBLE
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import ELEMENTWISE
from hlo_run.hlo_passes.hlo_pass import PassContext

# In addition to the elementwise ops; a copy is wrapped only if it changes the layout.
WRAPPED = (ELEMENTWISE | LOOP_FUSIBLE | {"convolution", "dot", "reduce", "scaled-dot", "scatter"}) - {"constant", "copy"}


@dataclass(frozen=True)
class FusionWrapper:
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "fusion-wrapper"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place; each fusion takes the position of its instruction."""
        del ctx
        for computation in executed_computations(module):
            followers: dict[HloInstruction, list[HloInstruction]] = {}
            for instruction in computation.instructions:
                for first in instruction.control_predecessors:
                    followers.setdefault(first, []).append(instruction)
            fusions: dict[HloInstruction, HloInstruction] = {}
            for instruction in computation.instructions:
                if _is_wrapped(instruction):
                    fusions[instruction] = _wrap(module, instruction)
                    _hand_on_order(instruction, fusions[instruction], followers)
            # At the instructions' positions: the text order of a scheduled module is its schedule.
            computation.substitute(fusions)


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
    """Replace the uses of the instruction by a fusion of it, which is in no computation yet."""
    name = f"wrapped_{instruction.opcode.replace('-', '_')}"
    body = HloComputation(f"{name}_computation", instruction.where)
    # An operand used twice is one parameter.
    sources = list(dict.fromkeys(instruction.operands))
    parameters = {
        source: body.add(HloInstruction(f"param_{n}", "parameter", source.shape, attrs={"parameter_number": n}))
        for n, source in enumerate(sources)
    }
    inner = HloInstruction(
        instruction.name,
        instruction.opcode,
        instruction.shape,
        [parameters[operand] for operand in instruction.operands],
        dict(instruction.attrs),
        dict(instruction.called),
        instruction.where,
    )
    body.add(inner, is_root=True)
    module.add_computation(body)
    fusion = HloInstruction(name, "fusion", instruction.shape, sources, {"kind": "kLoop"}, {"calls": (body,)}, instruction.where)
    fusion.name = module.unique_instruction_name(name)
    module.replace(instruction, fusion)
    return fusion
