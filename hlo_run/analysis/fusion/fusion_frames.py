"""Records what fusion passes do as frames: a label, and the nodes around the fused one as they are at that moment."""

from __future__ import annotations

import json
from collections.abc import Sequence

from msgspec import Struct, field

from hlo_run.hlo.fusion_graph import Node

# XLA draws the nodes at most so many edges away.
_RADIUS = 4


class DrawnNode(Struct, frozen=True):
    """A node of a drawing: its name, what it computes as text, and the names of its operands."""

    name: str
    text: str
    operands: tuple[str, ...]


class Frame(Struct, frozen=True):
    """One moment of a fusion pass: XLA's label, the nodes around `consumer`, and the name of the producer to be fused or ""."""

    label: str
    consumer: str
    highlighted: str
    nodes: tuple[DrawnNode, ...]


class FusionFrames(Struct):
    """The frames of the fusion passes, by computation."""

    computations: dict[str, list[Frame]] = field(default_factory=dict[str, list[Frame]])

    def add(self, computation: str, label: str, consumer: Node, producer: Node | None = None) -> None:
        """Add a frame of the nodes around `consumer`."""
        nodes = tuple(map(_drawn, _around(consumer)))
        frame = Frame(label, consumer.name, producer.name if producer is not None else "", nodes)
        self.computations.setdefault(computation, []).append(frame)

    def to_json(self) -> str:
        """Return the frames as text, by computation. `frames_from_json` reads it."""
        made = {
            name: [[f.label, f.consumer, f.highlighted, [[n.name, n.text, n.operands] for n in f.nodes]] for f in frames]
            for name, frames in self.computations.items()
        }
        return json.dumps(made)


def frames_from_json(text: str) -> dict[str, list[Frame]]:
    """Return the frames that `FusionFrames.to_json` wrote."""
    return {
        name: [
            Frame(label, consumer, highlighted, tuple(DrawnNode(node, kind, tuple(operands)) for node, kind, operands in nodes))
            for label, consumer, highlighted, nodes in frames
        ]
        for name, frames in json.loads(text).items()
    }


def _around(center: Node) -> Sequence[Node]:
    """Return the nodes near one, by number. Nothing behind its users is near."""
    near = dict.fromkeys((center, *center.users))
    edge = [center]
    for _ in range(_RADIUS):
        found = dict.fromkeys(node for inner in edge for node in (*inner.operands, *inner.users) if node not in near)
        near |= found
        edge = list(found)
    return sorted(near, key=lambda node: node.number)


def _drawn(node: Node) -> DrawnNode:
    kind = f"fusion {node.kind} of {', '.join(op.opcode for op in reversed(node.ops))}" if node.is_fusion else node.opcode
    return DrawnNode(node.name, f"{node.shape} {kind}", tuple(operand.name for operand in node.operands))
