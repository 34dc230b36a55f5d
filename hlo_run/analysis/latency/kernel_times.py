"""The time of an instruction in a kernel of its own, from the model that also decides what is fused."""

from __future__ import annotations

from hlo_run.analysis.cost.node_cost import CostAnalysis
from hlo_run.analysis.cost.run_time_model import TICKS_PER_MICROSECOND, RunTime, RunTimeModel
from hlo_run.analysis.tiling.fusion_launch import KernelPlanner
from hlo_run.analysis.tiling.node_facts import Facts
from hlo_run.hlo.fusion_graph import FusionGraph
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.target import TargetSpec


class KernelTimes:
    """The times for a GPU. The graph of a computation is built at the first question about it.

    `cycles` is the GPU whose cycles per operation count, if it is another.
    """

    def __init__(self, target: TargetSpec, cycles: TargetSpec | None = None) -> None:
        self._target = target
        self._cycles = target if cycles is None else cycles
        self._models: dict[HloComputation, tuple[FusionGraph, RunTimeModel]] = {}

    def microseconds(self, instruction: HloInstruction) -> float:
        """Return the time of an instruction."""
        return self.estimate(instruction).execution / TICKS_PER_MICROSECOND

    def estimate(self, instruction: HloInstruction) -> RunTime:
        """Return the estimate for an instruction, with its parts."""
        computation = instruction.parent
        assert computation is not None, "the instruction is in a computation"
        if computation not in self._models:
            facts = Facts()
            model = RunTimeModel(CostAnalysis(self._cycles), facts, KernelPlanner(facts, self._target), self._target)
            self._models[computation] = FusionGraph(computation), model
        graph, model = self._models[computation]
        return model.alone(graph.nodes[instruction])
