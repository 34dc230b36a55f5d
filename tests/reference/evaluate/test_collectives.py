"""Collectives over simulated devices compared with closed forms; groups of devices; deadlocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from reference_running import Array, assert_same

import hlo_run
from hlo_run.errors import DeviceError, ParseError, Unsupported
from hlo_run.reference.evaluate.evaluate import Reference
from hlo_run.reference.values import Value

ADD = """
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b) }
"""


def run(text: str, arguments: Sequence[Sequence[Value]], replicas: int = 1, partitions: int = 1, head: str = "") -> list[Any]:
    """Return each device's result of a module whose entry has this body; `head` holds other computations."""
    module = hlo_run.parse("HloModule m\n" + head + "\nENTRY e {\n" + text + "\n}", "m.hlo")
    return Reference(module).run(arguments, replicas, partitions)


def per_device(count: int, *dims: int, dtype: type = np.float32) -> list[Array]:
    """Return one array of distinct integers per device, whose sums are exact."""
    return [(np.arange(np.prod(dims)).reshape(dims) + 1 + 100 * device).astype(dtype) for device in range(count)]


def total(arrays: Sequence[Array]) -> Array:
    """Return the sum of arrays of small whole numbers, which is exact."""
    return np.add.reduce(list(arrays))


def assert_each(found: Sequence[Any], expected: Sequence[Array]) -> None:
    assert len(found) == len(expected)
    for mine, wanted in zip(found, expected, strict=True):
        assert_same(mine, wanted)


GROUPS = [
    # attributes, replicas, partitions, groups of device numbers
    ("replica_groups={}", 4, 1, [(0, 1, 2, 3)]),
    ("replica_groups={{0,2},{1,3}}", 4, 1, [(0, 2), (1, 3)]),
    ("replica_groups={{0,1}}", 2, 2, [(0, 2), (1, 3)]),
    ("channel_id=1, replica_groups={{0},{1}}", 2, 2, [(0, 1), (2, 3)]),
    ("channel_id=1, replica_groups={{0,1}}", 2, 2, [(0, 1, 2, 3)]),
    ("channel_id=1, replica_groups={}", 2, 3, [(0, 1, 2, 3, 4, 5)]),
    ("channel_id=1, replica_groups={{0,3},{1,2}}, use_global_device_ids=true", 2, 2, [(0, 3), (1, 2)]),
    ("channel_id=1, replica_groups=[2,2]<=[2,2]T(1,0), use_global_device_ids=true", 1, 4, [(0, 2), (1, 3)]),
    ("channel_id=1, replica_groups=mesh['x'=2,'y'=2] {'x'}, use_global_device_ids=true", 1, 4, [(0, 2), (1, 3)]),
]


@pytest.mark.parametrize(("attributes", "replicas", "partitions", "groups"), GROUPS)
def test_all_reduce_adds_over_the_group(attributes: str, replicas: int, partitions: int, groups: list[tuple[int, ...]]) -> None:
    data = per_device(replicas * partitions, 2, 3)
    body = f"x = f32[2,3] parameter(0)\nROOT r = f32[2,3] all-reduce(x), {attributes}, to_apply=add"
    found = run(body, [[x] for x in data], replicas, partitions, ADD)
    expected = {device: total([data[m] for m in group]) for group in groups for device in group}
    assert_each(found, [expected[device] for device in range(len(data))])


def test_the_order_of_a_group_is_the_order_of_the_gathered_parts() -> None:
    data = per_device(4, 2, 1)
    attributes = "channel_id=1, replica_groups={{3,0},{1,2}}, use_global_device_ids=true, dimensions={1}"
    found = run(f"x = f32[2,1] parameter(0)\nROOT r = f32[2,2] all-gather(x), {attributes}", [[x] for x in data], 1, 4)
    first, second = np.hstack([data[3], data[0]]), np.hstack([data[1], data[2]])
    assert_each(found, [first, second, second, first])


