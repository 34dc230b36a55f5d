"""Loops that stop at a launch's last thread, loads that take a safe place, exp's rounding down: both engines, and numpy."""

from __future__ import annotations

import numpy as np
import pytest
from host_kernels import apply, kernel, launch_apart, run_text

from hlo_run.backends.host.emulator.memory import NUMBER_SHIFT
from hlo_run.backends.host.emulator.program import compile_program
from hlo_run.backends.host.jit.builder import ModuleText
from hlo_run.backends.host.jit.driver import write_module
from hlo_run.backends.host.jit.plan import FIRST_REGION, LaunchShape, Plan, RegionSpec
from hlo_run.backends.host.ptx.control_flow import build_graph
from hlo_run.backends.host.ptx.parser import parse_module
from hlo_run.errors import DeviceError

_NUMBER = "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; mad.lo.s32 %r3, %r1, 128, %r2;"
_ADDRESSES = "mul.wide.u32 %d1, %r3, 4; add.s64 %d2, %p0, %d1; add.s64 %d3, %p1, %d1;"


def guarded(comparison: str, negated: bool = False) -> str:
    """Return a kernel that adds the thread's number to a loaded value, if the comparison holds."""
    return kernel(
        f"""{_NUMBER} {comparison}
    @{"!" * negated}%q1 bra END;
    {_ADDRESSES} ld.global.nc.u32 %r4, [%d2]; add.s32 %r5, %r4, %r3; st.global.u32 [%d3], %r5;
    END:""",
        2,
    )


def plan_of(ptx: str, grid: int, size_bytes: int) -> Plan:
    graph = build_graph(parse_module(ptx), "k")
    regions = tuple(
        RegionSpec(n + 1, FIRST_REGION + n, 0, size_bytes, 0, size_bytes, True, alias=n)
        for n in range(len(graph.entry.parameters))
    )
    parameters = tuple((n + 1) << NUMBER_SHIFT for n in range(len(regions)))
    return write_module(graph, LaunchShape((grid, 1, 1), (128, 1, 1), regions, parameters, 0))[1]


@pytest.mark.parametrize("count", [1, 37, 128, 129, 300, 383])
@pytest.mark.parametrize(
    ("comparison", "negated"),
    [
        ("setp.gt.u32 %q1, %r3, {last};", False),
        ("setp.ge.u32 %q1, %r3, {count};", False),
        ("setp.lt.s32 %q1, %r3, {count};", True),
        ("setp.le.u32 %q1, %r3, {last};", True),
    ],
)
def test_threads_behind_the_last_element_do_nothing(count: int, comparison: str, negated: bool) -> None:
    ptx = guarded(comparison.format(count=count, last=count - 1), negated)
    data, out = np.arange(count, dtype=np.uint32) * 7, np.full(count, 9, np.uint32)
    run_text(ptx, [data, out], grid=3, block=128)
    assert (out == data + np.arange(count)).all()
    plan = plan_of(ptx, 3, 4 * count)
    assert plan.guard is not None
    assert plan.guard.threads == count
    assert plan.is_one_loop


def test_a_guard_that_some_other_number_decides_is_none() -> None:
    for comparison in ("setp.gt.u32 %q1, %r2, 99;", "setp.eq.u32 %q1, %r3, 99;", "setp.gt.u32 %q1, %r3, 999;"):
        assert plan_of(guarded(comparison), 3, 4096).guard is None


def test_a_guard_whose_other_side_stores_is_none() -> None:
    ptx = kernel(
        f"""{_NUMBER} {_ADDRESSES} setp.gt.u32 %q1, %r3, 200;
    @%q1 bra OTHER;
    ld.global.u32 %r4, [%d2]; st.global.u32 [%d3], %r4; bra END;
    OTHER: st.global.u32 [%d3], %r3;
    END:""",
        2,
    )
    assert plan_of(ptx, 2, 1024).guard is None
    data, out = np.arange(256, dtype=np.uint32) * 3, np.zeros(256, np.uint32)
    run_text(ptx, [data, out], grid=2, block=128)
    assert (out == np.where(np.arange(256) > 200, np.arange(256), data)).all()


def test_lanes_keep_their_numbers() -> None:
    """A kernel that reads its lane number loops over warps, not over the whole block."""
    ptx = kernel(f"{_NUMBER} {_ADDRESSES} mov.u32 %r4, %laneid; st.global.u32 [%d3], %r4;", 2)
    out = np.zeros(256, np.uint32)
    run_text(ptx, [out.copy(), out], grid=2, block=128)
    assert (out == np.arange(256) % 32).all()
    assert not plan_of(ptx, 2, 1024).is_one_loop


