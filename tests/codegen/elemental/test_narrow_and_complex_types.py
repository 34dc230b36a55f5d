"""Kernels on integers of less than a byte, floats of at most 8 bits and complex numbers, against the reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from emitting import ptx_of, read_fusion, results_on_host, run_on_host

from hlo_run.errors import Unsupported
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.options import Options
from hlo_run.reference.evaluate.evaluate import evaluate

SMALL_FLOATS = ["f8e5m2", "f8e4m3", "f8e3m4", "f8e4m3fn", "f8e4m3fnuz", "f8e4m3b11fnuz", "f8e5m2fnuz", "f8e8m0fnu", "f4e2m1fn"]
NARROW_INTEGERS = ["s1", "u1", "s2", "u2", "s4", "u4"]
_RANDOM = np.random.default_rng(20)


def _all_values(name: str) -> np.ndarray:
    """Return every bit pattern of a type of at most 8 bits."""
    dtype = DTYPES[name]
    bits = np.arange(1 << dtype.bits, dtype=np.uint8)
    if dtype.is_signed:
        bits = np.where(bits >> (dtype.bits - 1), bits | (0xFF << dtype.bits & 0xFF), bits).astype(np.uint8)
    return bits.view(dtype.numpy)


def _near_ties(name: str, wide: str) -> np.ndarray:
    """Return the numbers of a small float, the midpoints of neighbours, values next to those, and values that overflow."""
    with np.errstate(invalid="ignore"):
        values = _all_values(name).astype(np.float64)
    values = np.unique(values[np.isfinite(values)])
    target = DTYPES[wide].numpy
    ends = np.array([0.0, -0.0, np.inf, -np.inf, values[-1] * 1.5, values[-1] * 4, 1e-30, -1e-30])
    with np.errstate(over="ignore"):
        middles, edges = ((values[1:] + values[:-1]) / 2).astype(target), ends.astype(target)
    up, down = (np.nextafter(middles, target.type(end)) for end in (np.inf, -np.inf))
    return np.concatenate([values.astype(target), middles, up, down, edges])


@pytest.mark.parametrize("name", SMALL_FLOATS)
@pytest.mark.parametrize("target", ["h100", "a100"])
def test_small_floats_convert_both_ways(name: str, target: str) -> None:
    size = 1 << DTYPES[name].bits
    parts = [("f32", "convert(p)"), ("f16", "convert(p)"), ("f64", "convert(p)"), ("s32", "convert(p)"), ("pred", "convert(p)")]
    lines = "\n".join(f"r{n} = {kind}[{size}] {text}" for n, (kind, text) in enumerate(parts))
    result = ", ".join(f"{kind}[{size}]" for kind, _ in parts)
    operands = ", ".join(f"r{n}" for n in range(len(parts)))
    values = _all_values(name)
    run_on_host(f"f {{ p = {name}[{size}] parameter(0)\n{lines}\nROOT t = ({result}) tuple({operands}) }}", values, target=target)


@pytest.mark.parametrize("name", SMALL_FLOATS)
@pytest.mark.parametrize("target", ["h100", "a100"])
def test_rounding_to_small_floats(name: str, target: str) -> None:
    singles, doubles = (_near_ties(name, wide) for wide in ("f32", "f64"))
    size = len(singles) // 4 * 4
    assert len(singles) == len(doubles)
    text = f"""f {{
      p = f32[{size}] parameter(0)
      q = f64[{size}] parameter(1)
      r = {name}[{size}] convert(p)
      s = {name}[{size}] convert(q)
      ROOT t = ({name}[{size}], {name}[{size}]) tuple(r, s) }}"""
    run_on_host(text, np.resize(singles, size), np.resize(doubles, size), target=target)


@pytest.mark.parametrize("wide", ["f32", "f16", "bf16"])
def test_cards_convert_four_bit_floats_themselves(wide: str) -> None:
    """The values have no NaN: the reference converts it to zero, the GPU to 6."""
    values = np.concatenate([_near_ties("f4e2m1fn", wide), np.linspace(-8, 8, 999).astype(DTYPES[wide].numpy)])
    values = np.resize(values, len(values) // 4 * 4)
    size = len(values)
    narrow = f"f {{ p = {wide}[{size}] parameter(0) ROOT r = f4e2m1fn[{size}] convert(p) }}"
    widen = f"f {{ p = f4e2m1fn[16] parameter(0) ROOT r = {wide}[16] convert(p) }}"
    for text, argument in ((narrow, values), (widen, _all_values("f4e2m1fn"))):
        module, _ = read_fusion(text)
        want = np.asarray(evaluate(module, [argument]))
        for engine in ("emulator", "jit"):
            got = np.asarray(results_on_host(module, [argument], "b200", Options(host_engine=engine)))
            assert got.tobytes() == want.tobytes()
    assert "cvt.rn.satfinite.e2m1x2.f32" in ptx_of(narrow, "b200")
    assert "cvt.rn.f16x2.e2m1x2" in ptx_of(widen, "b200")
    assert ".target sm_100a" in ptx_of(widen, "b200")
    assert "e2m1x2" not in ptx_of(narrow) + ptx_of(widen)


@pytest.mark.parametrize("name", ["f8e4m3fn", "f8e5m2"])
def test_cards_convert_eight_bit_floats_themselves(name: str) -> None:
    pair = {"f8e4m3fn": "e4m3x2", "f8e5m2": "e5m2x2"}[name]
    text = f"f {{ p = f32[64] parameter(0) n = {name}[64] convert(p) ROOT r = f32[64] convert(n) }}"
    for target in ("h100", "b200"):
        assert f"cvt.rn.satfinite.{pair}.f32" in ptx_of(text, target)
        assert f"cvt.rn.f16x2.{pair}" in ptx_of(text, target)
    assert pair not in ptx_of(text, "a100")


@pytest.mark.parametrize("name", [name for name in SMALL_FLOATS if name not in ("f8e8m0fnu", "f4e2m1fn")])
def test_arithmetic_on_small_floats_is_rounded_once_per_op(name: str) -> None:
    values = [_all_values(name)[_RANDOM.permutation(256)] for _ in range(2)]
    run_on_host(
        f"""f {{
          p = {name}[256] parameter(0)
          q = {name}[256] parameter(1)
          s = {name}[256] add(p, q)
          m = {name}[256] multiply(s, p)
          l = pred[256] compare(m, q), direction=LT
          ROOT r = {name}[256] select(l, m, q)
        }}""",
        *values,
    )


@pytest.mark.parametrize("name", NARROW_INTEGERS)
@pytest.mark.parametrize("dims", ["7", "64", "5,3", "2,4,16"])
def test_narrow_integers_share_bytes(name: str, dims: str) -> None:
    shape = f"{name}[{dims}]"
    wide = "s" if name[0] == "s" else "u"
    run_on_host(
        f"""f {{
          p = {shape} parameter(0)
          q = {shape} parameter(1)
          a = {shape} add(p, q)
          m = {shape} multiply(a, p)
          w = {wide}32[{dims}] convert(m)
          ROOT t = ({shape}, {wide}32[{dims}]) tuple(m, w)
        }}"""
    )


@pytest.mark.parametrize("name", ["s4", "u4", "s2", "u2"])
def test_vectors_of_narrow_integers(name: str) -> None:
    """The loop emitter unrolls for this many elements, and stores whole bytes."""
    emitted = run_on_host(
        f"f {{ p = s32[1048576] parameter(0) q = {name}[1048576] convert(p) ROOT r = {name}[1048576] add(q, q) }}"
    )
    assert emitted.kernel.unroll_factor >= 8 // DTYPES[name].bits


def test_a_table_of_narrow_integers() -> None:
    numbers = ", ".join(str(number) for number in _RANDOM.integers(-8, 8, 33))
    run_on_host(
        f"f {{ p = s4[33] parameter(0) c = s4[33] constant({{{numbers}}}) a = s4[33] add(p, c) "
        "ROOT r = s4[33] reverse(a), dimensions={0} }"
    )


_UNARY = (
    "negate sign exponential exponential-minus-one log log-plus-one sqrt rsqrt sine cosine tan tanh logistic abs real imag"
).split()


@pytest.mark.parametrize("opcode", _UNARY)
def test_complex_functions(opcode: str) -> None:
    size = 64
    angle, length = _RANDOM.uniform(-np.pi, np.pi, size), 10.0 ** _RANDOM.uniform(-2, 1.2, size)
    values = length * np.exp(1j * angle)
    values[:6] = [0, 1, -1, 1j, -1j, 2 - 3j]
    if opcode == "rsqrt":
        values[0] = 4
    single, double = ("f32", "f64") if opcode in ("abs", "real", "imag") else ("c64", "c128")
    text = f"""f {{
      p = c64[{size}] parameter(0)
      q = c128[{size}] parameter(1)
      r = {single}[{size}] {opcode}(p)
      s = {double}[{size}] {opcode}(q)
      ROOT t = ({single}[{size}], {double}[{size}]) tuple(r, s) }}"""
    run_on_host(text, values.astype(np.complex64), values)


@pytest.mark.parametrize("opcode", ["add", "subtract", "multiply", "divide", "power", "atan2", "maximum", "minimum"])
def test_complex_arithmetic(opcode: str) -> None:
    parts = _RANDOM.uniform(-3, 3, (4, 96))
    x, y = (parts[0] + 1j * parts[1]).astype(np.complex64), (parts[2] + 1j * parts[3]).astype(np.complex64)
    run_on_host(f"f {{ p = c64[96] parameter(0) q = c64[96] parameter(1) ROOT r = c64[96] {opcode}(p, q) }}", x, y)


def test_division_of_complex_infinities_and_zeros() -> None:
    """For operands of all magnitudes, quotients overflow, underflow or are NaN exactly if C's do."""
    special = np.array([0, 1, -2, np.inf, -np.inf, 3e30, 1e-30], np.float32)
    real, imaginary = (part.reshape(-1) for part in np.meshgrid(special, special))
    numbers = np.empty(len(real), np.complex64)
    numbers.real, numbers.imag = real, imaginary
    x, y = (np.ascontiguousarray(part.reshape(-1)) for part in np.meshgrid(numbers, numbers))
    size = len(x)
    run_on_host(f"f {{ p = c64[{size}] parameter(0) q = c64[{size}] parameter(1) ROOT r = c64[{size}] divide(p, q) }}", x, y)