def test_all_reduce_with_any_reducer_and_several_operands() -> None:
    head = """
worst { a = s32[] parameter(0)
  b = s32[] parameter(1)
  m = s32[] maximum(a, b)
  one = s32[] constant(1)
  ROOT r = s32[] add(m, one) }"""
    xs, ys = per_device(3, 4, dtype=np.int32), per_device(3, 2, 2, dtype=np.int32)[::-1]
    body = """x = s32[4] parameter(0)
    y = s32[2,2] parameter(1)
    ROOT r = (s32[4], s32[2,2]) all-reduce(x, y), replica_groups={}, to_apply=worst"""
    found = run(body, [[x, y] for x, y in zip(xs, ys, strict=True)], 3, 1, head)
    for result in found:
        assert_same(result[0], np.maximum.reduce([np.maximum(xs[0], xs[1]) + 1, xs[2]]) + 1)
        assert_same(result[1], np.maximum(np.maximum(ys[0], ys[1]) + 1, ys[2]) + 1)


def test_a_narrow_sum_rounds_once() -> None:
    data = [np.array([v], np.float16) for v in (2048, 1, 1, 1)]
    head = ADD.replace("f32", "f16")
    body = "x = f16[1] parameter(0)\nROOT r = f16[1] all-reduce(x), replica_groups={}, to_apply=add"
    assert_each(run(body, [[x] for x in data], 4, 1, head), [np.array([2052], np.float16)] * 4)


def test_reduce_scatter_keeps_the_own_piece() -> None:
    data = per_device(3, 2, 6)
    body = (
        "x = f32[2,6] parameter(0)\nROOT r = f32[2,2] reduce-scatter(x), replica_groups={{2,0,1}}, dimensions={1}, to_apply=add"
    )
    whole = total(data)
    found = run(body, [[x] for x in data], 3, 1, ADD)
    assert_each(found, [whole[:, 2:4], whole[:, 4:6], whole[:, 0:2]])


def test_all_to_all_of_a_dimension() -> None:
    data = per_device(2, 4, 3)
    body = "x = f32[4,3] parameter(0)\nROOT r = f32[4,3] all-to-all(x), channel_id=1, replica_groups={{0,1}}, dimensions={0}"
    expected = [np.vstack([data[0][2 * k : 2 * k + 2], data[1][2 * k : 2 * k + 2]]) for k in range(2)]
    assert_each(run(body, [[x] for x in data], 1, 2), expected)


def test_all_to_all_of_operands() -> None:
    xs, ys = per_device(2, 3), [10 * x for x in per_device(2, 3)]
    body = """x = f32[3] parameter(0)
    y = f32[3] parameter(1)
    ROOT r = (f32[3], f32[3]) all-to-all(x, y), replica_groups={{1,0}}"""
    found = run(body, [[x, y] for x, y in zip(xs, ys, strict=True)], 2)
    assert_each(found[1], [xs[1], xs[0]])
    assert_each(found[0], [ys[1], ys[0]])


def test_collective_permute_leaves_zeros_where_nobody_sends() -> None:
    data = per_device(3, 2)
    body = "x = f32[2] parameter(0)\nROOT r = f32[2] collective-permute(x), channel_id=1, source_target_pairs={{0,1},{1,2}}"
    assert_each(run(body, [[x] for x in data], 1, 3), [np.zeros(2, np.float32), data[0], data[1]])


def test_collective_permute_of_replicas_stays_within_a_partition() -> None:
    data = per_device(4, 2)
    body = "x = f32[2] parameter(0)\nROOT r = f32[2] collective-permute(x), source_target_pairs={{0,1},{1,0}}"
    assert_each(run(body, [[x] for x in data], 2, 2), [data[2], data[3], data[0], data[1]])


def test_collective_permute_of_several_operands() -> None:
    xs, ys = per_device(2, 2), per_device(2, 3, dtype=np.int32)
    body = """x = f32[2] parameter(0)
    y = s32[3] parameter(1)
    ROOT r = (f32[2], s32[3]) collective-permute(x, y), source_target_pairs={{0,1},{1,0}}"""
    found = run(body, [[x, y] for x, y in zip(xs, ys, strict=True)], 2)
    assert_each(found[0], [xs[1], ys[1]])
    assert_each(found[1], [xs[0], ys[0]])


