"""Each integer instruction on edge values (extremes, zero, shifts of the width and more), against Python's integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from host_kernels import apply, apply_each, padded, pairs
from numpy.typing import NDArray

Array = NDArray[Any]
UNSIGNED = {16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED = {16: np.int16, 32: np.int32, 64: np.int64}


def values(bits: int, signed: bool = False, seed: int = 0) -> list[int]:
    """Edge and random values of a type, as Python integers."""
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    edges = [0, 1, 2, 3, 7, 255, low, low + 1, high, high - 1, high // 2, high // 3]
    if signed:
        edges += [-1, -2, -7, -255]
    rng = np.random.default_rng(seed + bits)
    return edges + [low + int.from_bytes(rng.bytes(9), "little") % (high - low + 1) for _ in range(16)]


def array(items: list[int], bits: int, signed: bool) -> Array:
    return np.array(items, (SIGNED if signed else UNSIGNED)[bits])


def truncate(value: int, bits: int, signed: bool) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def check_binary(instruction: str, bits: int, signed: bool, expected: Callable[[int, int], int], result_bits: int = 0) -> None:
    """Compare `instruction` (with %x, %a, %b) on all pairs of values with `expected`, modulo the width."""
    check_all_binary({instruction: expected}, bits, signed, result_bits)


def check_all_binary(
    instructions: Mapping[str, Callable[[int, int], int]], bits: int, signed: bool, result_bits: int = 0
) -> None:
    """Do what `check_binary` does for several instructions, in one kernel."""
    a, b = pairs(array(values(bits, signed), bits, signed))
    result_bits = result_bits or bits
    found = apply_each(instructions, (a, b), (SIGNED if signed else UNSIGNED)[result_bits])
    for (instruction, expected), got in zip(instructions.items(), found, strict=True):
        want = [truncate(expected(p, q), result_bits, signed) for p, q in zip(a.tolist(), b.tolist(), strict=True)]
        assert got.tolist() == want, instruction


def quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else -1


def shifted(a: int, amount: int, bits: int) -> int:
    return a << amount if amount < bits else 0


TYPES = [(bits, signed) for bits in (16, 32, 64) for signed in (False, True)]


@pytest.mark.parametrize(("bits", "signed"), TYPES)
def test_arithmetic(bits: int, signed: bool) -> None:
    t = f"{'s' if signed else 'u'}{bits}"
    check_all_binary(
        {
            f"add.{t} %x, %a, %b;": lambda a, b: a + b,
            f"sub.{t} %x, %a, %b;": lambda a, b: a - b,
            f"mul.lo.{t} %x, %a, %b;": lambda a, b: a * b,
            f"mul.hi.{t} %x, %a, %b;": lambda a, b: a * b >> bits,
            f"mad.lo.{t} %x, %a, %b, %a;": lambda a, b: a * b + a,
            f"mad.hi.{t} %x, %a, %b, %b;": lambda a, b: (a * b >> bits) + b,
            f"min.{t} %x, %a, %b;": min,
            f"max.{t} %x, %a, %b;": max,
            f"sad.{t} %x, %a, %b, %a;": lambda a, b: a + abs(a - b),
            f"div.{t} %x, %a, %b;": quotient,
            f"rem.{t} %x, %a, %b;": lambda a, b: a - quotient(a, b) * b if b else a,
        },
        bits,
        signed,
    )


@pytest.mark.parametrize(("bits", "signed"), TYPES[:4])
def test_wide_products(bits: int, signed: bool) -> None:
    t = f"{'s' if signed else 'u'}{bits}"
    check_binary(f"mul.wide.{t} %x, %a, %b;", bits, signed, lambda a, b: a * b, 2 * bits)
    widened = f".reg .b{2 * bits} %t; cvt.{t[0]}{2 * bits}.{t} %t, %b; mad.wide.{t} %x, %a, %b, %t;"
    check_binary(f"{{ {widened} }}", bits, signed, lambda a, b: a * b + b, 2 * bits)


def clamp32(value: int) -> int:
    return max(-(2**31), min(2**31 - 1, value))


def test_saturating_arithmetic() -> None:
    check_all_binary(
        {
            "add.sat.s32 %x, %a, %b;": lambda a, b: clamp32(a + b),
            "sub.sat.s32 %x, %a, %b;": lambda a, b: clamp32(a - b),
            "mad.hi.sat.s32 %x, %a, %b, %a;": lambda a, b: clamp32((a * b >> 32) + a),
        },
        32,
        True,
    )


def test_negation_and_magnitude() -> None:
    for bits in (16, 32, 64):
        check_all_binary(
            {
                f"neg.s{bits} %x, %a;": lambda a, _: -a,
                f"abs.s{bits} %x, %a;": lambda a, _: abs(a),
            },
            bits,
            True,
        )


def test_minimum_with_relu_and_packed_halves() -> None:
    check_binary("max.relu.s32 %x, %a, %b;", 32, True, lambda a, b: max(a, b, 0))

    def halves(a: int, b: int, function: Callable[[int, int], int], signed: bool) -> int:
        parts = [function(truncate(a >> s, 16, signed), truncate(b >> s, 16, signed)) & 0xFFFF for s in (0, 16)]
        return parts[0] | parts[1] << 16

    check_binary("add.u16x2 %x, %a, %b;", 32, False, lambda a, b: halves(a, b, lambda p, q: p + q, False))
    check_binary("min.s16x2 %x, %a, %b;", 32, False, lambda a, b: halves(a, b, min, True))
    check_binary("max.u16x2 %x, %a, %b;", 32, False, lambda a, b: halves(a, b, max, False))


@pytest.mark.parametrize("bits", [32, 64])
def test_carry_chains(bits: int) -> None:
    top = f"""
    add.cc.u{bits} %x, %a, %b;
    addc.cc.u{bits} %y, %a, %b;
    addc.u{bits} %y, %y, 0;"""
    a, b = pairs(array(values(bits), bits, False))
    low, high = apply(top, (a, b), UNSIGNED[bits], UNSIGNED[bits])
    for p, q, x, y in zip(a.tolist(), b.tolist(), low.tolist(), high.tolist(), strict=True):
        carry = (p + q) >> bits
        second = p + q + carry
        assert x == (p + q) % 2**bits
        assert y == (second + (second >> bits)) % 2**bits
    low, high = apply(f"sub.cc.u{bits} %x, %a, %b; subc.u{bits} %y, 0, 0;", (a, b), UNSIGNED[bits], UNSIGNED[bits])
    for p, q, x, y in zip(a.tolist(), b.tolist(), low.tolist(), high.tolist(), strict=True):
        assert x == (p - q) % 2**bits
        assert y == (2**bits - 1 if p < q else 0)


def test_multiply_add_with_carry_makes_long_products() -> None:
    # The upper 64 bits of a 64-bit square from 32-bit halves: how range reduction multiplies by 2/pi.
    code = """
    mul.lo.u32 %x, %a, %a;
    mad.lo.cc.u32 %x, %a, %b, %a;
    madc.hi.u32 %y, %a, %b, 0;"""
    a, b = pairs(array(values(32), 32, False))
    low, high = apply(code, (a, b), np.uint32, np.uint32)
    for p, q, x, y in zip(a.tolist(), b.tolist(), low.tolist(), high.tolist(), strict=True):
        assert (y << 32 | x) == p * q + p


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_shifts_of_the_width_and_more(bits: int) -> None:
    amounts = np.array([0, 1, 5, bits - 1, bits, bits + 1, 64, 65536 + 1, 2**32 - 1], np.uint32)
    for signed in (False, True):
        items = array(values(bits, signed), bits, signed)
        a, b = pairs(items, amounts)
        dtype = (SIGNED if signed else UNSIGNED)[bits]
        left = apply(f"shl.b{bits} %x, %a, %b;", (a, b), dtype)
        right = apply(f"shr.{'s' if signed else 'u'}{bits} %x, %a, %b;", (a, b), dtype)
        for p, n, x, y in zip(a.tolist(), b.tolist(), left.tolist(), right.tolist(), strict=True):
            assert x == truncate(shifted(p, n, bits), bits, signed)
            assert y == p >> min(n, bits)


@pytest.mark.parametrize("amount", [0, 3, 31, 32, 33, 200])
def test_shifts_by_immediates(amount: int) -> None:
    check_binary(f"shl.b32 %x, %a, {amount};", 32, False, lambda a, _: shifted(a, amount, 32))
    check_binary(f"shr.u32 %x, %a, {amount};", 32, False, lambda a, _: a >> amount)
    check_binary(f"shr.s32 %x, %a, {amount};", 32, True, lambda a, _: a >> min(amount, 31))
    check_binary(f"shr.b32 %x, %a, {amount};", 32, False, lambda a, _: a >> amount)


def test_funnel_shifts() -> None:
    words = array(values(32), 32, False)
    a, b = pairs(words)
    amounts = np.resize(np.array([0, 1, 16, 31, 32, 33, 63, 255], np.uint32), a.size)
    for left in (True, False):
        for mode in ("wrap", "clamp"):
            got = apply(f"shf.{'l' if left else 'r'}.{mode}.b32 %x, %a, %b, %c;", (a, b, amounts), np.uint32)
            for low, high, n, x in zip(a.tolist(), b.tolist(), amounts.tolist(), got.tolist(), strict=True):
                n = n & 31 if mode == "wrap" else min(n, 32)
                both = high << 32 | low
                assert x == (both << n >> 32 if left else both >> n) & 0xFFFFFFFF


@pytest.mark.parametrize("bits", [32, 64])
def test_counting_bits(bits: int) -> None:
    a = padded(array([*values(bits), *(1 << k for k in range(bits))], bits, False))
    signed = a.view(SIGNED[bits])
    assert apply(f"popc.b{bits} %x, %a;", (a,), np.uint32).tolist() == [v.bit_count() for v in a.tolist()]
    assert apply(f"clz.b{bits} %x, %a;", (a,), np.uint32).tolist() == [bits - v.bit_length() for v in a.tolist()]
    reverse = [int(f"{v:0{bits}b}"[::-1], 2) for v in a.tolist()]
    assert apply(f"brev.b{bits} %x, %a;", (a,), UNSIGNED[bits]).tolist() == reverse
    highest = [(v.bit_length() - 1) & 0xFFFFFFFF for v in a.tolist()]
    assert apply(f"bfind.u{bits} %x, %a;", (a,), np.uint32).tolist() == highest
    amount = [bits - v.bit_length() if v else 0xFFFFFFFF for v in a.tolist()]
    assert apply(f"bfind.shiftamt.u{bits} %x, %a;", (a,), np.uint32).tolist() == amount
    highest = [((v if v >= 0 else ~v).bit_length() - 1) & 0xFFFFFFFF for v in signed.tolist()]
    assert apply(f"bfind.s{bits} %x, %a;", (a,), np.uint32).tolist() == highest


def field(value: int, start: int, count: int, bits: int, signed: bool) -> int:
    """The manual's loop over bits."""
    word = value & ((1 << bits) - 1)
    sign = word >> min(start + count - 1, bits - 1) & 1 if signed and count else 0
    result = 0
    for position in range(bits):
        bit = word >> (start + position) & 1 if position < count and start + position < bits else sign
        result |= bit << position
    return truncate(result, bits, signed)


