"""The scheduling groups that the latency-hiding scheduler may begin, and the next member of the current one.

The order grows from the end. A group may begin once all that reads its results is scheduled. Its dones go first and its starts
last, so that in the program the rest of the group runs between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hlo_run.analysis.latency.schedule_graph import ScheduleNode
from hlo_run.analysis.latency.scheduling_groups import NO_GROUP
from hlo_run.hlo.frontend_attributes import frontend_attribute

_KEEPS_ORDER = "keep_original_sequence_order_in_group"


class GroupQueue:
    """The groups of a computation. `current` is the one that is being scheduled, or NO_GROUP."""

    def __init__(self, nodes: Sequence[ScheduleNode]) -> None:
        self.current = NO_GROUP
        self._members: dict[int, list[ScheduleNode]] = {}
        self._ready_members: list[ScheduleNode] = []
        self._scheduled: set[ScheduleNode] = set()
        # Members that did not fit into their group. No other group begins before they are scheduled.
        self._late: set[ScheduleNode] = set()
        for node in _in_text_order(nodes):
            self._members.setdefault(node.group, []).append(node)
        self._waiting = {group: len(_followers(group, members)) for group, members in self._members.items()}
        self._ready = [group for group, count in self._waiting.items() if not count]

    @property
    def has_ready(self) -> bool:
        """True if a member of the current group can be scheduled."""
        return bool(self._ready_members)

    def begin(self, ready: Sequence[ScheduleNode], free: Mapping[str, int], at_once: bool) -> bool:
        """Begin the first group whose streams are `free`, with its members of `ready`. Return False if no group can begin.

        `at_once` counts all its generic asynchronous pairs, else only those that begin before the group.
        """
        if not self._ready or self._late:
            return False
        fitting = (place for place, group in enumerate(self._ready) if _fits(self._members[group], free, at_once))
        place = next(fitting, None)
        if place is None:
            return False
        self.current = self._ready[place]
        self._ready[place] = self._ready[-1]
        self._ready.pop()
        self._ready_members = [node for node in ready if node.group == self.current]
        return True

    def add_ready(self, node: ScheduleNode) -> None:
        """Note a node that has become ready; it is next if the current group has it."""
        if node.group != NO_GROUP and node.group == self.current:
            self._ready_members.append(node)

    def next(self, exceeds: Callable[[ScheduleNode], bool]) -> ScheduleNode | None:
        """Remove and return the best ready member; None if each one `exceeds` the free resources."""
        best = -1
        for place, node in enumerate(self._ready_members):
            if exceeds(node):
                continue
            if best < 0 or _is_better(node, self._ready_members[best]):
                best = place
        if best < 0:
            return None
        chosen = self._ready_members[best]
        self._ready_members[best] = self._ready_members[-1]
        self._ready_members.pop()
        return chosen

    def count(self, node: ScheduleNode) -> None:
        """Record that a node is scheduled, which may make groups ready that wait for it."""
        if not self._members:
            return
        self._scheduled.add(node)
        self._late.discard(node)
        for group in dict.fromkeys(edge.node.group for edge in node.earlier):
            if group in (NO_GROUP, node.group):
                continue
            self._waiting[group] -= 1
            if not self._waiting[group]:
                self._ready.append(group)

    def end(self) -> None:
        """End the current group. Members that could not be scheduled with it are in no group any more."""
        for node in self._members[self.current]:
            if node not in self._scheduled:
                node.group = NO_GROUP
                self._late.add(node)
        self.current = NO_GROUP


def _in_text_order(nodes: Sequence[ScheduleNode]) -> list[ScheduleNode]:
    found = {node.instruction: node for node in nodes if node.group != NO_GROUP}
    computation = next(iter(found)).parent if found else None
    return [found[i] for i in computation.instructions if i in found] if computation is not None else []


def _followers(group: int, members: Sequence[ScheduleNode]) -> set[ScheduleNode]:
    return {edge.node for member in members for edge in member.later if edge.node.group != group}


def _keeps_order(node: ScheduleNode) -> bool:
    return frontend_attribute(node.instruction, _KEEPS_ORDER) == "true"


def _fits(members: Sequence[ScheduleNode], free: Mapping[str, int], at_once: bool) -> bool:
    return all(count <= free.get(stream, count) for stream, count in _needed(members, at_once).items())


def _needed(members: Sequence[ScheduleNode], at_once: bool) -> dict[str, int]:
    """Return how much of each stream a group needs."""
    if _keeps_order(members[0]):
        return _needed_in_order(members)
    needed: dict[str, int] = {}
    inside = {member.instruction for member in members}
    for member in members:
        instruction = member.instruction
        adds = instruction.opcode == "async-done" and (at_once or instruction.operands[0] not in inside)
        for stream, count in member.needed.items():
            so_far = needed.get(stream, 0)
            needed[stream] = so_far + count if adds else max(so_far, count)
    return needed


def _needed_in_order(members: Sequence[ScheduleNode]) -> dict[str, int]:
    most: dict[str, int] = {}
    now: dict[str, int] = {}
    for member in sorted(members, key=lambda node: -node.position):
        used = member.needed
        if member.is_start:
            used = next((edge.node.needed for edge in member.later if edge.node.is_done), used)
        for stream, count in used.items():
            now[stream] = now.get(stream, 0) + (-count if member.is_start else count)
            most[stream] = max(most.get(stream, 0), now[stream])
    return most


def _is_better(one: ScheduleNode, best: ScheduleNode) -> bool:
    if _keeps_order(one) and _keeps_order(best):
        return one.position > best.position
    if one.occupies != best.occupies:
        return one.occupies
    return best.releases or not one.releases
