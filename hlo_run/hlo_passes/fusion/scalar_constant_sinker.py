"""Move scalar constants into the fusions that read them.

    c = s32[] constant(3)
    f = f32[8] fusion(x, c), kind=kLoop   =>   f = f32[8] fusion(x), kind=kLoop, calls={ .. c = s32[] constant(3) .. }

Fusions of kind kCustom stay as they are, and so do constants of more than one element. XLA's `ScalarConstantSinker`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.computation_order import in_definition_order
from hlo_run.hlo.fusion_graph import FusionGraph, Node
from hlo_run.hlo.graph import HloComputation, HloModule
from hlo_run.pass_support.hlo_pass import PassContext


class ScalarConstantSinker(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "scalar-constant-sinker"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit fusions in place. The constants stay for other users, and for dce."""
        del ctx
        for computation in dict.fromkeys(fusion.parent for fusion in in_definition_order(module, "fusion")):
            if computation is not None and not computation.is_fusion:
                _sink(computation)


def _sink(computation: HloComputation) -> None:
    graph = FusionGraph(computation)
    for fusion in [node for node in graph if node.is_fusion and node.kind != "kCustom"]:
        if len(fusion.instruction.fused_computation.callers) > 1:
            continue
        for operand in reversed(dict.fromkeys(fusion.operands)):
            if _is_scalar_constant(operand):
                graph.fuse(operand, fusion, fusion.kind)
    graph.write()


def _is_scalar_constant(node: Node) -> bool:
    return node.opcode == "constant" and node.shape.is_array and node.shape.element_count == 1
