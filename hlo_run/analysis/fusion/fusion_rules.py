"""Decides whether a producer may be fused into a consumer, by XLA's rules for native emitters, with XLA's order and reasons.

Refused, for example: a reduce into a reduce, the in-place operand of a scatter, too much shared memory, too many operands.
"""

from __future__ import annotations

from hlo_run.analysis.cost.node_cost import CostAnalysis
from hlo_run.analysis.decision import YES, Decision, no
from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.analysis.fusion.in_place_fusion import in_place_operands, may_update_in_place
from hlo_run.analysis.tiling.fusion_launch import KernelPlanner
from hlo_run.analysis.tiling.node_facts import Facts, NodeFacts
from hlo_run.hlo.edit import has_side_effect
from hlo_run.hlo.fusion_graph import Node
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.values.shape import Shape
from hlo_run.target import TargetSpec

MAX_OPERANDS_AND_OUTPUTS = 96
_MAX_UNNESTED_REDUCTIONS = 8
_MAX_IR_SIZE = 10_000
# Besides the elementwise ops: ops that a loop can compute inside (XLA's `IsLoopFusibleAsProducer`, without reduce).
LOOP_FUSIBLE = opcode_set("""broadcast concatenate constant copy dynamic-slice dynamic-update-slice gather iota pad
    reduce-window reshape reverse slice transpose""")
_FUSIBLE = LOOP_FUSIBLE | opcode_set("reduce scatter")


def is_fusible_bitcast(node: Node) -> bool:
    """True for a bitcast that keeps the width of its elements."""
    if node.opcode != "bitcast":
        return False
    source, shape = node.instruction.operands[0].shape, node.instruction.shape
    return source.is_array and shape.is_array and source.dtype.bits == shape.dtype.bits


def is_fusible(node: Node) -> bool:
    """True if a node may be part of a larger kernel."""
    if node.is_ordered:
        return False
    if node.is_fusion:
        return node.kind != "kCustom"
    instruction = node.instruction
    known = instruction.opcode in _FUSIBLE or is_elementwise(instruction) or is_fusible_bitcast(node)
    return known and not has_side_effect(instruction)


def is_scatter(node: Node) -> bool:
    """True for a scatter, fused or not."""
    return node.opcode == "scatter" or (node.is_fusion and node.kind == "kInput" and node.root.opcode == "scatter")