def test_complex_numbers_move_convert_and_compare() -> None:
    parts = _RANDOM.integers(-2, 3, (4, 6, 8))
    x, y = (parts[0] + 1j * parts[1]).astype(np.complex64), (parts[2] + 1j * parts[3]).astype(np.complex64)
    run_on_host(
        """f {
          p = c64[6,8] parameter(0)
          q = c64[6,8] parameter(1)
          e = pred[6,8] compare(p, q), direction=EQ
          n = pred[6,8] compare(p, q), direction=NE
          k0 = c64[] constant((1.5, -2))
          c = c64[6,8] broadcast(k0), dimensions={}
          s = c64[6,8] select(e, c, p)
          w = c128[6,8] convert(s)
          k = f32[6,8] real(q)
          z = c64[6,8] convert(k)
          t = c64[6,8] add(z, s)
          i = s32[6,8] convert(w)
          ROOT r = (c64[6,8], c128[6,8], pred[6,8], s32[6,8]) tuple(t, w, n, i)
        }""",
        x,
        y,
    )


def test_a_reduction_of_complex_numbers() -> None:
    parts = _RANDOM.uniform(-1, 1, (2, 12, 512))
    values = (parts[0] + 1j * parts[1]).astype(np.complex64)
    run_on_host(
        """HloModule m
        sum { a = c64[] parameter(0) b = c64[] parameter(1) ROOT s = c64[] add(a, b) }
        f { p = c64[12,512] parameter(0) z = c64[] constant((0, 0)) ROOT r = c64[12] reduce(p, z), dimensions={1}, to_apply=sum }
        ENTRY e { p = c64[12,512] parameter(0) ROOT r = c64[12] fusion(p), kind=kInput, calls=f }""",
        values,
    )


def test_bfloat16_becomes_small_without_a_second_rounding() -> None:
    values = _all_values("f8e5m2").astype(np.float32).astype(ml_dtypes.bfloat16)
    run_on_host("f { p = bf16[256] parameter(0) ROOT r = f8e4m3fn[256] convert(p) }", values)


def test_powers_of_two_have_no_precision_to_reduce() -> None:
    text = "f { p = f8e8m0fnu[8] parameter(0) ROOT r = f8e8m0fnu[8] reduce-precision(p), exponent_bits=5, mantissa_bits=0 }"
    with pytest.raises(Unsupported, match="reduce-precision"):
        run_on_host(text, _all_values("f8e8m0fnu")[:8])
