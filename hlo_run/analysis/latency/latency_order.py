"""Orders a computation so that other work hides the latency of its asynchronous instructions.

XLA's `DefaultSchedulerCore`: a list scheduler from the end to the beginning. A done runs as late as possible, and its start as
early as the other work allows, at the distance of its latency.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from hlo_run.analysis.latency.group_queue import GroupQueue
from hlo_run.analysis.latency.memory_pressure import MemoryPressure, PressureChange
from hlo_run.analysis.latency.schedule_graph import ScheduleNode
from hlo_run.analysis.latency.scheduling_groups import NO_GROUP
from hlo_run.errors import InternalError
from hlo_run.hlo.graph import HloInstruction

_HOST = 5  # the space of the host's memory in layouts

_Choice = bool | None
_Rule = Callable[["_Scheduler", ScheduleNode, ScheduleNode], _Choice]


def latency_order(
    nodes: Sequence[ScheduleNode], limits: dict[str, int], pressure: MemoryPressure | None, starts_early: bool = False
) -> list[HloInstruction]:
    """Return the order. `limits` has the number of asynchronous operations in flight by stream.

    `pressure` follows the memory in use; None if it cannot come near its limit. With `starts_early` all other work goes behind
    the starts that may precede it. The nodes are used up.
    """
    return _Scheduler(nodes, limits, pressure, starts_early).run()


class _Scheduler:
    """The state of the schedule, which grows backwards. `free` has the rest of each stream, `queued` the ready uses of it."""

    def __init__(
        self, nodes: Sequence[ScheduleNode], limits: dict[str, int], pressure: MemoryPressure | None, starts_early: bool
    ) -> None:
        self.starts_early = starts_early
        self.free = dict(limits)
        self.queued: dict[str, int] = {}
        self.time = 0.0
        self.pressure = pressure
        self._changes: dict[ScheduleNode, PressureChange] = {}
        self._count = len(nodes)
        self._ready: list[ScheduleNode] = []
        self._at_once: list[ScheduleNode] = []
        # The ready times of nodes that were not ready at once, a heap; a node may run later than it says.
        self._stalls: list[tuple[float, int, ScheduleNode]] = []
        self._order: list[HloInstruction] = []
        self._groups = GroupQueue(nodes)
        for node in nodes:
            if not node.later:
                node.ready_time = 0.0
                (self._at_once if node.is_at_once else self._ready).append(node)

    def run(self) -> list[HloInstruction]:
        """Return the order. Raises InternalError if nothing that is ready may run."""
        while self._ready or self._at_once:
            if self._schedule_group(at_once=True):
                continue
            node = self._next()
            if node is not None:
                self._schedule(node)
            elif not self._schedule_group(at_once=False):
                names = ", ".join(node.instruction.name for node in self._ready)
                raise InternalError(f"the latency-hiding scheduler can run none of {names}")
        if len(self._order) != self._count:
            raise InternalError("the latency-hiding scheduler left instructions out")
        self._order.reverse()
        return self._order

    def _schedule_group(self, at_once: bool) -> bool:
        """Schedule a group that is ready, if one fits. `at_once` reserves streams for all its pairs at the same time."""
        groups = self._groups
        if not groups.begin(self._ready, self.free, at_once):
            return False
        while groups.has_ready:
            node = groups.next(self._exceeds)
            if node is None:
                raise InternalError(f"the latency-hiding scheduler can run nothing more of scheduling group {groups.current}")
            self._take(self._ready.index(node))
            self._schedule(node)
        groups.end()
        return True

    def _next(self) -> ScheduleNode | None:
        """Return the best node that is in no group; None if no ready one may run."""
        if self._at_once:
            return self._at_once.pop()
        best = -1
        self._changes.clear()
        for place, node in enumerate(self._ready):
            if node.group != NO_GROUP or self._exceeds(node):
                continue
            if best < 0 or self._is_better(node, self._ready[best]):
                best = place
        return self._take(best) if best >= 0 else None

    def _take(self, place: int) -> ScheduleNode:
        """Remove a ready node; the last one takes its place."""
        chosen = self._ready[place]
        self._ready[place] = self._ready[-1]
        self._ready.pop()
        return chosen

    def _exceeds(self, node: ScheduleNode) -> bool:
        """Return True if more work than the limit would be in flight."""
        return any(count > self.free.get(stream, count) for stream, count in node.needed.items())

    def is_constrained(self, node: ScheduleNode) -> bool:
        """Return True if other ready nodes wait for a stream that this node uses."""
        return any(self.free.get(use.stream) == 0 and self.queued.get(use.stream, 0) > 0 for use in node.uses)

    def first_stall(self) -> float | None:
        """Return the earliest ready time of a node that must wait, if one does."""
        return self._stalls[0][2].ready_time if self._stalls else None

    def change(self, node: ScheduleNode) -> PressureChange:
        """Return what a node adds to the memory in use. A done counts with its start."""
        assert self.pressure is not None, "memory is followed"
        if node not in self._changes:
            found = self.pressure.change(node.instruction)
            if node.is_done and node.earlier and node.earlier[0].node.is_start:
                start = self.pressure.change(node.earlier[0].node.instruction)
                found = PressureChange(min(start.increase, found.increase), max(start.peak, found.peak))
            self._changes[node] = found
        return self._changes[node]

    def _is_better(self, one: ScheduleNode, best: ScheduleNode) -> bool:
        for rule in _RULES:
            choice = rule(self, one, best)
            if choice is not None:
                return choice
        return one.position > best.position

    def _schedule(self, node: ScheduleNode) -> None:
        self._order.append(node.instruction)
        self._groups.count(node)
        for use in node.net_uses:
            self.free[use.stream] += -1 if use.occupies else 1
            if use.occupies:
                self.queued[use.stream] = self.queued.get(use.stream, 0) - 1
        begin = max([self.time, *(edge.node.ready_time + edge.latency for edge in node.later)])
        node.ready_time = begin
        self.time = begin + node.cost
        while self._stalls and self._stalls[0][2].ready_time < self.time:
            heapq.heappop(self._stalls)
        for edge in node.earlier:
            self._release(edge.node)
        if self.pressure is not None:
            self.pressure.update(node.instruction)

    def _release(self, node: ScheduleNode) -> None:
        """Count a follower as scheduled. After the last one the node is ready."""
        node.waiting -= 1
        if node.waiting:
            if node.waiting == 1:
                for edge in node.later:
                    edge.node.count_unlocked()
            return
        node.ready_time = max([self.time, *(edge.node.ready_time + edge.latency for edge in node.later)])
        for use in node.uses:
            if use.occupies:
                self.queued[use.stream] = self.queued.get(use.stream, 0) + 1
        if node.is_at_once and node.group == NO_GROUP:
            self._at_once.append(node)
            return
        self._ready.append(node)
        self._groups.add_ready(node)
        if node.ready_time > self.time:
            heapq.heappush(self._stalls, (node.ready_time, node.position, node))


def _more(one: float, best: float) -> _Choice:
    """Return True if the first is more, False if it is less, None if both are equal."""
    return None if one == best else one > best


def _first(_state: _Scheduler, one: ScheduleNode, best: ScheduleNode) -> _Choice:
    return _more(one.is_first, best.is_first)


def _delayed(_state: _Scheduler, one: ScheduleNode, best: ScheduleNode) -> _Choice:
    choice = _more(best.is_delayed, one.is_delayed)
    return _more(best.delay_priority, one.delay_priority) if choice is None else choice


def _memory(state: _Scheduler, one: ScheduleNode, best: ScheduleNode) -> _Choice:
    """Prefer what frees memory near the limit; never go beyond the limit where there is a choice."""
    pressure = state.pressure
    if pressure is None or not pressure.is_high:
        return None
    changes = state.change(one), state.change(best)
    if pressure.in_use_bytes >= pressure.limit_bytes:
        choice = _more(changes[1].increase, changes[0].increase)
        if choice is not None:
            return choice
    fits = [change.peak + pressure.in_use_bytes <= pressure.limit_bytes for change in changes]
    return _more(fits[0], fits[1])


def _early_start(state: _Scheduler, one: ScheduleNode, best: ScheduleNode) -> _Choice:
    """Schedule other work before starts, so that these run early; of two starts, the deeper one."""
    if not state.starts_early or one.occupies or best.occupies:
        return None
    delayed = [node.releases and not state.is_constrained(node) for node in (one, best)]
    return _more(one.depth, best.depth) if all(delayed) else _more(delayed[1], delayed[0])


def _host_update(state: _Scheduler, one: ScheduleNode, best: ScheduleNode) -> _Choice:
    """Delay the start of an asynchronous update of an array in the host's memory."""
    if state.starts_early and (one.occupies or best.occupies):
        return None
    return _more(not _updates(one), not _updates(best))


