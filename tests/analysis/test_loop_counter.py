"""Counters of loops: states that determine the trip count, also behind copies and in fusions, and states that do not."""

from __future__ import annotations

import pytest

import hlo_run
from hlo_run.analysis.loop_counter import find_counter, find_steering_element, find_trip_count

LOOP = """HloModule loop
add_two {{ p = {type}[] parameter(0)
  q = {type}[] parameter(1)
  r = {type}[] constant(1)
  a = {type}[] add(p, r)
  n = {type}[] add(r, a)
  ROOT t = ({type}[], {type}[]) tuple(q, n) }}
less {{ p = {type}[] parameter(0)
  k = {type}[] constant(9)
  ROOT c = pred[] compare(p, k), direction=LT }}
body {{ s = ({type}[], {type}[]) parameter(0)
  i = {type}[] get-tuple-element(s), index=0
  j = {type}[] get-tuple-element(s), index=1
  k = {type}[] constant(2)
  e = {type}[] constant({large})
  f = ({type}[], {type}[]) fusion(i, j), kind=kLoop, calls=add_two
  g = {type}[] get-tuple-element(f), index=1
  {step}
  ROOT t = ({type}[], {type}[]) tuple(n, j) }}
condition {{ s = ({type}[], {type}[]) parameter(0)
  i = {type}[] get-tuple-element(s), index=0
  k = {type}[] constant(9)
  {test} }}
ENTRY e {{ p = {type}[] parameter(0)
  z = {type}[] constant(1)
  f = {type}[] copy(z)
  {init}
  s = ({type}[], {type}[]) tuple(b, p)
  ROOT w = ({type}[], {type}[]) while(s), condition=condition, body=body }}
"""
STEP, TEST, INIT = "n = s32[] add(i, k)", "ROOT c = pred[] compare(i, k), direction=LT", "b = s32[] copy(f)"


def made(step: str = STEP, test: str = TEST, init: str = INIT, type: str = "s32", large: str = "99") -> hlo_run.HloInstruction:
    parts = {"step": step, "test": test, "init": init}
    text = LOOP.format(type=type, large=large, **{name: part.replace("s32", type) for name, part in parts.items()})
    (loop,) = hlo_run.parse(text).instructions_of("while")
    return loop


def trip_count(**changed: str) -> int | None:
    counter = find_counter(made(**changed))
    return counter.trip_count if counter is not None else None


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"step": "n = s32[] get-tuple-element(f), index=1"},
        {"step": "m = s32[] add(k, i)\n  o = s32[] subtract(m, k)\n  n = s32[] add(o, k)"},
        {"test": "ROOT c = pred[] fusion(i), kind=kLoop, calls=less"},
        {"test": "j = s32[] copy(i)\n  ROOT c = pred[] compare(k, j), direction=GT"},
        {"init": "b = s32[] bitcast(f)"},
    ],
)
def test_counts_four(changed: dict[str, str]) -> None:
    assert trip_count(**changed) == 4


@pytest.mark.parametrize(
    "changed",
    [
        {"step": "n = s32[] add(j, k)"},  # another element
        {"step": "n = s32[] multiply(i, k)"},
        {"step": "n = s32[] subtract(k, i)"},
        {"step": "n = s32[] add(i, i)"},
        {"step": "n = s32[] get-tuple-element(f), index=0"},  # the other result of the fusion
        {"test": "j = s32[] get-tuple-element(s), index=1\n  ROOT c = pred[] compare(i, j), direction=LT"},
        {"test": "j = s32[] add(i, k)\n  ROOT c = pred[] compare(j, k), direction=LT"},  # which may wrap around
        {"test": "o = token[] after-all()\n  d = token[] outfeed(i, o), outfeed_shape=s32[]\n  " + TEST},  # must run
        {"init": "b = s32[] add(f, p)"},
        {"step": "n = s32[] subtract(i, k)"},
    ],
)
def test_counts_nothing(changed: dict[str, str]) -> None:
    assert trip_count(**changed) is None


def test_a_step_that_leaves_the_type_is_not_counted() -> None:
    assert trip_count(step="n = s32[] add(i, e)", type="u8", large="200") == 1
    assert trip_count(step="n = s32[] add(i, e)", type="s8", large="127") is None


def test_shared_operands_do_not_take_time_without_end() -> None:
    doubled = [f"d{n} = s32[] add(d{n - 1}, d{n - 1})" for n in range(1, 200)]
    assert trip_count(init="d0 = s32[] copy(f)\n  " + "\n  ".join(doubled) + "\n  b = s32[] add(d199, d199)") is None


@pytest.mark.parametrize(
    ("test", "count"),
    [
        ("j = s32[] add(i, two)\n  ROOT c = pred[] compare(j, k), direction=LT", 3),
        ("m = s32[] multiply(i, two)\n  j = s32[] add(two, m)\n  ROOT c = pred[] compare(j, k), direction=LE", 2),
        ("m = s32[] multiply(two, i)\n  j = s32[] subtract(k, m)\n  ROOT c = pred[] compare(j, two), direction=GT", 2),
        ("j = s32[] multiply(i, i)\n  ROOT c = pred[] compare(j, k), direction=LT", None),
    ],
)
def test_counts_what_is_computed_from_the_counter(test: str, count: int | None) -> None:
    # The counter is 1, 3, 5, .. and k is 9.
    loop = made(test=f"two = s32[] constant(2)\n  {test}")
    assert (find_counter(loop), find_trip_count(loop), find_steering_element(loop)) == (None, count, 0)


@pytest.mark.parametrize(
    "changed",
    [
        {"test": "j = s32[] get-tuple-element(s), index=1\n  ROOT c = pred[] compare(i, j), direction=LT"},
        {"step": "n = s32[] add(i, j)"},
        {"step": "n = s32[] get-tuple-element(f), index=0"},
    ],
)
def test_no_element_steers_alone(changed: dict[str, str]) -> None:
    assert find_steering_element(made(**changed)) is None
