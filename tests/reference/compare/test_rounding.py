"""Elements in doubt are judged by the rounding of the module's types: what it explains, and what it does not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, count, repeat
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hlo_run
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments
from hlo_run.reference.compare.compare import Comparison, ErrorSpec, compare
from hlo_run.reference.compare.rounding import RoundingSamples
from hlo_run.reference.evaluate.evaluate import Reference
from hlo_run.reference.values import Value

SPEC = ErrorSpec(1e-3, 1e-3)
SUM = """HloModule sum
add { a = bf16[] parameter(0) b = bf16[] parameter(1) ROOT s = bf16[] add(a, b) }
ENTRY e {
  p = bf16[64,512] parameter(0)
  z = bf16[] constant(0)
  ROOT r = bf16[64] reduce(p, z), dimensions={1}, to_apply=add
}
"""
PRODUCT = """HloModule product
ENTRY e {
  p = f32[100] parameter(0)
  q = f32[100] parameter(1)
  m = f32[100] multiply(p, q)
  ROOT r = f32[100] multiply(m, m)
}
"""


def _judged(module: HloModule, values: Sequence[Value], actual: Any, in_tf32: bool = False) -> Comparison:
    def run(precision: str, roundings: int | None = None) -> Value:
        return Reference(module, precision, roundings, in_tf32).run([values])[0]

    seeds = count()
    samples = RoundingSamples(lambda: run("f64"), lambda: run("f64", next(seeds)))
    return compare(run("native"), actual, module.entry.root.shape, SPEC).judged(samples)


def test_a_sum_in_bf16_may_round_at_every_step_but_not_miss_terms() -> None:
    module = hlo_run.parse(SUM)
    (p,) = values = make_fake_arguments(module, 1)
    rows = np.asarray(p)
    sequential = np.zeros(64, ml_dtypes.bfloat16)
    for column in rows.T:
        sequential = (sequential.astype(np.float32) + column.astype(np.float32)).astype(ml_dtypes.bfloat16)
    judged = _judged(module, values, sequential)
    assert judged.ok
    assert judged.leaves[0].rounding is not None
    assert judged.leaves[0].rounding.explained > 10
    half = rows[:, :256].astype(np.float32).sum(axis=1).astype(ml_dtypes.bfloat16)
    assert _judged(module, values, half).mismatches > 32
    assert _judged(module, values, np.negative(sequential)).mismatches == 64
    assert _judged(module, values, np.zeros_like(sequential)).mismatches == 64


@pytest.mark.parametrize("fault", ["zero", "negate", "last"])
def test_small_numbers_must_be_right_to_their_own_digits(fault: str) -> None:
    module = hlo_run.parse(PRODUCT)
    values = make_fake_arguments(module, 1)
    right: Any = Reference(module).run([values])[0]
    assert compare(right, np.zeros_like(right), module.entry.root.shape, SPEC).mismatches < 50, "the bounds alone are blind"
    assert _judged(module, values, right * np.float32(1 + 1e-6)).ok
    wrong: Any = {"zero": np.zeros_like(right), "negate": np.negative(right), "last": np.append(right[:-1], np.float32(0))}[fault]
    judged = _judged(module, values, wrong)
    assert judged.mismatches == (1 if fault == "last" else 100)
    assert "off by more than the rounding of the module's types" in judged.summary()
    assert int(np.count_nonzero(judged.masks()[0])) == judged.mismatches


def test_what_cancellation_leaves_is_no_fault() -> None:
    module = hlo_run.parse(
        """HloModule cancel
        ENTRY e {
          p = f32[100] parameter(0) q = f32[100] parameter(1)
          s = f32[100] add(p, q)
          d = f32[100] subtract(s, p)
          ROOT r = f32[100] subtract(d, q)
        }"""
    )
    values = make_fake_arguments(module, 1)
    # Exact arithmetic gives 0; f32 leaves a few 1e-8, which are all of the result.
    assert _judged(module, values, np.zeros(100, np.float32)).ok
    assert not _judged(module, values, np.full(100, 1e-5, np.float32)).ok


def test_nans_and_infinities_are_never_explained() -> None:
    module = hlo_run.parse(PRODUCT)
    values = make_fake_arguments(module, 1)
    actual = np.array(Reference(module).run([values])[0])
    actual[3], actual[4] = np.nan, np.inf
    assert _judged(module, values, actual).mismatches == 2


@pytest.mark.parametrize("dtype", ["f8e4m3fn", "f8e5m2", "f8e8m0fnu"])
def test_narrow_floats_are_judged_in_steps(dtype: str) -> None:
    module = hlo_run.parse(f"HloModule n\nENTRY e {{ p = f32[64] parameter(0) ROOT r = {dtype}[64] convert(p) }}")
    values = [np.random.default_rng(1).uniform(1e-4, 9e-4, 64).astype(np.float32)]
    right = np.asarray(Reference(module).run([values])[0])
    assert _judged(module, values, right).ok
    zero = np.zeros_like(right)
    visible = int(np.count_nonzero(right.view(np.uint8) > 3))
    assert _judged(module, values, zero).mismatches >= visible


def test_without_doubt_nothing_is_evaluated() -> None:
    right = np.linspace(1, 2, 50, dtype=np.float32)
    shape = hlo_run.parse("HloModule x\nENTRY e { ROOT p = f32[50] parameter(0) }").entry.root.shape

    def never() -> Value:
        raise AssertionError("evaluated")

    assert compare(right, right * np.float32(1 + 1e-6), shape, SPEC).judged(RoundingSamples(never, never)).ok


DOT = """HloModule dot
ENTRY e {
  p = f32[32,32] parameter(0)
  q = f32[32,32] parameter(1)
  ROOT r = f32[32,32] dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}ATTRIBUTES
}
"""


def _in_bits(array: Any, bits: int) -> Any:
    """Return f32 numbers with `bits` binary digits, rounded."""
    mantissa, exponent = np.frexp(np.asarray(array, np.float64))
    return np.ldexp(np.round(mantissa * 2.0**bits), exponent - bits)


def _product(p: Value, q: Value, bits: int, parts: int = 1) -> Any:
    """Return the product of matrices whose elements are sums of `parts` numbers of `bits` digits, without the smallest term."""
    high = [_in_bits(x, bits) for x in (p, q)]
    if parts == 1:
        return (high[0] @ high[1]).astype(np.float32)
    low = [_in_bits(np.asarray(x, np.float64) - h, bits) for x, h in zip((p, q), high, strict=True)]
    return (high[0] @ high[1] + high[0] @ low[1] + low[0] @ high[1]).astype(np.float32)


@pytest.mark.parametrize(
    ("attributes", "bits", "parts", "ok"),
    [
        (", algorithm=dot_bf16_bf16_f32_x3", 8, 2, True),
        (", algorithm=dot_bf16_bf16_f32_x3", 8, 1, False),  # the products with the low parts are missing
        ("", 11, 1, True),  # TF32
        (", operand_precision={highest,highest}", 11, 1, False),
    ],
)
def test_the_precision_of_a_dot_says_how_far_off_it_may_be(attributes: str, bits: int, parts: int, ok: bool) -> None:
    module = hlo_run.parse(DOT.replace("ATTRIBUTES", attributes))
    p, q = values = make_fake_arguments(module, 1)
    assert _judged(module, values, _product(p, q, bits, parts), in_tf32=True).ok is ok


def test_what_is_all_rounding_is_right_but_not_seen() -> None:
    """The difference of two numbers that agree in all their digits."""
    module = hlo_run.parse(
        "HloModule l ENTRY e { p = f32[9] parameter(0) b = f32[] constant(1e6) c = f32[9] broadcast(b), dimensions={}"
        " s = f32[9] add(p, c) d = f32[9] subtract(s, c) m = f32[9] multiply(d, c) ROOT r = (f32[9], f32[9]) tuple(m, p) }"
    )
    (p,) = values = [np.linspace(0.02, 0.03, 9, dtype=np.float32)]
    rounded = np.full(9, 3e4, np.float32)
    lost = _judged(module, values, (rounded, p))
    assert lost.ok
    assert lost.leaves[0].rounding is not None
    assert lost.leaves[0].rounding.lost == 9
    assert [seen.seen for seen in lost.sights()] == [0, 9]
    # What has digits is judged by them, and the lost array by the size of its terms.
    assert not _judged(module, values, (rounded, p * np.float32(1.01))).ok
    assert not _judged(module, values, (rounded * 100, p)).ok


def test_a_sum_that_cancels_is_judged_by_its_terms() -> None:
    module = hlo_run.parse(
        "HloModule t add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }"
        " ENTRY e { p = f32[9,257] parameter(0) z = f32[] constant(0)"
        " s = f32[9] reduce(p, z), dimensions={1}, to_apply=add ROOT r = bf16[9] convert(s) }"
    )
    p = np.tile(np.array([2.0**24, -(2.0**24)] * 128 + [257], np.float32), (9, 1))
    right = _judged(module, [p], np.full(9, 258, ml_dtypes.bfloat16))
    assert right.ok
    assert right.leaves[0].rounding is not None
    assert right.leaves[0].rounding.explained == 9
    assert right.leaves[0].rounding.lost == 0  # one rounding of the result explains it
    assert _judged(module, [p], np.full(9, 260, ml_dtypes.bfloat16)).ok
    assert not _judged(module, [p], np.full(9, 2.0**20, ml_dtypes.bfloat16)).ok
    assert not _judged(module, [p[:, -1:] * np.ones(257, np.float32)], np.full(9, 258, ml_dtypes.bfloat16)).ok


def test_the_start_of_a_maximum_stays_infinite() -> None:
    """Softmax in bf16: the samples round neither -inf nor the largest element."""
    module = hlo_run.parse(
        "HloModule s add { a = bf16[] parameter(0) b = bf16[] parameter(1) ROOT c = bf16[] add(a, b) }"
        " max { a = bf16[] parameter(0) b = bf16[] parameter(1) ROOT c = bf16[] maximum(a, b) }"
        " ENTRY e { p = bf16[8,64] parameter(0) l = bf16[] constant(-inf) m = bf16[8] reduce(p, l), dimensions={1}, to_apply=max"
        " b = bf16[8,64] broadcast(m), dimensions={0} d = bf16[8,64] subtract(p, b) x = bf16[8,64] exponential(d)"
        " z = bf16[] constant(0) s = bf16[8] reduce(x, z), dimensions={1}, to_apply=add"
        " t = bf16[8,64] broadcast(s), dimensions={0} ROOT q = bf16[8,64] divide(x, t) }"
    )
    p = (4 * np.random.default_rng(3).normal(size=(8, 64))).astype(ml_dtypes.bfloat16)
    values = [p]
    x = np.exp(np.asarray(p, np.float64) - np.max(np.asarray(p, np.float64), axis=1, keepdims=True))
    softmax = x / x.sum(axis=1, keepdims=True)
    found = _judged(module, values, softmax.astype(ml_dtypes.bfloat16))
    assert found.ok
    assert found.leaves[0].rounding is not None  # the bounds alone refuse it
    assert not _judged(module, values, (2 * softmax).astype(ml_dtypes.bfloat16)).ok


def test_a_product_in_bf16_keeps_its_sum_in_f32() -> None:
    """One term of 1,024 is missing: more than the rounding of the result."""
    module = hlo_run.parse(
        "HloModule d ENTRY e { p = bf16[8,1024] parameter(0) q = bf16[1024,8] parameter(1)"
        " ROOT d = bf16[8,8] dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0} }"
    )
    random = np.random.default_rng(5)
    p, q = (random.normal(size=shape).astype(ml_dtypes.bfloat16) for shape in ((8, 1024), (1024, 8)))
    whole = np.asarray(p, np.float64) @ np.asarray(q, np.float64)
    assert _judged(module, [p, q], whole.astype(ml_dtypes.bfloat16)).ok
    part = np.asarray(p[:, 1:], np.float64) @ np.asarray(q[1:], np.float64)
    assert not _judged(module, [p, q], part.astype(ml_dtypes.bfloat16)).ok


@pytest.mark.parametrize("partitions", [1, 8])
def test_each_partition_may_round_its_part_of_a_product(partitions: int) -> None:
    module = hlo_run.parse(
        f"HloModule d, num_partitions={partitions} ENTRY e {{ p = bf16[16,1024] parameter(0) q = bf16[1024,16] parameter(1)"
        " ROOT d = bf16[16,16] dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0} }"
    )
    random = np.random.default_rng(6)
    values = [random.normal(size=shape).astype(ml_dtypes.bfloat16) for shape in ((16, 1024), (1024, 16))]
    p, q = (np.asarray(value, np.float64) for value in values)
    parts = [(p[:, k : k + 128] @ q[k : k + 128]).astype(ml_dtypes.bfloat16) for k in range(0, 1024, 128)]
    whole: Any = sum(parts[1:], parts[0])
    assert _judged(module, values, whole).ok == (partitions == 8)
    lacking: Any = sum(parts[2:], parts[1])
    assert _judged(module, values, lacking).mismatches > 100


def test_an_approximation_in_bf16_rounds_once() -> None:
    """tanh is computed in f32: where 1 - t² is small, four roundings of bf16 would be as large as the number."""
    module = hlo_run.parse(
        "HloModule t ENTRY e { p = bf16[256] parameter(0) t = bf16[256] tanh(p) o = bf16[] constant(1)"
        " b = bf16[256] broadcast(o), dimensions={} s = bf16[256] multiply(t, t) ROOT d = bf16[256] subtract(b, s) }"
    )
    p = np.linspace(1.75, 1.9, 256).astype(ml_dtypes.bfloat16)
    right = 1 - np.tanh(np.asarray(p, np.float64)) ** 2
    assert _judged(module, [p], right.astype(ml_dtypes.bfloat16)).ok
    assert _judged(module, [p], np.zeros_like(p)).mismatches > 128


def test_what_is_exact_has_no_rounding() -> None:
    """1 / (1 + exp(-x)) is exactly 1 for a large x: a rounding there, times x, would be larger than the result."""
    module = hlo_run.parse(
        "HloModule g ENTRY e { x = bf16[64] parameter(0) q = bf16[64] parameter(1) c = bf16[] constant(1)"
        " one = bf16[64] broadcast(c), dimensions={} n = bf16[64] negate(x) e = bf16[64] exponential(n)"
        " a = bf16[64] add(one, e) s = bf16[64] divide(one, a) m = bf16[64] subtract(one, s) t = bf16[64] multiply(x, m)"
        " g = bf16[64] add(t, s) h = bf16[64] multiply(g, q) i = bf16[64] multiply(h, q) j = bf16[64] multiply(i, q)"
        " k = bf16[64] multiply(j, q) l = bf16[64] multiply(k, q) ROOT o = bf16[64] multiply(l, q) }"
    )
    random = np.random.default_rng(7)
    x = random.uniform(1e3, 1e4, 64).astype(ml_dtypes.bfloat16)
    q = random.uniform(1, 2, 64).astype(ml_dtypes.bfloat16)
    right = np.asarray(q, np.float64) ** 6
    assert _judged(module, [x, q], right.astype(ml_dtypes.bfloat16)).ok
    assert _judged(module, [x, q], np.zeros_like(q)).mismatches == 64


def test_wide_bounds_become_narrower_before_an_array_is_called_lost() -> None:
    """A compiler may omit the roundings of a product's operands to f8e5m2, which has three digits."""
    module = hlo_run.parse(
        "HloModule n ENTRY e { p = f32[8,32] parameter(0) q = f32[32,8] parameter(1) a = f8e5m2[8,32] convert(p)"
        " b = f8e5m2[32,8] convert(q) c = f32[8,32] convert(a) d = f32[32,8] convert(b)"
        " ROOT r = f32[8,8] dot(c, d), lhs_contracting_dims={1}, rhs_contracting_dims={0} }"
    )
    random = np.random.default_rng(8)
    p, q = (random.uniform(0.5, 1.5, shape).astype(np.float32) for shape in ((8, 32), (32, 8)))
    q[:12] *= -1
    assert _judged(module, [p, q], p @ q).ok
    assert not _judged(module, [p, q], np.zeros((8, 8), np.float32)).ok
    assert not _judged(module, [p, q], p[:, 8:] @ q[8:]).ok


