"""Custom calls with a side effect run even if their value is unused, in the reference and on Host; others do not."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

import hlo_run
from hlo_run.custom_calls import custom_call, unregister

# The loop makes three calls with unused values, the entry one.
TEXT = """HloModule m
body { s = (s32[], f32[2]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[2] get-tuple-element(s), index=1
  c = f32[2] custom-call(x), custom_call_target="test.note"EFFECT
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[2] add(x, x)
  ROOT t = (s32[], f32[2]) tuple(j, y) }
condition { s = (s32[], f32[2]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT r = pred[] compare(i, n), direction=LT }
ENTRY e { x = f32[2] parameter(0)
  z = s32[] constant(0)
  t = (s32[], f32[2]) tuple(z, x)
  w = (s32[], f32[2]) while(t), condition=condition, body=body
  y = f32[2] get-tuple-element(w), index=1
  c = f32[2] custom-call(y), custom_call_target="test.note"EFFECT
  ROOT r = f32[2] negate(y) }
"""
EFFECT = ", custom_call_has_side_effect=true"


@pytest.fixture
def noted() -> Generator[list[list[float]]]:
    calls: list[list[float]] = []

    @custom_call("test.note")
    def note(value: Any) -> Any:
        calls.append(value.tolist())
        return value

    assert note is not None
    yield calls
    unregister("test.note")


@pytest.mark.parametrize("platform", ["Interpreter", "Host"])
@pytest.mark.parametrize("effect", ["", EFFECT])
def test_unused_calls_are_made_for_their_effect(noted: list[list[float]], platform: str, effect: str) -> None:
    module, x = hlo_run.parse(TEXT.replace("EFFECT", effect)), np.array([1, 3], np.float32)
    result: Any = hlo_run.run(module, x, platform=platform)
    np.testing.assert_array_equal(result, [-8, -24])
    assert noted == ([[1, 3], [2, 6], [4, 12], [8, 24]] if effect else [])


def test_a_call_without_a_function_has_no_effect_in_the_reference() -> None:
    result: Any = hlo_run.evaluate(hlo_run.parse(TEXT.replace("EFFECT", EFFECT)), np.array([1, 3], np.float32))
    np.testing.assert_array_equal(result, [-8, -24])
