"""The draws of operands of a kernel alone: by turns where few numbers decide, small or large where constants ask for it."""

from __future__ import annotations

import numpy as np
import pytest

import hlo_run
from hlo_run.kernel_checks.draws import own_draws
from hlo_run.reference.arguments.fake_arguments import Draw, make_fake_arguments

FEW = """HloModule m
ENTRY e {
  x = f32[5] parameter(0)
  p = pred[] parameter(1)
  y = f32[] parameter(2)
  i = s32[] parameter(3)
  zero = s32[] constant(0)
  is_low = pred[] compare(i, zero), direction=LT
  five = s32[] constant(5)
  up = s32[] add(i, five)
  at = s32[] select(is_low, up, i)
  old = f32[1] dynamic-slice(x, at), dynamic_slice_sizes={1}
  flat = f32[] bitcast(old)
  new = f32[] select(p, y, flat)
  row = f32[1] bitcast(new)
  ROOT u = f32[5] dynamic-update-slice(x, row, at)
}
"""

INDEX = """HloModule m
ENTRY e {
  x = f32[5] parameter(0)
  i = s32[] parameter(1)
  ROOT row = f32[1] dynamic-slice(x, i), dynamic_slice_sizes={1}
}
"""

ELEMENTS = """HloModule m
ENTRY e {
  x = f32[SIZE] parameter(0)
  y = f32[SIZE] parameter(1)
  is_less = pred[SIZE] compare(x, y), direction=LT
  ROOT s = f32[SIZE] select(is_less, x, y)
}
"""

SUM = """HloModule m
ENTRY e {
  x = f32[8] parameter(0)
  n = f32[] parameter(1)
  little = f32[] constant(LITTLE)
  m = f32[] add(n, little)
  ms = f32[8] broadcast(m), dimensions={}
  ROOT q = f32[8] divide(x, ms)
}
"""

PIECES = """HloModule m
ENTRY e {
  x = f32[SIZE] parameter(0)
  ROOT y = f32[SIZE] log-plus-one(x)
}
"""

EXPONENTIAL = "HloModule m\nENTRY e {\n  x = f32[8] parameter(0)\n  ROOT y = f32[8] exponential(x)\n}\n"


def _before_usual(text: str, cost_elements: int = 100) -> list[Draw]:
    """Return the draws of a kernel before those of every kernel."""
    return [own.draw for own in own_draws(hlo_run.parse(text), cost_elements) if not own.is_enough]


@pytest.mark.parametrize(
    ("text", "turns"),
    [
        (FEW, 12),
        (INDEX, 6),
        (ELEMENTS.replace("SIZE", "4"), 3),
        (ELEMENTS.replace("SIZE", "99"), 1),
        (ELEMENTS.replace("SIZE", "999"), 0),
        (PIECES.replace("SIZE", "4"), 11),
        (PIECES.replace("SIZE", "999"), 0),
    ],
    ids=["scalars", "index", "4", "99", "999", "function of 4", "function of 999"],
)
def test_a_kernel_is_judged_on_more_draws_where_few_numbers_decide(text: str, turns: int) -> None:
    assert [draw.turn for draw in _before_usual(text)] == [*range(1, turns + 1)]


def test_truth_values_and_indices_that_are_alone_take_turns() -> None:
    module = hlo_run.parse(FEW)
    drawn = [make_fake_arguments(module, 7, draw=draw) for draw in _before_usual(FEW)]
    pairs = {(bool(values[1]), int(np.asarray(values[3]))) for values in drawn}
    assert {(True, 0), (False, 0), (True, 4), (False, 4)} <= pairs, "both truth values meet the first and the last element"
    assert any(index < 0 for _, index in pairs), "one from the end"


def test_an_index_that_is_alone_is_first_and_last_and_out_of_bounds() -> None:
    module = hlo_run.parse(INDEX)
    drawn = [make_fake_arguments(module, seed, draw=draw)[1] for seed, draw in enumerate(_before_usual(INDEX))]
    indices = [int(np.asarray(value)) for value in drawn]
    assert {0, 4} <= set(indices)
    assert min(indices) < 0
    assert max(indices) > 4


def test_sorted_indices_end_in_bounds_once() -> None:
    text = """HloModule m
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
ENTRY e {
  x = f32[400] parameter(0)
  at = s32[300,1] parameter(1)
  y = f32[300] parameter(2)
  ROOT r = f32[400] scatter(x, at, y), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0},
    index_vector_dim=1, indices_are_sorted=true, to_apply=add
}
"""
    module = hlo_run.parse(text)
    drawn = [np.asarray(make_fake_arguments(module, 7, draw=draw)[1]) for draw in _before_usual(text)]
    assert sorted(bool(0 <= at.min() <= at.max() < 400) for at in drawn) == [False, True]