@pytest.mark.parametrize(("bits", "signed"), TYPES[2:])
def test_extracting_fields(bits: int, signed: bool) -> None:
    places = [0, 1, 7, 31, 32, 63, 64, 200, 255, 256 + 3]
    starts, counts = pairs(np.array(places, np.uint32))
    items = np.resize(array(values(bits, signed), bits, signed), starts.size)
    got = apply(f"bfe.{'s' if signed else 'u'}{bits} %x, %a, %b, %c;", (items, starts, counts), items.dtype.type)
    for v, start, count, x in zip(items.tolist(), starts.tolist(), counts.tolist(), got.tolist(), strict=True):
        assert x == field(v, start & 255, count & 255, bits, signed)


@pytest.mark.parametrize("bits", [32, 64])
def test_inserting_fields(bits: int) -> None:
    starts, counts = pairs(np.array([0, 1, 7, 31, 32, 63, 64, 255, 256 + 3], np.uint32))
    a = np.resize(array(values(bits), bits, False), starts.size)
    b = np.resize(array(values(bits, seed=1), bits, False), starts.size)
    got = apply(f"bfi.b{bits} %x, %a, %b, %c, %d;", (a, b, starts, counts), a.dtype.type)
    for p, q, start, count, x in zip(a.tolist(), b.tolist(), starts.tolist(), counts.tolist(), got.tolist(), strict=True):
        want = q
        for position in range(count & 255):
            if (start & 255) + position < bits:
                place = (start & 255) + position
                want = want & ~(1 << place) | (p >> position & 1) << place
        assert x == want


