"""The order of the latency-hiding scheduler: streams, stalls, hints, and little memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hlo_run import parse
from hlo_run.analysis.buffers.alias_analysis import analyze_aliases
from hlo_run.analysis.buffers.dataflow import analyze_dataflow
from hlo_run.analysis.latency.early_and_late import early_and_late
from hlo_run.analysis.latency.estimator import TShirtSizes
from hlo_run.analysis.latency.latency_order import latency_order
from hlo_run.analysis.latency.memory_pressure import MemoryPressure, buffer_origins
from hlo_run.analysis.latency.resources import Streams
from hlo_run.analysis.latency.schedule_graph import build_graph

_TWO = """HloModule m, is_scheduled=true, replica_count=2
c { x = f32[256] parameter(0) ROOT y = f32[256] negate(x) }
h { x = f32[256] parameter(0) ROOT y = f32[256] negate(x) }
ENTRY e {
  p = f32[256] parameter(0)
  q = f32[256] parameter(1)
  v = (f32[256], f32[512]) all-gather-start(p), replica_groups={{0,1}}, dimensions={0}
  vd = f32[512] all-gather-done(v)
  w = (f32[256], f32[512]) all-gather-start(q), replica_groups={{0,1}}, dimensions={0}
  wd = f32[512] all-gather-done(w)
  f = f32[256] fusion(p), kind=kLoop, calls=c
  g = f32[256] fusion(q), kind=kLoop, calls=h
  ROOT t = (f32[512], f32[512], f32[256], f32[256]) tuple(vd, wd, f, g)
}"""


def _order(text: str, collectives: int = 1, limit_bytes: int | None = None, starts_early: bool = False) -> list[str]:
    module = parse(text)
    assert module.schedule is not None
    aliases = analyze_aliases(analyze_dataflow(module))
    streams = Streams(collectives)
    nodes = build_graph(module.schedule[module.entry], TShirtSizes(), streams, aliases)
    pressure = MemoryPressure(buffer_origins(aliases), limit_bytes, {}) if limit_bytes is not None else None
    return [instruction.name for instruction in latency_order(nodes, streams.limits, pressure, starts_early)]


def test_one_collective_is_in_flight_and_kernels_hide_it() -> None:
    order = _order(_TWO)
    places = [order.index(name) for name in ("v", "vd", "w", "wd")]
    assert places == sorted(places)
    spans = [(order.index("v"), order.index("vd")), (order.index("w"), order.index("wd"))]
    inside = [name for name in "fg" if any(begin < order.index(name) < end for begin, end in spans)]
    assert inside == ["f", "g"]


def test_two_collectives_may_be_in_flight() -> None:
    order = _order(_TWO, collectives=2)
    assert max(order.index("v"), order.index("w")) < min(order.index("vd"), order.index("wd"))


def test_starts_may_come_before_all_other_work() -> None:
    order = _order(_TWO, collectives=2, starts_early=True)
    assert max(order.index("v"), order.index("w")) < min(order.index("f"), order.index("g"))


def test_with_little_memory_results_live_shortly() -> None:
    plenty, little = _order(_TWO), _order(_TWO, limit_bytes=4096)
    assert sorted(plenty) == sorted(little)
    assert plenty != little


def test_a_loop_with_a_collective_waits_for_the_stream() -> None:
    order = _order("""HloModule m, is_scheduled=true, replica_count=2
