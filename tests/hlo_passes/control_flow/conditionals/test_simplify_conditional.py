"""Conditionals that `simplify-conditional` leaves alone."""

from __future__ import annotations

import hlo_run
from hlo_run.hlo_passes.control_flow.conditionals.simplify_conditional import SimplifyConditional
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.target import preset

READS_ALL = """HloModule m
less { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = pred[] compare(a, b), direction=LT }
yes {
  x = f32[4] parameter(0)
  s = f32[4] sort(x), dimensions={0}, to_apply=less
  ROOT r = (f32[4], f32[4]) tuple(s, x)
}
no {
  y = f32[4] parameter(0)
  n = f32[4] sort(y), dimensions={0}, to_apply=less
  ROOT r = (f32[4], f32[4]) tuple(y, n)
}
ENTRY e {
  p = pred[] parameter(0)
  x = f32[4] parameter(1)
  c = (f32[4], f32[4]) conditional(p, x, x), true_computation=yes, false_computation=no
  g0 = f32[4] get-tuple-element(c), index=0
  g1 = f32[4] get-tuple-element(c), index=1
  ROOT a = f32[4] add(g0, g1)
}"""


def test_a_conditional_whose_results_are_all_read_counts_as_no_change() -> None:
    module = hlo_run.parse(READS_ALL)
    version = module.version
    SimplifyConditional().apply(PassContext(preset("h100"), Options()), module)
    assert module.version == version  # or its pipeline would repeat 25 times
