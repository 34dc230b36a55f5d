"""Dynamic sizes in parameters, results, loops, branches and calls: Host against the reference, arrays shorter than bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hlo_run
from hlo_run.hlo.values.literal import Literal

_PARTS = """
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }
body {
  s = (s32[], (f32[<=6,3], f32[<=6])) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  p = (f32[<=6,3], f32[<=6]) get-tuple-element(s), index=1
  x = f32[<=6,3] get-tuple-element(p), index=0
  y = f32[<=6] get-tuple-element(p), index=1
  z = f32[] constant(0)
  t = f32[<=6] reduce(x, z), dimensions={1}, to_apply=add
  n = s32[] get-dimension-size(y), dimensions={0}
  one = s32[] constant(1)
  m = s32[] subtract(n, one)
  u = f32[<=6] add(y, t)
  v = f32[<=6] set-dimension-size(u, m), dimensions={0}
  c = f32[<=6,3] cosine(x)
  d = f32[<=6,3] set-dimension-size(c, m), dimensions={0}
  j = s32[] add(i, one)
  q = (f32[<=6,3], f32[<=6]) tuple(d, v)
  ROOT o = (s32[], (f32[<=6,3], f32[<=6])) tuple(j, q)
}
cond {
  s = (s32[], (f32[<=6,3], f32[<=6])) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(2)
  ROOT r = pred[] compare(i, n), direction=LT
}
"""
_LOOP = (
    "HloModule loop\n"
    + _PARTS
    + """
