"""Divided infeeds and outfeeds: a device takes its tile of the array that is given, and gives its tile."""

from __future__ import annotations

import math

import numpy as np
import pytest

import hlo_run
from hlo_run.backends.tiles import leaves_of
from hlo_run.hlo.feeds import given_feeds
from hlo_run.hlo.values.shape import Shape
from hlo_run.options import CompileOptions
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.partition import partition
from hlo_run.reference.evaluate.evaluate import Reference
from hlo_run.target import DEFAULT_TARGET, preset

TILES = "{devices=[2,2]<=[4]}"
# Three times: adds an infeed, times another one, to `x`, and gives the sum.
LOOP = f"""
HloModule loop, num_partitions=4
condition {{
  s = (s32[], f32[5,3], token[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT r = pred[] compare(i, n), direction=LT
}}
body {{
  s = (s32[], f32[5,3], token[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[5,3] get-tuple-element(s), index=1
  t = token[] get-tuple-element(s), index=2
  f = ((f32[5,3], f32[]), token[]) infeed(t), sharding={{{TILES}, {{replicated}}, {{replicated}}}}
  d = (f32[5,3], f32[]) get-tuple-element(f), index=0
  v = f32[5,3] get-tuple-element(d), index=0
  w = f32[] get-tuple-element(d), index=1
  u = token[] get-tuple-element(f), index=1
  b = f32[5,3] broadcast(w), dimensions={{}}
  m = f32[5,3] multiply(v, b)
  y = f32[5,3] add(x, m)
  o = token[] outfeed(y, u), outfeed_shape=f32[5,3]{{1,0}}, sharding={TILES}
  one = s32[] constant(1)
  j = s32[] add(i, one)
  ROOT t2 = (s32[], f32[5,3], token[]) tuple(j, y, o)
}}
ENTRY e {{
  x = f32[5,3] parameter(0), sharding={TILES}
  t = token[] after-all()
  z = s32[] constant(0)
  i = (s32[], f32[5,3], token[]) tuple(z, x, t)
  w = (s32[], f32[5,3], token[]) while(i), condition=condition, body=body
  ROOT r = f32[5,3] get-tuple-element(w), index=1
}}
"""
ALONE = """
HloModule alone, num_partitions=2
ENTRY e {
  t = token[] after-all(), sharding={maximal device=1}
  i = (f32[9], token[]) infeed(t), sharding={{maximal device=1}, {maximal device=1}}
  a = f32[9] get-tuple-element(i), index=0, sharding={maximal device=1}
  u = token[] get-tuple-element(i), index=1, sharding={maximal device=1}
  o = token[] outfeed(a, u), outfeed_shape=f32[9]{0}, sharding={maximal device=0}
  ROOT n = f32[9] negate(a), sharding={replicated}
}
"""
MIXED = """
HloModule mixed, num_partitions=2
ENTRY e {
  t = token[] after-all(), sharding={maximal device=0}
  i = ((f32[9], f32[2]), token[]) infeed(t), sharding={{maximal device=0}, {maximal device=1}, {maximal device=0}}
  d = (f32[9], f32[2]) get-tuple-element(i), index=0, sharding={{maximal device=0}, {maximal device=1}}
  a = f32[9] get-tuple-element(d), index=0, sharding={maximal device=0}
  b = f32[2] get-tuple-element(d), index=1, sharding={maximal device=1}
  ROOT r = (f32[9], f32[2]) tuple(a, b), sharding={{replicated}, {replicated}}
}
"""


@pytest.mark.parametrize("text", [LOOP, ALONE, MIXED], ids=["loop", "alone", "mixed"])
def test_devices_take_what_the_whole_module_takes(text: str) -> None:
    module = hlo_run.parse(text)
    fed = [np.arange(n, n + math.prod(shape.dims), dtype=np.float32).reshape(shape.dims) for n, shape in enumerate(_fed(module))]
    arguments = [np.ones(parameter.shape.dims, np.float32) for parameter in module.entry.parameters]
    if text == LOOP:
        found = hlo_run.run(module, *arguments, platform="Host", infeed=fed)
    else:
        found = hlo_run.evaluate(module, *arguments, infeed=fed, partitioned=True)
    expected = Reference(module).run([arguments], feeds=given_feeds(fed))[0]
    count = module.num_partitions
    for one, other in zip(leaves_of(found), leaves_of((expected,) * count), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def _fed(module: hlo_run.HloModule) -> list[Shape]:
    """Return the shapes of the arrays that an infeed takes, three times."""
    infeed = next(i for i in module.instructions if i.opcode == "infeed")
    return [shape for _, shape in infeed.shape.leaves() if shape.is_array] * 3


@pytest.mark.parametrize("is_divided", [False, True])
def test_the_reference_gives_tiles(is_divided: bool) -> None:
    module = hlo_run.parse(LOOP)
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    fed = [x, np.float32(2)] * 3
    arguments = [[x]] * 4
    if is_divided:
        partition(PassContext(preset(DEFAULT_TARGET), CompileOptions()), module)
        padded = np.pad(x, ((0, 1), (0, 1)))
        arguments = [[padded[row : row + 3, column : column + 2]] for row in (0, 3) for column in (0, 2)]
    reference = Reference(module)
    reference.run(arguments, 1, 4, feeds=given_feeds(fed))
    for device, given in enumerate(reference.outfeed):
        row, column = (device // 2) * 3, (device % 2) * 2
        for number, array in enumerate(given):
            np.testing.assert_array_equal(np.asarray(array), (3 + 2 * number) * x[row : row + 3, column : column + 2])
