"""Runs that several processes share: values, messages, waits without end, and failures. The processes are threads."""

from __future__ import annotations

import itertools
import socket
import threading
from functools import cache

import numpy as np
import pytest
from clocks import TickingClock, use_clock

from hlo_run import parse
from hlo_run.artifact import Executable
from hlo_run.backends.grid import run_on_grid
from hlo_run.backends.host.backend import HostBackend
from hlo_run.backends.shared import SharedBackend, most_bytes, serve
from hlo_run.errors import DeviceError, HloRunError
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.processes.launcher import Launch
from hlo_run.processes.partners import Partners
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments
from hlo_run.reference.compare.agreement import disagreements
from hlo_run.reference.evaluate.devices import DeviceGrid
from hlo_run.reference.evaluate.evaluate import Reference
from hlo_run.reference.random import RandomEngine
from hlo_run.reference.values import Value
from hlo_run.target import DEFAULT_TARGET, preset

ADD = "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }"
MANY = f"""HloModule m, replica_count=2, num_partitions=2
{ADD}
ENTRY e {{
  p = f32[4,3] parameter(0)
  q = s4[5] parameter(1)
  a = f32[4,3] all-reduce(p), replica_groups={{{{1,0}}}}, to_apply=add
  g = f32[8,3] all-gather(a), channel_id=1, replica_groups={{{{3,0}},{{1,2}}}}, dimensions={{0}}, use_global_device_ids=true
  t = f32[4,3] all-to-all(p), channel_id=4, replica_groups={{{{0,1}}}}, dimensions={{0}}
  u = s4[5] collective-permute(q), channel_id=5, source_target_pairs={{{{0,1}}}}
  v = f32[4,3] collective-permute(t), source_target_pairs={{{{0,1}},{{1,0}}}}
  b = f32[4,3] collective-broadcast(p), channel_id=7, replica_groups={{{{1,0}}}}
  d = f32[2,3] reduce-scatter(p), channel_id=6, replica_groups=[2,2]<=[4], dimensions={{0}}, use_global_device_ids=true,
    to_apply=add
  ROOT r = (f32[8,3], s4[5], f32[4,3], f32[4,3], f32[2,3]) tuple(g, u, v, b, d)
}}"""
PAIRS = 'frontend_attributes={_xla_send_recv_source_target_pairs="{{0,1},{1,2},{2,3}}"}'
MESSAGES = f"""HloModule m, replica_count=4
ENTRY e {{
  x = f32[4] parameter(0)
  t = token[] after-all()
  r = (f32[4], u32[], token[]) recv(t), channel_id=1, {PAIRS}
  o = (f32[4], u32[], token[]) send(x, t), channel_id=1, {PAIRS}
  od = token[] send-done(o), channel_id=1
  d = (f32[4], token[]) recv-done(r), channel_id=1, control-predecessors={{od}}
  ROOT y = f32[4] get-tuple-element(d), index=0
}}"""
ONE_SKIPS = f"""HloModule m, replica_count=2
{ADD}
yes {{ y = f32[4] parameter(0) ROOT s = f32[4] all-reduce(y), replica_groups={{{{0,1}}}}, to_apply=add }}
no {{ ROOT n = f32[4] parameter(0) }}
ENTRY e {{
  p = f32[4] parameter(0)
  i = u32[] replica-id()
  k = s32[] convert(i)
  ROOT r = f32[4] conditional(k, p, p), branch_computations={{yes, no}}
}}"""
ONE_LOOPS = f"""HloModule m, replica_count=2
{ADD}
body {{ t = (f32[4], pred[]) parameter(0)
  x = f32[4] get-tuple-element(t), index=0
  c = pred[] get-tuple-element(t), index=1
  y = f32[4] cosine(x)
  ROOT o = (f32[4], pred[]) tuple(y, c) }}
cond {{ t = (f32[4], pred[]) parameter(0) ROOT c = pred[] get-tuple-element(t), index=1 }}
ENTRY e {{
  p = f32[4] parameter(0)
  i = u32[] replica-id()
  one = u32[] constant(1)
  k = pred[] compare(i, one), direction=EQ
  t = (f32[4], pred[]) tuple(p, k)
  w = (f32[4], pred[]) while(t), condition=cond, body=body
  v = f32[4] get-tuple-element(w), index=0
  ROOT s = f32[4] all-reduce(v), replica_groups={{{{0,1}}}}, to_apply=add
}}"""


