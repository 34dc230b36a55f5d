"""Roundings against exact rational arithmetic: random operands, edge values, cancellations, ties, subnormals."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from hlo_run.backends.host.numerics import exact_numerics, float_functions, float_numerics

MODES = ("rn", "rz", "rm", "rp")
EDGES32 = np.array(
    [0.0, -0.0, 1.0, -1.0, 1.5, 3.4028235e38, -3.4028235e38, 1.1754944e-38, 1e-45, -1e-45, 7e-39, np.inf, -np.inf, np.nan],
    np.float32,
)


@pytest.fixture(autouse=True)
def quiet() -> object:
    with np.errstate(all="ignore"):
        yield


def same(a: np.ndarray, b: np.ndarray) -> None:
    """Equal bit for bit, any NaN like any other."""
    assert a.dtype == b.dtype
    bits = f"u{a.dtype.itemsize}"
    nan = np.isnan(a.astype(np.float64))
    assert (nan == np.isnan(b.astype(np.float64))).all()
    different = (a.view(bits) != b.view(bits)) & ~nan
    assert not different.any(), (a[different][:4], b[different][:4])


def random32(count: int, seed: int, exponents: tuple[int, int] = (0, 255)) -> np.ndarray:
    """Random f32 bit patterns with biased exponents in the given closed range."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 1 << 23, count, dtype=np.uint32) | rng.integers(0, 2, count, dtype=np.uint32) << 31
    return (bits | rng.integers(exponents[0], exponents[1] + 1, count).astype(np.uint32) << 23).view(np.float32)