def test_logic() -> None:
    for bits in (16, 32, 64):
        check_all_binary(
            {
                f"and.b{bits} %x, %a, %b;": lambda a, b: a & b,
                f"or.b{bits} %x, %a, %b;": lambda a, b: a | b,
                f"xor.b{bits} %x, %a, %b;": lambda a, b: a ^ b,
                f"not.b{bits} %x, %a;": lambda a, _: ~a,
                f"cnot.b{bits} %x, %a;": lambda a, _: int(a == 0),
            },
            bits,
            False,
        )


@pytest.mark.parametrize("table", [0x00, 0x80, 0xE8, 0x96, 0xCA, 0x1B, 0xFF])
def test_three_input_logic(table: int) -> None:
    words = [array(values(32, seed=seed), 32, False) for seed in range(3)]
    a, b, c = (padded(word) for word in words)
    got = apply(f"lop3.b32 %x, %a, %b, %c, {table};", (a, b, c), np.uint32)
    for p, q, r, x in zip(a.tolist(), b.tolist(), c.tolist(), got.tolist(), strict=True):
        want = 0
        for bit in range(32):
            index = (p >> bit & 1) << 2 | (q >> bit & 1) << 1 | (r >> bit & 1)
            want |= (table >> index & 1) << bit
        assert x == want


