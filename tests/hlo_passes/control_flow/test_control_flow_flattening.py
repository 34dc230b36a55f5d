"""Loops that run a fixed number of times, and modules without infeeds and outfeeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.control_flow.control_flow_flattening import ControlFlowFlattening
from hlo_run.ops.parse import parse
from hlo_run.reference.evaluate.evaluate import evaluate

LOOP = """HloModule loop
body {
  p = (s32[], f32[2]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[2] get-tuple-element(p), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[2] add(x, x)
  ROOT t = (s32[], f32[2]) tuple(j, y)
}
condition {
  p = (s32[], f32[2]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(LIMIT)
  ROOT c = pred[] compare(i, n), direction=DIRECTION
}
ENTRY e {
  z = s32[] constant(0)
  x = f32[2] parameter(0)
  t = (s32[], f32[2]) tuple(z, x)
  a = (s32[], f32[2]) while(t), condition=condition, body=body, backend_config={"known_trip_count":{"n":"20"}}
  ROOT b = (s32[], f32[2]) while(a), condition=condition, body=body
}
"""
ENDLESS = """HloModule endless
twice {
  p = (f32[2]) parameter(0)
  x = f32[2] get-tuple-element(p), index=0
  y = f32[2] add(x, x)
  ROOT t = (f32[2]) tuple(y)
}
body {
  p = (f32[2]) parameter(0)
  ROOT c = (f32[2]) call(p), to_apply=twice
}
condition {
  p = (f32[2]) parameter(0)
  ROOT c = pred[] constant(true)
}
ENTRY e {
  x = f32[2] parameter(0)
  t = (f32[2]) tuple(x)
  w = (f32[2]) while(t), condition=condition, body=body
  ROOT r = f32[2] get-tuple-element(w), index=0
}
"""
FEEDS = """HloModule feeds, is_scheduled=true
ENTRY e {
  k = token[] after-all()
  i = ((f32[4], pred[2]), token[]) infeed(k)
  d = (f32[4], pred[2]) get-tuple-element(i), index=0
  l = token[] get-tuple-element(i), index=1
  x = f32[4] get-tuple-element(d), index=0
  o = token[] outfeed(x, l), outfeed_shape=f32[4]{0}
  one = f32[] constant(1)
  b = f32[4] broadcast(one), dimensions={}
  ROOT r = f32[4] add(x, b)
}
"""


def _result(text: str, *arguments: Any, count: int = 0, feeds: bool = False) -> tuple[HloModule, Any]:
    module = parse(text, "m.hlo")
    ControlFlowFlattening(count, feeds).apply(None, module)
    printed = parse(module.to_string(), "printed.hlo")  # parsing verifies
    return module, evaluate(printed, list(arguments))


@pytest.mark.parametrize(("direction", "limit", "count", "rounds"), [("LT", 20, 3, 3), ("LT", 2, 3, 2), ("GE", -1, 3, 3)])
def test_loops_run_n_times(direction: str, limit: int, count: int, rounds: int) -> None:
    text = LOOP.replace("LIMIT", str(limit)).replace("DIRECTION", direction)
    module, (steps, values) = _result(text, np.ones(2, np.float32), count=count)
    assert int(steps) == 2 * rounds, "both loops, which shared their computations"
    assert values.tolist() == [2.0 ** (2 * rounds)] * 2
    loops = module.instructions_of("while")
    assert len(loops) == 2
    assert all("backend_config" not in loop.attrs for loop in loops), "the trip count was another one"


def test_a_loop_without_an_end_and_users_of_the_whole_tuple() -> None:
    _, values = _result(ENDLESS, np.ones(2, np.float32), count=5)
    assert values.tolist() == [32, 32]


def test_feeds_go() -> None:
    module, values = _result(FEEDS, feeds=True)
    assert values.tolist() == [1, 1, 1, 1]
    assert not module.instructions_of("infeed", "outfeed")
    assert module.schedule is None


def test_nothing_to_do() -> None:
    module = parse(LOOP.replace("LIMIT", "3").replace("DIRECTION", "LT"), "m.hlo")
    version = module.version
    ControlFlowFlattening(0, remove_infeed_outfeed=True).apply(None, module)
    assert module.version == version
