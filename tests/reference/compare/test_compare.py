"""XLA's comparison: what counts as an error, how it is reported, and which bounds it suggests."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from reference_running import INF, NAN, array

from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.compare.compare import Comparison, ErrorSpec, compare
from hlo_run.reference.compare.element_errors import float_distance, largest_finite
from hlo_run.reference.compare.error_bounds import BoundFinder
from hlo_run.reference.values import CHUNK_ELEMENTS, Array

SPEC = ErrorSpec(1e-3, 1e-3)


def _compare(dtype: str, expected: object, actual: object, spec: ErrorSpec = SPEC) -> Comparison:
    want, got = array(dtype, expected), array(dtype, actual)
    return compare(want, got, Shape.array(dtype, want.shape), spec)


def _errors(dtype: str, expected: float, actual: float) -> tuple[float, float]:
    leaf = _compare(dtype, [expected], [actual]).leaves[0]
    assert leaf.worst_abs is not None
    assert leaf.worst_rel is not None
    return leaf.worst_abs.error, leaf.worst_rel.error


@pytest.mark.parametrize(
    ("expected", "actual", "ok"),
    [
        (1.0, 1.0005, True),
        (1.0, 1.002, False),
        (1000.0, 1000.5, True),  # abs error too large, rel error not
        (1e-6, 5e-4, True),  # rel error too large, abs error not
        (0.0, 5e-4, True),
        (0.0, 2e-3, False),
        (0.0, -0.0, True),
        (INF, INF, True),
        (INF, 3e38, False),
        (3e38, INF, False),
        (INF, -INF, False),
        (NAN, NAN, True),
        (NAN, 1.0, False),
        (1.0, NAN, False),
        (NAN, INF, False),
    ],
)
def test_both_bounds_must_be_exceeded(expected: float, actual: float, ok: bool) -> None:
    assert _compare("f32", [1.0, expected], [1.0, actual]).ok is ok


def test_the_difference_is_rounded_to_the_type() -> None:
    # bf16 cannot represent the exact difference 3 + 2^-7 of these two.
    assert _errors("bf16", -(2.0**-7), 3.0)[0] == 3.0
    assert _errors("f32", -(2.0**-7), 3.0)[0] == 3.0078125
    # The largest f16 twice is beyond f16.
    assert _errors("f16", -65504.0, 65504.0) == (INF, INF)


def test_relative_error_of_an_expected_zero_is_infinite() -> None:
    assert _errors("f32", 0.0, 1e-20) == (float(np.float32(1e-20)), INF)
    assert _errors("f32", 0.0, -0.0) == (0.0, 0.0)


def test_nan_rules() -> None:
    relaxed = ErrorSpec(1e-3, 1e-3, relaxed_nans=True)
    assert _compare("f32", [NAN], [1.0], relaxed).ok
    assert not _compare("f32", [1.0], [NAN], relaxed).ok
    strict = ErrorSpec(1e-3, 1e-3, all_nans_are_equivalent=False)
    quiet = np.array([0x7FC00000], np.uint32).view(np.float32)
    other = np.array([0x7FC00001], np.uint32).view(np.float32)
    assert not compare(quiet, other, Shape.array("f32", (1,)), strict).ok
    assert compare(quiet, quiet.copy(), Shape.array("f32", (1,)), strict).ok
    assert _compare("f32", [NAN, 1.0], [1.0, NAN]).leaves[0].nan_mismatches == 2


def test_fewer_infs_ok_takes_the_largest_number_instead() -> None:
    spec = ErrorSpec(1e-3, 1e-2, fewer_infs_ok=True)
    assert _compare("f16", [65504.0], [INF], spec).ok
    assert not _compare("f16", [60000.0], [INF], spec).ok
    assert not _compare("f16", [INF], [65504.0], spec).ok


def test_low_precision_distance() -> None:
    spec = ErrorSpec(0.0, 0.0, low_precision=("f8e4m3fn", 1))
    assert _compare("f32", [1.0], [1.125], spec).ok
    assert not _compare("f32", [1.0], [1.25], spec).ok
    line = array("f32", [1.0, -0.0, 448.0]), array("f32", [1.25, 0.0, -448.0])
    assert float_distance(*line, DTYPES["f8e4m3fn"]).tolist() == [2, 0, 252]
    assert float(largest_finite(DTYPES["f8e5m2"])) == 57344.0


def test_complex_parts_count_once() -> None:
    found = _compare("c64", [1 + 1j, 2 + 2j, complex(NAN, 1)], [1 + 1.5j, 2.5 + 2.5j, complex(NAN, 1)])
    assert found.mismatches == 2


@pytest.mark.parametrize("dtype", ["s32", "u64", "pred", "s4"])
def test_ints_are_exact(dtype: str) -> None:
    assert _compare(dtype, [1, 0, 1], [1, 0, 1]).ok
    found = _compare(dtype, [1, 0, 1], [1, 1, 0])
    assert found.mismatches == 2
    first = found.leaves[0].first
    assert first is not None
    assert first.index == (1,)


def test_the_first_and_the_worst_are_found_in_any_chunk() -> None:
    want = np.random.default_rng(1).standard_normal((3, CHUNK_ELEMENTS)).astype(np.float32)
    got = want.copy()
    got[1, 5] += 0.5
    got[2, 7] += 0.25
    got[2, 7] *= 4
    found = compare(want, got, Shape.array("f32", want.shape), SPEC)
    leaf = found.leaves[0]
    assert found.mismatches == 2
    assert leaf.first is not None
    assert leaf.worst_abs is not None
    assert leaf.first.index == (1, 5)
    assert leaf.worst_abs.index == max([(1, 5), (2, 7)], key=lambda i: abs(float(got[i]) - float(want[i])))


def test_success_says_the_worst_error() -> None:
    found = _compare("f32", [1.0, 2.0], [1.0, 2.001])
    assert found.ok
    assert found.report() == ""
    assert (
        found.summary() == "2 elements agree, bounds abs 0.001 rel 0.001, worst abs error 0.001 at {1}, "
        "worst rel error 0.0005 at {1}, worst ulp error 4194 at {1}"
    )


@pytest.mark.parametrize(
    ("expected", "actual", "shape", "message"),
    [
        (array("f32", [1]), array("f64", [1]), Shape.array("f32", (1,)), "element type mismatch, want: f32[1] got f64[1]"),
        (array("f32", [1]), array("f32", 1), Shape.array("f32", (1,)), "want rank of f32[1] got rank of f32[]"),
        (
            array("f32", [1]),
            array("f32", [1, 2]),
            Shape.array("f32", (1,)),
            "mismatch in dimension #0 expected: f32[1] actual: f32[2]",
        ),
    ],
)
def test_shapes_must_agree(expected: Array, actual: Array, shape: Shape, message: str) -> None:
    found = compare(expected, actual, shape, SPEC)
    assert not found.ok
    assert found.report() == message
    assert found.summary() == message


def test_tuple_arity_must_agree() -> None:
    shape = Shape.make_tuple((Shape.array("f32", ()),))
    found = compare((array("f32", 1),), (), shape, SPEC)
    assert not found.ok
    assert found.report() == "want tuple element count: 1 got tuple element count: 0"


REPORT = """\
Mismatch count 2 (20.0000%) in shape f32[2,5] (10 elements), abs bound 0.001, rel bound 0.001
nan mismatches 1
Top relative error mismatches:
  actual              nan, expected                9, index {1,4}, rel error      inf, abs error      inf
  actual              1.5, expected                1, index {0,1}, rel error      0.5, abs error      0.5