def permuted(a: int, b: int, selector: int) -> int:
    data = (b << 32 | a).to_bytes(8, "little")
    result = 0
    for position in range(4):
        nibble = selector >> 4 * position & 15
        byte = data[nibble & 7]
        result |= (0xFF * (byte >> 7) if nibble & 8 else byte) << 8 * position
    return result


@pytest.mark.parametrize("selector", [0x3210, 0x5410, 0x7632, 0x0123, 0x1054, 0x7777, 0x4444, 0x6240, 0xB991, 0x8888])
def test_byte_permutations(selector: int) -> None:
    check_binary(f"prmt.b32 %x, %a, %b, {selector};", 32, False, lambda a, b: permuted(a, b, selector))
    a, b = pairs(array(values(32), 32, False))
    selectors = np.full(a.size, selector | 0xABCD0000, np.uint32)
    got = apply("prmt.b32 %x, %a, %b, %c;", (a, b, selectors), np.uint32)
    assert got.tolist() == [permuted(p, q, selector) for p, q in zip(a.tolist(), b.tolist(), strict=True)]


@pytest.mark.parametrize(
    ("mode", "table"),
    [
        ("f4e", (0x3210, 0x4321, 0x5432, 0x6543)),
        ("b4e", (0x5670, 0x6701, 0x7012, 0x0123)),
        ("rc8", (0x0000, 0x1111, 0x2222, 0x3333)),
        ("ecl", (0x3210, 0x3211, 0x3222, 0x3333)),
        ("ecr", (0x0000, 0x1110, 0x2210, 0x3210)),
        ("rc16", (0x1010, 0x3232, 0x1010, 0x3232)),
    ],
)
def test_byte_permutation_modes(mode: str, table: tuple[int, ...]) -> None:
    a, b = padded(array(values(32), 32, False)), padded(array(values(32, seed=1), 32, False))
    selectors = np.resize(np.array([0, 1, 2, 3, 4 + 1], np.uint32), a.size)
    got = apply(f"prmt.b32.{mode} %x, %a, %b, %c;", (a, b, selectors), np.uint32)
    for p, q, s, x in zip(a.tolist(), b.tolist(), selectors.tolist(), got.tolist(), strict=True):
        assert x == permuted(p, q, table[s & 3])