def _from_samples(expected: Any, actual: Any, errors: Iterator[Any]) -> Comparison:
    """Judge arrays of 200 elements by samples that have the given errors; the last errors are repeated."""
    precise = np.asarray(expected, np.float64)
    samples = RoundingSamples(lambda: precise, lambda: precise + next(errors))
    return compare(expected, actual, Shape.array("f32", (200,)), SPEC).judged(samples)


def test_further_samples_decide_about_what_the_first_ones_are_all_near_by_chance() -> None:
    """The last element is the sum of two large numbers: its error is that of their sizes, not of its own."""
    expected = np.append(np.full(199, 1.0, np.float32), np.float32(1e-3))
    actual = expected + np.append(np.zeros(199), 4e-3).astype(np.float32)

    def errors(last: list[float]) -> Iterator[Any]:
        return (np.append(np.full(199, 1e-9), error) for error in chain(last, repeat(1e-9)))

    assert _from_samples(expected, actual, errors([1e-9, 1e-9, 1e-9, 3e-3])).ok
    assert _from_samples(expected, actual, errors([])).leaves[0].mismatches == 1


def test_a_decision_that_rounding_turns_is_recognised_by_its_size_and_number() -> None:
    """Samples have one element in 200 that jumps by 0.5, each another one."""
    expected = np.full(200, 1.0, np.float32)

    def errors() -> Iterator[Any]:
        for number in count():
            found = np.full(200, 1e-7) * (-1.0) ** number
            found[7 * number] = 0.5
            yield found

    def judged(places: list[int], jump: float) -> Comparison:
        actual = expected.copy()
        actual[places] += np.float32(jump)
        return _from_samples(expected, actual, errors())

    found = judged([150], 0.5)
    assert found.ok
    assert "since rounding turns a decision" in found.summary()
    assert judged([150], 0.9).leaves[0].mismatches == 1
    assert judged([3, 100, 150], 0.5).leaves[0].mismatches == 3


