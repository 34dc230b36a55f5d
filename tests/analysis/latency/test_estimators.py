"""Estimates of instructions and of collectives within and between hosts."""

from __future__ import annotations

import pytest

from hlo_run import parse
from hlo_run.analysis.latency.choice import hides_latency, latency_estimator
from hlo_run.analysis.latency.estimator import HIGH_LATENCY, LOW_LATENCY, TShirtSizes
from hlo_run.analysis.latency.speed_of_light import SpeedOfLight
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.options import Options
from hlo_run.target import preset

_GATHER = """HloModule m, num_partitions=DEVICES
f {{ x = f32[256,256] parameter(0) ROOT y = f32[256,256] tanh(x) }}
ENTRY e {{
  p = f32[256,256] parameter(0)
  s = (f32[256,256], f32[SIZE,256]) all-gather-start(p), channel_id=1, replica_groups=[1,DEVICES]<=[DEVICES], dimensions={{0}},
    use_global_device_ids=true
  d = f32[SIZE,256] all-gather-done(s)
  n = f32[256,256] fusion(p), kind=kLoop, calls=f
  w = f32[256,256] dot(n, p), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT t = (f32[SIZE,256], f32[256,256]) tuple(d, w)
}}"""


def _gather(devices: int) -> HloModule:
    text = _GATHER.replace("{{", "{").replace("}}", "}")
    return parse(text.replace("SIZE", str(256 * devices)).replace("DEVICES", str(devices)))


def _named(module: HloModule, name: str) -> HloInstruction:
    return next(instruction for instruction in module.instructions if instruction.name == name)


def test_measured_speeds_on_hopper() -> None:
    module = _gather(8)
    estimator = latency_estimator(Options(), preset("h100"), module)
    assert isinstance(estimator, SpeedOfLight)
    start, done = _named(module, "s"), _named(module, "d")
    assert estimator.cost(start) == estimator.cost(done) == 1
    assert 10 < estimator.latency(start, done) < 100
    assert 1 < estimator.cost(_named(module, "w")) < 10
    assert 0 < estimator.cost(_named(module, "n")) < 1
    assert estimator.latency(_named(module, "n"), _named(module, "w")) == LOW_LATENCY


def test_hosts_talk_slower() -> None:
    near, far = (_gather(devices) for devices in (8, 16))
    latencies = [
        latency_estimator(Options(), preset("h100"), module).latency(_named(module, "s"), _named(module, "d"))
        for module in (near, far)
    ]
    assert latencies[1] > 2 * latencies[0]


def test_a_flag_replaces_figures_of_the_network() -> None:
    module = _gather(16)
    figures = "nccl_op_launch_us=3,rtt_us=2,nic_speed_gbps=70.5,chunk_prep_us=0,gpus_per_node=-1,other=7"
    fast, slow = (
        latency_estimator(options, preset("h100"), module).latency(_named(module, "s"), _named(module, "d"))
        for options in (Options(xla_gpu_analytical_latency_estimator_options=figures), Options())
    )
    assert 3 + 15 / 8 * 2 < fast < slow / 2, (fast, slow)


def test_kernels_count_the_cycles_of_gpus_without_a_profile() -> None:
    # Released XLA's schedule dump has this figure for an H100.
    module = parse(
        "HloModule m f { x = f32[128,128] parameter(0) ROOT t = f32[128,128] tanh(x) } "
        "ENTRY e { p = f32[128,128] parameter(0) ROOT n = f32[128,128] fusion(p), kind=kLoop, calls=f }"
    )
    assert latency_estimator(Options(), preset("h100"), module).cost(_named(module, "n")) == 0.05


