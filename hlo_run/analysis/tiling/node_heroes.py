"""Finds the hero of a root of a node, alone or with a producer, as `find_hero` does for a fusion.

Results for a node are cached and extended by the ops that are added to it, so a request costs as many steps as the node has
new ops, regardless of its size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from hlo_run.analysis.tiling.fusion_roots_and_heroes import EPILOGUE_OPERANDS, is_intermediate
from hlo_run.hlo.fusion_graph import Node, Op

Candidate: TypeAlias = Callable[[Op], bool]


class _Reached:
    """The search from a root through intermediates, over the first `counted` ops: candidates, and operands of the node."""

    __slots__ = ("candidates", "counted", "edge", "passed")

    def __init__(self) -> None:
        self.counted = 0
        self.passed: set[Op] = set()
        self.candidates: list[Op] = []
        self.edge: set[Node] = set()

    def go_on(self, node: Node, root: Op, is_candidate: Candidate) -> None:
        """Continue with the new ops; users come before operands."""
        for number in range(self.counted, len(node.ops)):
            op = node.ops[number]
            if op is not root and self.passed.isdisjoint(op.users):
                continue
            if is_candidate(op):
                self.candidates.append(op)
            elif is_intermediate(op.instruction, EPILOGUE_OPERANDS):
                self.passed.add(op)
                self.edge.update(operand for operand in op.operands if isinstance(operand, Node))
        self.counted = len(node.ops)


class _Known:
    """The cached results for a node: the ops with only intermediates after them (`leading`), and the search of each root."""

    __slots__ = ("counted", "leading", "reached", "starts")

    def __init__(self) -> None:
        self.counted = 0
        self.leading: set[Op] = set()
        self.reached: dict[tuple[Op, str], _Reached] = {}
        self.starts: dict[Op, Op] = {}

    def all_lead(self, node: Node, ops: list[Op]) -> bool:
        """True if only intermediates or tuples are between these ops, themselves included, and the end of the node."""
        for number in range(self.counted, len(node.ops)):
            op = node.ops[number]
            is_plain = op.opcode == "tuple" or is_intermediate(op.instruction, EPILOGUE_OPERANDS)
            if is_plain and self.leading.issuperset(op.users):
                self.leading.add(op)
        self.counted = len(node.ops)
        return self.leading.issuperset(ops)


class NodeHeroes:
    """The heroes of the nodes of a graph. `is_tiled_transpose` recognises the ops for the transpose emitter."""

    def __init__(self, is_tiled_transpose: Candidate) -> None:
        self._candidates: dict[str, Candidate] = {"transpose": is_tiled_transpose, "concatenate": _is_concatenate}
        self._known: dict[Node, _Known] = {}

    def forget(self, node: Node) -> None:
        """Drop the results for a node. Call it after every change except ops added at the end."""
        self._known.pop(node, None)

    def find(self, producer: Node | None, consumer: Node, root: Op, has_tiled_transpose: bool, has_concatenate: bool) -> Op:
        """Return the hero of a root of `consumer`, with `producer` fused into it unless that is None.

        The flags tell whether the nodes have a tiled transpose or a concatenate at all.
        """
        found = self._search("transpose", producer, consumer, root) if has_tiled_transpose else None
        if found is None and has_concatenate:
            found = self._search("concatenate", producer, consumer, root)
        if found is not None:
            return found
        start = self._start(producer, consumer, root)
        return start if start.opcode == "reduce" else root

    def _of(self, node: Node) -> _Known:
        return self._known.setdefault(node, _Known())

    def _reached(self, kind: str, node: Node, root: Op) -> _Reached:
        reached = self._of(node).reached.setdefault((root, kind), _Reached())
        reached.go_on(node, root, self._candidates[kind])
        return reached

    def _search(self, kind: str, producer: Node | None, consumer: Node, root: Op) -> Op | None:
        """Return the only candidate that `root` reaches upwards through intermediates and whose users are all intermediates."""
        reached = self._reached(kind, consumer, root)
        found, known = reached.candidates, self._of(consumer)
        above: list[Op] = []
        if producer is not None and producer in reached.edge:
            above = self._reached(kind, producer, producer.root).candidates
        if len(found) + len(above) != 1:
            return None
        if found or producer is None:
            return found[0] if known.all_lead(consumer, found[0].users) else None
        leads = known.all_lead(consumer, consumer.reads[producer]) and self._of(producer).all_lead(producer, above[0].users)
        return above[0] if leads else None

    def _start(self, producer: Node | None, consumer: Node, root: Op) -> Op:
        """Return the last op of the chain of one-operand intermediates that leads up from a root."""
        starts = self._of(consumer).starts
        start = starts.get(root, root)
        while is_intermediate(start.instruction, 1):
            (source,) = start.operands
            if isinstance(source, Node):
                starts[root] = start
                return self._start(None, source, source.root) if source is producer else start
            start = source
        starts[root] = start
        return start


def _is_concatenate(op: Op) -> bool:
    return op.opcode == "concatenate"