def test_collective_permute_into_a_place_of_the_output() -> None:
    data, outputs = per_device(2, 4, 4), [-x for x in per_device(2, 4, 4)]
    body = """x = f32[4,4] parameter(0)
    o = f32[4,4] parameter(1)
    zero = s32[] constant(0)
    one = s32[] constant(1)
    from = (s32[], s32[]) tuple(one, zero)
    to = (s32[], s32[]) tuple(zero, one)
    ROOT r = f32[4,4] collective-permute(x, o, from, to), channel_id=1, source_target_pairs={{0,1}}, slice_sizes={{2,3}}"""
    found = run(body, [[x, o] for x, o in zip(data, outputs, strict=True)], 1, 2)
    expected = outputs[1].copy()
    expected[0:2, 1:4] = data[0][1:3, 0:3]
    assert_each(found, [outputs[0], expected])


def test_collective_broadcast_takes_the_first_and_zeros_outside() -> None:
    data = per_device(3, 2)
    body = "x = f32[2] parameter(0)\nROOT r = f32[2] collective-broadcast(x), replica_groups={{2,0}}, has_dynamic_root=false"
    assert_each(run(body, [[x] for x in data], 3), [data[2], np.zeros(2, np.float32), data[2]])


def test_ragged_all_to_all_writes_where_the_sender_says() -> None:
    data, outputs = per_device(2, 6), [np.full(6, -1, np.float32)] * 2
    starts, sizes = [[0, 2], [0, 4]], [[2, 3], [4, 1]]
    places = [[0, 0], [2, 3]]
    body = """x = f32[6] parameter(0)
    o = f32[6] parameter(1)
    starts = s64[2] parameter(2)
    sizes = s64[2] parameter(3)
    places = s64[2] parameter(4)
    got = s64[2] parameter(5)
    ROOT r = f32[6] ragged-all-to-all(x, o, starts, sizes, places, got), replica_groups={{0,1}}"""
    received = np.array(sizes).T
    rows = [[np.array(v, np.int64) for v in (starts[k], sizes[k], places[k], received[k])] for k in range(2)]
    found = run(body, [[data[k], outputs[k], *rows[k]] for k in range(2)], 2)
    assert_each(
        found,
        [
            np.array([*data[0][0:2], *data[1][0:4]], np.float32),
            np.array([*data[0][2:5], data[1][4], -1, -1], np.float32),
        ],
    )


def test_pairs_of_start_and_done() -> None:
    data = per_device(2, 3)
    body = """x = f32[3] parameter(0)
    rs = f32[3] all-reduce-start(x), replica_groups={}, to_apply=add
    gs = (f32[3], f32[6]) all-gather-start(x), replica_groups={}, dimensions={0}
    ps = (f32[3], f32[3], u32[], u32[]) collective-permute-start(x), source_target_pairs={{0,1},{1,0}}
    r = f32[3] all-reduce-done(rs)
    g = f32[6] all-gather-done(gs)
    p = f32[3] collective-permute-done(ps)
    ROOT t = (f32[3], f32[6], f32[3]) tuple(r, g, p)"""
    found = run(body, [[x] for x in data], 2, 1, ADD)
    for device, result in enumerate(found):
        assert_each(result, [data[0] + data[1], np.concatenate(data), data[1 - device]])


def test_gathering_several_operands_asynchronously() -> None:
    xs, ys = per_device(2, 1), per_device(2, 2, 1, dtype=np.int32)
    body = """x = f32[1] parameter(0)
    y = s32[2,1] parameter(1)
    s = ((f32[1], s32[2,1]), (f32[2], s32[4,1])) all-gather-start(x, y), replica_groups={}, dimensions={0}
    ROOT d = (f32[2], s32[4,1]) all-gather-done(s)"""
    for result in run(body, [[x, y] for x, y in zip(xs, ys, strict=True)], 2):
        assert_each(result, [np.concatenate(xs), np.concatenate(ys)])