def _updates(node: ScheduleNode) -> bool:
    if node.instruction.opcode != "async-start":
        return False
    wrapped = node.instruction.called_computations[0].root
    layout = wrapped.shape.layout if wrapped.shape.is_array else None
    if wrapped.opcode != "fusion" or layout is None or layout.memory_space != _HOST:
        return False
    return any(inner.opcode == "dynamic-update-slice" for inner in wrapped.fused_computation.instructions)


def _done(_state: _Scheduler, one: ScheduleNode, best: ScheduleNode) -> _Choice:
    return _more(one.occupies, best.occupies)


def _start_of_delayed(_state: _Scheduler, one: ScheduleNode, best: ScheduleNode) -> _Choice:
    """Prefer, of two dones, the one whose start is not delayed."""
    if not one.is_done or not best.is_done or one.instruction.opcode != best.instruction.opcode:
        return None
    starts = [_start_of(node) for node in (one, best)]
    delayed = [start is not None and start.is_delayed for start in starts]
    return _more(delayed[1], delayed[0])


def _start_of(done: ScheduleNode) -> ScheduleNode | None:
    start = done.instruction.operands[0]
    return next((edge.node for edge in done.earlier if edge.node.instruction is start), None)


def _stall(state: _Scheduler, one: ScheduleNode, best: ScheduleNode) -> _Choice:
    """Prefer what makes the device wait less."""
    if one.ready_time == best.ready_time:
        return None
    return _more(max(best.ready_time - state.time, 0.0), max(one.ready_time - state.time, 0.0))


