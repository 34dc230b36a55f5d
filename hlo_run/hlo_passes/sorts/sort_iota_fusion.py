"""Fuse an iota operand into the sort that reads it: the first kernel of the sort then computes it.

    i = s32[9,100] iota(), iota_dimension=1
    s = (f32[9,100], s32[9,100]) sort(x, i)   =>   fused_computation { .. ROOT s = sort(param_0, iota) }
                                                   fusion(x), kind=kCustom, calls=fused_computation

Fuses every iota operand; other users keep the iota. Skips sorts of elements below 8 bits, which our kernels do not sort in
place. XLA's `SortIotaFusion`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.analysis.tiling.sort_steps import sorts_in_place
from hlo_run.hlo.edit import InstructionMaker, Leftovers, copy_instruction
from hlo_run.hlo.fused_names import FusedNames
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.pass_support.hlo_pass import PassContext


class SortIotaFusion(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "sort-iota-fusion"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place; each fusion is the last instruction of its computation."""
        del ctx
        unused = Leftovers()
        executed = executed_computations(module)
        for computation in [c for c in module.computations if c in executed]:
            for sort in [instruction for instruction in computation.post_order() if _counts(instruction)]:
                module.replace(sort, computation.add_named(_fuse(module, sort)))
                unused.add(sort)
        unused.remove()


def _counts(sort: HloInstruction) -> bool:
    """Return True for a sort with an iota operand that our kernels compute."""
    return sort.opcode == "sort" and sorts_in_place(sort) and any(operand.opcode == "iota" for operand in sort.operands)


def _fuse(module: HloModule, sort: HloInstruction) -> HloInstruction:
    """Return a fusion of a sort and its iotas, in no computation yet. Takes the names that XLA takes."""
    body = HloComputation(module.unique_computation_name("fused_computation"), sort.where)
    names: FusedNames[HloInstruction] = FusedNames(module.instruction_names)
    names.append(sort, sort.name, sort.operands)
    name = module.unique_instruction_name("fusion")
    iotas = [operand for operand in dict.fromkeys(sort.operands) if operand.opcode == "iota"]
    for iota in iotas:
        names.append(iota, iota.name, (), parameter=iota)
    inner: dict[HloInstruction, HloInstruction] = {}
    for number, source in enumerate(names.parameters):
        inner[source] = InstructionMaker(body).parameter(number, source.shape, names[source])
    for iota in iotas:
        inner[iota] = body.add(copy_instruction(iota, (), name=names[iota]))
    body.add(copy_instruction(sort, [inner[operand] for operand in sort.operands], name=names[sort]), is_root=True)
    module.add_named_computation(body)
    kept = {attribute: sort.attrs[attribute] for attribute in ("metadata", "frontend_attributes") if attribute in sort.attrs}
    fusion = InstructionMaker(where=sort.where).add(
        "fusion", sort.shape, names.parameters, {"calls": (body,)}, name=name, kind="kCustom", **kept
    )
    fusion.control_predecessors = list(sort.control_predecessors)
    return fusion