def test_a_wrapped_collective() -> None:
    data = per_device(2, 4)
    head = """
wrapped { x = f32[4] parameter(0)
  ROOT r = f32[4] all-to-all(x), replica_groups={{0,1}}, dimensions={0} }"""
    body = """x = f32[4] parameter(0)
    s = ((f32[4]), f32[4], u32[]) async-start(x), calls=wrapped
    u = ((f32[4]), f32[4], u32[]) async-update(s)
    ROOT d = f32[4] async-done(u)"""
    found = run(body, [[x] for x in data], 2, 1, head)
    assert_each(found, [np.concatenate([x[2 * k : 2 * k + 2] for x in data]) for k in range(2)])


def test_ids() -> None:
    body = """r = u32[] replica-id()
    p = u32[] partition-id()
    ROOT t = (u32[], u32[]) tuple(r, p)"""
    nothing: list[list[Value]] = [[]] * 6
    found = run(body, nothing, 2, 3)
    assert [(int(r), int(p)) for r, p in found] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


COUNT = """
more { p = (s32[], f32[]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT }
step { p = (s32[], f32[]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[] get-tuple-element(p), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[] all-reduce(x), replica_groups={}, to_apply=add
  ROOT t = (s32[], f32[]) tuple(j, y) }
"""
LOOP = """i = s32[] parameter(0)
x = f32[] parameter(1)
t = (s32[], f32[]) tuple(i, x)
w = (s32[], f32[]) while(t), condition=more, body=step
ROOT r = f32[] get-tuple-element(w), index=1"""


def _counts(*counts: int) -> list[list[Array]]:
    return [[np.array(count, np.int32), np.array(device + 1, np.float32)] for device, count in enumerate(counts)]


def test_devices_meet_in_every_round_of_a_loop() -> None:
    found = run(LOOP, _counts(0, 0), 2, 1, ADD + COUNT)
    assert [float(x) for x in found] == [12, 12]


def test_devices_that_make_fewer_rounds_leave_the_others_waiting() -> None:
    with pytest.raises(DeviceError) as caught:
        run(LOOP, _counts(0, 2), 2, 1, ADD + COUNT)
    error = caught.value
    assert "deadlock" in error.message
    assert error.where is not None
    assert "all-reduce" in error.where.source_line
    assert error.notes == ("device 0 waits at %y: in its group {0,1}, device 1 did not arrive",)


def test_branches_meet_on_one_channel() -> None:
    head = """
one { x = f32[2] parameter(0)
  ROOT r = f32[2] all-gather(x), channel_id=7, replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true }
two { x = f32[2] parameter(0)
  n = f32[2] negate(x)
  ROOT r = f32[2] all-gather(n), channel_id=7, replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true }
""".replace("ROOT r = f32[2]", "ROOT r = f32[4]")
    body = """c = s32[] parameter(0)
    x = f32[2] parameter(1)
    ROOT r = f32[4] conditional(c, x, x), branch_computations={one, two}"""
    data = per_device(2, 2)
    found = run(body, [[np.array(k, np.int32), data[k]] for k in range(2)], 2, 1, head)
    assert_each(found, [np.concatenate([data[0], -data[1]])] * 2)


def test_send_and_recv_between_devices() -> None:
    pairs = 'frontend_attributes={_xla_send_recv_source_target_pairs="{{0,1},{1,2}}"}'
    body = f"""x = f32[2] parameter(0)
    t = token[] after-all()
    r = (f32[2], u32[], token[]) recv(t), channel_id=1, {pairs}
    s = (f32[2], u32[], token[]) send(x, t), channel_id=1, {pairs}
    d = (f32[2], token[]) recv-done(r), channel_id=1
    sd = token[] send-done(s), channel_id=1
    ROOT y = f32[2] get-tuple-element(d), index=0"""
    data = per_device(3, 2)
    assert_each(run(body, [[x] for x in data], 3), [np.zeros(2, np.float32), data[0], data[1]])


