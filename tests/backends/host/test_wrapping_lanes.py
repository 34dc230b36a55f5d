"""Addresses made of a loaded start and the low bits of the thread's number.

LLVM 22's vectoriser takes such bits for a counter that never wraps if the start is the same for all threads.
"""

from __future__ import annotations

import numpy as np
import pytest
from host_kernels import kernel, run_text

_THREADS = 64
_LOW_BITS = {
    "and": "and.b32 %r4, %tid, {last};",
    "and of a multiple": "shl.b32 %r9, %tid, 1; and.b32 %r10, %r9, {last2}; shr.u32 %r4, %r10, 1;",
    "shl and shr": "shl.b32 %r9, %tid, {rest}; shr.u32 %r4, %r9, {rest};",
    "rem": "rem.u32 %r4, %tid, {count};",
    "bfe": "bfe.u32 %r4, %tid, 0, {bits};",
    "cvt": "shl.b32 %r9, %tid, {over}; cvt.u8.u32 %h1, %r9; cvt.u32.u8 %r10, %h1; shr.u32 %r4, %r10, {over};",
}


@pytest.mark.parametrize("way", _LOW_BITS)
@pytest.mark.parametrize("stride", [1, 2, 4])
@pytest.mark.parametrize("bits", [2, 3])
def test_low_bits_of_the_thread_wrap(way: str, stride: int, bits: int) -> None:
    count = 1 << bits
    places = {"last": count - 1, "last2": 2 * count - 1, "rest": 32 - bits, "count": count, "bits": bits, "over": 8 - bits}
    # The place is start * 8 + low bits, or low bits * stride + start.
    if stride == 1:
        start, address = 5, "shl.b32 %r5, %r2, 3; or.b32 %r6, %r5, %r4;"
        places_read = start * 8 + np.arange(_THREADS) % count
    else:
        start, address = stride - 1, f"mul.lo.s32 %r5, %r4, {stride}; or.b32 %r6, %r5, %r2;"
        places_read = np.arange(_THREADS) % count * stride + start
    top = 7 if stride == 1 else stride - 1
    body = f"""
    ld.global.nc.b32 %r1, [%p1]; max.s32 %r1, %r1, 0; min.s32 %r2, %r1, {top};
    {_LOW_BITS[way].format(**places)} {address}
    mul.wide.u32 %d1, %r6, 4; add.s64 %d2, %p0, %d1; ld.global.nc.b32 %r7, [%d2];
    setp.lt.s32 %q1, %r4, %r1; selp.f32 %r7, %r7, 0f00000000, %q1;
    add.s64 %d3, %p2, %w4; ld.global.nc.b32 %r8, [%d3]; mul.f32 %r11, %r7, %r8;
    add.s64 %d4, %p3, %w4; st.global.b32 [%d4], %r11;"""
    table = np.random.default_rng(bits).standard_normal(64).astype(np.float32)
    factors = np.random.default_rng(stride).standard_normal(_THREADS).astype(np.float32)
    result = np.zeros(_THREADS, np.float32)
    run_text(kernel(body, 4), [table, np.array([start], np.int32), factors, result], block=_THREADS, read_only=3)
    expected = np.where(np.arange(_THREADS) % count < start, table[places_read], np.float32(0)) * factors
    np.testing.assert_array_equal(result, expected)
