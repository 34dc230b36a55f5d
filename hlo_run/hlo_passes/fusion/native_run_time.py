"""Estimates how long a computation takes if it becomes native kernels, without any block-level fusion."""

from __future__ import annotations

from collections.abc import Iterable

from hlo_run.analysis.cost.node_cost import CostAnalysis
from hlo_run.analysis.cost.run_time_model import RunTimeModel
from hlo_run.analysis.tiling.fusion_launch import KernelPlanner
from hlo_run.analysis.tiling.node_facts import Facts
from hlo_run.hlo.fusion_graph import FusionGraph
from hlo_run.hlo.graph import HloComputation, HloModule
from hlo_run.hlo.isolate import isolate_between
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.pass_support.hlo_pass import HloPass, PassContext
from hlo_run.target import TargetSpec

_WITHOUT_KERNEL: frozenset[Opcode] = opcode_set("bitcast constant get-tuple-element parameter tuple")


def native_ticks(body: HloComputation, passes: Iterable[HloPass], ctx: PassContext) -> int:
    """Return the ticks of all kernels that `passes` make of a copy of a computation, launches not counted."""
    module = isolate_between(body.root, body.parameters, body.name)
    silent = PassContext(ctx.target, ctx.options)
    for each in passes:
        each.apply(silent, module)
    return _ticks(module, ctx.target)


def _ticks(module: HloModule, target: TargetSpec) -> int:
    facts = Facts()
    model = RunTimeModel(CostAnalysis(target), facts, KernelPlanner(facts, target), target)
    nodes = FusionGraph(module.entry).nodes.values()
    return sum(model.alone(node).execution for node in nodes if node.opcode not in _WITHOUT_KERNEL)