def test_send_to_oneself_and_waiting_for_nobody() -> None:
    body = """x = f32[2] parameter(0)
    t = token[] after-all()
    s = (f32[2], u32[], token[]) send(x, t), channel_id=1
    sd = token[] send-done(s), channel_id=1
    r = (f32[2], u32[], token[]) recv(t), channel_id=CHANNEL
    d = (f32[2], token[]) recv-done(r), channel_id=CHANNEL
    ROOT y = f32[2] get-tuple-element(d), index=0"""
    (data,) = per_device(1, 2)
    assert_each(run(body.replace("CHANNEL", "1"), [[data]]), [data])
    with pytest.raises(DeviceError, match="deadlock") as caught:
        run(body.replace("CHANNEL", "2"), [[data]])
    assert caught.value.notes == ("device 0 waits at %d: device 0 sends nothing on channel 2",)


SHARDED = """
square {{ a = f32[{shard}] parameter(0)
  i = u32[] partition-id()
  f = f32[] convert(i)
  b = f32[{shard}] broadcast(f), dimensions={{}}
  ROOT m = f32[{shard}] add(a, b) }}
"""
SHARDED_BODY = """x = f32[{whole}] parameter(0)
s = f32[{whole}] custom-call(x), custom_call_target="Sharding", sharding={tiles}
m = f32[{shard}] custom-call(s), custom_call_target="SPMDFullToShardShape", sharding={{manual}}
c = f32[{shard}] call(m), to_apply=square
n = f32[{shard}] custom-call(c), custom_call_target="Sharding", sharding={{manual}}
ROOT r = f32[{whole}] custom-call(n), custom_call_target="SPMDShardToFullShape", sharding={tiles}"""


@pytest.mark.parametrize(
    ("tiles", "shard", "ids"),
    [
        ("{devices=[2,2]<=[4]}", "2,3", [[0, 1], [2, 3]]),
        ("{devices=[2,2]<=[2,2]T(1,0)}", "2,3", [[0, 2], [1, 3]]),
        ("{devices=[4,1]3,1,0,2}", "1,6", [[3], [1], [0], [2]]),
    ],
)
def test_shards_of_a_whole_array(tiles: str, shard: str, ids: list[list[int]]) -> None:
    texts = {"whole": "4,6", "shard": shard, "tiles": tiles}
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    found = run(SHARDED_BODY.format(**texts), [[x]] * 4, 1, 4, SHARDED.format(**texts))
    size = [int(word) for word in shard.split(",")]
    assert_each(found, [x + np.kron(np.array(ids, np.float32), np.ones(size, np.float32))] * 4)


def test_an_uneven_last_shard_is_cut_off_again() -> None:
    texts = {"whole": "5", "shard": "3", "tiles": "{devices=[2]<=[2]}"}
    x = np.arange(5, dtype=np.float32)
    found = run(SHARDED_BODY.format(**texts), [[x]] * 2, 1, 2, SHARDED.format(**texts))
    assert_each(found, [x + np.array([0, 0, 0, 1, 1], np.float32)] * 2)


def test_errors_name_what_is_missing() -> None:
    body = "x = f32[2] parameter(0)\nROOT r = f32[2] all-reduce(x), replica_groups={{0,1}}, to_apply=add"
    x = np.ones(2, np.float32)
    with pytest.raises(ParseError, match="names device 1, but the run has 1 x 1 devices"):
        run(body, [[x]], 1, 1, ADD)
    with pytest.raises(Unsupported, match=r"device 2 \(replica 2, partition 0\) is in no group"):
        run(body, [[x]] * 3, 3, 1, ADD)
    call = 'custom-call(x), custom_call_target="SPMDFullToShardShape", sharding={manual}'
    whole = f"x = f32[4] parameter(0)\nROOT r = f32[2] {call}"
    with pytest.raises(Unsupported, match="expected a sharding with shards"):
        run(whole, [[np.ones(4, np.float32)]] * 2, 1, 2)
