"""The number of times that instructions of a node are emitted."""

from __future__ import annotations

import hlo_run
from hlo_run.analysis.cost.node_cost import CostAnalysis
from hlo_run.hlo.fusion_graph import FusionGraph
from hlo_run.target import preset

# The sum is computed at two places, since a reverse and a slice read it at other indices than its own.
TWICE = """HloModule m
body {
  p = f32[8] parameter(0)
  q = f32[8] parameter(1)
  s = f32[8] add(p, q)
  v = f32[8] reverse(s), dimensions={0}
  w = f32[8] slice(s), slice={[0:8]}
  ROOT r = f32[8] multiply(v, w)
}
ENTRY e {
  a = f32[8] parameter(0)
  b = f32[8] parameter(1)
  ROOT f = f32[8] fusion(a, b), kind=kLoop, calls=body
}"""


def test_reads_of_a_fusions_operands_count_as_emitted() -> None:
    nodes = FusionGraph(hlo_run.parse(TWICE).entry).nodes
    costs = CostAnalysis(preset("h100"))
    (fusion,) = [node for node in nodes.values() if node.is_fusion]
    cost = costs.of(fusion)
    assert [cost.operand_ir_size(operand) for operand in fusion.operands] == [2, 2]
    # The multiply, the reverse and the slice once; the add and two parameters twice.
    assert cost.whole_ir_size() == 3 + 3 * 2
    (parameter, *_) = fusion.operands
    assert costs.of(parameter).whole_ir_size() == 1