def test_two_truth_values_take_all_four_pairs() -> None:
    text = "HloModule m ENTRY e { p = pred[] parameter(0) q = pred[] parameter(1) ROOT r = pred[] and(p, q) }"
    module = hlo_run.parse(text)
    drawn = [make_fake_arguments(module, 7, draw=Draw(unusual=True, turn=turn)) for turn in range(4, 8)]
    assert len({tuple(map(bool, values)) for values in drawn}) == 4


def test_a_comparator_decides_for_each_element() -> None:
    text = """HloModule m
less {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=LT
}
ENTRY e {
  x = f32[64] parameter(0)
  ROOT s = f32[64] sort(x), dimensions={0}, to_apply=less
}
"""
    assert not _before_usual(text)


def test_numbers_are_as_small_as_a_constant_that_is_added() -> None:
    (draw,) = _before_usual(SUM.replace("LITTLE", "1e-7"))
    module = hlo_run.parse(SUM.replace("LITTLE", "1e-7"))
    numbers = [abs(float(np.asarray(make_fake_arguments(module, seed, draw=draw)[1]))) for seed in range(20)]
    assert min(numbers) < 1e-7
    assert max(numbers) > 0.1
    assert not _before_usual(SUM.replace("LITTLE", "0.5"))


@pytest.mark.parametrize(("op", "sign"), [("maximum", 1), ("minimum", -1)])
def test_each_number_of_few_short_rows_is_an_extreme_once(op: str, sign: int) -> None:
    text = f"""HloModule m
extreme {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] {op}(a, b) }}
ENTRY e {{
  x = f32[3,10] parameter(0)
  limit = f32[] constant(0)
  ROOT r = f32[3] reduce(x, limit), dimensions={{1}}, to_apply=extreme
}}
"""
    draws = _before_usual(text)
    assert [draw.peaks and draw.peaks.sign for draw in draws] == [sign] * 4
    module = hlo_run.parse(text)
    drawn = [np.asarray(make_fake_arguments(module, 7, draw=draw)[0]) for draw in draws]
    assert {int(place) for values in drawn for place in np.argmax(sign * values, axis=1)} == set(range(10))
    assert not _before_usual(text.replace("[3,10]", "[40,10]").replace("f32[3]", "f32[40]"))
    of_columns = text.replace("[3,10]", "[10,3]").replace("{1}", "{0}")
    drawn = [np.asarray(make_fake_arguments(hlo_run.parse(of_columns), 7, draw=d)[0]) for d in _before_usual(of_columns)]
    assert {int(place) for values in drawn for place in np.argmax(sign * values, axis=0)} == set(range(10))


def test_the_largest_magnitude_has_both_signs() -> None:
    text = """HloModule m
largest { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] maximum(a, b) }
ENTRY e {
  x = f32[2,2] parameter(0)
  least = f32[] constant(0)
  a = f32[2,2] abs(x)
  ROOT r = f32[2] reduce(a, least), dimensions={0}, to_apply=largest
}
"""
    assert {draw.peaks.sign for draw in _before_usual(text) if draw.peaks} == {-1, 1}


def test_exponentials_are_near_overflow() -> None:
    (draw,) = _before_usual(EXPONENTIAL)
    assert draw.floats == (-100.0, 100.0)


def test_a_maximum_of_merged_dimensions_has_one_peak() -> None:
    text = """HloModule m
max { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] maximum(a, b) }
ENTRY e {
  x = f32[8,8] parameter(0)
  size = f32[8,8] abs(x)
  flat = f32[64] bitcast(size)
  low = f32[] constant(-inf)
  ROOT r = f32[] reduce(flat, low), dimensions={0}, to_apply=max
}
"""
    module = hlo_run.parse(text)
    drawn = [np.abs(make_fake_arguments(module, 7, draw=draw)[0]) for draw in _before_usual(text) if draw.peaks]
    assert {int(np.count_nonzero(x == x.max())) for x in drawn} == {1}
    assert len({int(x.argmax()) for x in drawn}) == 8


def test_an_expensive_kernel_is_judged_on_few_draws() -> None:
    assert [draw.turn for draw in _before_usual(FEW, 1 << 20)] == [1, 2, 3]
    assert not _before_usual(FEW, 1 << 21)
    first = own_draws(hlo_run.parse(SUM.replace("LITTLE", "1e-7")), 1 << 21)[0]
    assert first.is_enough
    assert first.draw.smaller > 10