@pytest.mark.parametrize(("bits", "signed"), TYPES)
def test_comparisons(bits: int, signed: bool) -> None:
    items = array(values(bits, signed), bits, signed)
    a, b = pairs(items)
    t = f"{'s' if signed else 'u'}{bits}"
    functions = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    functions |= {} if signed else {"lo": a < b, "ls": a <= b, "hi": a > b, "hs": a >= b}
    found = apply_each([f"setp.{name}.{t} %x, %a, %b;" for name in functions], (a, b), np.bool_)
    for (name, want), got in zip(functions.items(), found, strict=True):
        assert (got == want).all(), name
    both = apply(f"setp.lt.{t} %q1, %a, %b; setp.eq.or.{t} %x|%y, %a, %b, %q1;", (a, b), np.bool_, np.bool_)
    assert (both[0] == (a <= b)).all()
    assert (both[1] == ((a != b) | (a < b))).all()
    not_less = apply(f"setp.lt.{t} %q1, %a, %b; setp.ge.and.{t} %x, %a, %b, !%q1;", (a, b), np.bool_)
    assert (not_less == (a >= b)).all()


def test_selection() -> None:
    for bits in (16, 32, 64):
        a, b = pairs(array(values(bits), bits, False))
        code = f"setp.lt.u{bits} %q1, %a, %b; selp.b{bits} %x, %a, %b, %q1;"
        assert (apply(code, (a, b), UNSIGNED[bits]) == np.minimum(a, b)).all()
        code = f"setp.lt.u{bits} %q1, %a, %b; selp.u{bits} %x, %a, 5, %q1;"
        assert (apply(code, (a, b), UNSIGNED[bits]) == np.where(a < b, a, 5)).all()
        sign = padded(np.array([-5, 0, 7, -(2**31)], np.int32).repeat(8))[: a.size]
        sign = np.resize(sign, a.size)
        got = apply(f"slct.u{bits}.s32 %x, %a, %b, %c;", (a, b, sign), UNSIGNED[bits])
        assert (got == np.where(sign >= 0, a, b)).all()


def test_set_makes_masks() -> None:
    a, b = pairs(array(values(32, True), 32, True))
    assert (apply("set.lt.u32.s32 %x, %a, %b;", (a, b), np.int32) == -(a < b).astype(np.int32)).all()
    assert (apply("set.ge.f32.s32 %x, %a, %b;", (a, b), np.float32) == (a >= b)).all()


def test_moves_pack_and_unpack() -> None:
    a = padded(array(values(64), 64, False))
    low, high = apply("mov.b64 {%x, %y}, %a;", (a,), np.uint32, np.uint32)
    assert (low == (a & 0xFFFFFFFF)).all()
    assert (high == (a >> np.uint64(32))).all()
    swapped = apply("mov.b64 {%r1, %r2}, %a; mov.b64 %x, {%r2, %r1};", (a,), np.uint64)
    assert (swapped == (a << np.uint64(32) | a >> np.uint64(32))).all()
    code = "mov.b64 {%h1, %h2, %h3, %h4}, %a; mov.b64 %x, {%h4, %h3, %h2, %h1}; mov.b64 {%r1, _}, %a; mov.b32 {_, %y}, %r1;"
    reverse, second = apply(code, (a,), np.uint64, np.uint16)
    parts = a.view(np.uint16).reshape(-1, 4)
    assert (reverse.view(np.uint16).reshape(-1, 4) == parts[:, ::-1]).all()
    assert (second == parts[:, 1]).all()


def test_predicates() -> None:
    a, b = pairs(array(values(32), 32, False))
    code = """
    setp.lt.u32 %q1, %a, %b;
    setp.eq.u32 %q2, %a, %b;
    or.pred %q3, %q1, %q2;
    not.pred %q4, %q3;
    mov.pred %q5, %q4;
    xor.pred %x, %q5, 1;
    and.pred %y, %q3, %q2;"""
    x, y = apply(code, (a, b), np.bool_, np.bool_)
    assert (x == (a <= b)).all()
    assert (y == (a == b)).all()
