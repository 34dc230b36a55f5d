"""Products in parts of large arrays: the thunks are those of XLA:GPU, and each iteration works at its own place."""

from __future__ import annotations

import numpy as np
import pytest

import hlo_run
from hlo_run.artifact import Executable, SlicedProductThunk, accesses, every_thunk
from hlo_run.backends.host.backend import HostBackend
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.runtime.thunk_text import thunk_sequence_text
from hlo_run.target import preset

LOOP = """HloModule loop
condition { t = (s32[], f32[4,32,32], f32[4,32,32], f32[32,32]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  n = s32[] constant(4)
  ROOT c = pred[] compare(i, n), direction=LT }
body { t = (s32[], f32[4,32,32], f32[4,32,32], f32[32,32]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  x = f32[4,32,32] get-tuple-element(t), index=1
  o = f32[4,32,32] get-tuple-element(t), index=2
  w = f32[32,32] get-tuple-element(t), index=3
  z = s32[] constant(0)
  last = s32[] constant(3)
  k = s32[] subtract(last, i)
  s = f32[1,32,32] dynamic-slice(x, i, z, z), dynamic_slice_sizes={1,32,32}
  r = f32[32,32] reshape(s)
  d = f32[32,32] dot(r, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  u = f32[1,32,32] reshape(d)
  p = f32[4,32,32] dynamic-update-slice(TARGET, u, PLACE, z, z)
  one = s32[] constant(1)
  j = s32[] add(i, one)
  ROOT n = (s32[], f32[4,32,32], f32[4,32,32], f32[32,32]) tuple(j, STATE, w) }
ENTRY e { x = f32[4,32,32] parameter(0)
  o = f32[4,32,32] parameter(1)
  w = f32[32,32] parameter(2)
  z = s32[] constant(0)
  t = (s32[], f32[4,32,32], f32[4,32,32], f32[32,32]) tuple(z, x, o, w)
  l = (s32[], f32[4,32,32], f32[4,32,32], f32[32,32]) while(t), condition=condition, body=body
  a = f32[4,32,32] get-tuple-element(l), index=1
  b = f32[4,32,32] get-tuple-element(l), index=2
  ROOT p = (f32[4,32,32], f32[4,32,32]) tuple(a, b) }
"""
APART = LOOP.replace("TARGET", "o").replace("PLACE", "k").replace("STATE", "x, p")
RNG = np.random.default_rng(3)
X, O = (RNG.standard_normal((4, 32, 32)).astype(np.float32) for _ in range(2))
W = (0.2 * RNG.standard_normal((32, 32))).astype(np.float32)
# The output of XLA:GPU (jaxlib 0.12.0.1, emitters only) for the loop of APART and an H100.
BODY = [
    "    005: kDynamicSliceFusion [source | sink] params=2, results=2",
    "        006: kCublasLtMatmul [source | sink] kCublasLtMatmul",
]


def compiled(text: str) -> Executable:
    return compile_module(PassContext(preset("h100"), Options(compile_processes=1)), hlo_run.parse(text))


def products(made: Executable) -> list[SlicedProductThunk]:
    return [thunk for thunk in every_thunk(made.thunks) if isinstance(thunk, SlicedProductThunk)]


def test_a_product_reads_and_writes_slices() -> None:
    made = compiled(APART)
    (product,) = products(made)
    assert [line for line in thunk_sequence_text(made).splitlines() if "Slice" in line or "Cublas" in line] == BODY
    assert [part.field for part in product.moving] == ["lhs", "result"]
    assert product.room is None
    same, changed = HostBackend().run(made, [X, O, W])
    np.testing.assert_array_equal(same, X)
    np.testing.assert_allclose(changed, np.stack([X[3 - n] @ W for n in range(4)]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("place", ["i", "k"])
def test_a_product_does_not_read_what_it_has_written(place: str) -> None:
    made = compiled(LOOP.replace("TARGET", "x").replace("PLACE", place).replace("STATE", "p, o"))
    (product,) = products(made)
    assert product.room is not None
    assert product.room in accesses(product).reads
    assert product.room not in accesses(product).writes
    expected = X.copy()
    for n in range(4):
        expected[n if place == "i" else 3 - n] = expected[n] @ W
    changed, same = HostBackend().run(made, [X, O, W])
    np.testing.assert_array_equal(same, O)
    np.testing.assert_allclose(changed, expected, rtol=1e-5, atol=1e-5)


def test_an_addend_is_read_where_the_product_is_written() -> None:
    text = """HloModule m
ENTRY e { x = f32[64,64] parameter(0)
  a = f32[128,64] parameter(1)
  s = f32[64,64] slice(a), slice={[32:96], [0:64]}
  d = f32[64,64] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = f32[64,64] add(d, s) }"""
    made = compiled(text)
    assert len(products(made)) == 1
    a, x = RNG.standard_normal((128, 64)).astype(np.float32), RNG.standard_normal((64, 64)).astype(np.float32)
    result = HostBackend().run(made, [x, a])
    np.testing.assert_allclose(result, x @ x + a[32:96], rtol=1e-4, atol=1e-4)
