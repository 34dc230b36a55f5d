"""Infeeds get given or random arrays, the same on a platform and its reference. The values of outfeeds are compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hlo_run
from hlo_run.cli import run
from hlo_run.errors import DeviceError, UsageError
from hlo_run.reference.arguments.fake_arguments import random_feeds

# Adds up `n` infeeds, and hands out every partial sum.
LOOP = """
HloModule sums
condition {
  s = (s32[], f32[3], s32[], token[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=2
  ROOT r = pred[] compare(i, n), direction=LT
}
body {
  s = (s32[], f32[3], s32[], token[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[3] get-tuple-element(s), index=1
  n = s32[] get-tuple-element(s), index=2
  t = token[] get-tuple-element(s), index=3
  f = ((f32[3], f32[]), token[]) infeed(t)
  d = (f32[3], f32[]) get-tuple-element(f), index=0
  v = f32[3] get-tuple-element(d), index=0
  w = f32[] get-tuple-element(d), index=1
  u = token[] get-tuple-element(f), index=1
  b = f32[3] broadcast(w), dimensions={}
  m = f32[3] multiply(v, b)
  y = f32[3] add(x, m)
  o = token[] outfeed(y, u), outfeed_shape=f32[3]{0}
  one = s32[] constant(1)
  j = s32[] add(i, one)
  ROOT t2 = (s32[], f32[3], s32[], token[]) tuple(j, y, n, o)
}
ENTRY e {
  n = s32[] parameter(0)
  x = f32[3] parameter(1)
  t = token[] after-all()
  z = s32[] constant(0)
  i = (s32[], f32[3], s32[], token[]) tuple(z, x, n, t)
  w = (s32[], f32[3], s32[], token[]) while(i), condition=condition, body=body
  ROOT r = f32[3] get-tuple-element(w), index=1
}
"""


@pytest.mark.parametrize("platform", ["Host", "Interpreter"])
def test_infeeds_take_what_is_given_in_order(platform: str) -> None:
    random = np.random.default_rng(1)
    x = random.normal(size=3).astype(np.float32)
    fed = [random.normal(size=(3,) if k % 2 == 0 else ()).astype(np.float32) for k in range(8)]
    result = hlo_run.run(hlo_run.parse(LOOP), np.int32(3), x, platform=platform, infeed=fed)
    wanted = x + fed[0] * fed[1] + fed[2] * fed[3] + fed[4] * fed[5]
    np.testing.assert_allclose(np.asarray(result), wanted, rtol=1e-6)


@pytest.mark.parametrize("platform", ["Host", "Interpreter"])
def test_too_few_and_wrong_arrays_are_said(platform: str) -> None:
    module, arguments = hlo_run.parse(LOOP), (np.int32(2), np.zeros(3, np.float32))
    with pytest.raises(DeviceError, match="needs another array: the caller gives only 2 arrays"):
        hlo_run.run(module, *arguments, platform=platform, infeed=[np.ones(3, np.float32), np.float32(1)])
    with pytest.raises(UsageError, match=r"'infeed' takes f32\[3\], array 0 of the caller is float32\[4\]"):
        hlo_run.run(module, *arguments, platform=platform, infeed=[np.ones(4, np.float32)])


def test_random_feeds_repeat_and_differ_by_device() -> None:
    first, again = random_feeds(1)(0), random_feeds(1)(0)
    one = first("f32", (4,))
    np.testing.assert_array_equal(one, again("f32", (4,)))
    assert not np.array_equal(one, first("f32", (4,)))
    assert not np.array_equal(one, random_feeds(1)(1)("f32", (4,)))
    assert not np.array_equal(one, random_feeds(2)(0)("f32", (4,)))


def test_command_line_feeds_and_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sums.hlo").write_text(LOOP, encoding="utf-8")
    values = np.array([1, 2, 4], np.float32)
    np.savez(tmp_path / "in.npz", arg0=np.int32(2), arg1=np.zeros(3, np.float32))
    np.savez(tmp_path / "feed.npz", infeed0=values, infeed1=np.float32(2), infeed2=values, infeed3=np.float32(3))
    flags = ["--platform=Host", "--print_literals", f"--inputs={tmp_path}/in.npz", f"--infeed={tmp_path}/feed.npz"]
    assert run([*flags, str(tmp_path / "sums.hlo")]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("f32[3] {5, 10, 20}") == 4  # the result and the last outfeed, of both platforms
    assert printed.out.count("f32[3] {2, 4, 8}") == 2  # the first outfeed
    assert "9 elements agree" in printed.err
