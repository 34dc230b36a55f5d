"""Which buffers instructions make and hold, as the schedulers that save memory see them."""

from __future__ import annotations

import hlo_run
from hlo_run.analysis.buffers.points_to import PointsTo, buffer_bytes
from hlo_run.analysis.buffers.schedulers import list_order
from hlo_run.hlo.graph import HloInstruction, HloModule

_LOOP = """
add { x = f32[] parameter(0)  y = f32[] parameter(1)  ROOT s = f32[] add(x, y) }
big { z = f32[] constant(0)  ROOT b = f32[1024] broadcast(z), dimensions={} }
body { s = (s32[], f32[512]) parameter(0)  i = s32[] get-tuple-element(s), index=0  x = f32[512] get-tuple-element(s), index=1
       one = s32[] constant(1)  j = s32[] add(i, one)  y = f32[512] negate(x)  ROOT t = (s32[], f32[512]) tuple(j, y) }
cond { s = (s32[], f32[512]) parameter(0)  i = s32[] get-tuple-element(s), index=0  n = s32[] constant(3)
       ROOT l = pred[] compare(i, n), direction=LT }
gather { p = f32[8] parameter(0)  ROOT r = f32[4] reduce-scatter(p), replica_groups={{0,1}}, dimensions={0}, to_apply=add }
ENTRY e {
  given = f32[512] parameter(0)
  zero = s32[] constant(0)
  first = s32[] copy(zero)
  state = (s32[], f32[512]) tuple(first, given)
  w = (s32[], f32[512]) while(state), condition=cond, body=body
  kept = f32[512] get-tuple-element(w), index=1
  f = f32[1024] fusion(), kind=kLoop, calls=big
  q = f32[8] slice(kept), slice={[0:8]}
  a = ((f32[8]), f32[4]) async-start(q), calls=gather
  d = f32[4] async-done(a)
  ROOT r = (f32[512], f32[1024], f32[4]) tuple(kept, f, d)
}
"""


def _by_name(module: HloModule) -> dict[str, HloInstruction]:
    return {i.name: i for i in module.entry.instructions}


def _sizes(instruction: HloInstruction) -> list[int]:
    assert instruction.parent is not None
    return [buffer_bytes(buffer) for buffer in PointsTo(instruction.parent).made(instruction)]


def test_a_loop_makes_its_whole_result_and_a_start_its_output() -> None:
    entry = _by_name(hlo_run.parse(_LOOP))
    assert _sizes(entry["w"]) == [16, 4, 2048]
    assert _sizes(entry["a"]) == [16, 8, 16]
    assert _sizes(entry["d"]) == _sizes(entry["kept"]) == _sizes(entry["given"]) == []


def test_a_read_of_a_tuple_uses_all_of_it() -> None:
    module = hlo_run.parse(_LOOP)
    entry, memory = _by_name(module), PointsTo(module.entry)
    assert sum(map(buffer_bytes, memory.used(entry["kept"]))) == 16 + 4 + 2048
    assert memory.used(entry["state"]) == [(entry["first"], ())]


def test_a_loop_waits_neither_for_its_inside_nor_for_a_larger_value() -> None:
    names = [i.name for i in list_order(hlo_run.parse(_LOOP).entry)]
    assert names.index("w") < names.index("f")