def test_where_most_numbers_are_lost_the_samples_may_be_much_too_small() -> None:
    """Errors of an inverse of a nearly singular matrix have no finite variance."""
    expected = np.full(200, 1.0, np.float32)
    actual = expected.copy()
    actual[:50] += np.float32(6.0)

    def errors(lost: int) -> Iterator[Any]:
        return ((-1.0) ** number * np.append(np.full(lost, 0.7), np.full(200 - lost, 1e-7)) for number in count())

    assert _from_samples(expected, actual, errors(150)).ok
    assert _from_samples(expected, actual, errors(80)).leaves[0].mismatches == 50


def test_the_first_explained_element_is_printed_with_what_is_allowed() -> None:
    module = hlo_run.parse(
        "HloModule s ENTRY e { p = f32[9] parameter(0) q = f32[9] parameter(1) s = f32[9] add(p, q)"
        " ROOT d = f32[9] subtract(s, p) }"
    )
    p, q = values = [np.full(9, size, np.float32) for size in (1e6, 0.04)]
    found = _judged(module, values, (p + q - p) + np.float32(0.0625))
    assert found.ok
    assert "9 beyond the bounds are within the rounding of the module's types (here up to rel 1.6; 9 may be" in found.summary()
    assert "the first at {0}: actual 0.125, expected 0.0625, float64 0.0399999991, allowed error 0.2" in found.summary()
    assert "roundings of its value)" in found.summary()