Absolute magnitude breakdown of actual values:
  0      <= x < 0.0001 :       1 (10.0000%), mismatches 0
  0.0001 <= x < 0.001  :       0 (0.0000%), mismatches 0
  0.001  <= x < 0.01   :       0 (0.0000%), mismatches 0
  0.01   <= x < 0.1    :       0 (0.0000%), mismatches 0
  0.1    <= x < 1      :       0 (0.0000%), mismatches 0
  1      <= x < inf    :       8 (80.0000%), mismatches 1
Elements exceeding abs error bound 0.001: 3 (30.0000%)
Relative error breakdown of elements exceeding abs error bound:
  <  0.0001 :       0 (0.0000%)
  >= 0.0001 :       3 (100.0000%)
  >= 0.001  :       2 (66.6667%)
  >= 0.01   :       2 (66.6667%)
  >= 0.1    :       2 (66.6667%)
  >= 1      :       1 (33.3333%)
Elements exceeding rel error bound 0.001: 2 (20.0000%)
Absolute error breakdown of elements exceeding rel error bound:
  <  0.0001 :       0 (0.0000%)
  >= 0.0001 :       2 (100.0000%)
  >= 0.001  :       2 (100.0000%)
  >= 0.01   :       2 (100.0000%)
  >= 0.1    :       2 (100.0000%)
  >= 1      :       1 (50.0000%)
Current ErrorSpec: ErrorSpec{0.001, 0.001}
Suggested ErrorSpec adjustments to make this test pass:
  none: a NaN or an infinity is on one side only
