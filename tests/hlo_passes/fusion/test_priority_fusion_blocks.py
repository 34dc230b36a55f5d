"""The times of block-level fusions and of what is fused with them are those that the release dumps."""

from __future__ import annotations

import hlo_run
from hlo_run.analysis.fusion.fusion_process import FusionStep, Weighed
from hlo_run.hlo_passes.fusion.priority_fusion import PriorityFusion
from hlo_run.options import CompileOptions
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pass_support.observer import Observer
from hlo_run.target import preset

NORM = """HloModule norm
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b)
}
body {
  p = f32[2,24,64] parameter(0)
  square = f32[2,24,64] multiply(p, p)
  zero = f32[] constant(0)
  sum = f32[2,24] reduce(square, zero), dimensions={2}, to_apply=add
  part = f32[] constant(0.015625)
  parts = f32[2,24] broadcast(part), dimensions={}
  mean = f32[2,24] multiply(sum, parts)
  eps = f32[] constant(1e-05)
  epsilons = f32[2,24] broadcast(eps), dimensions={}
  moved = f32[2,24] add(mean, epsilons)
  root = f32[2,24] rsqrt(moved)
  roots = f32[2,24,64] broadcast(root), dimensions={0,1}
  ROOT r = f32[2,24,64] multiply(p, roots)
}
ENTRY e {
  p = f32[2,24,64] parameter(0)
  g = f32[64] parameter(1)
  norm = f32[2,24,64] fusion(p), kind=kCustom, calls=body, backend_config={"fusion_backend_config":{"kind":"__triton",
    "block_level_fusion_config":{"num_warps":"1","output_tiles":[{"sizes":["1","1","64"]}],"num_ctas":1,"num_stages":1}}}
  gs = f32[2,24,64] broadcast(g), dimensions={2}
  scaled = f32[2,24,64] multiply(norm, gs)
  flat = f32[48,64] bitcast(norm)
  ROOT t = (f32[2,24,64], f32[48,64]) tuple(scaled, flat)
}"""


class Decisions(Observer):
    def __init__(self) -> None:
        self.steps: list[FusionStep] = []

    def decided(self, row: str, steps: object) -> None:
        assert row == "priority-fusion"
        assert isinstance(steps, list)
        self.steps += steps


def weighed(text: str) -> list[Weighed]:
    observer = Decisions()
    module = hlo_run.parse(text)
    PriorityFusion().apply(PassContext(preset("h100"), CompileOptions(block_level_fusions=True), (observer,)), module)
    return [step for step in observer.steps if isinstance(step, Weighed)]


def test_bitcast_of_a_block_level_fusion_is_priced_as_a_native_kernel() -> None:
    """Of `triton_softmax.26` of bert_2l_fwd, in microseconds; the tiled model would give 2.02025."""
    (norm,) = [step for step in weighed(NORM) if step.producer == "norm"][:1]
    assert (norm.fused, norm.unfused) == (2.02775, 3.02775)
