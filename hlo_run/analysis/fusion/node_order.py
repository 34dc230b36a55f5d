"""Answers which nodes of a graph depend on each other while nodes are joined.

Every node has a position after its operands. A request examines, and a join moves, only nodes between two positions.
"""

from __future__ import annotations

from collections.abc import Iterable

from hlo_run.hlo.fusion_graph import Node


class NodeOrder:
    """A topological order of the nodes. A fusion of joined nodes needs no position, but its operands have one.

    The nodes hold their position, and the number of the walk that found them last. So a node is in one order at a time.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._order = list(nodes)
        self._walk = 0
        for place, node in enumerate(self._order):
            node.place, node.mark = place, 0

    def connected(self, node: Node, others: Iterable[Node]) -> set[Node]:
        """Return the members of `others` that depend on `node`, or on which it depends."""
        wanted = {other for other in others if other is not node}
        places = [other.place for other in wanted]
        self._mark_needing(node, max(places, default=-1))
        found = {other for other in wanted if other.mark == self._walk}
        self._mark_needed(node, min(places, default=len(self._order)))
        return found | {other for other in wanted if other.mark == self._walk}

    def reaches_operand(self, producer: Node, consumer: Node) -> bool:
        """True if an operand of `consumer` other than `producer` depends on `producer`."""
        return self._reaches(producer, [operand for operand in consumer.operands if operand is not producer])

    def join(self, gone: Node, kept: Node) -> None:
        """Merge `gone` into `kept`. Call it before the graph does."""
        low, high = sorted((gone.place, kept.place))
        self._mark_needing(self._order[low], high)
        window = [node for node in self._order[low : high + 1] if node is not gone and node is not kept]
        before = [node for node in window if node.mark != self._walk]
        after = [node for node in window if node.mark == self._walk]
        # The position of `gone` remains and represents `kept`.
        for place, node in enumerate([*before, gone, kept, *after], low):
            self._order[place] = node
            node.place = place

    def _reaches(self, start: Node, targets: Iterable[Node]) -> bool:
        ends = {self._placed(target) for target in targets}
        ends.discard(None)
        limit = max((end.place for end in ends if end is not None), default=-1)
        self._mark_needing(start, limit)
        return any(end is not None and end is not start and end.mark == self._walk for end in ends)

    def _mark_needing(self, start: Node, limit: int) -> None:
        """Mark the nodes up to position `limit` that depend on `start`, and `start`."""
        self._walk += 1
        walk = self._walk
        start.mark = walk
        queue = [start]
        for node in queue:
            for user in node.users.members:
                # Extracted results have no position, -1, and are looked through.
                if user.mark != walk and user.place <= limit:
                    user.mark = walk
                    queue.append(user)

    def _mark_needed(self, start: Node, limit: int) -> None:
        """Mark the nodes from position `limit` on that `start` depends on, and `start`."""
        self._walk += 1
        walk = self._walk
        start.mark = walk
        queue = [start]
        for node in queue:
            for operand in node.operands:
                if operand.mark != walk and (operand.place >= limit or operand.place < 0):
                    operand.mark = walk
                    queue.append(operand)

    def _placed(self, node: Node) -> Node | None:
        """Return the node itself, or the fusion whose result it extracts."""
        while node.place < 0:
            if not node.operands:
                return None
            node = node.operands[0]
        return node
