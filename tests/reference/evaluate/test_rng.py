"""Random numbers: rng-bit-generator equals recordings of XLA:CPU in every bit; distributions and bits of rng; state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference_running import Array, run

import hlo_run
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.evaluate.evaluate import Reference, evaluate
from hlo_run.reference.evaluate.rng import random_numbers
from hlo_run.reference.numerics.counter_rng import philox_words, threefry_words

RECORDINGS = Path(__file__).resolve().parents[2] / "data" / "xla_rng"


def _bits(array: Array) -> list[int]:
    """Return the elements' bits as numbers; scalars of the recordings have the unsigned type of their bits."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return [int(word) for word in flat.view(f"u{flat.dtype.itemsize}")]


@pytest.mark.parametrize("name", ["rng_default", "rng_philox", "rng_three_fry"])
def test_states_and_bits_are_those_of_xla(name: str) -> None:
    """12 types, 11 shapes (scalars, odd sizes, no elements), states whose counters overflow."""
    module = hlo_run.parse((RECORDINGS / f"{name}.hlo").read_text(encoding="utf-8"), f"{name}.hlo")
    found: Any = evaluate(module, [])
    shapes = module.entry.root.shape.tuple_shapes
    with np.load(RECORDINGS / "results.npz") as recorded:
        assert len(shapes) * 2 == sum(key.startswith(f"{name}/out") and not key.endswith(".dtype") for key in recorded.files)
        for number, shape in enumerate(shapes):
            state, bits = found[number]
            assert _bits(state) == _bits(recorded[f"{name}/out{2 * number}"]), shape
            assert bits.dtype == shape.tuple_shapes[1].dtype.numpy
            assert _bits(bits) == _bits(recorded[f"{name}/out{2 * number + 1}"]), shape


def test_generators_give_the_published_vectors() -> None:
    """Vectors of the Random123 distribution, for counters and keys of all zeros and all ones."""
    ones = 2**64 - 1
    assert [hex(w) for w in philox_words(0, 0, 1)[0]] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]
    assert [hex(w) for w in philox_words(ones, 2**128 - 1, 1)[0]] == ["0x408f276d", "0x41c83b0e", "0xa20bc7c6", "0x6d5451fd"]
    assert [hex(w[0]) for w in threefry_words(0, np.zeros(1, np.uint64))] == ["0x6b200159", "0x99ba4efe"]
    assert [hex(w[0]) for w in threefry_words(ones, np.full(1, ones, np.uint64))] == ["0x1cb996fc", "0xbb002be7"]


# (type, dims, low or mean, high or deviation, law, key that XLA drew, first words of its result as numbers)
DRAWN: list[tuple[str, tuple[int, ...], float, float, str, int, list[float]]] = [
    ("f32", (3, 4), -1.5, 2.25, "rng_uniform", 13448155576104175439, [-0.67464805, 0.59905255, 0.30874765, -1.2799399]),
    ("f32", (5,), -1.5, 2.25, "rng_normal", 5296180084612001234, [-0.6025445, 0.018871263, -3.5985222, -3.4657862]),
    ("s32", (6,), -7, 1000, "rng_uniform", 2039115884291064466, [424, 640, 60, 168]),
]


@pytest.mark.parametrize(("dtype", "dims", "first", "second", "law", "key", "expected"), DRAWN)
def test_rng_makes_numbers_of_bits_as_xla_does(
    dtype: str, dims: tuple[int, ...], first: float, second: float, law: str, key: int, expected: list[float]
) -> None:
    numpy = DTYPES[dtype].numpy
    found = random_numbers(law, np.array(first, numpy), np.array(second, numpy), Shape.array(dtype, dims), key, 0x7012395)
    assert found.dtype == numpy
    np.testing.assert_allclose(found.reshape(-1)[:4], np.array(expected, numpy), rtol=0, atol=1e-6)


def _draw(dtype: str, dims: str, first: str, second: str, law: str, seed: int = 42) -> Array:
    text = f"""HloModule m
ENTRY e {{
  a = {dtype}[] constant({first})
  b = {dtype}[] constant({second})
  ROOT r = {dtype}[{dims}] rng(a, b), distribution={law}
}}"""
    return Reference(hlo_run.parse(text)).run([[]], seed=seed)[0]  # pyright: ignore[reportReturnType] - an array


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_the_laws_of_rng(dtype: str) -> None:
    uniform = _draw(dtype, "100,100", "-2", "3", "rng_uniform").astype(np.float64)
    assert uniform.min() >= -2
    assert uniform.max() <= 3
    assert abs(uniform.mean() - 0.5) < 0.05
    assert abs(uniform.std() - 5 / 12**0.5) < 0.05
    normal = _draw(dtype, "101,99", "5", "2", "rng_normal").astype(np.float64)
    assert abs(normal.mean() - 5) < 0.08
    assert abs(normal.std() - 2) < 0.08


@pytest.mark.parametrize(("dtype", "low", "high"), [("s8", -100, 100), ("u8", 3, 200), ("s64", -(2**62), 2**62), ("u4", 2, 9)])
def test_uniform_ints_stay_in_their_range(dtype: str, low: int, high: int) -> None:
    found = _draw(dtype, "1000", str(low), str(high), "rng_uniform").astype(object)
    assert all(low <= int(value) < high for value in found)
    assert len(set(found)) > (5 if dtype == "u4" else 100)


@pytest.mark.parametrize("dtype", ["s4", "u8", "s32", "u64", "f16", "f32", "f64"])
def test_a_scalar_is_an_array(dtype: str) -> None:
    found = _draw(dtype, "", "0", "5", "rng_uniform")
    assert isinstance(found, np.ndarray)
    assert found.shape == ()
    assert 0 <= float(found) < 5


def test_the_seed_and_the_place_decide() -> None:
    first, again = _draw("f32", "10", "0", "1", "rng_uniform"), _draw("f32", "10", "0", "1", "rng_uniform")
    assert np.array_equal(first, again)
    assert not np.array_equal(first, _draw("f32", "10", "0", "1", "rng_uniform", seed=43))
    text = """HloModule m
    ENTRY e {
      a = f32[] constant(0)
      b = f32[] constant(1)
      r = f32[10] rng(a, b), distribution=rng_uniform
      q = f32[10] rng(a, b), distribution=rng_uniform
      ROOT t = (f32[10], f32[10]) tuple(r, q)
    }"""
    one, two = run(text)
    assert not np.array_equal(one, two)
    devices: list[Any] = Reference(hlo_run.parse(text)).run([[], []], replicas=2)
    assert not np.array_equal(devices[0][0], devices[1][0])


def test_the_state_advances_within_a_run() -> None:
    text = """HloModule m
    more { p = (s32[], u64[2]) parameter(0)
      i = s32[] get-tuple-element(p), index=0
      n = s32[] constant(3)
      ROOT c = pred[] compare(i, n), direction=LT }
    step { p = (s32[], u64[2]) parameter(0)
      i = s32[] get-tuple-element(p), index=0
      one = s32[] constant(1)
      j = s32[] add(i, one)
      s = u64[2] rng-get-and-update-state(), delta=4096
      ROOT t = (s32[], u64[2]) tuple(j, s) }
    ENTRY e { i = s32[] constant(0)
      z = u64[] constant(0)
      s = u64[2] broadcast(z), dimensions={}
      t = (s32[], u64[2]) tuple(i, s)
      ROOT w = (s32[], u64[2]) while(t), condition=more, body=step }"""
    _, state = run(text)
    assert [int(word) for word in state] == [0x7012395 + 2 * 4096, 0]
    _, again = run(text)
    assert np.array_equal(state, again)