body {
  s = (f32[4]) parameter(0)
  x = f32[4] get-tuple-element(s), index=0
  b = (f32[4], f32[4]) collective-permute-start(x), source_target_pairs={{0,1},{1,0}}
  d = f32[4] collective-permute-done(b)
  ROOT r = (f32[4]) tuple(d)
}
cond { s = (f32[4]) parameter(0) ROOT f = pred[] constant(false) }
ENTRY e {
  p = f32[4] parameter(0)
  a = (f32[4], f32[4]) collective-permute-start(p), source_target_pairs={{0,1},{1,0}}
  k = f32[4] collective-permute-done(a)
  i = (f32[4]) tuple(p)
  w = (f32[4]) while(i), condition=cond, body=body
  o = f32[4] get-tuple-element(w), index=0
  ROOT t = (f32[4], f32[4]) tuple(k, o)
}""")
    assert not order.index("a") < order.index("w") < order.index("k")


def test_without_the_scheduler_a_start_is_early_and_a_done_late() -> None:
    module = parse(_TWO)
    assert module.schedule is not None
    order = [instruction.name for instruction in early_and_late(module.entry, module.schedule[module.entry])]
    assert order.index("v") == order.index("p") + 1
    assert order.index("w") == order.index("q") + 1
    assert {order.index("vd"), order.index("wd")} == {len(order) - 3, len(order) - 2}


def _grouped(text: str, groups: Mapping[Any, str]) -> str:
    """Return the module with the instructions in scheduling groups."""
    for name, attributes in groups.items():
        line = next(line for line in text.splitlines() if line.startswith(f"  {name} = "))
        text = text.replace(line, f"{line}, frontend_attributes={{{attributes}}}")
    return text


def test_a_group_is_scheduled_together() -> None:
    one = dict.fromkeys(("v", "vd", "f", "g"), '_scheduling_group_id="3"')
    order = _order(_grouped(_TWO, one))
    first = order.index("v")
    assert set(order[first + 1 : first + 3]) == {"f", "g"}
    assert order[first + 3] == "vd"


def test_two_groups_do_not_mix() -> None:
    groups = dict.fromkeys(("v", "vd", "g"), '_scheduling_group_id="3"') | dict.fromkeys(
        ("w", "wd", "f"), '_scheduling_group_id="4"'
    )
    order = _order(_grouped(_TWO, groups), collectives=2)
    assert order[order.index("v") :][:3] == ["v", "g", "vd"]
    assert order[order.index("w") :][:3] == ["w", "f", "wd"]


def test_a_group_may_keep_its_order() -> None:
    kept = '_scheduling_group_id="3",keep_original_sequence_order_in_group="true"'
    order = _order(_grouped(_TWO, dict.fromkeys(("v", "vd", "f", "g"), kept)))
    assert order[order.index("v") :][:4] == ["v", "vd", "f", "g"]


def test_a_start_whose_done_is_outside_waits_for_it() -> None:
    order = _order(_grouped(_TWO, dict.fromkeys(("v", "g"), '_scheduling_group_id="3"')))
    assert sorted(order) == sorted(_order(_TWO))
    assert order.index("v") < order.index("g") < order.index("vd")


_UPDATE = """HloModule m, is_scheduled=true
slice { x = f32[4,8] parameter(0) i = s32[] parameter(1) z = s32[] constant(0)
  ROOT s = f32[1,8] dynamic-slice(x, i, z), dynamic_slice_sizes={1,8} }
slices { x = f32[4,8] parameter(0) i = s32[] parameter(1) ROOT f = f32[1,8] fusion(x, i), kind=kLoop, calls=slice }
put { x = f32[4,8]{1,0S} parameter(0) y = f32[1,8] parameter(1) i = s32[] parameter(2) z = s32[] constant(0)
  ROOT u = f32[4,8]{1,0S} dynamic-update-slice(x, y, i, z) }
puts { x = f32[4,8]{1,0S} parameter(0) y = f32[1,8] parameter(1) i = s32[] parameter(2)
  ROOT f = f32[4,8]{1,0S} fusion(x, y, i), kind=kLoop, calls=put }
c { x = f32[1,8] parameter(0) ROOT y = f32[1,8] negate(x) }
ENTRY e {
  x = f32[4,8] parameter(0)
  y = f32[1,8] parameter(1)
  i = s32[] parameter(2)
  h = f32[4,8]{1,0S} parameter(3)
  first = ((f32[4,8], s32[]), f32[1,8], u32[]) async-start(x, i), calls=slices
  sd = f32[1,8] async-done(first)
  n = f32[1,8] fusion(sd), kind=kLoop, calls=c
  other = ((f32[4,8]{1,0S}, f32[1,8], s32[]), f32[4,8]{1,0S}, u32[]) async-start(h, y, i), calls=puts
  ud = f32[4,8]{1,0S} async-done(other)
  ROOT t = (f32[4,8]{1,0S}, f32[1,8]) tuple(ud, n)
}"""


def test_the_start_of_an_update_of_host_memory_is_early() -> None:
    here, on_host = (_order(_UPDATE.replace("0S", space)) for space in ("0", "0:S(5)"))
    assert here.index("first") < here.index("other")
    assert on_host.index("other") < on_host.index("first")


_SYNC = """HloModule m, is_scheduled=true, replica_count=2
gather { x = f32[256] parameter(0) ROOT y = f32[512] all-gather(x), replica_groups={{0,1}}, dimensions={0} }
c { z = f32[256] parameter(0) ROOT n = f32[256] negate(z) }
ENTRY e {
  p = f32[256] parameter(0)
  q = f32[256] parameter(1)
  f = f32[256] fusion(q), kind=kLoop, calls=c
  start = ((f32[256]), f32[512]) async-start(p), calls=gather, backend_config={"collective_backend_config":{"is_sync":MARK}}
  done = f32[512] async-done(start)
  ROOT t = (f32[256], f32[512]) tuple(f, done)
}"""


def test_a_wrapped_synchronous_collective_keeps_its_place() -> None:
    def early(is_sync: str) -> bool:
        module = parse(_SYNC.replace("MARK", is_sync))
        assert module.schedule is not None
        order = [instruction.name for instruction in early_and_late(module.entry, module.schedule[module.entry])]
        return order.index("start") < order.index("f")

    assert early("false")
    assert not early("true")