def judge_scatter(producer: Node, consumer: Node) -> Decision:
    """Refuse fusions that the scatter emitter cannot do: an epilogue, or a computed operand."""
    if is_scatter(producer):
        return no("do not fuse into the output of scatter")
    if not is_scatter(consumer):
        return YES
    in_place = consumer.root.operands[: len(consumer.root.operands) // 2]
    if producer in in_place:
        return no("do not fuse into the in-place operand of scatter")
    if any(operand in producer.operands for operand in in_place):
        return no("Producer uses the in-place operand of a scatter")
    return YES


class _Member:
    """The facts about one node of a pair, valid while its `facts` are. `buffers` counts its operands and results."""

    __slots__ = ("buffers", "facts", "is_bitcast", "is_fusible", "is_scatter", "outputs", "updates_in_place")

    def __init__(self, node: Node, facts: NodeFacts) -> None:
        self.facts = facts
        self.is_fusible = is_fusible(node)
        self.is_bitcast = is_fusible_bitcast(node)
        self.is_scatter = is_scatter(node)
        self.updates_in_place = bool(in_place_operands(node))
        self.outputs = _subshapes(node.shape)
        self.buffers = len(node.operands) + self.outputs


class FusionRules:
    """The rules for the nodes of a graph."""

    def __init__(self, facts: Facts, costs: CostAnalysis, planner: KernelPlanner, target: TargetSpec) -> None:
        self._facts = facts
        self._costs = costs
        self._planner = planner
        self._target = target
        self._members: dict[Node, _Member] = {}

    def judge(self, producer: Node, consumer: Node, root: Node) -> Decision:
        """Return whether `producer` may be fused into `consumer`; `root` is the root of their computation."""
        if producer is root:
            return no("not fusing into the output of the root instruction")
        one, two = self._member(producer), self._member(consumer)
        if not one.is_fusible:
            return no("the producer is not fusible")
        if not two.is_fusible:
            return no("the consumer is not fusible")
        if two.is_bitcast:
            return no("not fusing into a single bitcast as consumer")
        decision = YES
        if one.is_scatter or two.is_scatter:
            decision = judge_scatter(producer, consumer)
        if decision is YES and (one.facts.unnested_reductions or one.facts.has_significant_reduction):
            decision = self._judge_reductions(producer, consumer)
        if decision is YES:
            decision = self._judge_budget(producer, consumer, one, two, True)
        if decision is YES and self.is_too_large(producer, consumer):
            decision = no("the fusion would result in an overly large code duplication")
        if decision is YES and two.updates_in_place:
            decision = may_update_in_place(producer, consumer)
        return decision

    def _member(self, node: Node) -> _Member:
        facts = self._facts.node(node)
        found = self._members.get(node)
        if found is None or found.facts is not facts:
            found = self._members[node] = _Member(node, facts)
        return found

    def _judge_reductions(self, producer: Node, consumer: Node) -> Decision:
        one, two = self._facts.node(producer), self._facts.node(consumer)
        if one.has_significant_reduction and two.has_significant_reduction:
            return no("both the producer and the consumer contain a reduce")
        if not one.unnested_reductions or self._planner.kind(None, producer) != "reduction":
            return YES
        if self._planner.kind(producer, consumer) == "loop":
            return no("fusion into output of a reduce fusion would create a loop fusion")
        return YES

    def judge_budget(self, producer: Node, consumer: Node, into_consumer: bool = True) -> Decision:
        """Refuse fusions with too much shared memory, too many reductions, or too many buffers."""
        return self._judge_budget(producer, consumer, self._member(producer), self._member(consumer), into_consumer)

    def _judge_budget(self, producer: Node, consumer: Node, one: _Member, two: _Member, into_consumer: bool) -> Decision:
        limit = self._target.shared_memory_per_block_bytes
        if one.facts.shared_bytes + two.facts.shared_bytes > limit:
            return no(f"shared memory usage would be over the budget of {limit}B")
        if one.facts.unnested_reductions + two.facts.unnested_reductions > _MAX_UNNESTED_REDUCTIONS:
            return no(f"over {_MAX_UNNESTED_REDUCTIONS} unnested reductions in fusion")
        return self._judge_parameters(producer, consumer, one, two, into_consumer)

    def judge_parameters(self, producer: Node, consumer: Node) -> Decision:
        """Refuse fusions of a producer into a consumer with too many buffers."""
        return self._judge_parameters(producer, consumer, self._member(producer), self._member(consumer), True)

    def _judge_parameters(self, producer: Node, consumer: Node, one: _Member, two: _Member, into_consumer: bool) -> Decision:
        if one.buffers + two.buffers - 1 <= MAX_OPERANDS_AND_OUTPUTS:
            return YES
        reads = consumer.reads
        operands = len(reads) + sum([operand not in reads for operand in producer.reads])
        operands -= (producer in reads) + (consumer in producer.reads)
        if into_consumer and operands <= len(consumer.operands):
            return YES
        if operands + one.outputs + two.outputs > MAX_OPERANDS_AND_OUTPUTS:
            return no("Number of operands and output buffers is larger than allowed budget per fusion")
        return YES

    def is_too_large(self, producer: Node, consumer: Node) -> bool:
        """True if ops would be emitted too often in total."""
        one, two = self._costs.of(producer), self._costs.of(consumer)
        times = two.operand_ir_size(producer)
        return one.whole_ir_size() * times + two.whole_ir_size() > _MAX_IR_SIZE


def _subshapes(shape: Shape) -> int:
    if not shape.is_tuple:
        return 1
    return 1 + sum(map(_subshapes, shape.tuple_shapes))
