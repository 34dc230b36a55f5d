"""Several devices on Host: exchanges, waits and deadlocks, and memory per device."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pytest

from hlo_run import parse
from hlo_run.artifact import CollectiveThunk
from hlo_run.backends.exchange import world
from hlo_run.backends.exchange.team import Team, Wait, Work
from hlo_run.backends.grid import run_on_grid
from hlo_run.backends.library.arrays import Array
from hlo_run.backends.library.collectives import combine
from hlo_run.errors import DeviceError, ParseError, Unsupported
from hlo_run.hlo.graph import HloModule
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.platforms import open_backend
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments
from hlo_run.reference.compare.agreement import disagreements
from hlo_run.reference.evaluate.devices import DeviceGrid
from hlo_run.reference.evaluate.evaluate import Reference
from hlo_run.reference.random import RandomEngine
from hlo_run.reference.values import Value
from hlo_run.runtime.thunk_text import thunk_sequence_text
from hlo_run.target import DEFAULT_TARGET, preset

ADD = "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }"


def _run(module: HloModule, arguments: list[Value], times: int = 1) -> Value:
    executable = compile_module(PassContext(preset(DEFAULT_TARGET), Options(compile_processes=1)), module.clone())
    backend, grid = open_backend("Host", Options()), DeviceGrid.of(module)
    results = [run_on_grid(backend, executable, arguments, grid) for _ in range(times)]
    return results[-1]


def _agrees(text: str, times: int = 1) -> Value:
    module = parse(text)
    grid = DeviceGrid.of(module)
    engine = RandomEngine(3)
    arguments = grid.make_arguments(module, lambda: make_fake_arguments(module, engine))
    expected = grid.join(Reference(module).run(grid.split(arguments), grid.replicas, grid.partitions))
    actual = _run(module, arguments, times)
    for index, comparison in disagreements(expected, actual, grid.result_shape(module)):
        raise AssertionError(f"result {list(index)}: {comparison.report()}")
    return actual


def test_groups_of_every_mode() -> None:
    _agrees(f"""HloModule m, replica_count=2, num_partitions=2
{ADD}
min {{ a = s8[] parameter(0) b = s8[] parameter(1) ROOT r = s8[] minimum(a, b) }}
or {{ a = pred[] parameter(0) b = pred[] parameter(1) ROOT r = pred[] add(a, b) }}
ENTRY e {{
  p = f32[4,3] parameter(0)
  q = s8[6] parameter(1)
  z = s8[] constant(3)
  c = s8[6] broadcast(z), dimensions={{}}
  b = pred[6] compare(q, c), direction=GT
  a = f32[4,3] all-reduce(p), replica_groups={{{{1,0}}}}, to_apply=add
  g = f32[8,3] all-gather(p), channel_id=1, replica_groups={{{{3,0}},{{1,2}}}}, dimensions={{0}}, use_global_device_ids=true
  s = s8[6] all-reduce(q), channel_id=2, replica_groups={{}}, to_apply=min
  o = pred[6] all-reduce(b), channel_id=3, replica_groups={{{{0}},{{1}}}}, to_apply=or
  t = f32[4,3] all-to-all(p), channel_id=4, replica_groups={{{{0,1}}}}, dimensions={{0}}
  u = f32[4,3] collective-permute(p), channel_id=5, source_target_pairs={{{{0,1}}}}
  d = f32[2,3] reduce-scatter(p), channel_id=6, replica_groups=[2,2]<=[4], dimensions={{0}}, use_global_device_ids=true,
    to_apply=add
  ROOT r = (f32[4,3], f32[8,3], s8[6], pred[6], f32[4,3], f32[4,3], f32[2,3]) tuple(a, g, s, o, t, u, d)
}}""")


def test_messages_in_a_loop() -> None:
    """Arrays are passed forward and back, round by round. A device that is not a target gets zeros."""
    line, back = (
        f'frontend_attributes={{_xla_send_recv_source_target_pairs="{pairs}"}}' for pairs in ("{{0,1},{1,2}}", "{{2,0}}")
    )
    _agrees(
        f"""HloModule m, replica_count=3