def _lone_start(state: _Scheduler, one: ScheduleNode, best: ScheduleNode) -> _Choice:
    """Delay a start that no other asynchronous operation precedes: it goes to the beginning."""
    return _more(not _is_lone(state, one), not _is_lone(state, best))


def _is_lone(state: _Scheduler, node: ScheduleNode) -> bool:
    return node.releases and not node.async_depth and not state.is_constrained(node)


def _frees_stream(state: _Scheduler, one: ScheduleNode, best: ScheduleNode) -> _Choice:
    return _more(one.releases and state.is_constrained(one), best.releases and state.is_constrained(best))


def _async_depth(_state: _Scheduler, one: ScheduleNode, best: ScheduleNode) -> _Choice:
    return _more(one.async_depth, best.async_depth)


def _fills_stall(state: _Scheduler, one: ScheduleNode, best: ScheduleNode) -> _Choice:
    """Prefer work whose time is nearest to the latency that is to be hidden."""
    ready = state.first_stall()
    if ready is None:
        return None
    gaps = [abs(ready - state.time - node.cost) for node in (one, best)]
    return _more(not one.releases and gaps[0] < gaps[1], not best.releases and gaps[1] < gaps[0])


def _unlocks_done(_state: _Scheduler, one: ScheduleNode, best: ScheduleNode) -> _Choice:
    return _more(one.follows_done, best.follows_done)


def _unlocks(_state: _Scheduler, one: ScheduleNode, best: ScheduleNode) -> _Choice:
    return _more(one.unlocks, best.unlocks)


def _frees_memory(state: _Scheduler, one: ScheduleNode, best: ScheduleNode) -> _Choice:
    if state.pressure is None or not state.pressure.is_high:
        return None
    return _more(state.change(one).increase < 0, state.change(best).increase < 0)


# The first that distinguishes two nodes decides. If none does, the order before decides.
_RULES: tuple[_Rule, ...] = (
    _first,
    _delayed,
    _memory,
    _early_start,
    _host_update,
    _done,
    _start_of_delayed,
    _stall,
    _lone_start,
    _frees_stream,
    _async_depth,
    _fills_stall,
    _unlocks_done,
    _unlocks,
    _frees_memory,
)
