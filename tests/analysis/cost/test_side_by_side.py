"""Comparison of two modules: equal work is found regardless of names and order, and bytes count only what is read."""

from __future__ import annotations

from typing import Any

import hlo_run
from hlo_run.analysis.cost.device_work import Work, device_work
from hlo_run.analysis.cost.side_by_side import XlaDiff, diff_record, diff_sides, diff_text, make_side
from hlo_run.target import preset

TARGET = preset("h100")

ONE = """HloModule m, is_scheduled=true

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

fused_add {
  p = f32[64,32]{1,0} parameter(0)
  q = f32[64,32]{1,0} parameter(1)
  m = f32[64,32]{1,0} multiply(p, q)
  ROOT r = f32[64,32]{1,0} exponential(m)
}

fused_slice {
  p = f32[64,32]{1,0} parameter(0)
  s = f32[2,32]{1,0} slice(p), slice={[0:2], [0:32]}
  ROOT n = f32[2,32]{1,0} negate(s)
}

ENTRY e {
  x = f32[64,32]{1,0} parameter(0)
  y = f32[64,32]{1,0} parameter(1)
  loop_fusion = f32[64,32]{1,0} fusion(x, y), kind=kLoop, calls=fused_add
  slice_fusion = f32[2,32]{1,0} fusion(x), kind=kLoop, calls=fused_slice
  copy = f32[64,32]{0,1} copy(loop_fusion)
  ROOT t = (f32[64,32]{0,1}, f32[2,32]{1,0}) tuple(copy, slice_fusion)
}
"""
# The same with other names, parameters and operands of a product in another order, and more in the slice.
TWO = (
    ONE.replace("multiply(p, q)", "multiply(q, p)")
    .replace("fusion(x, y)", "fusion(y, x)")
    .replace("loop_fusion", "other")
    .replace("ROOT n = f32[2,32]{1,0} negate(s)", "n = f32[2,32]{1,0} negate(s)\n  ROOT k = f32[2,32]{1,0} cosine(n)")
)


def _work(text: str) -> list[Work]:
    return device_work(hlo_run.parse(text))


def _diff(one: str, two: str) -> XlaDiff:
    kinds = ("kCustomKernel", "kCustomKernel", "kCopy", "kWhile", "kFft")
    sides = make_side(kinds[:-1], 1000, _work(one)), make_side(kinds, 800, _work(two))
    return diff_sides("m", "h100", "emitters", *sides)


def test_bytes_are_those_that_are_read() -> None:
    found = {work.name: work.bytes_accessed for work in _work(ONE)}
    assert found == {"loop_fusion": 3 * 8192, "slice_fusion": 2 * 256, "copy": 2 * 8192}


def test_an_update_in_place_moves_the_update() -> None:
    text = """HloModule m
f {
  p = f32[64,32]{1,0} parameter(0)
  u = f32[1,32]{1,0} parameter(1)
  i = s32[] parameter(2)
  z = s32[] constant(0)
  ROOT d = f32[64,32]{1,0} dynamic-update-slice(p, u, i, z)
}
ENTRY e {
  p = f32[64,32]{1,0} parameter(0)
  u = f32[1,32]{1,0} parameter(1)
  i = s32[] parameter(2)
  ROOT d = f32[64,32]{1,0} fusion(p, u, i), kind=kLoop, calls=f
}
"""
    (work,) = _work(text)
    assert work.bytes_accessed == 128 + 128 + 4


def test_scratch_memory_of_a_library_call_does_not_count() -> None:
    text = """HloModule m
ENTRY e {
  p = f32[8,8]{1,0} parameter(0)
  c = (f32[8,8]{1,0}, s8[4194304]{0}) custom-call(p, p), custom_call_target="__cublas$gemm"
  ROOT g = f32[8,8]{1,0} get-tuple-element(c), index=0
}
"""
    (work,) = _work(text)
    assert (work.kind, work.bytes_accessed) == ("__cublas$gemm", 512)


def test_bodies_of_loops_count_and_control_does_not() -> None:
    text = """HloModule m
body {
  p = (s32[], f32[8]{0}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[8]{0} get-tuple-element(p), index=1
  c = f32[8]{0} copy(x)
  ROOT t = (s32[], f32[8]{0}) tuple(i, c)
}
cond {
  p = (s32[], f32[8]{0}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  ROOT l = pred[] fft(i), fft_type=FFT, fft_length={1}
}
ENTRY e {
  p = (s32[], f32[8]{0}) parameter(0)
  ROOT w = (s32[], f32[8]{0}) while(p), condition=cond, body=body
}
""".replace("fft(i), fft_type=FFT, fft_length={1}", 'custom-call(i), custom_call_target="ask"')
    assert sorted(work.name for work in _work(text)) == ["c", "l"]


def test_what_is_alike_is_found_whatever_its_names() -> None:
    diff = _diff(ONE, TWO)
    alike = [(pair.ours.name, pair.xla.name) for pair in diff.pairs if pair.alike and pair.ours and pair.xla]
    assert alike == [("loop_fusion", "other"), ("copy", "copy")]
    (different,) = diff.different
    assert different.ours is not None
    assert different.xla is not None
    assert (different.ours.contents, different.xla.contents) == ("negate, slice", "cosine, negate, slice")


def test_other_constants_and_attributes_are_not_alike() -> None:
    assert not _diff(ONE, ONE).different
    assert len(_diff(ONE, ONE.replace("[0:2]", "[1:3]")).different) == 1
    assert len(_diff(ONE, ONE.replace("exponential", "sine")).different) == 1


def test_strangers_stand_alone() -> None:
    other = """HloModule m
ENTRY e {
  p = f32[9]{0} parameter(0)
  ROOT f = c64[5]{0} fft(p), fft_type=RFFT, fft_length={9}
}
"""
    diff = _diff(ONE, other)
    assert [(pair.ours is None, pair.xla is None) for pair in diff.different] == [(False, True)] * 3 + [(True, False)]


def test_texts_and_records() -> None:
    diff = _diff(ONE, TWO)
    assert diff_text(diff).splitlines() == [
        "m for h100, compared with XLA:GPU (native emitters and libraries, no Triton)",
        "",
        "                        ours    XLA  ours/XLA",
        "kernels                    2      2     1.000",
        "copies                     1      1     1.000",
        "library calls              0      1     0.000",
        "fusions                    2      2     1.000",
        "bytes accessed         41472  41472     1.000",
        "planned memory, bytes   1000    800     1.250",
        "",
        "2 alike on both sides, 1 not",
        "",
        "ours          bytes  XLA           bytes  ours computes  XLA computes",
        "slice_fusion    512  slice_fusion    512  negate, slice  cosine, negate, slice",
    ]
    record: dict[str, Any] = diff_record(diff)
    assert record["totals"]["planned memory, bytes"] == {"ours": 1000, "xla": 800, "ratio": 1.25}
    assert [pair["alike"] for pair in record["work"]] == [True, True, False]
    assert record["work"][2]["ours"]["ops"] == {"negate f32[2,32]{1,0}": 1, "slice f32[2,32]{1,0}": 1}
