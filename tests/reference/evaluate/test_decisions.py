"""Preds, integers and selections that floats decide: rounding may turn a few, and another comparison turns most."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hlo_run
from hlo_run.reference.compare.compare import Comparison, ErrorSpec
from hlo_run.reference.evaluate.alone import judge_alone
from hlo_run.reference.evaluate.evaluate import Reference

TEXT = """HloModule m
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY e {
  p = f32[64,30] parameter(0) q = f32[64] parameter(1) z = f32[] constant(0)
  s = f32[64] reduce(p, z), dimensions={1}, to_apply=add
  c = pred[64] compare(s, q), direction=DIRECTION
  one = f32[64] broadcast(o), dimensions={} zeros = f32[64] broadcast(z), dimensions={}
  ROOT r = RESULT
}
""".replace("  one =", "  o = f32[] constant(1)\n  one =")
AS_PRED, AS_FLOAT = "pred[64] copy(c)", "f32[64] select(c, one, zeros)"


def _text(direction: str, result: str) -> str:
    return TEXT.replace("DIRECTION", direction).replace("RESULT", result)


def _sequential(terms: Any) -> Any:
    total = np.zeros(64, np.float32)
    for column in terms.T:
        total += column
    return total


def _judged(direction: str, result: str, operands: list[Any], actual: Any) -> Comparison:
    module = hlo_run.parse(_text(direction, result))
    expected: Any = Reference(module).run([operands])[0]
    return judge_alone(module, operands, expected, np.asarray(actual).astype(expected.dtype), ErrorSpec(1e-3, 1e-3))


@pytest.mark.parametrize("result", [AS_PRED, AS_FLOAT])
def test_equal_sums_of_another_order_may_differ(result: str) -> None:
    terms = np.random.default_rng(5).uniform(0.1, 1, (64, 30)).astype(np.float32)
    # The device's sum of both kernels has one order, so they are equal; the reference's order is another one.
    operands = [terms, _sequential(terms)]
    expected: Any = Reference(hlo_run.parse(_text("EQ", result))).run([operands])[0]
    assert not expected.all()
    assert _judged("EQ", result, operands, np.ones(64)).ok
    # Numbers that are far from equal are so for everyone.
    operands[1] = operands[1] * np.float32(1.001)
    assert _judged("EQ", result, operands, np.ones(64)).mismatches == 64


@pytest.mark.parametrize("result", [AS_PRED, AS_FLOAT])
def test_another_comparison_is_found(result: str) -> None:
    random = np.random.default_rng(6)
    terms = random.uniform(-1, 1, (64, 30)).astype(np.float32)
    limits = _sequential(terms)
    limits[8:] = random.uniform(-3, 3, 56)
    turned = _sequential(terms) > limits
    assert _judged("GT", result, [terms, limits], turned).ok
    assert 40 < _judged("LT", result, [terms, limits], turned).mismatches <= 56
    if result == AS_PRED:  # a sum that is exactly zero is so in any order
        zeros = np.zeros((64, 30), np.float32)
        assert _judged("LE", result, [zeros, np.zeros(64, np.float32)], np.zeros(64)).mismatches == 64


def test_no_rounding_makes_a_number_infinite() -> None:
    module = hlo_run.parse(
        "HloModule m ENTRY e { p = f32[64] parameter(0) x = f32[64] exponential(p) i = f32[] constant(inf) "
        "b = f32[64] broadcast(i), dimensions={} c = pred[64] compare(x, b), direction=EQ z = f32[] constant(0) "
        "zs = f32[64] broadcast(z), dimensions={} ROOT s = f32[64] select(c, zs, x) }"
    )
    p = np.linspace(-3, 3, 64, dtype=np.float32)
    expected: Any = Reference(module).run([[p]])[0]
    assert judge_alone(module, [p], expected, np.zeros(64, np.float32), ErrorSpec(1e-3, 1e-3)).mismatches == 64


def test_the_largest_of_several_nans_may_be_any_of_them() -> None:
    module = hlo_run.parse(
        """HloModule m
        first {
          a = f32[] parameter(0) i = s32[] parameter(1) b = f32[] parameter(2) j = s32[] parameter(3)
          more = pred[] compare(a, b), direction=GT is_nan = pred[] compare(a, a), direction=NE
          takes_a = pred[] or(more, is_nan)
          x = f32[] select(takes_a, a, b) k = s32[] select(takes_a, i, j)
          ROOT t = (f32[], s32[]) tuple(x, k)
        }
        ENTRY e {
          p = f32[4,8] parameter(0) n = s32[4,8] iota(), iota_dimension=1
          least = f32[] constant(-inf) none = s32[] constant(0)
          ROOT r = (f32[4], s32[4]) reduce(p, n, least, none), dimensions={1}, to_apply=first
        }"""
    )
    p = np.tile(np.arange(8, dtype=np.float32), (4, 1))
    p[0, [2, 5]] = np.nan
    expected: Any = Reference(module).run([[p]])[0]
    assert list(expected[1]) == [2, 7, 7, 7]

    def judged(places: list[int]) -> Comparison:
        actual = (expected[0], np.array(places, np.int32))
        return judge_alone(module, [p], expected, actual, ErrorSpec(1e-3, 1e-3))

    assert judged([5, 7, 7, 7]).ok
    assert judged([4, 7, 7, 6]).mismatches == 2


def test_a_rounded_integer_may_be_the_next_one() -> None:
    module = hlo_run.parse(
        "HloModule m ENTRY e { p = f32[64] parameter(0) t = f32[] constant(0.1) c = f32[64] broadcast(t), dimensions={} "
        "q = f32[64] divide(p, c) ROOT i = s32[64] convert(q) }"
    )
    p = np.arange(1, 65, dtype=np.float32) * np.float32(0.1)
    expected: Any = Reference(module).run([[p]])[0]
    spec = ErrorSpec(1e-3, 1e-3)
    whole = np.arange(1, 65, dtype=np.int32)
    assert judge_alone(module, [p], expected, whole - 1, spec).ok
    assert judge_alone(module, [p], expected, whole + 1, spec).mismatches == 64
