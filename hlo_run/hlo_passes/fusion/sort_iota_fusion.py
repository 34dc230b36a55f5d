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
from hlo_run.hlo.edit import copy_instruction, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo_passes.hlo_pass import PassContext


class SortIotaFusion(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "sort-iota-fusion"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place; a fusion is the youngest instruction of its computation."""
        del ctx
        fused: list[HloInstruction] = []
        for computation in executed_computations(module):
            for sort in [instruction for instruction in computation.post_order() if _counts(instruction)]:
                fusion = _fuse(sort)
                module.add_computation(fusion.fused_computation)
                computation.add(fusion)
                module.replace(sort, fusion)
                fused.append(sort)
        remove_unused(fused)


def _counts(sort: HloInstruction) -> bool:
    """Return True for a sort with an iota operand that our kernels compute."""
    return sort.opcode == "sort" and sorts_in_place(sort) and any(operand.opcode == "iota" for operand in sort.operands)


def _fuse(sort: HloInstruction) -> HloInstruction:
    """Return a fusion of a sort and its iotas, in no computation yet."""
    body = HloComputation("fused_computation", sort.where)
    sources: list[HloInstruction] = []
    inner: dict[HloInstruction, HloInstruction] = {}
    for operand in dict.fromkeys(sort.operands):
        if operand.opcode == "iota":
            inner[operand] = body.add(copy_instruction(operand, ()))
        else:
            attrs = {"parameter_number": len(sources)}
            inner[operand] = body.add(HloInstruction(f"param_{len(sources)}", "parameter", operand.shape, attrs=dict(attrs)))
            sources.append(operand)
    body.add(copy_instruction(sort, tuple(inner[operand] for operand in sort.operands)), is_root=True)
    kept = {name: sort.attrs[name] for name in ("metadata", "frontend_attributes") if name in sort.attrs}
    attrs = {"kind": "kCustom", **kept}
    fusion = HloInstruction("fusion", "fusion", sort.shape, sources, attrs, {"calls": (body,)}, sort.where)
    fusion.control_predecessors = list(sort.control_predecessors)
    return fusion
