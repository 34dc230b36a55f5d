"""Answers which nodes of a graph depend on each other while nodes are joined.

Every node has a position after its operands. A request examines, and a join moves, only nodes between two positions.
"""

from __future__ import annotations

from collections.abc import Iterable

from hlo_run.hlo.fusion_graph import Node


class NodeOrder:
    """A topological order of the nodes. A fusion of joined nodes needs no position, but its operands have one."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._order = list(nodes)
        self._place = {node: place for place, node in enumerate(self._order)}

    def connected(self, node: Node, others: Iterable[Node]) -> set[Node]:
        """Return the members of `others` that depend on `node`, or on which it depends."""
        wanted = {other for other in others if other is not node}
        places = [self._place[other] for other in wanted]
        above = self._needing(node, max(places, default=-1))
        below = self._needed(node, min(places, default=len(self._order)))
        return wanted & (above | below)

    def reaches_operand(self, producer: Node, consumer: Node) -> bool:
        """True if an operand of `consumer` other than `producer` depends on `producer`."""
        return self._reaches(producer, [operand for operand in consumer.operands if operand is not producer])

    def join(self, gone: Node, kept: Node) -> None:
        """Merge `gone` into `kept`. Call it before the graph does."""
        low, high = sorted((self._place[gone], self._place[kept]))
        last = self._order[high]
        needing = self._needing(self._order[low], self._place[last])
        window = self._order[low : high + 1]
        before = [node for node in window if node not in needing and node not in (gone, kept)]
        after = [node for node in window if node in needing and node not in (gone, kept)]
        # The position of `gone` remains and represents `kept`.
        for place, node in enumerate([*before, gone, kept, *after], low):
            self._order[place] = node
            self._place[node] = place

    def _reaches(self, start: Node, targets: Iterable[Node]) -> bool:
        ends = {self._placed(target) for target in targets}
        ends.discard(None)
        limit = max((self._place[end] for end in ends if end is not None), default=-1)
        queue, seen = [start], {start}
        for node in queue:
            for user in self._users(node):
                if user in ends:
                    return True
                if user not in seen and self._place[user] < limit:
                    seen.add(user)
                    queue.append(user)
        return False

    def _needing(self, start: Node, limit: int) -> set[Node]:
        """Return the nodes up to position `limit` that depend on `start`."""
        found = {start}
        queue = [start]
        for node in queue:
            for user in self._users(node):
                if user not in found and self._place[user] <= limit:
                    found.add(user)
                    queue.append(user)
        return found

    def _needed(self, start: Node, limit: int) -> set[Node]:
        """Return the nodes from position `limit` on that `start` depends on."""
        found = {start}
        queue = [start]
        for node in queue:
            for operand in map(self._placed, node.operands):
                if operand is not None and operand not in found and self._place[operand] >= limit:
                    found.add(operand)
                    queue.append(operand)
        return found

    def _placed(self, node: Node) -> Node | None:
        """Return the node itself, or the fusion whose result it extracts."""
        while node not in self._place:
            if not node.operands:
                return None
            node = node.operands[0]
        return node

    def _users(self, node: Node) -> Iterable[Node]:
        """Yield the users that have a position, looking through those that have none."""
        waiting = list(node.users)
        while waiting:
            user = waiting.pop()
            if user in self._place:
                yield user
            else:
                waiting += user.users
