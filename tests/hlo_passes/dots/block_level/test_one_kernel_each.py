"""Each block-level fusion runs as one kernel, with the reference's values."""

from __future__ import annotations

import numpy as np

import hlo_run
from hlo_run.analysis.fusion_owner import is_block_level
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.platforms import open_backend
from hlo_run.target import preset

MODULE = """
HloModule m
most { x = f32[] parameter(0) y = f32[] parameter(1) ROOT m = f32[] maximum(x, y) }
total { x = f32[] parameter(0) y = f32[] parameter(1) ROOT s = f32[] add(x, y) }
ENTRY main {
  a = f32[24,32] parameter(0)
  b = f32[32,48] parameter(1)
  v = f32[48] parameter(2)
  d = f32[24,48] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  vs = f32[24,48] broadcast(v), dimensions={1}
  s = f32[24,48] add(d, vs)
  low = f32[] constant(-inf)
  zero = f32[] constant(0)
  largest = f32[24] reduce(s, low), dimensions={1}, to_apply=most
  ls = f32[24,48] broadcast(largest), dimensions={0}
  moved = f32[24,48] subtract(s, ls)
  e = f32[24,48] exponential(moved)
  sum = f32[24] reduce(e, zero), dimensions={1}, to_apply=total
  sums = f32[24,48] broadcast(sum), dimensions={0}
  ROOT r = f32[24,48] divide(e, sums)
}
"""


def test_a_product_and_a_softmax_are_two_kernels() -> None:
    module = hlo_run.parse(MODULE)
    options = Options(platform="Host", block_level_fusions=True, compile_processes=1)
    executable = compile_module(PassContext(preset("h100"), options.compile), module)
    fusions = module.instructions_of("fusion")
    assert [is_block_level(fusion) for fusion in fusions] == [True, True]
    assert [kernel.name for kernel in executable.kernels] == [fusion.name.replace(".", "_") for fusion in fusions]
    random = np.random.default_rng(5)
    a, b, v = (random.normal(size=size).astype(np.float32) for size in ((24, 32), (32, 48), 48))
    result = open_backend("Host", options).run(executable, [a, b, v])
    scores = a.astype(np.float64) @ b + v
    expected = np.exp(scores - scores.max(axis=1, keepdims=True))
    np.testing.assert_allclose(result, expected / expected.sum(axis=1, keepdims=True), rtol=1e-5)
