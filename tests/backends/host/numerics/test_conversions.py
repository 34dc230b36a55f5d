"""`cvt` between all formats: rounding modes, clamping, NaN, packed results, 8-bit floats."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from host_kernels import apply, apply_all, apply_each, padded
from numpy.typing import NDArray
from test_float_instructions import BF16, DTYPES, bits, ftz, round_half, same, values

from hlo_run.backends.host.numerics import exact_numerics

Array = NDArray[Any]
INTEGERS: dict[str, Any] = {
    f"{kind}{width}": np.dtype(f"{'i' if kind == 's' else 'u'}{width // 8}").type for kind in "su" for width in (8, 16, 32, 64)
}
ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def integers(name: str) -> Array:
    """Edge and random values of an integer type."""
    info = np.iinfo(INTEGERS[name])
    edges = [0, 1, 2, info.max, info.max - 1, info.min, info.min + 1, info.max // 3, info.max // 2 + 1]
    random = np.random.default_rng(3).integers(0, 256, 55 * np.dtype(INTEGERS[name]).itemsize, dtype=np.uint8)
    return np.concatenate([np.array(edges, INTEGERS[name]), random.view(INTEGERS[name])])


def as_register(array: Array) -> Array:
    """Bytes are in 16-bit registers, whose upper bits are ignored."""
    if array.itemsize > 1:
        return array
    return (array.view(np.uint8).astype(np.uint16) | np.uint16(0xAB00)).view(np.uint16)


@pytest.mark.parametrize("source", sorted(INTEGERS))
def test_between_integers(source: str) -> None:
    items = padded(integers(source))
    registers = {
        name: dtype if np.dtype(dtype).itemsize > 1 else (np.int16 if name[0] == "s" else np.uint16)
        for name, dtype in INTEGERS.items()
    }
    plain = apply_all([(f"cvt.{name}.{source} %x, %a;", result) for name, result in registers.items()], (as_register(items),))
    clamped = apply_all(
        [(f"cvt.sat.{name}.{source} %x, %a;", result) for name, result in registers.items()], (as_register(items),)
    )
    for (target, dtype), low_bits, saturated in zip(INTEGERS.items(), plain, clamped, strict=True):
        assert (low_bits == items.astype(dtype)).all(), target
        info = np.iinfo(dtype)
        assert saturated.tolist() == [max(info.min, min(info.max, item)) for item in items.tolist()], target


def test_results_are_extended_to_wider_registers() -> None:
    items = padded(integers("s8"))
    assert (apply("cvt.s8.s32 %x, %a;", (items.astype(np.int32),), np.int32) == items).all()
    assert (apply("cvt.u8.s32 %x, %a;", (items.astype(np.int32),), np.int64) == items.view(np.uint8)).all()


def to_integer(value: float, mode: str, name: str, source: str) -> int:
    info = np.iinfo(INTEGERS[name])
    if math.isnan(value):
        indefinite = source == "f64" or name[1:] == "64"
        return 0 if not indefinite else (info.min if name[0] == "s" else 1 << (info.bits - 1))
    if math.isinf(value):
        return int(info.max if value > 0 else info.min)
    return max(int(info.min), min(int(info.max), int(ROUND[mode](np.float64(value)))))


@pytest.mark.parametrize("source", sorted(DTYPES))
@pytest.mark.parametrize("mode", sorted(ROUND))
def test_floats_to_integers(source: str, mode: str) -> None:
    extra = [
        0.5,
        1.5,
        2.5,
        -0.5,
        -1.5,
        127.5,
        128.0,
        -128.5,
        255.5,
        32767.5,
        65504.0,
        2.0**31,
        -(2.0**31),
        2.0**63,
        -(2.0**63),
        2.0**64,
    ]
    items = padded(np.concatenate([values(source), np.array(extra).astype(DTYPES[source])]))
    targets = ("s16", "u16", "s32", "u32", "s64", "u64")
    cases = [(f"cvt.{mode}.{target}.{source} %x, %a;", INTEGERS[target]) for target in targets]
    for target, got in zip(targets, apply_all(cases, (items,)), strict=True):
        assert got.tolist() == [to_integer(v, mode, target, source) for v in items.astype(np.float64).tolist()], target


@pytest.mark.parametrize("source", sorted(INTEGERS))
def test_integers_to_floats(source: str) -> None:
    items = padded(integers(source))
    register = as_register(items)
    kinds = [*((kind, "rn") for kind in DTYPES), *((kind, mode) for kind in ("f32", "f64") for mode in ("rz", "rm", "rp"))]
    found = apply_all([(f"cvt.{mode}.{kind}.{source} %x, %a;", DTYPES[kind]) for kind, mode in kinds], (register,))
    results = dict(zip(kinds, found, strict=True))
    same(results["f64", "rn"], items.astype(np.float64))
    same(results["f32", "rn"], items.astype(np.float32))
    for kind in ("f16", "bf16"):
        got = results[kind, "rn"]
        # Through f64 with a sticky bit: the integer is cut to 53 bits and the last one set if anything was cut.
        exact = np.array([sticky(item) for item in items.tolist()])
        same(got, round_half(exact, kind))
    for mode in ("rz", "rm", "rp"):
        for kind, digits in (("f32", 24), ("f64", 53)):
            got = results[kind, mode]
            assert got.tolist() == [directed(item, mode, digits) for item in items.tolist()], (mode, kind)


def sticky(value: int) -> float:
    excess = max(0, abs(value).bit_length() - 53)
    cut = abs(value) >> excess
    cut |= bool(abs(value) & ((1 << excess) - 1))
    return math.copysign(float(cut << excess), value)


def directed(value: int, mode: str, digits: int) -> float:
    excess = max(0, abs(value).bit_length() - digits)
    away = bool(abs(value) & ((1 << excess) - 1)) and {"rz": False, "rm": value < 0, "rp": value > 0}[mode]
    return math.copysign(float(((abs(value) >> excess) + away) << excess), value)


def test_widening_is_exact() -> None:
    for source in ("f16", "bf16", "f32"):
        items = padded(values(source))
        same(apply(f"cvt.f64.{source} %x, %a;", (items,), np.float64), items.astype(np.float64))
        if source != "f32":
            same(apply(f"cvt.f32.{source} %x, %a;", (items,), np.float32), items.astype(np.float32))


@pytest.mark.parametrize("source", ["f32", "f64"])
def test_narrowing_to_halves(source: str) -> None:
    for kind in ("f16", "bf16"):
        near = (
            np.repeat(values(kind).astype(np.float64), 3) * np.array([1, 1 + 2.0**-9, 1 + 2.0**-9 + 2.0**-20])[np.arange(192) % 3]
        )
        items = padded(np.concatenate([near.astype(DTYPES[source]), values(source)]))
        same(apply(f"cvt.rn.{kind}.{source} %x, %a;", (items,), DTYPES[kind]), round_half(items.astype(np.float64), kind))
        got = apply(f"cvt.rn.relu.{kind}.{source} %x, %a;", (items,), DTYPES[kind]) if source == "f32" else None
        if got is not None:
            rounded = round_half(items.astype(np.float64), kind)
            wide = rounded.astype(np.float32)
            same(got, np.where((wide > 0) | np.isnan(wide), rounded, np.zeros_like(rounded)))
        finite = np.isfinite(items)
        modes = ("rz", "rm", "rp")
        found = apply_each([f"cvt.{mode}.{kind}.{source} %x, %a;" for mode in modes], (items,), DTYPES[kind])
        for mode, narrow in zip(modes, found, strict=True):
            got = narrow.astype(np.float64)
            exact = items.astype(np.float64)
            here = got[finite]
            if mode == "rz":
                assert (np.abs(here) <= np.abs(exact[finite])).all()
            else:
                assert ((here <= exact[finite]) if mode == "rm" else (here >= exact[finite])).all()
            nearest = round_half(exact, kind).astype(np.float64)
            exactly = nearest == exact
            assert (got[exactly] == exact[exactly]).all()


def test_narrowing_to_f32() -> None:
    near = values("f32").astype(np.float64) * (1 + 2.0**-25)
    items = padded(np.concatenate([values("f64"), near, np.array([1e39, -1e39, 1e-46])]))
    same(apply("cvt.rn.f32.f64 %x, %a;", (items,), np.float32), items.astype(np.float32))
    same(apply("cvt.rn.ftz.f32.f64 %x, %a;", (items,), np.float32), ftz(items.astype(np.float32)))
    finite = items[np.isfinite(items)]
    for mode in ("rz", "rm", "rp"):
        got = apply(f"cvt.{mode}.f32.f64 %x, %a;", (padded(finite),), np.float32)[: finite.size]
        assert got.tolist() == [exact_numerics.round_fraction(Fraction(item), mode, "f32") for item in finite.tolist()]


@pytest.mark.parametrize("mode", sorted(ROUND))
def test_rounding_to_integral_values(mode: str) -> None:
    for kind in ("f16", "f32", "f64"):
        items = padded(np.concatenate([values(kind), np.array([0.5, 1.5, -0.5, -2.5, 0.49999997]).astype(DTYPES[kind])]))
        same(apply(f"cvt.{mode}.{kind}.{kind} %x, %a;", (items,), DTYPES[kind]), ROUND[mode](items))


def test_saturation_and_flushing() -> None:
    items = padded(values("f32"))
    clamped = np.where(items > 0, np.minimum(items, np.float32(1)), np.float32(0))
    same(apply("cvt.sat.f32.f32 %x, %a;", (items,), np.float32), clamped)
    same(apply("cvt.ftz.f32.f32 %x, %a;", (items,), np.float32), ftz(items))


def test_two_results_in_one_register() -> None:
    high, low = padded(values("f32")), padded(values("f32", 1))
    for kind in ("f16", "bf16"):
        got = apply(f"cvt.rn.{kind}x2.f32 %x, %a, %b;", (high, low), np.uint32)
        same(got.astype(np.uint16).view(DTYPES[kind]), round_half(low.astype(np.float64), kind))
        same((got >> np.uint32(16)).astype(np.uint16).view(DTYPES[kind]), round_half(high.astype(np.float64), kind))
        code = f"cvt.rn.{kind}x2.f32 %r1, %a, %b; mov.b32 {{%h1, %h2}}, %r1; cvt.f32.{kind} %x, %h1; mov.b16 %y, %h2;"
        widened, upper = apply(code, (high, low), np.float32, np.uint16)
        same(widened, round_half(low.astype(np.float64), kind).astype(np.float32))
        same(upper.view(DTYPES[kind]), round_half(high.astype(np.float64), kind))


def test_tf32() -> None:
    items = padded(np.array([1.0, 1 + 2.0**-11, 1 + 2.0**-11 - 2.0**-20, -1 - 2.0**-11, np.inf, np.nan, 3.4e38], np.float32))
    got = apply("cvt.rna.tf32.f32 %x, %a;", (items,), np.float32)
    assert got[:4].tolist() == [1.0, 1 + 2.0**-10, 1.0, -1 - 2.0**-10]
    assert got[4] == np.inf
    assert np.isnan(got[5])


@pytest.mark.parametrize(
    ("name", "dtype", "largest"), [("e4m3", ml_dtypes.float8_e4m3fn, 448), ("e5m2", ml_dtypes.float8_e5m2, 57344)]
)
def test_eight_bit_floats(name: str, dtype: Any, largest: float) -> None:
    grid = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    between = np.nextafter(grid, np.float32(np.inf)) * np.float32(1.03)
    items = padded(np.concatenate([grid, between, values("f32")]))
    other = np.roll(items, 11)
    got = apply(f"cvt.rn.satfinite.{name}x2.f32 %x, %a, %b;", (items, other), np.uint16)
    want = np.clip(items, -largest, largest).astype(dtype).view(np.uint8)
    nan = np.isnan(items)
    assert ((got >> 8)[~nan] == want[~nan]).all()
    assert ((got >> 8)[nan] == 0x7F).all()
    assert ((got & 0xFF)[~np.isnan(other)] == np.roll(want, 11)[~np.isnan(other)]).all()
    raw = padded(np.arange(65536, dtype=np.uint32).astype(np.uint16)[::7])
    back = apply(f"cvt.rn.f16x2.{name}x2 %x, %a;", (raw,), np.uint32)
    same(back.astype(np.uint16).view(np.float16), raw.astype(np.uint8).view(dtype).astype(np.float16))
    same((back >> np.uint32(16)).astype(np.uint16).view(np.float16), (raw >> 8).astype(np.uint8).view(dtype).astype(np.float16))


def test_registers_of_eight_bits() -> None:
    raw = padded(np.random.default_rng(8).integers(0, 65536, 999).astype(np.uint16))
    for from_type, to_type, dtype in (("u16", "s8", np.int8), ("s16", "u8", np.uint8), ("u16", "u8", np.uint8)):
        code = f"{{ .reg .b8 %t; cvt.{to_type}.{from_type} %t, %a; cvt.s32.{to_type} %x, %t; }}"
        same(apply(code, (raw,), np.int32), raw.astype(np.uint8).view(dtype).astype(np.int32))


def test_four_bit_floats() -> None:
    grid = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    halfway = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0], np.float32)
    edges = np.concatenate([grid, halfway, -halfway, np.array([np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3e38], np.float32)])
    near = np.concatenate([edges, np.nextafter(edges, np.float32(np.inf)), np.nextafter(edges, np.float32(-np.inf))])
    items = padded(
        np.concatenate([near, values("f32"), np.float32(4) * np.random.default_rng(7).standard_normal(999, np.float32)])
    )
    other = np.roll(items, 11)
    pack = "{ .reg .b8 %out; cvt.rn.satfinite.e2m1x2.f32 %out, %a, %b; cvt.u16.u8 %x, %out; }"
    got = apply(pack, (items, other), np.uint16)
    nearest = np.abs(np.abs(items)[:, None] - grid[:8].astype(np.float64))
    # Of two numbers as near, the one whose last bit is zero.
    order = np.argsort(nearest + 1e-12 * (np.arange(8) % 2), axis=1, kind="stable")[:, 0]
    want = np.where(np.isnan(items), 7, np.where(np.abs(items) > 6, 7, order) + 8 * np.signbit(items)).astype(np.uint16)
    assert (got >> 4 == want).all()
    assert (got & 15 == np.roll(want, 11)).all()
    raw = padded(np.arange(256, dtype=np.uint16))
    unpack = "{ .reg .b8 %in; cvt.u8.u16 %in, %a; cvt.rn.f16x2.e2m1x2 %x, %in; }"
    back = apply(unpack, (raw,), np.uint32)
    same(back.astype(np.uint16).view(np.float16), grid[raw & 15].astype(np.float16))
    same((back >> np.uint32(16)).astype(np.uint16).view(np.float16), grid[raw >> 4].astype(np.float16))


def test_bf16_rounding_of_every_upper_half() -> None:
    upper = np.arange(65536, dtype=np.uint32) << np.uint32(16)
    for lower in (0x0000, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        items = (upper | np.uint32(lower)).view(np.float32)
        got = apply("cvt.rn.bf16.f32 %x, %a;", (items,), np.uint16)
        raw = items.view(np.uint32)
        rounded = ((raw + 0x7FFF + (raw >> 16 & 1)) >> 16).astype(np.uint16)
        assert (got == np.where(np.isnan(items), np.uint16(0x7FFF), rounded)).all()
    assert bits(np.array([1.0]).astype(BF16))[0] == 0x3F80
