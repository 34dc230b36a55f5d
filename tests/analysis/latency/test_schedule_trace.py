"""The records of the latency-hiding scheduler: times, memory, waits. The figures are those of real XLA's rules."""

from __future__ import annotations

import pytest

from hlo_run import parse
from hlo_run.analysis.buffers.alias_analysis import analyze_aliases
from hlo_run.analysis.buffers.dataflow import analyze_dataflow
from hlo_run.analysis.latency.estimator import TShirtSizes
from hlo_run.analysis.latency.latency_order import latency_order
from hlo_run.analysis.latency.memory_pressure import MemoryPressure, buffer_origins, pressure_states
from hlo_run.analysis.latency.resources import Streams
from hlo_run.analysis.latency.schedule_graph import build_graph
from hlo_run.analysis.latency.schedule_trace import ScheduleTrace, schedule_trace, traces_from_json, traces_to_json
from hlo_run.formats.protos import message_types
from hlo_run.pipeline.observers.schedule_protos import schedule_to_bytes, schedule_to_text

_GATHER = """HloModule m, is_scheduled=true, replica_count=2
c { x = f32[256] parameter(0) ROOT y = f32[256] negate(x) }
ENTRY e {
  p = f32[256] parameter(0)
  s = (f32[256], f32[512]) all-gather-start(p), replica_groups={{0,1}}, dimensions={0}
  d = f32[512] all-gather-done(s)
  f = f32[256] fusion(p), kind=kLoop, calls=c
  ROOT t = (f32[512], f32[256]) tuple(d, f)
}"""

_LOOP = """HloModule m, is_scheduled=true
cond { z = (f32[256]) parameter(0)  ROOT w = pred[] constant(false) }
body {
  z = (f32[256]) parameter(0)
  x = f32[256] get-tuple-element(z), index=0
  y = f32[256] negate(x)
  v = f32[256] multiply(x, y)
  ROOT u = (f32[256]) tuple(v)
}
ENTRY e {
  p = f32[256] parameter(0)
  n = f32[256] negate(p)
  a = f32[256] add(p, p)
  i = (f32[256]) tuple(n)
  l = (f32[256]) while(i), condition=cond, body=body
  g = f32[256] get-tuple-element(l), index=0
  ROOT r = f32[256] add(g, a)
}"""


def _trace(text: str) -> ScheduleTrace:
    module = parse(text)
    assert module.schedule is not None
    aliases = analyze_aliases(analyze_dataflow(module))
    streams, estimator = Streams(), TShirtSizes()
    nodes = build_graph(module.schedule[module.entry], estimator, streams, aliases)
    pressure = MemoryPressure(buffer_origins(aliases), 1 << 40, {})
    order = latency_order(nodes, streams.limits, pressure)
    return schedule_trace(module.entry, order, nodes, pressure, estimator)


def test_times_and_memory_of_the_new_order_and_waits_of_the_old_one() -> None:
    trace = _trace(_GATHER)
    assert [(i.name, i.start, i.end) for i in trace.instructions] == [
        ("p", 0, 0),
        ("s", 0, 1),
        ("f", 4000, 5000),
        ("d", 5000, 5001),
        ("t", 5002, 5002),
    ]
    # The done's own cycle does not count as waiting: 5000 - 1.
    assert trace.waits == {"all-gather": 4999}
    assert trace.total == 1 + 1 + 4999 + 1000
    assert trace.instructions[-1].in_use_bytes == 2048 + 1024


def test_a_loop_sees_what_is_live_behind_it() -> None:
    module = parse(_LOOP)
    states = pressure_states(buffer_origins(analyze_aliases(analyze_dataflow(module))))
    body = next(computation for computation in module.computations if computation.name == "body")
    live = {buffer.values[0].instruction.name for buffer in states[body].live_after}
    assert "a" in live
    assert states[module.entry].live_after == frozenset()


def test_json_keeps_traces() -> None:
    traces = [_trace(_GATHER)]
    assert traces_from_json(traces_to_json(traces)) == traces


def test_the_proto_as_bytes_and_as_text() -> None:
    pytest.importorskip("jaxlib")
    types = message_types("the test")
    message = types("xla.HloModuleProto")()
    computation = message.computations.add(name="e", id=3)
    for number, name in enumerate(("p", "s", "f", "d", "t")):
        computation.instructions.add(name=name, id=number)
    traces = [_trace(_GATHER)]
    module = message.SerializeToString()
    text = schedule_to_text(module, traces)
    assert text.startswith("hlo_module {\n")
    shown = text[text.index("computation_schedules {") :]
    assert shown.startswith("computation_schedules {\n  computation_id: 3\n  instructions {\n")
    assert "    id: 2\n    start_timestamp_cycles: 4000\n    end_timestamp_cycles: 5000\n" in shown
    assert "    all_gather_wasted_cycles: 4999\n    total_wasted_cycles: 4999\n    total_cycles: 6001\n" in shown
    assert shown.endswith("  cycles_per_microsecond: 1\n}\n")
    # Field 1 is the module, as in an HloProto; the rest are fields that an HloProto does not know.
    read = types("xla.HloProto").FromString(schedule_to_bytes(module, traces))
    assert read.hlo_module == message