def fma_cases() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Operands for f32 fused multiply-adds, with many exact ties and near-ties."""
    a, b, c = (random32(3000, seed) for seed in (1, 2, 3))
    near_a, near_b = random32(3000, 4, (120, 134)), random32(3000, 5, (120, 134))
    near_c = random32(3000, 6, (90, 140))
    cancel = -(near_a.astype(np.float64) * near_b).astype(np.float32)
    # Products of short mantissas and tiny addends: sums half-way between two f32 values but for a far bit.
    short = (random32(3000, 7, (127, 127)).view(np.uint32) & np.uint32(0xFFFFF000)).view(np.float32)
    far = random32(3000, 8, (60, 70))
    # Subnormal results.
    small_a, small_b = random32(3000, 9, (50, 64)), random32(3000, 10, (50, 64))
    tiny = random32(3000, 11, (0, 1))
    edge_a, edge_b, edge_c = (axis.ravel() for axis in np.meshgrid(EDGES32, EDGES32, EDGES32))
    return (
        np.concatenate([a, near_a, near_a, short, small_a, edge_a]),
        np.concatenate([b, near_b, near_b, np.roll(short, 1), small_b, edge_b]),
        np.concatenate([c, near_c, cancel, far, tiny, edge_c]),
    )


@pytest.mark.parametrize("mode", MODES)
def test_fma_f32(mode: str) -> None:
    a, b, c = fma_cases()
    a, b, c = (x[:: 1 if mode == "rn" else 5] for x in (a, b, c))
    wide = (a.astype(np.float64), b.astype(np.float64), c.astype(np.float64))
    expected = exact_numerics.exact_fma(a, b, c, mode, "f32")
    got = float_numerics.fma_f32(*wide) if mode == "rn" else float_numerics.fma_f32_directed(*wide, mode)
    same(got, expected)


def test_fma_f32_corrects_double_rounding() -> None:
    # (1 + 2**-12)**2 has its last bit half-way; 2**-80 is lost in f64 but decides the tie.
    a = np.array([1 + 2.0**-12])
    for sign in (1, -1):
        c = np.array([sign * 2.0**-80])
        naive = (a * a + c).astype(np.float32)
        got = float_numerics.fma_f32(a, a, c)
        same(got, exact_numerics.exact_fma(a, a, c, "rn", "f32"))
        if sign == 1:
            assert got != naive


def fma64_cases() -> list[np.ndarray]:
    rng = np.random.default_rng(5)

    def some(count: int, low: int, high: int) -> np.ndarray:
        bits = rng.integers(0, 1 << 52, count, dtype=np.uint64) | rng.integers(0, 2, count, dtype=np.uint64) << np.uint64(63)
        return (bits | rng.integers(low, high + 1, count).astype(np.uint64) << np.uint64(52)).view(np.float64)

    a, b, c = some(2000, 1000, 1046), some(2000, 1000, 1046), some(2000, 900, 1060)
    edges = np.array([0.0, -0.0, 1.0, -3.0, np.inf, -np.inf, np.nan, 1e308, -1e-308, 5e-324, 2.0**-1022, 1e-160])
    columns = [axis.ravel() for axis in np.meshgrid(edges, edges, edges)]
    cancel = [a, b, -(a * b)]
    wild = [some(2000, 0, 2046) for _ in range(3)]
    low = [some(1000, 400, 600), some(1000, 400, 600), some(1000, 0, 100)]
    return [np.concatenate(parts) for parts in zip([a, b, c], cancel, columns, wild, low, strict=True)]


def test_fma_f64() -> None:
    a, b, c = fma64_cases()
    same(float_numerics.fma_f64(a, b, c), exact_numerics.exact_fma(a, b, c, "rn"))


def test_exact_rounding_agrees_with_the_processor() -> None:
    a, b, _ = fma64_cases()
    same(exact_numerics.exact_add(a, b, "rn"), a + b)
    same(exact_numerics.exact_mul(a, b, "rn"), a * b)
    same(exact_numerics.exact_div(a, b, "rn"), a / b)
    same(exact_numerics.exact_sqrt(a, "rn"), np.sqrt(a))
    a32, b32, _ = fma_cases()
    same(exact_numerics.exact_div(a32, b32, "rn", "f32"), a32 / b32)
    same(exact_numerics.exact_sqrt(a32, "rn", "f32"), np.sqrt(a32))


@pytest.mark.parametrize("mode", MODES[1:])
def test_directed_add_and_mul_f32(mode: str) -> None:
    a, b, _ = (x[::3] for x in fma_cases())
    same(float_numerics.add_f32_directed(a, b, mode), exact_numerics.exact_add(a, b, mode, "f32"))
    same(float_numerics.mul_f32_directed(a, b, mode), exact_numerics.exact_mul(a, b, mode, "f32"))


def test_directions_bracket_the_value() -> None:
    third = {mode: exact_numerics.exact_div(np.array([1.0]), np.array([3.0]), mode)[0] for mode in MODES}
    assert Fraction(third["rm"]) < Fraction(1, 3) < Fraction(third["rp"])
    assert third["rz"] == third["rm"]
    assert math.nextafter(third["rm"], 1) == third["rp"]


def round_bf16(value: Fraction) -> float:
    """Round to bf16 through the definition: 8 bits of precision, exponent as f32."""
    if value == 0:
        return 0.0
    magnitude = abs(value)
    exponent = math.floor(math.log2(magnitude)) if magnitude > Fraction(2) ** -140 else -140
    unit = Fraction(2) ** max(exponent - 7, -133)
    scaled = magnitude / unit
    if scaled >= 256:
        unit *= 2
        scaled /= 2
    whole = math.floor(scaled)
    rest = scaled - whole
    whole += rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1)
    result = whole * unit
    return math.copysign(math.inf if result >= 2**128 else float(result), value)


def bf16_values(count: int, seed: int) -> np.ndarray:
    bits = np.random.default_rng(seed).integers(0, 1 << 16, count, dtype=np.uint16)
    values = bits.view(ml_dtypes.bfloat16).astype(np.float32)
    return np.where(np.isfinite(values), values, np.float32(1.5))


def test_bf16_arithmetic_is_rounded_once() -> None:
    a, b, c = bf16_values(4000, 1), bf16_values(4000, 2), bf16_values(4000, 3)
    # Products that fall among the subnormals, where f32 would round before bf16 does.
    small = (np.float32(2.0**-67) * (1 + np.arange(256, dtype=np.float32) / 128))[:, None].repeat(16, 1).ravel()[:4000]
    small = small.astype(ml_dtypes.bfloat16).astype(np.float32)
    for x, y, z in ((a, b, c), (small, np.roll(small, 37), np.float32(2.0**-133) * np.sign(c))):
        product = [round_bf16(Fraction(float(p)) * Fraction(float(q))) for p, q in zip(x, y, strict=True)]
        same(np.abs(float_numerics.mul_bf16(x, y).astype(np.float32)), np.abs(np.array(product, np.float32)))
        fused = [
            round_bf16(Fraction(float(p)) * Fraction(float(q)) + Fraction(float(r))) for p, q, r in zip(x, y, z, strict=True)
        ]
        same(np.abs(float_numerics.fma_bf16(x, y, z).astype(np.float32)), np.abs(np.array(fused, np.float32)))


def test_f16_fma_is_rounded_once() -> None:
    bits = np.random.default_rng(4).integers(0, 0x7C00, (3, 4000), dtype=np.uint16)
    a, b, c = bits.view(np.float16).astype(np.float32)
    got = float_numerics.fma_f16(a, b, -c)
    exact = [Fraction(float(x)) * Fraction(float(y)) - Fraction(float(z)) for x, y, z in zip(a, b, c, strict=True)]
    for value, truth in zip(got.tolist(), exact, strict=True):
        if math.isinf(value):
            assert abs(truth) >= 65520
            continue
        here = np.float16(value)
        below, above = np.nextafter(here, np.float16(-np.inf)), np.nextafter(here, np.float16(np.inf))
        distance = abs(Fraction(value) - truth)
        for other in (below, above):
            if np.isfinite(other):
                assert distance <= abs(Fraction(float(other)) - truth)


def test_nan_bits_become_canonical() -> None:
    x = np.array([0x7FC00000, 0xFFC00001, 0x3F800000, 0xFF800000], np.uint32).view(np.float32)
    assert [hex(v) for v in float_numerics.bits32(x)] == ["0x7fffffff", "0x7fffffff", "0x3f800000", "0xff800000"]
    half = np.array([0xFFC0, 0x3F80, 0x7F81], np.uint16).view(ml_dtypes.bfloat16)
    assert float_numerics.bits16(half).tolist() == [0x7FFF, 0x3F80, 0x7FFF]
    assert float_numerics.bits16(np.array([0xFE00, 0x7C00], np.uint16).view(np.float16)).tolist() == [0x7FFF, 0x7C00]


def test_minimum_and_maximum() -> None:
    nan = np.nan
    a = np.array([0.0, -0.0, nan, 1.0, nan, 2.0], np.float32)
    b = np.array([-0.0, 0.0, 1.0, nan, nan, -2.0], np.float32)
    same(float_functions.minimum(a, b), np.array([-0.0, -0.0, 1, 1, nan, -2], np.float32))
    same(float_functions.maximum(a, b), np.array([0.0, 0.0, 1, 1, nan, 2], np.float32))
    same(float_functions.minimum_nan(a, b), np.array([-0.0, -0.0, nan, nan, nan, -2], np.float32))
    same(float_functions.maximum_nan(a, b), np.array([0.0, 0.0, nan, nan, nan, 2], np.float32))


def test_flush_and_saturate() -> None:
    x = np.array([1e-40, -1e-40, 2.0**-126, -0.0, np.nan, -3.0, 0.25, 7.0], np.float32)
    same(float_numerics.flush(x), np.array([0.0, -0.0, 2.0**-126, -0.0, np.nan, -3.0, 0.25, 7.0], np.float32))
    same(float_numerics.saturate(x[2:]), np.array([2.0**-126, 0.0, 0.0, 0.0, 0.25, 1.0], np.float32))
    same(float_numerics.relu(x[3:]), np.array([0.0, np.nan, 0.0, 0.25, 7.0], np.float32))
