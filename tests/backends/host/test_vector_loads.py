"""Loads: bytes that LLVM marks as unused may be out of bounds, all others must not. Bases may be below a buffer."""

from __future__ import annotations

import numpy as np
import pytest
from host_kernels import HEAD, run_text

from hlo_run.errors import DeviceError

_LOAD = """.visible .entry k(.param .u64 a, .param .u64 b)
{
  .reg .b32 %r<8>;
  .reg .b64 %rd<8>;
  ld.param.b64 %rd1, [a];
  ld.param.b64 %rd2, [b];
PRAGMA
  ld.global.nc.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1+16];
  add.s32 %r5, %r1, %r3;
  st.global.b32 [%rd2], %r5;
  ret;
}
"""


def _run(pragma: str, elements: int) -> int:
    source = np.arange(elements, dtype=np.uint32) * 10 + 7
    result = np.zeros(1, np.uint32)
    run_text(HEAD + _LOAD.replace("PRAGMA", pragma), [source, result], block=1)
    return int(result[0])


def test_unused_bytes_may_lie_outside() -> None:
    assert _run('.pragma "used_bytes_mask 0xfff";', 7) == 47 + 67


@pytest.mark.parametrize(("pragma", "elements"), [("", 7), ('.pragma "used_bytes_mask 0xfff";', 6)])
def test_used_bytes_must_not(pragma: str, elements: int) -> None:
    with pytest.raises(DeviceError, match="out-of-bounds global load"):
        _run(pragma, elements)


def test_a_mask_counts_for_one_instruction() -> None:
    text = HEAD + _LOAD.replace("PRAGMA", '.pragma "used_bytes_mask 0xfff";\n  ld.global.nc.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];')
    with pytest.raises(DeviceError, match="of 16 bytes at offset 16"):
        run_text(text, [np.arange(7, dtype=np.uint32), np.zeros(1, np.uint32)], block=1)


_HALVES = """.visible .entry k(.param .u64 a, .param .u64 b)
{
  .reg .b32 %r<8>;
  .reg .b64 %rd<8>;
  ld.param.b64 %rd1, [a];
  ld.param.b64 %rd2, [b];
  .pragma "used_bytes_mask MASK";
LOAD
  st.global.v2.b32 [%rd2], {%r1, %r3};
  ret;
}
"""
_PAIR = "ld.global.nc.v2.b64 {%rd3, %rd4}, [%rd1];\n mov.b64 {%r1, _}, %rd3;\n mov.b64 {%r3, _}, %rd4;"
_SINGLE = "ld.global.nc.b32 %r1, [%rd1];\n and.b32 %r1, %r1, 0xffffff;\n mov.b32 %r3, 5;"


def _run_halves(mask: str, load: str, size_bytes: int) -> list[int]:
    result = np.zeros(2, np.uint32)
    text = HEAD + _HALVES.replace("MASK", mask).replace("LOAD", load)
    run_text(text, [np.arange(1, size_bytes + 1, dtype=np.uint8), result], block=1)
    return result.tolist()


def test_the_unused_half_of_an_item_may_lie_outside() -> None:
    # A GPU with packed f32 arithmetic loads f32[3] as two 64-bit items.
    assert _run_halves("0xfff", _PAIR, 12) == [0x04030201, 0x0C0B0A09]


def test_a_single_item_may_have_unused_bytes() -> None:
    assert _run_halves("0x7", _SINGLE, 4) == [0x030201, 5]


@pytest.mark.parametrize(("mask", "size_bytes"), [("0xffff", 12), ("0xfff", 8)])
def test_the_used_half_of_an_item_must_not(mask: str, size_bytes: int) -> None:
    with pytest.raises(DeviceError, match="out-of-bounds global load"):
        _run_halves(mask, _PAIR, size_bytes)


def test_a_base_below_the_buffer_is_no_fault_if_the_access_is_inside() -> None:
    text = """.visible .entry k(.param .u64 a, .param .u64 b)
    {
      .reg .b32 %r<4>;
      .reg .b64 %rd<8>;
      ld.param.b64 %rd1, [a];
      ld.param.b64 %rd2, [b];
      mov.u32 %r1, %tid.x;
      mul.wide.s32 %rd3, %r1, -4;
      add.s64 %rd4, %rd1, %rd3;
      ld.global.b32 %r2, [%rd4+124];
      mul.wide.s32 %rd5, %r1, 4;
      add.s64 %rd6, %rd2, %rd5;
      st.global.b32 [%rd6], %r2;
      ret;
    }
    """
    source = np.random.default_rng(3).integers(0, 2**32, 32, dtype=np.uint32)
    result = np.zeros(32, np.uint32)
    run_text(HEAD + text, [source, result])
    np.testing.assert_array_equal(result, source[::-1])
