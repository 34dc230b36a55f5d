"""Computations of scalars on whole arrays: loops, branches and calls inside mappers and reducers; deep nests of calls."""

from __future__ import annotations

import numpy as np
import pytest
from reference_running import array, assert_same, run

import hlo_run
from hlo_run.errors import Unsupported
from hlo_run.reference.evaluate.evaluate import Reference, evaluate

COLLATZ = """HloModule m
even { n = s32[] parameter(0)
  two = s32[] constant(2)
  ROOT h = s32[] divide(n, two) }
odd { n = s32[] parameter(0)
  three = s32[] constant(3)
  one = s32[] constant(1)
  t = s32[] multiply(n, three)
  ROOT r = s32[] add(t, one) }
more { s = (s32[], (s32[])) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  ROOT c = pred[] compare(n, one), direction=GT }
step { s = (s32[], (s32[])) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  inner = (s32[]) get-tuple-element(s), index=1
  count = s32[] get-tuple-element(inner), index=0
  one = s32[] constant(1)
  more_count = s32[] add(count, one)
  is_odd = s32[] and(n, one)
  next = s32[] conditional(is_odd, n, n), branch_computations={even, odd}
  packed = (s32[]) tuple(more_count)
  ROOT t = (s32[], (s32[])) tuple(next, packed) }
steps { n = s32[] parameter(0)
  zero = s32[] constant(0)
  packed = (s32[]) tuple(zero)
  t = (s32[], (s32[])) tuple(n, packed)
  w = (s32[], (s32[])) while(t), condition=more, body=step
  inner = (s32[]) get-tuple-element(w), index=1
  ROOT c = s32[] get-tuple-element(inner), index=0 }
ENTRY e { x = s32[3,10] parameter(0)
  ROOT r = s32[3,10] map(x), dimensions={0,1}, to_apply=steps }"""


def _collatz(n: int) -> int:
    count = 0
    while n > 1:
        n, count = (3 * n + 1 if n % 2 else n // 2), count + 1
    return count


def test_every_element_makes_its_own_rounds() -> None:
    x = np.arange(30, dtype=np.int32).reshape(3, 10)
    assert_same(run(COLLATZ, x), np.array([[_collatz(int(n)) for n in row] for row in x], np.int32))


def test_a_loop_that_nobody_enters() -> None:
    x = np.zeros((3, 10), np.int32)
    assert_same(run(COLLATZ, x), x)


def test_only_the_chosen_branch_runs() -> None:
    """The branch that no element selects would never end."""
    text = """HloModule m
    always { x = f32[] parameter(0)
      ROOT t = pred[] constant(true) }
    same { x = f32[] parameter(0)
      ROOT y = f32[] negate(x) }
    forever { x = f32[] parameter(0)
      ROOT w = f32[] while(x), condition=always, body=same }
    twice { x = f32[] parameter(0)
      ROOT y = f32[] add(x, x) }
    choose { x = f32[] parameter(0)
      zero = f32[] constant(0)
      c = pred[] compare(x, zero), direction=LT
      ROOT r = f32[] conditional(c, x, x), true_computation=forever, false_computation=twice }
    ENTRY e { x = f32[4] parameter(0)
      ROOT r = f32[4] map(x), dimensions={0}, to_apply=choose }"""
    assert_same(run(text, array("f32", [0, 1, 2, 3])), array("f32", [0, 2, 4, 6]))


@pytest.mark.parametrize(("index", "expected"), [(0, -1), (1, 20), (2, 9), (7, 49), (-3, 64)])
def test_an_index_out_of_range_takes_the_last_branch(index: int, expected: float) -> None:
    text = """HloModule m
    a { x = f32[] parameter(0)
      ROOT r = f32[] negate(x) }
    b { x = f32[] parameter(0)
      ten = f32[] constant(10)
      ROOT r = f32[] multiply(x, ten) }
    c { x = f32[] parameter(0)
      ROOT r = f32[] multiply(x, x) }
    choose { i = s32[] parameter(0)
      x = f32[] parameter(1)
      ROOT r = f32[] conditional(i, x, x, x), branch_computations={a, b, c} }
    ENTRY e { i = s32[5] parameter(0)
      x = f32[5] parameter(1)
      ROOT r = f32[5] map(i, x), dimensions={0}, to_apply=choose }"""
    indices, x = [0, 1, 2, 7, -3], array("f32", [1, 2, 3, 7, 8])
    found = run(text, array("s32", indices), x)
    assert found[indices.index(index)] == expected


def test_a_reducer_with_a_call_and_several_results() -> None:
    text = """HloModule m
    both { a = f32[] parameter(0)
      i = s32[] parameter(1)
      b = f32[] parameter(2)
      j = s32[] parameter(3)
      c = pred[] compare(a, b), direction=GE
      v = f32[] select(c, a, b)
      k = s32[] select(c, i, j)
      ROOT t = (f32[], s32[]) tuple(v, k) }
    outer { a = f32[] parameter(0)
      i = s32[] parameter(1)
      b = f32[] parameter(2)
      j = s32[] parameter(3)
      ROOT t = (f32[], s32[]) call(a, i, b, j), to_apply=both }
    ENTRY e { x = f32[3,5] parameter(0)
      i = s32[3,5] iota(), iota_dimension=1
      low = f32[] constant(-inf)
      zero = s32[] constant(0)
      ROOT r = (f32[3], s32[3]) reduce(x, i, low, zero), dimensions={1}, to_apply=outer }"""
    x = np.random.default_rng(5).normal(size=(3, 5)).astype(np.float32)
    value, place = run(text, x)
    assert_same(value, x.max(1))
    assert_same(place, x.argmax(1).astype(np.int32))


def test_deep_nests_of_calls_need_no_python_stack() -> None:
    depth = 1500
    lines = ["HloModule deep", "fn0 { x = f32[] parameter(0)\n  ROOT r = f32[] negate(x) }"]
    lines += [f"fn{k} {{ x = f32[] parameter(0)\n  ROOT r = f32[] call(x), to_apply=fn{k - 1} }}" for k in range(1, depth)]
    for entry in (
        f"x = f32[] parameter(0)\n  ROOT r = f32[] call(x), to_apply=fn{depth - 1}",
        f"x = f32[2] parameter(0)\n  ROOT r = f32[2] map(x), dimensions={{0}}, to_apply=fn{depth - 1}",
    ):
        text = "\n".join(lines) + "\nENTRY e { " + entry + " }"
        module = hlo_run.parse(text)
        x = np.asarray(array("f32", [3, 4]) if "map" in entry else array("f32", 3))
        assert_same(np.asarray(evaluate(module, [x])), -x)


def test_a_collective_inside_a_computation_of_scalars_is_refused() -> None:
    text = """HloModule m
    add { a = f32[] parameter(0)
      b = f32[] parameter(1)
      ROOT r = f32[] add(a, b) }
    f { x = f32[] parameter(0)
      ROOT r = f32[] all-reduce(x), replica_groups={}, to_apply=add }
    ENTRY e { x = f32[2] parameter(0)
      ROOT r = f32[2] map(x), dimensions={0}, to_apply=f }"""
    module = hlo_run.parse(text)
    x = array("f32", [1, 2])
    with pytest.raises(Unsupported, match="'all-reduce' inside a computation of scalars"):
        Reference(module).run([[x], [x]], replicas=2)
