"""Computes the cost of a node of a fusion graph: operations, bytes, and how often it reads the elements of each operand.

    slice(x) of half of x  ->  0.5 of x      add(reverse(x), x)  ->  2 of x      add(x, abs(x))  ->  1 of x

Uses of an operand at the same index count as one use: values that are read only through elementwise ops share the places
where they are read. XLA's `GpuHloCostAnalysis`; here a fusion that absorbs a producer adds the producer's cost to its own.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import TypeVar

from hlo_run.analysis.cost.op_cost import OpCost, op_cost, operand_bytes, shape_bytes
from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.hlo.fusion_graph import Node, Op
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.target import TargetSpec

_Amount = TypeVar("_Amount", int, float)

# Besides the elementwise ops: these read an element at the index at which it is used.
_FORWARDS_INDEX: frozenset[Opcode] = frozenset(("tuple", "get-tuple-element"))


class NodeCost:
    """The cost of a node. `ir_size` counts how often ops are emitted, `operand_ir_size` how often an operand would be.

    For fusions only: `root` is the place where the result is computed. `places` has the places where an operand is read,
    `place_uses` and `place_sizes` how often they are used and emitted. `whole` is the known `whole_ir_size`, or 0.
    """

    __slots__ = (
        "bytes_read",
        "bytes_written",
        "flops",
        "ir_size",
        "place_sizes",
        "place_uses",
        "places",
        "root",
        "utilization",
        "whole",
    )

    def __init__(self) -> None:
        self.flops = 0.0
        self.whole = 0
        self.ir_size = 1
        self.bytes_written = 0
        self.bytes_read: dict[Node, int] = {}
        self.utilization: dict[Node, float] = {}
        self.places: dict[Node, dict[object, None]] = {}
        self.place_uses: dict[object, float] = {}
        self.place_sizes: dict[object, int] = {}
        self.root: object = None

    def operand_ir_size(self, operand: Node) -> int:
        """Return how often the operand would be emitted; 1 if the node is not a fusion."""
        places = self.places.get(operand)
        return 1 if places is None else _times_emitted(self.place_sizes, places)

    def whole_ir_size(self) -> int:
        """Return how often ops are emitted, with the reads of a fusion's operands, which are parameters inside of it."""
        if not self.whole:
            size = self.ir_size
            for places in self.places.values():
                size += _times_emitted(self.place_sizes, places)
            self.whole = size
        return self.whole

    def common_utilization(self, one: Node, two: Node) -> float:
        """Return how often two operands of a fusion are read at the same index."""
        other, places, uses = self.places[two], self.places[one], self.place_uses
        if len(places) == 1:
            (place,) = places
            return uses[place] if place in other else 0
        return sum([uses[place] for place in places if place in other])


class _Step:
    """The facts about an instruction in a walk over a node's ops. `parts` and `elements` are of its operands, by number."""

    __slots__ = ("elements", "flops", "forwards_index", "parts")

    def __init__(self, instruction: HloInstruction, own: OpCost) -> None:
        self.flops = own.flops
        self.forwards_index = _keeps_index(instruction)
        self.parts = [own.utilization.get(number, 1.0) for number in range(len(instruction.operands))]
        self.elements = [] if self.forwards_index else [_element_count(operand) for operand in instruction.operands]