_LOOP = """HloModule m, num_partitions=4
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT ab = f32[] add(a, b) }
body {
  t = (f32[128,128]) parameter(0)
  x = f32[128,128] get-tuple-element(t), index=0
  c = (f32[128,128], s8[64]) custom-call(x, x), custom_call_target="__cublas$lt$matmul",
    backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"],
      "lhs_batch_dimensions":[],"rhs_batch_dimensions":[]}}}
  r = f32[128,128] get-tuple-element(c), index=0
  ROOT o = (f32[128,128]) tuple(r)
}
cond { t = (f32[128,128]) parameter(0) ROOT f = pred[] constant(false) }
ENTRY e {
  p = f32[3072] parameter(0)
  g = f32[131072] parameter(1)
  q = (f32[128,128]) parameter(2)
  s = f32[3072] all-reduce-start(p), channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=sum
  d = f32[3072] all-reduce-done(s)
  gs = (f32[131072], f32[524288]) all-gather-start(g), channel_id=2, replica_groups={{0,1,2,3}}, use_global_device_ids=true,
    dimensions={0}
  gd = f32[524288] all-gather-done(gs)
  w = (f32[128,128]) while(q), condition=cond, body=body
  ROOT out = (f32[3072], f32[524288]) tuple(d, gd)
}"""


def test_estimates_without_measurements() -> None:
    # The figures of the collectives are those of released XLA's schedule dumps for an H100.
    module = parse(_LOOP)
    estimator = latency_estimator(Options(xla_gpu_enable_analytical_latency_estimator=True), preset("h100"), module)
    assert estimator.latency(_named(module, "s"), _named(module, "d")) == 5.01575
    assert estimator.latency(_named(module, "gs"), _named(module, "gd")) == 8.683
    assert estimator.cost(_named(module, "gs")) == 1
    # A loop counts one iteration of its body.
    assert estimator.cost(_named(module, "w")) > 0 < estimator.cost(_named(module, "c"))


def test_sizes_of_work_elsewhere() -> None:
    module = _gather(8)
    assert not hides_latency(Options(), preset("a100"), module)
    assert hides_latency(Options(xla_gpu_enable_latency_hiding_scheduler=True), preset("a100"), module)
    estimator = latency_estimator(Options(), preset("a100"), module)
    assert isinstance(estimator, TShirtSizes)
    assert estimator.latency(_named(module, "s"), _named(module, "d")) == HIGH_LATENCY
    assert [estimator.cost(_named(module, name)) for name in "pnw"] == [0, 1000, 1]


def test_no_speeds_for_unknown_collectives() -> None:
    module = parse(
        "HloModule m, replica_count=2\nENTRY e { p = f32[4] parameter(0) ROOT b = f32[4] collective-broadcast(p), "
        "replica_groups={{0,1}} }"
    )
    assert not hides_latency(Options(), preset("h100"), module)


_FUSED = """HloModule m, num_partitions=8
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT sum = f32[] add(a, b) }
f {
  x = f32[SIZE] parameter(0)
  ROOT r = f32[SIZE] all-reduce(x), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true, to_apply=add,
    backend_config={"collective_backend_config":{"kernel_strategy":"KERNEL_STRATEGY_TRITON_SHOTS"}}
}
a { x = f32[SIZE] parameter(0)
  ROOT r = f32[SIZE] fusion(x), kind=kCustom, calls=f,
    backend_config={"fusion_backend_config":{"kind":"__triton_collective"}} }
ENTRY e {
  p = f32[SIZE] parameter(0)
  s = ((f32[SIZE]), f32[SIZE]) async-start(p), calls=a
  ROOT d = f32[SIZE] async-done(s)
}"""


@pytest.mark.parametrize(("size", "shots", "latency"), [(1000, "ONE_SHOT", 2.58025), (65537, "TWO_SHOT", 5.431)])
def test_kernels_that_read_other_gpus(size: int, shots: str, latency: float) -> None:
    # The figures are those of released XLA's schedule dump for an H100, there less the cost of a done.
    module = parse(_FUSED.replace("SIZE", str(size)).replace("SHOTS", shots))
    estimator = latency_estimator(Options(), preset("h100"), module)
    start, done = _named(module, "s"), _named(module, "d")
    assert estimator.cost(start) == estimator.cost(done) == 1
    assert estimator.latency(start, done) == pytest.approx(latency, abs=1e-9)