@pytest.mark.parametrize("seed", [0, 1])
def test_one_percent_of_a_product_in_f32_is_seen(seed: int) -> None:
    """Devices that do not multiply in TF32 have no rounding of 5e-4 in every operand."""
    module = hlo_run.parse(DOT.replace("ATTRIBUTES", ""))
    values = make_fake_arguments(module, seed)
    right: Any = Reference(module).run([values])[0]
    assert _judged(module, values, right * np.float32(1.01)).mismatches > 1000
    assert _judged(module, values, right * np.float32(1.01), in_tf32=True).mismatches > 900


@pytest.mark.parametrize(("dtype", "seen", "passes"), [("f64", 1e-9, 1e-14), ("f32", 1e-4, 1e-5), ("bf16", 0.1, 0.02)])
def test_every_type_has_digits_of_its_own(dtype: str, seen: float, passes: float) -> None:
    """The relative bound of 1e-3 would be 10 of 16 digits of f64."""
    module = hlo_run.parse(PRODUCT.replace("f32", dtype))
    values = make_fake_arguments(module, 1)
    right: Any = Reference(module).run([values])[0]
    kind = right.dtype
    assert _judged(module, values, (right.astype(np.float64) * (1 + passes)).astype(kind)).ok
    assert _judged(module, values, (right.astype(np.float64) * (1 + seen)).astype(kind)).mismatches > 50


