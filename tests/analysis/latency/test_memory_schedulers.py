"""Schedulers: orders that keep to operands and control dependencies, and need little memory."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

import hlo_run
from hlo_run.analysis.buffers.dataflow import Dataflow, analyze_dataflow
from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.analysis.latency.memory_schedulers import dfs_order, list_order
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo_passes.memory.copy_insertion import CopyInsertion
from hlo_run.hlo_passes.scheduling.schedule import Schedule
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.target import preset
from tests.random_control_flow import random_module

_CONTEXT = PassContext(preset("h100"), Options())
_Scheduler = Callable[[HloComputation, Dataflow], list[HloInstruction]]

# Every sum is small, every iota large: they are made one after the other only by who looks at memory.
_WIDE = """
f1 { ROOT a1 = f32[1024] iota(), iota_dimension=0 }
f2 { ROOT a2 = f32[1024] iota(), iota_dimension=0 }
add { x = f32[] parameter(0)  y = f32[] parameter(1)  ROOT s = f32[] add(x, y) }
g1 { b1 = f32[1024] parameter(0)  z1 = f32[] constant(0)  ROOT c1 = f32[] reduce(b1, z1), dimensions={0}, to_apply=add }
g2 { b2 = f32[1024] parameter(0)  z2 = f32[] constant(0)  ROOT c2 = f32[] reduce(b2, z2), dimensions={0}, to_apply=add }
ENTRY e {
  big_1 = f32[1024] fusion(), kind=kLoop, calls=f1
  big_2 = f32[1024] fusion(), kind=kLoop, calls=f2
  sum_1 = f32[] fusion(big_1), kind=kInput, calls=g1
  sum_2 = f32[] fusion(big_2), kind=kInput, calls=g2
  ROOT t = (f32[], f32[]) tuple(sum_1, sum_2)
}
"""


@pytest.mark.parametrize("scheduler", [list_order, dfs_order])
@pytest.mark.parametrize("seed", range(8))
def test_orders_keep_to_operands_and_control_dependencies(scheduler: _Scheduler, seed: int) -> None:
    module = hlo_run.parse(random_module(random.Random(seed), 25).replace("is_scheduled=true", "is_scheduled=false"))
    module.schedule = None
    CopyInsertion().apply(_CONTEXT, module)
    dataflow = analyze_dataflow(module)
    for computation in executed_computations(module):
        order = scheduler(computation, dataflow)
        assert sorted(i.name for i in order) == sorted(i.name for i in computation.instructions)
        places = {instruction: place for place, instruction in enumerate(order)}
        for instruction in order:
            assert all(
                places[first] < places[instruction] for first in (*instruction.operands, *instruction.control_predecessors)
            )


@pytest.mark.parametrize("scheduler", [list_order, dfs_order])
def test_a_large_value_is_used_before_the_next_is_made(scheduler: _Scheduler) -> None:
    module = hlo_run.parse(_WIDE)
    names = [i.name for i in scheduler(module.entry, analyze_dataflow(module))]
    first, second = sorted((names.index("big_1"), names.index("big_2")))
    assert first < min(names.index("sum_1"), names.index("sum_2")) < second


_LOOP = """
step { s = (s32[], f32[64], f32[512]) parameter(0)  i = s32[] get-tuple-element(s), index=0
       x = f32[64] get-tuple-element(s), index=1  y = f32[512] get-tuple-element(s), index=2
       one = s32[] constant(1)  j = s32[] add(i, one)  z = f32[512] negate(y)
       ROOT t = (s32[], f32[64], f32[512]) tuple(j, x, z) }
cond { s = (s32[], f32[64], f32[512]) parameter(0)  i = s32[] get-tuple-element(s), index=0  n = s32[] constant(3)
       ROOT l = pred[] compare(i, n), direction=LT }
big { z = f32[] constant(0)  ROOT b = f32[1024] broadcast(z), dimensions={} }
ENTRY e {
  given = f32[512] parameter(0)
  zero = s32[] constant(0)
  first = s32[] copy(zero)
  same = f32[64] iota(), iota_dimension=0
  state = (s32[], f32[64], f32[512]) tuple(first, same, given)
  w = (s32[], f32[64], f32[512]) while(state), condition=cond, body=step
  kept = f32[512] get-tuple-element(w), index=2
  f = f32[1024] fusion(), kind=kLoop, calls=big
  ROOT r = (f32[512], f32[1024]) tuple(kept, f)
}
"""


def test_a_loop_waits_neither_for_its_inside_nor_for_a_larger_value() -> None:
    module = hlo_run.parse(_LOOP)
    names = [i.name for i in list_order(module.entry, analyze_dataflow(module))]
    assert names.index("w") < names.index("f")


def test_control_dependency_is_kept_by_the_pass() -> None:
    module = hlo_run.parse(_WIDE)
    by_name = {i.name: i for i in module.entry.instructions}
    by_name["big_1"].control_predecessors = [by_name["sum_2"]]
    Schedule().apply(_CONTEXT, module)
    assert module.schedule is not None
    names = [i.name for i in module.schedule[module.entry]]
    assert names.index("sum_2") < names.index("big_1")