class CostAnalysis:
    """The costs of the nodes of a graph for a target, computed at the first request."""

    def __init__(self, target: TargetSpec) -> None:
        self._target = target
        self._costs: dict[Node, NodeCost] = {}
        self._op_costs: dict[HloInstruction, OpCost] = {}
        self._steps: dict[HloInstruction, _Step] = {}
        self._rounded: dict[tuple[float, float, int], float] = {}

    def op(self, instruction: HloInstruction) -> OpCost:
        """Return the cost of one instruction of a node."""
        found = self._op_costs.get(instruction)
        if found is None:
            found = self._op_costs[instruction] = op_cost(instruction, self._target)
        return found

    def of(self, node: Node) -> NodeCost:
        """Return the cost of a node."""
        found = self._costs.get(node)
        if found is None:
            found = self._costs[node] = self._fusion(node) if node.is_fusion else self._instruction(node)
        return found

    def set(self, node: Node, cost: NodeCost) -> None:
        """Set the cost of a node."""
        self._costs[node] = cost

    def forget(self, node: Node) -> None:
        """Drop the cost of a node, so that the next request computes it again."""
        self._costs.pop(node, None)

    def absorb(self, producer: Node, consumer: Node) -> None:
        """Add the cost of a producer to its consumer's. Call it before the graph fuses them."""
        cost = self.of(consumer)
        if not consumer.is_fusion:
            cost = self._costs[consumer] = self._fusion(consumer)
        cost.whole = 0
        places = cost.places.pop(producer)
        if producer in places:
            del places[producer]
            own = object()
            places[own] = None
            cost.place_uses[own] = cost.place_uses.pop(producer)
            cost.place_sizes[own] = cost.place_sizes.pop(producer)
        if not self._add_whole(cost, producer, places):
            self._walk(cost, producer, places)
        del cost.utilization[producer], cost.bytes_read[producer]
        self._count_reads(cost, producer)

    def _add_whole(self, cost: NodeCost, producer: Node, root_places: dict[object, None]) -> bool:
        """Add the cost of a fusion unchanged if it is computed once at one place; a walk over its ops would give the same.

        Returns False otherwise, and for a producer that updates in place, since it stops doing so inside another kernel.
        """
        if not producer.is_fusion or len(root_places) != 1:
            return False
        (root_place,) = root_places
        if cost.place_uses[root_place] != 1.0 or any(op.opcode == "dynamic-update-slice" for op in producer.result_ops):
            return False
        own, times = self.of(producer), cost.place_sizes[root_place]
        cost.flops += own.flops
        cost.ir_size += times * own.ir_size
        # The consumer may already contain copies of the producer's ops, fused before. Their places are different ones.
        renamed: dict[object, object] = {own.root: root_place}
        for operand, places in own.places.items():
            theirs = cost.places.setdefault(operand, {})
            for place in places:
                name = operand if place is operand else renamed.setdefault(place, object())
                theirs[name] = None
                if place is operand:
                    cost.place_uses[name] = cost.place_uses.get(name, 0.0) + own.place_uses[place]
                    cost.place_sizes[name] = cost.place_sizes.get(name, 0) + times * own.place_sizes[place]
                elif name is not root_place:
                    cost.place_uses[name] = own.place_uses[place]
                    cost.place_sizes[name] = times * own.place_sizes[place]
        return True

    def _instruction(self, node: Node) -> NodeCost:
        own = self.op(node.instruction)
        cost = NodeCost()
        cost.flops, cost.bytes_written = float(own.flops), own.bytes_written
        for number, operand in enumerate(node.operands):
            if operand not in cost.bytes_read:
                size = own.bytes_read.get(number)
                cost.bytes_read[operand] = operand_bytes(operand.instruction.shape) if size is None else size
                cost.utilization[operand] = own.utilization.get(number, 1.0)
        return cost

    def _fusion(self, node: Node) -> NodeCost:
        cost = NodeCost()
        cost.ir_size, cost.root = 0, node.root
        cost.bytes_written = sum(map(self._written, node.result_ops))
        cost.place_uses[node.root], cost.place_sizes[node.root] = 1.0, 1
        self._walk(cost, node, {node.root: None})
        self._count_reads(cost, node)
        return cost

    def _written(self, result: Op) -> int:
        update = result.instruction.operands[1].shape if result.opcode == "dynamic-update-slice" else result.instruction.shape
        return shape_bytes(update)

    def _walk(self, cost: NodeCost, node: Node, root_places: dict[object, None]) -> None:
        """Count the ops of a node whose root is computed at these places, and record where they read."""
        places: dict[Op, dict[object, None]] = {op: {} for op in node.ops}
        places[node.root] = root_places
        uses, sizes = cost.place_uses, cost.place_sizes
        results = set(node.result_ops)
        for op in node.ops:
            mine = places[op]
            use, size = _total(uses, mine), _total(sizes, mine)
            instruction = op.instruction
            step = self._steps.get(instruction)
            if step is None:
                step = self._steps[instruction] = _Step(instruction, self.op(instruction))
            cost.flops += use * step.flops
            cost.ir_size += size
            is_updated_result = instruction.opcode == "dynamic-update-slice" and op in results and cost.root is node.root
            for number, operand in enumerate(op.operands):
                theirs = cost.places.setdefault(operand, {}) if isinstance(operand, Node) else places[operand]
                if step.forwards_index:
                    theirs.update(mine)
                    continue
                theirs[operand] = None
                part = 0.0 if is_updated_result and number == 0 else step.parts[number]
                uses[operand] = uses.get(operand, 0.0) + self._rounded_up(use, part, step.elements[number])
                sizes[operand] = sizes.get(operand, 0) + size

    def _rounded_up(self, use: float, part: float, elements: int) -> float:
        key = use, part, elements
        found = self._rounded.get(key)
        if found is None:
            found = self._rounded[key] = _rounded_up(use, part, elements)
        return found

    def _count_reads(self, cost: NodeCost, node: Node) -> None:
        """Recount the reads of the operands of a node."""
        for operand in dict.fromkeys(node.operands):
            use = sum(cost.place_uses[place] for place in cost.places.get(operand, ()))
            cost.utilization[operand] = use
            cost.bytes_read[operand] = math.floor(shape_bytes(operand.instruction.shape) * use + 0.5)


def _keeps_index(instruction: HloInstruction) -> bool:
    if instruction.opcode == "bitcast":
        source, shape = instruction.operands[0].shape, instruction.shape
        return source.dims == shape.dims and source.minor_to_major == shape.minor_to_major
    return instruction.opcode in _FORWARDS_INDEX or is_elementwise(instruction)


def _element_count(instruction: HloInstruction) -> int:
    return sum(leaf.element_count for _, leaf in instruction.shape.leaves())


def _total(amounts: Mapping[object, _Amount], places: dict[object, None]) -> _Amount | int:
    """Return the sum of the amounts of some places. Most often it is one place."""
    if len(places) == 1:
        (place,) = places
        return amounts[place]
    return sum([amounts[place] for place in places])


def _times_emitted(sizes: dict[object, int], places: dict[object, None]) -> int:
    """Return how often an operand that is read at some places is emitted. Most often it is one place."""
    if len(places) == 1:
        for place in places:
            return sizes[place]
    return sum([sizes[place] for place in places])


def _f32(value: float) -> float:
    return ctypes.c_float(value).value


def _rounded_up(use: float, part: float, elements: int) -> float:
    """Return how often `part` of an operand is read by a result that is computed `use` times, rounded up to elements in f32."""
    if elements == 0:
        return 0.0
    if part in (0.0, 1.0) and use in (0.0, 1.0):
        return use * part
    return _f32(math.ceil(_f32(_f32(use * part) * elements)) / elements)