GATHER = kernel(
    f"""{_NUMBER} setp.gt.u32 %q1, %r3, 199;
    @%q1 bra END;
    {_ADDRESSES} ld.global.nc.u32 %r4, [%d2]; mul.wide.u32 %d4, %r4, 4; add.s64 %d5, %p2, %d4;
    ld.global.nc.u32 %r5, [%d5]; st.global.u32 [%d3], %r5;
    END:""",
    3,
)


def test_loads_by_an_index_need_no_jump() -> None:
    rng = np.random.default_rng(3)
    index, table, out = (
        rng.integers(0, 50, 200).astype(np.uint32),
        rng.integers(0, 999, 50).astype(np.uint32),
        np.zeros(200, np.uint32),
    )
    run_text(GATHER, [index, out, table], grid=2, block=128)
    assert (out == table[index]).all()


@pytest.mark.parametrize("place", [0, 31, 130, 199])
@pytest.mark.parametrize("wrong", [50, 1 << 20, 0xFFFFFFFF])
def test_loads_by_a_wrong_index_are_faults(place: int, wrong: int) -> None:
    """A kernel never continues with a value from the safe offset."""
    index = np.zeros(200, np.uint32)
    index[place] = wrong
    with pytest.raises(DeviceError):
        launch_apart(
            compile_program(parse_module(GATHER), "k"), GATHER, [index, np.zeros(200, np.uint32), np.ones(50, np.uint32)], 2, 128
        )


@pytest.mark.parametrize(("work", "has_vectors"), [(0, False), (150, True)])
def test_what_mostly_gathers_stays_scalar(work: int, has_vectors: bool) -> None:
    """Eight gathered words with one sum are not worth vectors; with more arithmetic they are. The results are equal."""
    more = "mad.lo.s32 %r5, %r5, %r6, %r7;" * work
    ptx = kernel(
        f"""{_NUMBER} {_ADDRESSES} ld.global.nc.u32 %r4, [%d2]; mul.wide.u32 %d4, %r4, 32; add.s64 %d5, %p2, %d4;
    ld.global.nc.v4.u32 {{%r6, %r7, %r8, %r9}}, [%d5]; ld.global.nc.v4.u32 {{%r10, %r11, %r12, %r13}}, [%d5+16];
    add.s32 %r5, %r6, %r13; {more} st.global.u32 [%d3], %r5;""",
        3,
    )
    sizes = (1024, 1024, 3200)
    regions = tuple(RegionSpec(n + 1, FIRST_REGION + n, 0, size, 0, size, True, alias=n) for n, size in enumerate(sizes))
    shape = LaunchShape((2, 1, 1), (128, 1, 1), regions, tuple((n + 1) << NUMBER_SHIFT for n in range(3)), 0)
    text, _ = write_module(build_graph(parse_module(ptx), "k"), shape)
    assert ("vectorize.enable" not in text) == has_vectors
    table = np.arange(800, dtype=np.uint32).reshape(100, 8) ** 2
    index, out = np.arange(256, dtype=np.uint32) * 7 % 100, np.zeros(256, np.uint32)
    run_text(ptx, [index, out, table], grid=2, block=128)
    first, second, *_, last = table[index].T
    want = first + last
    for _ in range(work):
        want = want * first + second
    assert (out == want).all()


def test_modules_without_vectors_say_so() -> None:
    module = ModuleText()
    assert module.parallel_loop()
    assert "vectorize.enable" not in str(module)
    module.parallel_loop(vectors=False)
    assert '!"llvm.loop.vectorize.enable", i1 false' in str(module)


def test_exp_takes_its_power_of_two_apart_as_the_emulator_does() -> None:
    """fma.rm of x in [0, 1] with a large integer: floor(252 x) + 12582913, also at and near the integers."""
    rng = np.random.default_rng(1)
    near = (np.arange(253) / np.float32(252)).astype(np.float32)
    steps = [near, np.nextafter(near, np.float32(-9)), np.nextafter(near, np.float32(9))]
    tiny = np.float32(2) ** -np.arange(1, 150, dtype=np.float32)
    other = np.array([np.nan, -0.0, 0.0, 1.0, 2.0, -1.0, np.inf, -np.inf], np.float32)
    x = np.concatenate([*steps, tiny, rng.random(4000, np.float32), other]).astype(np.float32)
    x = np.concatenate([x, np.zeros(-x.size % 32, np.float32)])
    got = apply(
        "{ .reg .b32 %s, %m, %n; cvt.sat.f32.f32 %s, %a; mov.b32 %m, 0f437C0000; mov.b32 %n, 0f4B400001;"
        " fma.rm.f32 %x, %s, %m, %n; }",
        (x,),
        np.float32,
    )
    inside = np.clip(np.nan_to_num(x, nan=0.0, posinf=1.0, neginf=0.0), 0, 1).astype(np.float64)
    assert (got == np.floor(inside * 252) + 12582913).all()