cond {{
  s = (s32[], f32[4], s8[3]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(2)
  ROOT r = pred[] compare(i, n), direction=LT
}}
body {{
  s = (s32[], f32[4], s8[3]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[4] get-tuple-element(s), index=1
  q = s8[3] get-tuple-element(s), index=2
  t = token[] after-all()
  r = (f32[4], u32[], token[]) recv(t), channel_id=1, {line}
  o = (f32[4], u32[], token[]) send(x, t), channel_id=1, {line}
  od = token[] send-done(o), channel_id=1
  d = (f32[4], token[]) recv-done(r), channel_id=1, control-predecessors={{od}}
  y = f32[4] get-tuple-element(d), index=0
  c = f32[4] cosine(y)
  r2 = (s8[3], u32[], token[]) recv(t), channel_id=2, {back}
  o2 = (s8[3], u32[], token[]) send(q, t), channel_id=2, {back}
  od2 = token[] send-done(o2), channel_id=2
  d2 = (s8[3], token[]) recv-done(r2), channel_id=2, control-predecessors={{od2}}
  q2 = s8[3] get-tuple-element(d2), index=0
  one = s32[] constant(1)
  j = s32[] add(i, one)
  ROOT z = (s32[], f32[4], s8[3]) tuple(j, c, q2)
}}
ENTRY e {{
  x = f32[4] parameter(0)
  q = s8[3] parameter(1)
  i = s32[] constant(0)
  s = (s32[], f32[4], s8[3]) tuple(i, x, q)
  ROOT w = (s32[], f32[4], s8[3]) while(s), condition=cond, body=body
}}""",
        times=2,
    )


def test_slices_go_into_places_of_the_outputs() -> None:
    _agrees("""HloModule m, num_partitions=2
ENTRY e {
  x = f32[4,4] parameter(0)
  o = f32[4,4] parameter(1)
  y = s4[6] parameter(2)
  zero = s32[] constant(0)
  one = s32[] constant(1)
  three = s32[] constant(3)
  from = (s32[], s32[]) tuple(one, zero)
  to = (s32[], s32[]) tuple(zero, one)
  a = f32[4,4] collective-permute(x, o, from, to), channel_id=1, source_target_pairs={{0,1}}, slice_sizes={{2,3}}
  out = s4[6] negate(y)
  both = (f32[4,4], s4[6]) tuple(x, y)
  outs = (f32[4,4], s4[6]) tuple(o, out)
  at = (s32[]) tuple(three)
  first = (s32[]) tuple(zero)
  froms = ((s32[], s32[]), (s32[])) tuple(to, at)
  tos = ((s32[], s32[]), (s32[])) tuple(from, first)
  b = (f32[4,4], s4[6]) collective-permute(both, outs, froms, tos), channel_id=2, source_target_pairs={{0,1},{1,0}},
    slice_sizes={{2,2},{3}}
  ROOT r = (f32[4,4], (f32[4,4], s4[6])) tuple(a, b)
}""")


def test_in_a_loop_and_again() -> None:
    """The faster device must not overwrite data of one collective that the slower one has not read. Memory is per device."""
    _agrees(
        f"""HloModule m, replica_count=3
{ADD}
cond {{
  s = (s32[], f32[5]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(4)
  ROOT c = pred[] compare(i, n), direction=LT
}}
body {{
  s = (s32[], f32[5]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[5] get-tuple-element(s), index=1
  y = f32[5] all-reduce(x), replica_groups={{}}, to_apply=add
  k = u32[] replica-id()
  f = f32[] convert(k)
  b = f32[5] broadcast(f), dimensions={{}}
  z = f32[5] subtract(y, b)
  o = s32[] constant(1)
  j = s32[] add(i, o)
  ROOT t = (s32[], f32[5]) tuple(j, z)
}}
ENTRY e {{
  p = f32[5] parameter(0)
  z = s32[] constant(0)
  t = (s32[], f32[5]) tuple(z, p)
  ROOT w = (s32[], f32[5]) while(t), condition=cond, body=body
}}""",
        times=3,
    )


def test_devices_that_wait_for_ever() -> None:
    module = parse(f"""HloModule m, replica_count=2
{ADD}
meet {{ p = f32[5] parameter(0) ROOT a = f32[5] all-reduce(p), replica_groups={{}}, to_apply=add }}
pass {{ p = f32[5] parameter(0) ROOT a = f32[5] negate(p) }}
ENTRY e {{
  p = f32[5] parameter(0)
  k = u32[] replica-id()
  s = s32[] convert(k)
  ROOT c = f32[5] conditional(s, p, p), branch_computations={{meet, pass}}
}}""")
    with pytest.raises(DeviceError, match="deadlock: every device that still runs") as caught:
        _run(module, [np.ones(5, np.float32)] * 2)
    assert "of its group {0,1}, 1 did not arrive" in caught.value.notes[0]


def test_a_group_of_more_devices_than_there_are() -> None:
    module = parse(f"""HloModule m, replica_count=2
{ADD}
ENTRY e {{ p = f32[5] parameter(0) ROOT a = f32[5] all-reduce(p), replica_groups={{{{0,1}}}}, to_apply=add }}""")
    executable = compile_module(PassContext(preset(DEFAULT_TARGET), Options(compile_processes=1)), module)
    with pytest.raises(DeviceError, match="names member 1, but the run has 1"):
        open_backend("Host", Options()).run(executable, [np.ones(5, np.float32)])


@pytest.mark.parametrize(
    ("result", "collective"),
    [
        ("f32[2]", "reduce-scatter(p), dimensions={0}, to_apply=add"),
        ("f32[8]", "all-gather(p), dimensions={0}"),
        ("(f32[4], f32[4])", "all-to-all(p, p)"),
    ],
)
def test_shapes_for_more_devices_than_there_are(result: str, collective: str) -> None:
    module = parse(f"{ADD}\nENTRY e {{ p = f32[4] parameter(0) ROOT a = {result} {collective}, replica_groups={{}} }}")
    with pytest.raises(ParseError, match="not for groups of 1 devices"):
        Reference(module).run([[np.ones(4, np.float32)]], 1, 1)
    executable = compile_module(PassContext(preset(DEFAULT_TARGET), Options(compile_processes=1)), module)
    with pytest.raises(DeviceError, match="not for groups of 1 devices"):
        open_backend("Host", Options()).run(executable, [np.ones(4, np.float32)])


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("f32", "s = f32[] add(a, b) m = f32[] multiply(a, b) ROOT r = f32[] subtract(s, m)"),
        ("s32", "ROOT r = s32[] xor(a, b)"),
        ("s4", "n = s4[] not(a) ROOT r = s4[] or(n, b)"),
        ("bf16", "ROOT r = bf16[] call(b, a), to_apply=g"),
    ],
)
@pytest.mark.parametrize(
    "collective",
    [
        "ROOT r = T[4,3] all-reduce(p), replica_groups={{0,1}}, to_apply=f",
        "ROOT r = T[2,3] reduce-scatter(p), dimensions={0}, replica_groups={}, to_apply=f",
        "s = ((T[4,3]), T[2,3]) reduce-scatter-start(p), dimensions={0}, replica_groups={}, to_apply=f "
        "ROOT r = T[2,3] reduce-scatter-done(s)",
        "s = (T[4,3], T[]) all-reduce-start(p, q), replica_groups={{1,0}}, to_apply=f ROOT r = (T[4,3], T[]) all-reduce-done(s)",
    ],
)
def test_any_computation_of_two_scalars_reduces(kind: str, body: str, collective: str) -> None:
    functions = "g { a = T[] parameter(0) b = T[] parameter(1) m = T[] multiply(a, a) ROOT r = T[] subtract(b, m) }"
    functions += f"\nf {{ a = T[] parameter(0) b = T[] parameter(1) {body} }}"
    entry = f"ENTRY e {{ p = T[4,3] parameter(0) q = T[] parameter(1) {collective} }}"
    _agrees(f"HloModule m, replica_count=2\n{functions}\n{entry}".replace("T[", f"{kind}["))


def test_a_computation_of_two_scalars_of_each_array_reduces_them_together() -> None:
    reducer = """f { v = f32[] parameter(0) i = s32[] parameter(1) w = f32[] parameter(2) j = s32[] parameter(3)
    p = pred[] compare(v, w), direction=GE a = f32[] select(p, v, w) b = s32[] select(p, i, j)
    ROOT r = (f32[], s32[]) tuple(a, b) }"""
    entry = """ENTRY e { p = f32[5] parameter(0) q = s32[5] parameter(1)
    ROOT a = (f32[5], s32[5]) all-reduce(p, q), replica_groups={{1,3,0},{2}}, to_apply=f }"""
    _agrees(f"HloModule m, replica_count=4\n{reducer}\n{entry}")


def test_a_reduction_of_other_types_is_refused() -> None:
    module = parse("""HloModule m, replica_count=2
f { a = f32[] parameter(0) b = f32[] parameter(1) c = f32[] multiply(a, a) ROOT r = f32[] add(b, c) }
ENTRY e { p = s32[5] parameter(0) ROOT a = s32[5] all-reduce(p), replica_groups={}, to_apply=f }""")
    with pytest.raises(Unsupported, match="'all-reduce' with the reduction %f"):
        _run(module, [np.ones(5, np.int32)] * 2)


def test_a_token_in_the_result_is_not_divided() -> None:
    _agrees("""HloModule m, num_partitions=2
ENTRY e {
  x = f32[8] parameter(0), sharding={devices=[2]<=[2]}
  a = token[] after-all()
  c = f32[8] negate(x), sharding={devices=[2]<=[2]}
  ROOT r = (token[], f32[8]) tuple(a, c)
}""")


def test_shards_of_a_program_for_whole_arrays() -> None:
    _agrees(f"""HloModule m, num_partitions=4
{ADD}
ENTRY e {{
  x = f32[5,4] parameter(0)
  w = f32[5,4] custom-call(x), custom_call_target="Sharding", sharding={{devices=[2,1,2]<=[4] last_tile_dim_replicate}}
  s = f32[3,4] custom-call(w), custom_call_target="SPMDFullToShardShape", sharding={{manual}}
  r = f32[3,4] all-reduce(s), channel_id=7, replica_groups={{{{0,2}},{{1,3}}}}, use_global_device_ids=true, to_apply=add
  ROOT f = f32[5,4] custom-call(r), custom_call_target="SPMDShardToFullShape",
    sharding={{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}}
}}""")


def test_the_first_failure_of_a_team_is_raised() -> None:
    seen: list[int] = []
    ended: list[int] = []

    def work(number: int) -> Work[int]:
        seen.append(number)
        if number == 1:
            raise DeviceError("broken")
        try:
            yield Wait(lambda: len(seen) == 3, lambda: "never mind", tuple)
        finally:
            ended.append(number)
        return number

    with pytest.raises(DeviceError, match="broken") as caught:
        Team[int](range(3)).run([work(number) for number in range(3)])
    assert (seen, ended) == ([0, 1], [0])
    assert caught.value.notes == ("device 0: never mind",)


def test_turns_go_round_and_a_watch_stops_devices_that_run() -> None:
    turns: list[tuple[int, int]] = []

    def work(number: int) -> Work[int]:
        for turn in range(3):
            turns.append((turn, number))
            yield Wait(lambda: True, str, tuple)
        return number

    assert Team[int](range(3)).run([work(number) for number in range(3)]) == [0, 1, 2]
    assert turns == sorted(turns)

    def endless() -> Work[int]:
        while True:
            team.check()
            yield Wait(lambda: True, str, tuple)

    team = Team[int](range(2), lambda waits, turn: DeviceError(f"enough after {len(waits) + turn >= 0}"))
    with pytest.raises(DeviceError, match="enough after True"):
        team.run([endless(), endless()])


ASYNC = f"""HloModule m, is_scheduled=true, num_partitions=2
{ADD}
ENTRY e {{
  p = f32[4] parameter(0)
  s = (f32[4], f32[8]) all-gather-start(p), channel_id=1, replica_groups={{{{0,1}}}}, dimensions={{0}}, use_global_device_ids=true
  rs = f32[4] all-reduce-start(p), channel_id=2, replica_groups={{{{0,1}}}}, use_global_device_ids=true, to_apply=add
  c = f32[4] copy(p)
  rd = f32[4] all-reduce-done(rs)
  d = f32[8] all-gather-done(s)
  ROOT t = (f32[8], f32[4], f32[4]) tuple(d, c, rd)
}}"""


def test_asynchronous_collectives_take_operands_at_the_start_and_give_results_at_the_done() -> None:
    _agrees(ASYNC, times=2)


def test_asynchronous_collectives_are_computed_beside_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The all-reduce is done before anything else can run, so it is not asynchronous."""
    threads: dict[str, str] = {}

    def spy(thunk: CollectiveThunk, operands: Sequence[Sequence[Array]]) -> list[list[Array]]:
        threads[thunk.kind] = threading.current_thread().name
        return combine(thunk, operands)

    monkeypatch.setattr(world, "combine", spy)
    _agrees(ASYNC)
    assert not any(name.startswith("collective") for name in threads.values()), "they are too short"
    monkeypatch.setattr(world, "WORTH_A_THREAD_BYTES", 0)
    _agrees(ASYNC)
    assert threads["kAllGather"].startswith("collective")
    assert not threads["kAllReduce"].startswith("collective")


def test_asynchronous_thunks_are_numbered_before_what_they_run() -> None:
    executable = compile_module(PassContext(preset(DEFAULT_TARGET), Options(compile_processes=1)), parse(ASYNC))
    lines = thunk_sequence_text(executable).splitlines()
    start, done = (next(line for line in lines if word in line) for word in ("kAsyncStart", "kAsyncDone"))
    assert start.startswith("001: ")
    assert start.endswith("stream=communication_stream[0], async_id=1")
    assert lines[lines.index(start) + 1].startswith("    002: kAllGather")
    assert "async_id=" in done


def test_a_partner_that_never_starts_is_an_error_that_names_both() -> None:
    text = """HloModule m, is_scheduled=true, num_partitions=2
yes { y = f32[4] parameter(0)
  s = (f32[4], f32[8]) all-gather-start(y), channel_id=1, replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true
  c = f32[4] copy(y)
  d = f32[8] all-gather-done(s)
  ROOT z = f32[8] concatenate(c, c), dimensions={0} }
no { n = f32[4] parameter(0) ROOT z = f32[8] concatenate(n, n), dimensions={0} }
ENTRY e {
  p = f32[4] parameter(0)
  i = u32[] partition-id()
  k = s32[] convert(i)
  ROOT r = f32[8] conditional(k, p, p), branch_computations={yes, no}
}"""
    with pytest.raises(DeviceError, match="deadlock: every device that still runs") as caught:
        _run(parse(text.replace("is_scheduled=true, ", "")), [np.ones(4, np.float32)] * 2)
    assert "%s: of its group {0,1}, 1 did not arrive" in caught.value.notes[0]
