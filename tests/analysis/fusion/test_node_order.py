"""The order of nodes knows which of them depend on each other, also after nodes were joined and results extracted."""

from __future__ import annotations

import hlo_run
from hlo_run.analysis.fusion.node_order import NodeOrder
from hlo_run.hlo.fusion_graph import FusionGraph

MODULE = """HloModule m

ENTRY e {
  p = f32[8] parameter(0)
  a = f32[8] negate(p)
  b = f32[8] abs(a)
  c = f32[8] tanh(p)
  d = f32[8] add(b, c)
  x = f32[8] exponential(p)
  y = f32[8] sine(x)
  ROOT r = (f32[8], f32[8]) tuple(d, y)
}
"""


def test_nodes_are_connected_to_what_they_need_and_what_needs_them() -> None:
    graph = FusionGraph(hlo_run.parse(MODULE).entry)
    nodes = {node.name: node for node in graph}
    order = NodeOrder(graph.post_order())
    found = order.connected(nodes["b"], [nodes[name] for name in "abcdxy"])
    assert {node.name for node in found} == {"a", "d"}
    assert order.reaches_operand(nodes["a"], nodes["d"])
    assert not order.reaches_operand(nodes["b"], nodes["d"])
    assert not order.reaches_operand(nodes["x"], nodes["d"])


def test_what_depends_on_a_joined_node_depends_on_both() -> None:
    graph = FusionGraph(hlo_run.parse(MODULE).entry)
    nodes = {node.name: node for node in graph}
    order = NodeOrder(graph.post_order())
    # The fusion of `a` and `x` returns both, so their users read extracted results, which have no position.
    order.join(nodes["x"], nodes["a"])
    graph.fuse_sibling(nodes["x"], nodes["a"], "kLoop")
    assert order.connected(nodes["y"], [nodes["a"], nodes["b"], nodes["c"]]) == {nodes["a"]}
    assert order.connected(nodes["a"], [nodes["b"], nodes["c"], nodes["y"]]) == {nodes["b"], nodes["y"]}
    assert order.reaches_operand(nodes["a"], nodes["r"])