ARGMAX = """HloModule argmax
larger {
  a = f32[] parameter(0)
  i = s32[] parameter(1)
  b = f32[] parameter(2)
  j = s32[] parameter(3)
  first = pred[] compare(a, b), direction=GE
  v = f32[] select(first, a, b)
  n = s32[] select(first, i, j)
  ROOT t = (f32[], s32[]) tuple(v, n)
}
ENTRY e {
  p = f32[3,64] parameter(0)
  w = f32[64,6] parameter(1)
  s = f32[3,6] dot(p, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  n = s32[3,6] iota(), iota_dimension=1
  low = f32[] constant(-inf)
  zero = s32[] constant(0)
  r = (f32[3], s32[3]) reduce(s, n, low, zero), dimensions={1}, to_apply=larger
  ROOT place = s32[3] get-tuple-element(r), index=1
}
"""


@pytest.mark.parametrize(("place", "wrong"), [(1, 0), (4, 0), (2, 1), (5, 1)])
def test_the_place_of_a_maximum_may_be_that_of_a_sum_which_is_equal_but_for_rounding(place: int, wrong: int) -> None:
    """The sums of columns 1 and 4 are equal in exact numbers; those between them are not."""
    module = hlo_run.parse(ARGMAX)
    p = np.random.default_rng(3).uniform(0.5, 1, (3, 64)).astype(np.float32)
    w = np.random.default_rng(4).uniform(0, 0.9, (64, 6)).astype(np.float32)
    w[:, 1] = w[:, 4] = 1
    expected: Any = Reference(module).run([[p, w]])[0]
    actual = np.array([place, 1, 4], np.int32)
    assert set(expected.tolist()) <= {1, 4}
    judged = _judged(module, [p, w], actual)
    assert judged.mismatches == wrong
    # A maximum that is far from the others has one place.
    w[:, 1] += np.float32(0.1)
    assert _judged(module, [p, w], np.array([1, 1, 4], np.int32)).mismatches == 1
