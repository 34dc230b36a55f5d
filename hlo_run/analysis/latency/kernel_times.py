"""The time of an instruction in its own kernel, from the model that also decides about fusion."""

from __future__ import annotations

from hlo_run.analysis.cost.node_cost import CostAnalysis, NodeCost
from hlo_run.analysis.cost.run_time_model import TICKS_PER_MICROSECOND, RunTime, RunTimeModel
from hlo_run.analysis.tiling.fusion_launch import KernelPlanner
from hlo_run.analysis.tiling.node_facts import Facts
from hlo_run.hlo.fusion_graph import FusionGraph, Node
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.traits import CONTROL_FLOW
from hlo_run.target import TargetSpec


class KernelTimes:
    """The times for a GPU. The graph of a computation is built at the first question about it.

    `cycles` is the GPU whose cycles per operation count, if it is another.
    """

    def __init__(self, target: TargetSpec, cycles: TargetSpec | None = None) -> None:
        self._target = target
        self._cycles = target if cycles is None else cycles
        self._graphs: dict[HloComputation, _Graph] = {}

    def microseconds(self, instruction: HloInstruction) -> float:
        """Return the time of an instruction."""
        return self.estimate(instruction).execution / TICKS_PER_MICROSECOND

    def estimate(self, instruction: HloInstruction) -> RunTime:
        """Return the estimate for an instruction, with its parts.

        Control flow counts as one kernel that does the work of its computations, of each branch the most.
        """
        computation = instruction.parent
        assert computation is not None, "the instruction is in a computation"
        graph = self._graph(computation)
        node = graph.nodes[instruction]
        self._cost(graph, node)
        return graph.model.alone(node)

    def _graph(self, computation: HloComputation) -> _Graph:
        if computation not in self._graphs:
            self._graphs[computation] = _Graph(computation, self._target, self._cycles)
        return self._graphs[computation]

    def _cost(self, graph: _Graph, node: Node) -> NodeCost:
        """Return the cost of a node. That of control flow is computed before the graph is asked for it."""
        instruction = node.instruction
        if instruction.opcode not in CONTROL_FLOW or node in graph.known:
            return graph.costs.of(node)
        graph.known.add(node)
        sums = [self._sum(computation, len(node.operands)) for computation in instruction.called_computations]
        combined = max if instruction.opcode == "conditional" else sum
        flops, written, *read = map(combined, zip(*sums, strict=True))
        cost = NodeCost()
        cost.flops, cost.bytes_written = flops, written
        for operand, size in zip(node.operands, read, strict=True):
            cost.bytes_read.setdefault(operand, size)
            cost.utilization.setdefault(operand, 1.0)
        graph.costs.set(node, cost)
        return cost

    def _sum(self, computation: HloComputation, operands: int) -> tuple[int, ...]:
        """Return the sums over a computation: operations, bytes written, and bytes read of each operand by its number."""
        graph = self._graph(computation)
        totals = [0] * (2 + operands)
        for instruction in computation.instructions:
            node = graph.nodes[instruction]
            cost = self._cost(graph, node)
            totals[0] += int(cost.flops)
            totals[1] += cost.bytes_written
            for number, operand in enumerate(node.operands[:operands]):
                totals[2 + number] += cost.bytes_read[operand]
        return tuple(totals)


class _Graph:
    """The nodes of a computation, their costs, and the model of their times."""

    def __init__(self, computation: HloComputation, target: TargetSpec, cycles: TargetSpec) -> None:
        facts = Facts()
        self.nodes = FusionGraph(computation).nodes
        self.costs = CostAnalysis(cycles)
        self.model = RunTimeModel(self.costs, facts, KernelPlanner(facts, target), target)
        self.known: set[Node] = set()
