"""Each floating-point instruction in each format on edge values, against exact or f64 arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from host_kernels import apply, apply_each, padded, pairs
from numpy.typing import NDArray

from hlo_run.backends.host.numerics import exact_numerics

Array = NDArray[Any]
BF16: Any = ml_dtypes.bfloat16
DTYPES: dict[str, Any] = {"f16": np.float16, "bf16": BF16, "f32": np.float32, "f64": np.float64}
LEAST_NORMAL = {"f16": 2.0**-14, "bf16": 2.0**-126, "f32": 2.0**-126, "f64": 2.0**-1022}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def values(kind: str, seed: int = 0) -> Array:
    """Zeros, infinities, NaN, subnormals, ordinary and random bit patterns of a format."""
    tiny = LEAST_NORMAL[kind]
    edges = [0.0, -0.0, 1.0, -1.0, 1.5, -2.5, 3.0, 1e3, -1e3, math.inf, -math.inf, math.nan, tiny, -tiny, tiny / 2, -tiny / 4]
    dtype = np.dtype(DTYPES[kind])
    rng = np.random.default_rng(seed)
    random = rng.integers(0, 256, 24 * dtype.itemsize, dtype=np.uint8).view(dtype)
    ordinary = rng.standard_normal(24).astype(dtype)
    return np.concatenate([np.array(edges).astype(dtype), random, ordinary])


def bits(array: Array) -> Array:
    return array.view(f"u{array.dtype.itemsize}")


def same(got: Array, want: Array) -> None:
    """Equal bit for bit. In f64 any NaN equals any other; narrower PTX formats have only one NaN."""
    want = want.astype(got.dtype)
    nan = np.isnan(want.astype(np.float64))
    different = (bits(got) != bits(want)) & ~nan | (nan != np.isnan(got.astype(np.float64)))
    assert not different.any(), (got[different][:4], want[different][:4])
    if got.dtype != np.float64:
        assert (bits(got)[nan] == (1 << (8 * got.dtype.itemsize - 1)) - 1).all(), "NaNs are canonical"


def ftz(array: Array) -> Array:
    return np.where(np.abs(array) < np.float32(2.0**-126), np.copysign(np.float32(0), array), array)


def all_same(wanted: Mapping[str, Array], inputs: Sequence[Array], output: type[Any]) -> None:
    """Check what each of the instructions computes; one kernel runs them all."""
    for got, want in zip(apply_each(wanted, inputs, output), wanted.values(), strict=True):
        same(got, want)


OPERATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
}


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_arithmetic(kind: str, name: str) -> None:
    a, b = pairs(values(kind), values(kind, 1))
    want = OPERATIONS[name](a, b)
    all_same({f"{name}.rn.{kind} %x, %a, %b;": want, f"{name}.{kind} %x, %a, %b;": want}, (a, b), a.dtype.type)


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_arithmetic_that_flushes_and_saturates(name: str) -> None:
    a, b = pairs(values("f32"), values("f32", 1))
    result = OPERATIONS[name](a, b)
    clamped = np.where(result > 0, np.minimum(result, np.float32(1)), np.float32(0))
    flushed = ftz(OPERATIONS[name](ftz(a), ftz(b)))
    all_same({f"{name}.rn.ftz.f32 %x, %a, %b;": flushed, f"{name}.sat.f32 %x, %a, %b;": clamped}, (a, b), np.float32)


EXACT: dict[str, Callable[..., Array]] = {"add": exact_numerics.exact_add, "mul": exact_numerics.exact_mul}


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_directed_rounding(kind: str, mode: str) -> None:
    a, b = pairs(values(kind)[:40:2], values(kind, 1)[::3])
    one = np.ones_like(a)
    wanted = {
        **{f"{name}.{mode}.{kind} %x, %a, %b;": function(a, b, mode, kind) for name, function in EXACT.items()},
        f"sub.{mode}.{kind} %x, %a, %b;": exact_numerics.exact_add(a, -b, mode, kind),
        f"div.{mode}.{kind} %x, %a, %b;": exact_numerics.exact_div(a, b, mode, kind),
        f"sqrt.{mode}.{kind} %x, %a;": exact_numerics.exact_sqrt(a, mode, kind),
        f"rcp.{mode}.{kind} %x, %a;": exact_numerics.exact_div(one, a, mode, kind),
        f"fma.{mode}.{kind} %x, %a, %b, %a;": exact_numerics.exact_fma(a, b, a, mode, kind),
    }
    all_same(wanted, (a, b), a.dtype.type)


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_fused_multiply_add(kind: str) -> None:
    a, b = pairs(values(kind), values(kind, 1))
    c = np.resize(values(kind, 2), a.size)
    want = exact_numerics.exact_fma(a, b, c, "rn", kind)
    wanted = {f"fma.rn.{kind} %x, %a, %b, %c;": want, f"mad.rn.{kind} %x, %a, %b, %c;": want}
    if kind == "f32":
        wanted["fma.rn.ftz.f32 %x, %a, %b, %c;"] = ftz(exact_numerics.exact_fma(ftz(a), ftz(b), ftz(c), "rn", "f32"))
    all_same(wanted, (a, b, c), a.dtype.type)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_half_arithmetic(kind: str) -> None:
    a, b = pairs(values(kind), values(kind, 1))
    c = np.resize(values(kind, 2), a.size)
    wide = [x.astype(np.float64) for x in (a, b, c)]
    for name, function in OPERATIONS.items():
        got = apply(f"{name}.rn.{kind} %x, %a, %b;", (a, b), a.dtype.type)
        same(got, round_half(function(wide[0], wide[1]), kind))
    fused = exact_numerics.exact_fma(wide[0], wide[1], wide[2], "rn", kind)
    same(apply(f"fma.rn.{kind} %x, %a, %b, %c;", (a, b, c), a.dtype.type), fused)
    relu = apply(f"fma.rn.relu.{kind} %x, %a, %b, %c;", (a, b, c), a.dtype.type)
    plain = fused.astype(np.float32)
    same(relu, np.where((plain > 0) | np.isnan(plain), fused, np.zeros_like(fused)))


def round_half(x: Array, kind: str) -> Array:
    """Round f64 to a half format in one step: through f32 with a sticky bit for bf16."""
    if kind == "f16":
        return x.astype(np.float16)
    single = x.astype(np.float32)
    towards_zero = np.where(np.abs(single.astype(np.float64)) > np.abs(x), np.nextafter(single, np.float32(0)), single)
    odd = towards_zero.view(np.uint32) | (np.isfinite(x) & (towards_zero.astype(np.float64) != x))
    return odd.view(np.float32).astype(BF16)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_packed_halves_are_two_scalars(kind: str) -> None:
    a, b = pairs(values(kind), values(kind, 1))
    c = np.resize(values(kind, 2), a.size)
    packed = [np.stack([x, np.roll(x, 7)], axis=1).copy().view(np.uint32).reshape(-1) for x in (a, b, c)]
    operations = {
        "add.rn": "ab",
        "sub.rn": "ab",
        "mul.rn": "ab",
        "fma.rn": "abc",
        "min": "ab",
        "max": "ab",
        "min.NaN": "ab",
        "max.NaN": "ab",
        "neg": "a",
        "abs": "a",
    }
    operands = {code: ", ".join(f"%{name}" for name in names) for code, names in operations.items()}
    pairwise = apply_each([f"{code}.{kind}x2 %x, {names};" for code, names in operands.items()], packed, np.uint32)
    scalars = [f"{code}.{kind} %x, {names};" for code, names in operands.items()]
    lows = apply_each(scalars, (a, b, c), a.dtype.type)
    highs = apply_each(scalars, [np.roll(x, 7) for x in (a, b, c)], a.dtype.type)
    for got, low, high in zip(pairwise, lows, highs, strict=True):
        both = got.view(a.dtype).reshape(-1, 2)
        same(both[:, 0].copy(), low)
        same(both[:, 1].copy(), high)
    code = f"setp.lt.{kind}x2 %x|%y, %a, %b;"
    x, y = apply(code, packed[:2], np.bool_, np.bool_)
    wide_a, wide_b = a.astype(np.float32), b.astype(np.float32)
    assert (x == (wide_a < wide_b)).all()
    assert (y == (np.roll(wide_a, 7) < np.roll(wide_b, 7))).all()


def test_packed_f32() -> None:
    a, b = pairs(values("f32"), values("f32", 1))
    packed = [np.stack([x, np.roll(x, 5)], axis=1).copy().view(np.uint64).reshape(-1) for x in (a, b)]
    got = apply("fma.rn.f32x2 %x, %a, %b, %a;", packed, np.uint64).view(np.float32).reshape(-1, 2)
    want = exact_numerics.exact_fma(a, b, a, "rn", "f32")
    same(got[:, 0].copy(), want)
    same(got[:, 1].copy(), np.roll(want, 5))
    same(apply("add.rn.f32x2 %x, %a, %b;", packed, np.uint64).view(np.float32)[::2].copy(), a + b)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_mixed_precision(kind: str) -> None:
    a, b = pairs(values(kind), values(kind, 1))
    c = np.resize(values("f32", 2), a.size)
    wide_a, wide_b = a.astype(np.float32), b.astype(np.float32)
    all_same({f"{n}.rn.f32.{kind} %x, %a, %b;": f(wide_a, c) for n, f in OPERATIONS.items() if n != "mul"}, (a, c), np.float32)
    want = exact_numerics.exact_fma(wide_a, wide_b, c, "rn", "f32")
    same(apply(f"fma.rn.f32.{kind} %x, %a, %b, %c;", (a, b, c), np.float32), want)


@pytest.mark.parametrize("kind", sorted(DTYPES))
def test_minimum_and_maximum(kind: str) -> None:
    a, b = pairs(values(kind), values(kind, 1))
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    both_zero = (wide_a == 0) & (wide_b == 0)
    least = np.where(both_zero, np.where(np.signbit(wide_a) | np.signbit(wide_b), -0.0, 0.0), np.fmin(wide_a, wide_b))
    most = np.where(both_zero, np.where(np.signbit(wide_a) & np.signbit(wide_b), -0.0, 0.0), np.fmax(wide_a, wide_b))
    any_nan = np.isnan(wide_a) | np.isnan(wide_b)
    wanted: dict[str, Array] = {}
    for name, want in (("min", least), ("max", most)):
        wanted[f"{name}.{kind} %x, %a, %b;"] = want.astype(a.dtype)
        if kind != "f64":
            wanted[f"{name}.NaN.{kind} %x, %a, %b;"] = np.where(any_nan, np.nan, want).astype(a.dtype)
    all_same(wanted, (a, b), a.dtype.type)


@pytest.mark.parametrize("kind", sorted(DTYPES))
def test_sign_operations(kind: str) -> None:
    a = padded(values(kind))
    numbers = a[~np.isnan(a.astype(np.float64))]
    numbers = padded(numbers)
    top = np.array(1 << (8 * a.dtype.itemsize - 1), bits(a).dtype)
    b = np.roll(numbers, 3)
    wanted = {f"neg.{kind} %x, %a;": bits(numbers) ^ top, f"abs.{kind} %x, %a;": bits(numbers) & ~top}
    if kind in ("f32", "f64"):
        wanted[f"copysign.{kind} %x, %a, %b;"] = (bits(numbers) & top) | (bits(b) & ~top)
    for got, want in zip(apply_each(wanted, (numbers, b), a.dtype.type), wanted.values(), strict=True):
        assert (bits(got) == want).all()


def test_sign_of_a_computed_nan_is_positive() -> None:
    # x86 makes negative NaNs where PTX makes the positive one: seen through the bits, and through copysign.
    a = padded(np.array([np.inf, -np.inf], np.float32))
    code = "sub.f32 %r1, %a, %a; mov.b32 %r2, 0f3F800000; copysign.f32 %x, %r1, %r2; mov.b32 %y, %r1;"
    sign, nan = apply(code, (a,), np.float32, np.uint32)
    assert (sign == 1).all()
    assert (nan == 0x7FFFFFFF).all()


@pytest.mark.parametrize("kind", sorted(DTYPES))
def test_comparisons(kind: str) -> None:
    a, b = pairs(values(kind), values(kind, 1))
    x, y = a.astype(np.float64), b.astype(np.float64)
    nan = np.isnan(x) | np.isnan(y)
    ordered = {"eq": x == y, "ne": (x != y) & ~nan, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}
    wanted = {**ordered, **{f"{name}u": want | nan for name, want in ordered.items()}, "num": ~nan, "nan": nan}
    found = apply_each([f"setp.{name}.{kind} %x, %a, %b;" for name in wanted], (a, b), np.bool_)
    for (name, want), got in zip(wanted.items(), found, strict=True):
        assert (got == want).all(), name


def test_flushing_comparison_and_selection() -> None:
    a = padded(np.array([1e-40, -1e-40, 0.0, 1.0], np.float32))
    assert (apply("setp.eq.ftz.f32 %x, %a, 0f00000000;", (a,), np.bool_) == (np.abs(a) < 1)).all()
    code = "mul.f32 %r1, %a, 0f40000000; add.f32 %r2, %a, 0f3F800000; setp.gt.f32 %q1, %a, 0f00000000; "
    got = apply(code + "selp.f32 %x, %r1, %r2, %q1;", (a,), np.float32)
    assert (got == np.where(a > 0, a * 2, a + 1)).all()
    got = apply(code + "selp.f32 %x, 0f40400000, %r2, %q1;", (a,), np.float32)
    assert (got == np.where(a > 0, 3, a + 1)).all()
    b = np.roll(a, 1)
    assert (apply("slct.f32.f32 %x, %a, %b, %a;", (a, b), np.float32) == np.where(a >= 0, a, b)).all()


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_division_and_roots(kind: str) -> None:
    a, b = pairs(values(kind), values(kind, 1))
    wanted = {f"div.rn.{kind} %x, %a, %b;": a / b, f"rcp.rn.{kind} %x, %a;": 1 / a, f"sqrt.rn.{kind} %x, %a;": np.sqrt(a)}
    if kind == "f32":
        wanted["div.full.f32 %x, %a, %b;"] = a / b
        wanted["div.rn.ftz.f32 %x, %a, %b;"] = ftz(ftz(a) / ftz(b))
        # The approximate division multiplies by a reciprocal, which very large divisors flush to zero.
        large = np.abs(b) > 2.0**126
        want = np.where(large, np.where(np.isinf(a) | np.isnan(a), np.float32(np.nan), a * np.float32(0) * np.sign(b)), a / b)
        wanted["div.approx.f32 %x, %a, %b;"] = want
    all_same(wanted, (a, b), a.dtype.type)


APPROXIMATIONS: dict[str, Callable[[Array], Array]] = {
    "rcp": lambda x: 1 / x,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


@pytest.mark.parametrize("name", sorted(set(APPROXIMATIONS) - {"ex2"}))
def test_approximations(name: str) -> None:
    a = padded(np.concatenate([values("f32"), np.linspace(-20, 20, 100, dtype=np.float32)]))
    function = APPROXIMATIONS[name]
    wanted = {f"{name}.approx.f32 %x, %a;": function(a.astype(np.float64)).astype(np.float32)}
    if name != "tanh":
        wanted[f"{name}.approx.ftz.f32 %x, %a;"] = ftz(function(ftz(a).astype(np.float64)).astype(np.float32))
    all_same(wanted, (a,), np.float32)


@pytest.mark.parametrize("constant", [0x3D37, 0x3F00, 0x3A81, 0x3701, 0xB780, 0x0001, 0x0000, 0x7F80, 0x7FC1])
def test_bf16_products_with_constants(constant: int) -> None:
    """All bf16 numbers: some constants make exact f32 products of them all, some do not, where the result is subnormal."""
    a = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    factor = np.array(constant, np.uint16).view(ml_dtypes.bfloat16).astype(np.float64)
    want = (a.astype(np.float64) * factor).astype(np.float32)
    exact = a.astype(np.float64) * factor
    # The f32 is odd where it is not exact, so that rounding it again is right.
    toward = np.where(np.abs(want.astype(np.float64)) > np.abs(exact), np.nextafter(want, np.float32(0)), want)
    odd = np.where(toward.astype(np.float64) == exact, want.view(np.uint32), toward.view(np.uint32) | np.uint32(1))
    text = f".reg .b16 %k; mov.b16 %k, {constant:#06x}; mul.rn.bf16 %x, %a, %k;"
    same(apply(text, (a,), ml_dtypes.bfloat16), odd.view(np.float32).astype(ml_dtypes.bfloat16))


def test_powers_of_two() -> None:
    """Within the two units in the last place that the manual allows (below one, in fact), whole powers exact."""
    rng = np.random.default_rng(4)
    a = padded(np.concatenate([values("f32"), rng.uniform(-152, 130, 20000).astype(np.float32), tiny_steps()]))
    with np.errstate(over="ignore", under="ignore"):
        exact = np.exp2(a.astype(np.float64))
        rounded = exact.astype(np.float32)
    got = apply("ex2.approx.f32 %x, %a;", (a,), np.float32)
    plain = np.isfinite(rounded)
    error = np.abs(got.astype(np.float64) - exact)[plain]
    # The spacing below a value, which is the smaller one at powers of two.
    assert (error < 0.9 * np.spacing(rounded - rounded * np.float32(2.0**-25))[plain]).all()
    special = ~plain | (a == np.rint(a)) | (rounded == 0)
    same(got[special], rounded[special])
    same(apply("ex2.approx.ftz.f32 %x, %a;", (a,), np.float32), ftz(got))


def tiny_steps() -> Array:
    """Numbers around those where the power is halved or doubled, becomes subnormal, zero or infinite."""
    edges = np.array(
        [0.5, -0.5, 1.5, 127.5, 128.0, -126.0, -126.5, -149.0, -150.0, -151.0, 160.0, -160.0, 1e30, -1e30], np.float32
    )
    return np.concatenate([edges, np.nextafter(edges, np.float32(-np.inf)), np.nextafter(edges, np.float32(np.inf))])


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_approximations_of_halves(kind: str) -> None:
    a = padded(values(kind))
    wide = a.astype(np.float64)
    tanh: Array = np.tanh(wide).astype(np.float32)
    same(apply(f"tanh.approx.{kind} %x, %a;", (a,), a.dtype.type), tanh.astype(a.dtype))
    power: Array = np.exp2(wide).astype(np.float32)
    suffix = ".ftz" if kind == "bf16" else ""
    want = ftz(power) if suffix else power
    same(apply(f"ex2.approx{suffix}.{kind} %x, %a;", (a,), a.dtype.type), want.astype(a.dtype))


def test_f64_approximations_use_the_upper_word() -> None:
    a = padded(np.array([1.0, 3.0, -7.25, 1e-300, 0.1, 0.0, np.inf]))
    top = (a.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)
    got = apply("rcp.approx.ftz.f64 %x, %a;", (a,), np.float64)
    assert (got.view(np.uint64) & np.uint64(0xFFFFFFFF) == 0).all()
    exact = 1 / top
    assert (np.abs(got - exact) <= np.abs(exact) * 2.0**-19)[np.isfinite(exact)].all()
    got = apply("rsqrt.approx.ftz.f64 %x, %a;", (np.abs(a),), np.float64)
    exact = 1 / np.sqrt(np.abs(top))
    assert (np.abs(got - exact) <= exact * 2.0**-19)[np.isfinite(exact)].all()
    assert got[5] == np.inf


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_properties(kind: str) -> None:
    a = padded(values(kind))
    size = np.abs(a)
    tiny = LEAST_NORMAL[kind]
    wanted = {
        "finite": np.isfinite(a),
        "infinite": np.isinf(a),
        "number": ~np.isnan(a),
        "notanumber": np.isnan(a),
        "normal": np.isfinite(a) & (size >= tiny),
        "subnormal": (size > 0) & (size < tiny),
    }
    found = apply_each([f"testp.{name}.{kind} %x, %a;" for name in wanted], (a,), np.bool_)
    for (name, want), got in zip(wanted.items(), found, strict=True):
        assert (got == want).all(), name