@cache
def _compiled(text: str) -> Executable:
    return compile_module(PassContext(preset(DEFAULT_TARGET), Options(compile_processes=1)), parse(text))


def _connections(count: int) -> list[dict[int, socket.socket]]:
    """Return what `meet` would return in each of `count` processes."""
    found: list[dict[int, socket.socket]] = [{} for _ in range(count)]
    for one, other in itertools.combinations(range(count), 2):
        found[one][other], found[other][one] = socket.socketpair()
    return found


def _shared(text: str, arguments: list[Value], count: int, times: int = 1, wait_seconds: float = 600) -> list[Value]:
    """Run in `count` processes and return the results of each run; raises the error of process 0."""
    executable, grid = _compiled(text), DeviceGrid.of(parse(text))
    failures: dict[int, HloRunError] = {}
    results: list[Value] = []

    def process(number: int, connections: dict[int, socket.socket]) -> None:
        partners = Partners(Launch(count, number), connections, most_bytes(executable, grid.size), 600)
        backend = HostBackend(wait_seconds=wait_seconds)
        try:
            if number:
                serve(backend, executable, partners, grid.size)
            else:
                shared = SharedBackend(backend, partners, grid.size)
                results.extend(run_on_grid(shared, executable, arguments, grid) for _ in range(times))
        except HloRunError as error:
            failures[number] = error
        partners.close(failures.get(number))

    threads = [threading.Thread(target=process, args=pair, daemon=True) for pair in enumerate(_connections(count))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures.keys() in (set(), set(range(count))), "an error ends all processes"
    if failures:
        raise failures[0]
    return results


@pytest.mark.parametrize(("text", "count"), [(MANY, 2), (MANY, 4), (MESSAGES, 2)])
def test_shared_runs_agree_with_the_reference(text: str, count: int) -> None:
    module = parse(text)
    grid = DeviceGrid.of(module)
    engine = RandomEngine(3)
    arguments = grid.make_arguments(module, lambda: make_fake_arguments(module, engine))
    expected = grid.join(Reference(module).run(grid.split(arguments), grid.replicas, grid.partitions))
    for actual in _shared(text, arguments, count, times=2):
        assert not list(disagreements(expected, actual, grid.result_shape(module)))


def test_a_device_of_another_process_that_does_not_arrive_is_named() -> None:
    with pytest.raises(DeviceError, match="device 0 waits for device 1, which did not arrive") as caught:
        _shared(ONE_SKIPS, [np.ones(4, np.float32)] * 2, 2, wait_seconds=0.3)
    assert "of its group {0,1}, 1 did not arrive" in caught.value.notes[0]


def test_a_device_of_the_same_process_that_does_not_arrive_is_named() -> None:
    module = parse(ONE_LOOPS)
    backend = HostBackend(wait_seconds=0.3)
    with pytest.raises(DeviceError, match="device 0 waits for device 1, which did not arrive") as caught:
        run_on_grid(backend, _compiled(ONE_LOOPS), [np.ones(4, np.float32)] * 2, DeviceGrid.of(module))
    assert "device 0: %s.1-fusion.1: of its group {0,1}, 1 did not arrive" in caught.value.notes[0]


def test_a_time_limit_says_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    module = parse(ONE_LOOPS)
    use_clock(monkeypatch, TickingClock(), "backends.host.backend", "backends.host.machine", "backends.host.emulator.emulator")
    backend = HostBackend(timeout_seconds=200, engine="emulator")
    with pytest.raises(DeviceError, match="time") as caught:
        run_on_grid(backend, _compiled(ONE_LOOPS), [np.ones(4, np.float32)] * 2, DeviceGrid.of(module))
    assert "of its group {0,1}, 1 did not arrive" in caught.value.notes[-1]