ENTRY e {
  x = f32[<=6,3] parameter(0)
  y = f32[<=6] parameter(1)
  z = s32[] constant(0)
  p = (f32[<=6,3], f32[<=6]) tuple(x, y)
  i = (s32[], (f32[<=6,3], f32[<=6])) tuple(z, p)
  w = (s32[], (f32[<=6,3], f32[<=6])) while(i), condition=cond, body=body
  g = (f32[<=6,3], f32[<=6]) get-tuple-element(w), index=1
  a = f32[<=6,3] get-tuple-element(g), index=0
  n = s32[] get-dimension-size(a), dimensions={0}
  ROOT r = ((f32[<=6,3], f32[<=6]), s32[]) tuple(g, n)
}
"""
)
_BRANCH = """
HloModule branch
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }
short {
  x = f32[<=5] parameter(0)
  n = s32[] constant(2)
  ROOT s = f32[<=5] set-dimension-size(x, n), dimensions={0}
}
sine { x = f32[<=5] parameter(0) ROOT s = f32[<=5] sine(x) }
ENTRY e {
  c = pred[] parameter(0)
  x = f32[<=5] parameter(1)
  r = f32[<=5] conditional(c, x, x), true_computation=short, false_computation=sine
  z = f32[] constant(0)
  s = f32[] reduce(r, z), dimensions={0}, to_apply=add
  ROOT t = (f32[<=5], f32[]) tuple(r, s)
}
"""
_CALL = """
HloModule call
twice {
  k = f32[3] parameter(0)
  x = bf16[2,<=7]{0,1} parameter(1)
  r = bf16[2,<=7]{0,1} add(x, x)
  ROOT t = (f32[3], bf16[2,<=7]{0,1}) tuple(k, r)
}
ENTRY e {
  p = (f32[3], bf16[2,<=7]{0,1}) parameter(0)
  k = f32[3] get-tuple-element(p), index=0
  x = bf16[2,<=7]{0,1} get-tuple-element(p), index=1
  ROOT r = (f32[3], bf16[2,<=7]{0,1}) call(k, x), to_apply=twice, frontend_attributes={inlineable="false"}
}
"""
_MOVES = """
HloModule moves
ENTRY e {
  x = s8[<=6,4] parameter(0)
  i = s32[<=5,1] parameter(1)
  g = s8[<=5,4] gather(x, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1,
      slice_sizes={1,4}
  o = s32[] constant(1)
  d = s8[<=6,2] dynamic-slice(x, o, o), dynamic_slice_sizes={6,2}
  b = s8[<=6,4] opt-barrier(x)
  ROOT t = (s8[<=5,4], s8[<=6,2], s8[<=6,4]) tuple(g, d, b)
}
"""

_EMPTY = """
ENTRY e {
  x = f32[<=4] parameter(0)
  y = f32[0,3] parameter(1)
  ROOT d = f32[<=4,0,3] dot(x, y)
}
"""

_STATIC = """
ENTRY e {
  x = s8[2,3] parameter(0)
  n = s32[] parameter(1)
  ROOT d = s8[6] dynamic-reshape(x, n)
}
"""


def _flat(value: Literal) -> list[np.ndarray[Any, Any]]:
    return [leaf for part in value for leaf in _flat(part)] if isinstance(value, tuple) else [value]


def _same(expected: Any, actual: Any) -> None:
    for one, two in zip(_flat(expected), _flat(actual), strict=True):
        assert one.shape == two.shape
        np.testing.assert_allclose(two.astype(np.float64), one.astype(np.float64), rtol=1e-5, atol=1e-6)


def _check(text: str, *arguments: Any) -> Any:
    module = hlo_run.parse(text)
    expected = hlo_run.evaluate(module, *arguments)
    _same(expected, hlo_run.run(module, *arguments, platform="Host"))
    return expected


def _floats(*dims: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(dims)).normal(size=dims).astype(np.float32)


@pytest.mark.parametrize("size", [6, 4])
def test_loops_carry_sizes(size: int) -> None:
    (x, y), n = _check(_LOOP, _floats(size, 3), _floats(size))
    assert (x.shape, y.shape, int(n)) == ((size - 2, 3), (size - 2,), size - 2)


@pytest.mark.parametrize("chosen", [True, False])
def test_branches_return_their_own_sizes(chosen: bool) -> None:
    r, _ = _check(_BRANCH, np.array(chosen), _floats(4))
    assert r.shape == ((2,) if chosen else (4,))


def test_calls_that_stay_and_tuple_parameters() -> None:
    x = _floats(2, 5).astype(hlo_run.parse(_CALL).entry.parameters[0].shape.tuple_shapes[1].dtype.numpy)
    _, r = _check(_CALL, (_floats(3), x))
    assert r.shape == (2, 5)


def test_moved_elements() -> None:
    x = np.random.default_rng(3).integers(-100, 100, (5, 4)).astype(np.int8)
    g, d, b = _check(_MOVES, x, np.array([[2], [0], [4]], np.int32))
    assert (g.shape, d.shape, b.shape) == ((3, 4), (5, 2), (5, 4))


def test_an_empty_product_is_static() -> None:
    """Its dot becomes a constant, so that no size is known where the result is reshaped to a dynamic shape."""
    (r,) = _flat(_check(_EMPTY, _floats(3), np.zeros((0, 3), np.float32)))
    assert r.size == 0


def test_a_dynamic_reshape_to_a_static_type() -> None:
    x = np.arange(6, dtype=np.int8).reshape(2, 3)
    np.testing.assert_array_equal(_check(_STATIC, x, np.array(6, np.int32)), x.reshape(6))


def test_a_size_set_on_a_static_type_counts() -> None:
    """XLA pads by the size, whatever the result's type says; the reference refuses it."""
    text = """HloModule m
    add { a = s32[] parameter(0)
      b = s32[] parameter(1)
      ROOT r = s32[] add(a, b) }
    ENTRY e { y = s32[4] parameter(0)
      n = s32[] parameter(1)
      w = s32[4] set-dimension-size(y, n), dimensions={0}
      z = s32[] constant(0)
      ROOT r = s32[] reduce(w, z), dimensions={0}, to_apply=add }"""
    y, n = np.arange(1, 5, dtype=np.int32), np.array(3, np.int32)
    np.testing.assert_array_equal(hlo_run.run(hlo_run.parse(text), y, n, platform="Host"), 6)
