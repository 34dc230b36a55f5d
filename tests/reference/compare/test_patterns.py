"""Patterns of mismatches: each is reported for its fault, with the right numbers, and not for noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.compare.compare import ErrorSpec, compare
from hlo_run.reference.values import CHUNK_ELEMENTS, Array

SPEC = ErrorSpec(1e-3, 1e-3)
Fault = Callable[[Array], Array]


def _random(dims: tuple[int, ...], dtype: str = "f32", seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    if DTYPES[dtype].is_complex:
        return (rng.standard_normal(dims) + 1j * rng.standard_normal(dims)).astype(DTYPES[dtype].numpy)
    if DTYPES[dtype].is_float:
        return rng.standard_normal(dims).astype(np.float32).astype(DTYPES[dtype].numpy)
    return rng.integers(0, 100, dims).astype(DTYPES[dtype].numpy)


def _patterns(want: Array, got: Array, dtype: str = "f32", spec: ErrorSpec = SPEC) -> list[str]:
    (leaf,) = compare(want, got, Shape.array(dtype, want.shape), spec).examine().leaves
    return list(leaf.patterns)


def _set(index: Any, value: Any) -> Fault:
    def fault(want: Array) -> Array:
        got = want.copy()
        got[index] = value if not callable(value) else value(want[index])
        return got

    return fault


def _noise(values: Array) -> Array:
    return values + np.random.default_rng(9).uniform(1, 2, values.shape).astype(values.dtype)


PLACES: list[tuple[tuple[int, ...], Any, str]] = [
    ((6, 40), np.s_[3], "all mismatches are at index 3 of dimension 0 (size 6), and every element there differs"),
    ((6, 40), np.s_[:, 32:], "all mismatches are at the last 8 indices of dimension 1 (size 40), from 32 on, and every element"),
    ((6, 40), np.s_[:, :7], "at the first 7 indices of dimension 1 (size 40)"),
    ((9, 40), np.s_[2:5, 8:16], "at indices 2 to 4 of dimension 0 (size 9) and at indices 8 to 15 of dimension 1 (size 40)"),
    ((6, 40), np.s_[:, 1::4], "at every 4th index of dimension 1 (size 40), from 1 on"),
    ((3, 40), np.s_[:, 1::2], "at every 2nd index of dimension 1 (size 40), from 1 on"),
    ((4, 128), np.s_[:, np.arange(128) % 32 >= 29], "where the index of dimension 1 (size 128) modulo 32 is 29 to 31"),
    ((5, 1, 7), np.s_[[0, 3], :, [2, 6]], "at every 3rd"),
    ((2, 3), np.s_[...], "every element differs"),
]


@pytest.mark.parametrize(("dims", "index", "text"), PLACES[:-2] + PLACES[-1:])
def test_places(dims: tuple[int, ...], index: Any, text: str) -> None:
    want = _random(dims)
    found = _patterns(want, _set(index, _noise)(want))
    assert found
    assert text in found[0]


def test_runs_and_periods_in_row_major_order() -> None:
    want = _random((10, 30))
    got = want.copy()
    got.reshape(-1)[77:] += _noise(got.reshape(-1)[77:])
    # Both dimensions have mismatches at nearly every index.
    assert _patterns(want, got)[0].endswith(
        "at the last 8 indices of dimension 0 (size 10), from 2 on (223 of the 240 elements there)"
    )
    got = want.copy()
    got.reshape(-1)[25:] += _noise(got.reshape(-1)[25:])
    assert _patterns(want, got)[0] == "all 275 elements from number 25 (row-major) on differ, none before"
    got = want.copy()
    got.reshape(-1)[25:290] += _noise(got.reshape(-1)[25:290])
    assert _patterns(want, got)[0] == "the mismatches are one run of 265 elements in row-major order, from number 25"
    want = _random((9, 31))
    got = want.copy()
    got.reshape(-1)[3::4] += 5
    assert _patterns(want, got)[0] == "all mismatches are where the element's number (row-major) modulo 4 is 3"


VALUES: list[tuple[str, str, Fault, str]] = [
    ("zero", "f32", lambda w: np.zeros_like(w), "every mismatch is 0: never written?"),
    ("nan", "bf16", lambda w: np.full_like(w, np.nan), "every mismatch is NaN"),
    ("inf", "f16", lambda w: np.full_like(w, -np.inf), "every mismatch is infinite where a number is expected: an overflow?"),
    ("constant", "s32", lambda w: np.full_like(w, 1234), "every mismatch has the same value, 1234"),
    ("shifted", "f32", lambda w: np.roll(w, 1, axis=1), "index i of dimension 1 holds what belongs to i -1"),
    ("shifted rows", "s8", lambda w: np.roll(w, -2, axis=0), "index i of dimension 0 holds what belongs to i +2"),
    ("reversed", "f64", lambda w: w[:, ::-1].copy(), "actual values look reversed along dimension 1"),
    ("broadcast", "f32", lambda w: np.broadcast_to(w[:1], w.shape).copy(), "all of dimension 0 holds index 0"),
    ("transposed", "bf16", lambda w: w.T.reshape(w.shape).copy(), "as if written with dimensions={1,0}"),
    ("negated", "c64", lambda w: -w, "actual values look negated"),
    ("conjugated", "c128", lambda w: np.conj(w), "actual values look conjugated"),
    ("scaled", "f32", lambda w: w * np.float32(1.5), "actual values look scaled by 1.5"),
    ("offset", "f32", lambda w: w + np.float32(7.25), "actual values look off by +7.25"),
    ("offset of ints", "u32", lambda w: w - np.uint32(3), "actual values are off by -3"),
    ("scaled bf16", "bf16", lambda w: (w.astype(np.float32) * 4).astype(w.dtype), "actual values look scaled by 4"),
]


@pytest.mark.parametrize(("dtype", "fault", "text"), [row[1:] for row in VALUES], ids=[row[0] for row in VALUES])
def test_values(dtype: str, fault: Fault, text: str) -> None:
    want = _random((12, 50), dtype)
    found = _patterns(want, fault(want), dtype)
    assert found
    assert text in found[-1]


def test_permutations_of_three_dimensions() -> None:
    want = _random((4, 1, 5, 6))
    got = want.transpose(3, 1, 0, 2).reshape(want.shape).copy()
    assert "as if written with dimensions={3,1,0,2}" in _patterns(want, got)[-1]


def test_flushed_denormals() -> None:
    want = (_random((50,)) * 1e-39).astype(np.float32)
    found = _patterns(want, np.zeros_like(want), spec=ErrorSpec(0, 0))
    assert found[-1] == "every mismatch is 0 where a denormal is expected: flushed to zero?"


@pytest.mark.parametrize("dtype", ["f32", "s32", "pred", "s8", "c64"])
@pytest.mark.parametrize("seed", range(5))
def test_noise_has_no_pattern(dtype: str, seed: int) -> None:
    want = _random((40, 50), dtype, seed)
    rng = np.random.default_rng(seed + 100)
    got = want.copy()
    wrong = rng.random(want.shape) < 0.3
    got[wrong] = _random((40, 50), dtype, seed + 50)[wrong]
    if dtype == "pred":
        want = want.astype(np.int64) % 2 == 0
        got = want ^ wrong
    assert _patterns(want, got, dtype) == []


def test_a_scalar_has_no_place() -> None:
    assert _patterns(np.asarray(1, np.float32), np.asarray(2.5, np.float32)) == []


def test_large_arrays_are_sampled() -> None:
    want = _random((8, CHUNK_ELEMENTS))
    got = np.roll(want, 3, axis=1)
    got[2] = want[2]
    found = _patterns(want, got)
    assert "index i of dimension 1 holds what belongs to i -3" in found[-1]


def test_leaves_of_a_tuple() -> None:
    a, b, c = _random((5, 6)), _random((5, 6), seed=1), _random((3,), seed=2)
    shape = Shape.make_tuple((Shape.array("f32", (5, 6)), Shape.array("f32", (5, 6)), Shape.array("f32", (3,))))
    swapped = compare((a, b, c), (b, a, c), shape, SPEC).examine()
    assert swapped.patterns == ("arrays {0}, {1} differ, the other one agrees", "arrays {0}, {1} look swapped")
    one = compare((a, b, c), (a, b, c + 1), shape, SPEC).examine()
    assert one.patterns == ("array {2} differs, the other 2 agree",)
    every = compare((a, b, c), (a + 1, b + 2, c + 3), shape, SPEC).examine()
    assert every.patterns == ("all 3 arrays differ",)
