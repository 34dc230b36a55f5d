"""Affine sums of pure registers, held against what the instructions compute in every thread."""

from __future__ import annotations

from itertools import product

import pytest
from host_kernels import kernel

from hlo_run.backends.host.jit.affine import PureValues
from hlo_run.backends.host.jit.affine_sum import Affine
from hlo_run.backends.host.ptx.control_flow import build_graph
from hlo_run.backends.host.ptx.parser import parse_module
from hlo_run.backends.host.ptx.syntax import Register

Point = dict[str, int]


def pure_values(body: str, blocks: int, threads: int) -> PureValues:
    graph = build_graph(parse_module(kernel(body, 0)), "k")
    return PureValues(graph, (blocks, 1, 1), (threads, 1, 1), {}, frozenset())


def evaluate(pure: PureValues, value: Affine, point: Point) -> int:
    total = value.constant
    for symbol, coefficient in value.terms:
        if symbol in pure.quotients:
            dividend, divisor = pure.quotients[symbol]
            total += coefficient * (evaluate(pure, dividend, point) // divisor)
        else:
            total += coefficient * point[symbol]
    return total


def magic(divisor: int, limit: int) -> tuple[int, int]:
    """Return (factor, shift) with which a compiler divides numbers up to `limit`: x * factor >> 32 >> shift."""
    for shift in range(32):
        factor = -(-(1 << (32 + shift)) // divisor)
        if factor < 1 << 32 and (factor * divisor - (1 << (32 + shift))) * limit < 1 << (32 + shift):
            return factor, shift
    raise AssertionError("every divisor has a factor here")


@pytest.mark.parametrize("divisor", [3, 6, 7, 12, 100, 1002, 4099])
@pytest.mark.parametrize("step", [1, 4, 6])
def test_quotients_and_remainders_of_every_thread(divisor: int, step: int) -> None:
    blocks, threads = 23, 96
    limit = step * blocks * threads + 3
    factor, shift = magic(divisor, limit)
    body = f"""
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; mad.lo.s32 %r3, %r1, {threads}, %r2; mul.lo.s32 %r4, %r3, {step};
    add.s32 %r5, %r4, 3; mul.hi.u32 %r6, %r5, {factor}; shr.u32 %r7, %r6, {shift};
    mul.lo.s32 %r8, %r7, {divisor}; sub.s32 %r9, %r5, %r8; shl.b32 %r10, %r9, 5; mad.lo.s32 %r11, %r7, 17, %r10;"""
    pure = pure_values(body, blocks, threads)
    found = {name: pure.affine_of(Register(name)) for name in ("%r7", "%r9", "%r11")}
    seen: dict[str, list[int]] = {name: [] for name in found}
    for cta, thread in product(range(blocks), range(threads)):
        point = {".cta.x": cta, ".lane": thread % 32, ".warp": thread // 32}
        x = step * (cta * threads + thread) + 3
        want = {"%r7": x // divisor, "%r9": x % divisor, "%r11": x % divisor * 32 + x // divisor * 17}
        for name, value in found.items():
            assert value is not None
            assert evaluate(pure, value, point) == want[name], (name, point)
            assert value.low <= want[name] <= value.high
            seen[name].append(want[name])
    quotient, remainder = found["%r7"], found["%r9"]
    assert quotient is not None
    assert remainder is not None
    assert (quotient.low, quotient.high) == (min(seen["%r7"]), max(seen["%r7"]))
    assert 0 <= remainder.low <= remainder.high < divisor


def test_registers_with_the_same_quotient_share_a_symbol() -> None:
    """2t / 501 and (4t + 1) / 1002 are equal, so a remainder by one plus a multiple of the other is linear in t."""
    factor, shift = magic(1002, 4 * 8 * 128)
    half, half_shift = magic(501, 4 * 8 * 128)
    body = f"""
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; shl.b32 %r3, %r1, 7; or.b32 %r4, %r3, %r2;
    shl.b32 %r5, %r4, 1; mul.hi.u32 %r6, %r5, {half}; shr.u32 %r7, %r6, {half_shift};
    shl.b32 %r8, %r4, 2; or.b32 %r9, %r8, 1; mul.hi.u32 %r10, %r9, {factor}; shr.u32 %r11, %r10, {shift};
    mul.lo.s32 %r12, %r11, 1002; sub.s32 %r13, %r9, %r12; mad.lo.s32 %r14, %r7, 1002, %r13;"""
    pure = pure_values(body, 8, 128)
    linear = pure.affine_of(Register("%r14"))
    assert linear is not None
    assert (linear.terms, linear.constant) == (((".cta.x", 512), (".lane", 4), (".warp", 128)), 1)
    assert (linear.low, linear.high) == (1, 4 * (8 * 128 - 1) + 1)


def test_factors_that_do_not_divide_exactly_are_left_alone() -> None:
    body = """
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; mad.lo.s32 %r3, %r1, 128, %r2;
    mul.hi.u32 %r4, %r3, 548658497; shr.u32 %r5, %r4, 1; mul.lo.s32 %r6, %r5, 16; sub.s32 %r7, %r3, %r6;"""
    pure = pure_values(body, 1 << 16, 128)
    for name in ("%r4", "%r5"):
        value = pure.affine_of(Register(name))
        assert value is not None
        assert not any(symbol in pure.quotients for symbol, _ in value.terms)
