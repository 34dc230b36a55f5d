"""Vector loads: bytes that LLVM marks as unused may be out of bounds, all others must not. Bases may be below a buffer."""

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
