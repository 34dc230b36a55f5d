"""The instructions of a computation as the latency-hiding scheduler sees them: nodes with costs, edges with latencies.

XLA's `HloScheduleGraph`. Positions, ready times and degrees are those of a schedule that grows from the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hlo_run.analysis.buffers.alias_analysis import AliasAnalysis
from hlo_run.analysis.latency.async_kinds import overlaps_from, overlaps_until
from hlo_run.analysis.latency.estimator import LatencyEstimator
from hlo_run.analysis.latency.resources import Resource, Streams
from hlo_run.analysis.latency.scheduling_groups import group_number
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.backend_config import config_of
from hlo_run.walks import reaches, walk

_AT_ONCE: frozenset[Opcode] = frozenset(("get-tuple-element", "bitcast", "constant", "parameter", "broadcast", "iota"))
_HINT = "scheduler_hint"
_PRIORITY = "scheduler_delay_priority"


class Edge:
    """An edge to another node, with the latency between the two."""

    __slots__ = ("latency", "node")

    def __init__(self, node: ScheduleNode, latency: float) -> None:
        self.node = node
        self.latency = latency


class ScheduleNode:
    """An instruction. `position` is its place in the old schedule, `waiting` the number of followers not scheduled yet.

    `group` is the number of its scheduling group. `ready_time` is measured from the end. `unlocks` counts the nodes that
    become ready with this one.
    """

    __slots__ = (
        "async_depth",
        "cost",
        "delay_priority",
        "depth",
        "earlier",
        "follows_done",
        "group",
        "instruction",
        "is_at_once",
        "is_delayed",
        "is_done",
        "is_first",
        "is_start",
        "later",
        "needed",
        "net_uses",
        "occupies",
        "position",
        "ready_time",
        "releases",
        "unlocks",
        "uses",
        "waiting",
    )

    def __init__(self, instruction: HloInstruction, position: int, cost: float, streams: Streams) -> None:
        self.instruction = instruction
        self.position = position
        self.cost = cost
        self.earlier: list[Edge] = []
        self.later: list[Edge] = []
        self.uses = streams.uses(instruction)
        self.needed = streams.needed(instruction)
        self.occupies = any(use.occupies for use in self.uses)
        self.releases = any(not use.occupies for use in self.uses)
        self.net_uses = _net_uses(instruction, self.uses)
        self.is_start = overlaps_from(instruction)
        self.is_done = overlaps_until(instruction)
        self.follows_done = any(map(overlaps_until, instruction.operands))
        self.is_at_once = _is_at_once(instruction)
        self.group = group_number(instruction)
        self.is_first, self.is_delayed, self.delay_priority = _hints(instruction, self.is_start, self.is_done)
        self.ready_time = math.inf
        self.waiting = 0
        self.unlocks = 0
        self.async_depth = self.depth = 0.0

    def count_unlocked(self) -> None:
        """Count the earlier nodes that wait for this one alone."""
        self.unlocks = sum(1 for edge in self.earlier if edge.node.waiting == 1)


def _net_uses(instruction: HloInstruction, uses: tuple[Resource, ...]) -> tuple[Resource, ...]:
    """Return the uses without those that a loop both begins and ends."""
    if instruction.opcode != "while":
        return uses
    return tuple(use for use in uses if Resource(use.stream, not use.occupies) not in uses)


def _is_at_once(instruction: HloInstruction) -> bool:
    """Return True for instructions that are scheduled as soon as they are ready, since they do nothing."""
    if instruction.opcode in _AT_ONCE:
        return True
    return instruction.opcode == "tuple" and len(instruction.users) == 1 and instruction.users[0].opcode == "while"


def _hints(instruction: HloInstruction, is_start: bool, is_done: bool) -> tuple[bool, bool, int]:
    """Return whether the instruction is scheduled first (so that it runs late), last, and its priority among the last."""
    if instruction.backend_config and config_of(instruction.backend_config).get("force_earliest_schedule"):
        return False, True, 0
    hint = frontend_attribute(instruction, _HINT)
    if not hint:
        return False, False, 0
    priority = int(frontend_attribute(instruction, _PRIORITY) or 0)
    if hint == "force_early":
        return instruction.opcode == "custom-call", False, 0
    if hint == "force_delay":
        delays = instruction.opcode in ("custom-call", "async-start", "async-done")
        return False, delays, priority if delays else 0
    if hint == "force_delay_async":
        return is_done, is_start, priority if is_start else 0
    return False, False, 0


def build_graph(
    order: Sequence[HloInstruction], estimator: LatencyEstimator, streams: Streams, aliases: AliasAnalysis
) -> list[ScheduleNode]:
    """Return the nodes of a computation in the order of its schedule, with edges, depths and counts."""
    nodes = {i: ScheduleNode(i, n, estimator.cost(i), streams) for n, i in enumerate(order)}
    controlled: dict[HloInstruction, list[HloInstruction]] = {}
    for instruction in order:
        for first in dict.fromkeys(instruction.control_predecessors):
            controlled.setdefault(first, []).append(instruction)
    for instruction, node in nodes.items():
        for other in (*instruction.users, *controlled.get(instruction, ())):
            _connect(node, nodes[other], estimator.latency(instruction, other))
    for node in nodes.values():
        if node.is_done:
            _keep_out_writers(node, nodes, aliases)
    found = list(nodes.values())
    for node in found:
        node.waiting = len(node.later)
    for node in found:
        node.count_unlocked()
    _measure_depths(found)
    return found


def _connect(first: ScheduleNode, then: ScheduleNode, latency: float) -> None:
    then.earlier.append(Edge(first, latency))
    first.later.append(Edge(then, latency))


def _keep_out_writers(done: ScheduleNode, nodes: dict[HloInstruction, ScheduleNode], aliases: AliasAnalysis) -> None:
    """Let the other uses of the buffer that a done returns run before its start: meanwhile the buffer changes."""
    start = nodes[done.instruction.operands[0]]
    after = set(walk([done], lambda node: [edge.node for edge in node.later]))
    for value in aliases.buffer_of[aliases.dataflow.value(done.instruction)].values:
        if value.instruction is done.instruction:
            continue
        for use in value.uses:
            user = nodes.get(use.instruction)
            if user is None or user is start or user in after:
                continue
            operand = use.instruction.operands[use.operand_number].shape
            is_token = not operand.is_array and not operand.is_tuple
            if is_token or reaches(user, (start,), lambda node: [edge.node for edge in node.earlier]):
                continue
            _connect(user, start, 1.0)


def _measure_depths(nodes: Sequence[ScheduleNode]) -> None:
    """Set the longest time from the beginning to each node, and the part of it that is latency of asynchronous pairs."""
    rank = {node: len(node.earlier) for node in nodes}
    waiting = [node for node in nodes if not node.earlier]
    while waiting:
        node = waiting.pop()
        for edge in node.earlier:
            hidden = edge.latency if node.is_done else 0.0
            node.async_depth = max(node.async_depth, edge.node.async_depth + hidden)
            node.depth = max(node.depth, edge.node.depth + edge.node.cost + edge.latency)
        for edge in node.later:
            rank[edge.node] -= 1
            if not rank[edge.node]:
                waiting.append(edge.node)