Worst abs error inf at {1,4}: actual nan, expected 9
Worst rel error inf at {1,4}: actual nan, expected 9
Worst ulp error inf at {1,4}: actual nan, expected 9
Special values: NaN actual only: 1
Expected literal:
f32[2,5] {
  { 0, 1, 2, 3, 4 },
  { 5, 6, 7, 8, 9 }
}
Actual literal:
f32[2,5] {
  { 0, 1.5, 2, 3, 4 },
  { 5, 6, 7, 8.0078125, nan }
}"""


def test_report_in_full() -> None:
    want = np.arange(10, dtype=np.float32).reshape(2, 5)
    got = want.copy()
    got[0, 1], got[1, 3], got[1, 4] = 1.5, 8.0078125, NAN
    found = compare(want, got, Shape.array("f32", (2, 5)), SPEC)
    assert found.report() == REPORT
    assert found.summary() == (
        "2 of 10 elements differ, first at {0,1}: actual 1.5, expected 1, bounds abs 0.001 rel 0.001, "
        "worst abs error inf at {1,4}, worst rel error inf at {1,4}, worst ulp error inf at {1,4}"
    )


def test_report_of_a_tuple() -> None:
    shape = Shape.make_tuple((Shape.array("s32", (3,)), Shape.make_tuple((Shape.array("pred", ()), Shape.array("f32", (1,))))))
    want = (array("s32", [1, 2, 3]), (np.array(True), array("f32", [1])))
    got = (array("s32", [1, 2, -3]), (np.array(False), array("f32", [1])))
    text = compare(want, got, shape, SPEC).report()
    assert text == (
        "Mismatches in shape (s32[3], (pred[], f32[1])) (5 elements):\n"
        "Array at shape index {0}, Mismatch count 1 (33.3333%) in shape s32[3] (3 elements)\n"
        "first mismatch at array index {2}:\n  expected value: 3\n  actual value:   -3\n"
        "Worst abs error 6 at {2}: actual -3, expected 3\n"
        "Expected literal:\ns32[3] {1, 2, 3}\nActual literal:\ns32[3] {1, 2, -3}\n"
        "Array at shape index {1,0}, Mismatch count 1 (100.0000%) in shape pred[] (1 elements)\n"
        "first mismatch at array index {}:\n  expected value: true\n  actual value:   false\n"
        "Expected literal:\npred[] true\nActual literal:\npred[] false\n"
        "Pattern: arrays {0}, {1,0} differ, the other one agrees"
    )


def test_large_literals_are_left_out_unless_asked_for() -> None:
    want, got = np.zeros(1000, np.float32), np.ones(1000, np.float32)
    found = compare(want, got, Shape.array("f32", (1000,)), SPEC)
    assert found.report().count("[TRUNCATED, Literal with more than 1000 values]") == 2
    assert "TRUNCATED" not in found.report(verbosity=2)
    assert found.report().count("  actual ") == 5


def test_suggested_bounds_pass_and_none_betters_another() -> None:
    rng = np.random.default_rng(2)
    want = rng.standard_normal(500).astype(np.float32)
    got = (want * (1 + rng.standard_normal(500) * 0.01) + rng.standard_normal(500) * 1e-3).astype(np.float32)
    difference, size = np.abs(got - want).astype(np.float64), np.abs(want).astype(np.float64)
    finder = BoundFinder()
    finder.add(difference[:200], difference[:200] / size[:200])
    finder.add(difference[200:], difference[200:] / size[200:])
    options = finder.options()
    assert len(options) > 2
    for abs_bound, rel_bound in options:
        assert compare(want, got, Shape.array("f32", (500,)), ErrorSpec(abs_bound, rel_bound)).ok
        assert all(float(f"{bound:.0e}") == bound for bound in (abs_bound, rel_bound))
    assert all(a < b and p > q for (a, p), (b, q) in pairwise(options))
    digits = sorted(float(f"{digit}e{power}") for digit in range(1, 10) for power in range(-9, 0))
    for abs_bound, rel_bound in options[:-1]:
        smaller = digits[digits.index(rel_bound) - 1]
        assert not compare(want, got, Shape.array("f32", (500,)), ErrorSpec(abs_bound, smaller)).ok


def test_low_precision_distance_is_reported() -> None:
    spec = ErrorSpec(0.0, 0.0, low_precision=("f8e4m3fn", 1))
    assert "float distance 2" in _compare("bf16", [1.0], [1.25], spec).report()


def test_a_pred_of_a_byte_that_no_kernel_writes_differs() -> None:
    want = np.array([True, False, True])
    got = np.array([1, 0, 255], np.uint8).view(np.bool_)
    found = compare(want, got, Shape.array("pred", (3,)), SPEC)
    assert found.mismatches == 1
    assert "first at {2}" in found.summary()
    assert found.masks()[0].tolist() == [False, False, True]
