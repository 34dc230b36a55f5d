"""Executables whose steps native code plays as one list: loops, branches, library calls in between, faults and interruptions."""

from __future__ import annotations

import signal
import time
from typing import Any

import numpy as np
import pytest
from clocks import Clock, use_clock

from hlo_run.records import replace

pytest.importorskip("llvmlite")

import hlo_run
from hlo_run.artifact import Kernel, KernelThunk, LoopOffset, SliceCopyThunk, every_thunk
from hlo_run.artifact.file import load, save
from hlo_run.backends.host import recording
from hlo_run.backends.host.backend import HostBackend
from hlo_run.backends.host.prepared import Prepared
from hlo_run.errors import DeviceError, OutOfTime
from hlo_run.hlo.feeds import NO_FEEDS
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.target import preset

RNG = np.random.default_rng(12)
NESTED = """HloModule nested
double { p = f32[6,6] parameter(0)
  ROOT r = f32[6,6] add(p, p) }
negative { p = f32[6,6] parameter(0)
  ROOT r = f32[6,6] negate(p) }
square { p = f32[6,6] parameter(0)
  ROOT r = f32[6,6] dot(p, p), lhs_contracting_dims={1}, rhs_contracting_dims={0} }
inner_condition { p = (s32[], f32[6,6]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT }
inner_body { p = (s32[], f32[6,6]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[6,6] get-tuple-element(p), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[6,6] conditional(i, x, x, x), branch_computations={double, negative, square}
  ROOT t = (s32[], f32[6,6]) tuple(j, y) }
condition { p = (s32[], s32[], f32[6,6]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] get-tuple-element(p), index=1
  ROOT c = pred[] compare(i, n), direction=LT }
body { p = (s32[], s32[], f32[6,6]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] get-tuple-element(p), index=1
  x = f32[6,6] get-tuple-element(p), index=2
  one = s32[] constant(1)
  j = s32[] add(i, one)
  is_first = pred[] compare(i, one), direction=LT
  z = s32[] constant(0)
  s = (s32[], f32[6,6]) tuple(z, x)
  w = (s32[], f32[6,6]) while(s), condition=inner_condition, body=inner_body
  y = f32[6,6] get-tuple-element(w), index=1
  u = f32[6,6] conditional(is_first, y, y), true_computation=negative, false_computation=double
  ROOT t = (s32[], s32[], f32[6,6]) tuple(j, n, u) }
ENTRY e { n = s32[] parameter(0)
  x = f32[6,6] parameter(1)
  z = s32[] constant(0)
  s = (s32[], s32[], f32[6,6]) tuple(z, n, x)
  w = (s32[], s32[], f32[6,6]) while(s), condition=condition, body=body
  ROOT y = f32[6,6] get-tuple-element(w), index=2 }
"""
_NOTHING = ".version 8.6\n.target sm_90\n.address_size 64\n.visible .entry nothing()\n{\n\tret;\n}\n"
UNKNOWN = Options(compile_processes=1, xla_disable_hlo_passes="while-loop-trip-count-annotator")


def compiled(text: str, options: Options | None = None) -> Any:
    return compile_module(PassContext(preset("h100"), options or Options(compile_processes=1)), hlo_run.parse(text))


def expected(times: int, x: Any) -> Any:
    for number in range(times):
        y = -(x + x)
        y = y @ y
        x = -y if number == 0 else y + y
    return x


@pytest.mark.parametrize("options", [None, UNKNOWN])
def test_loops_and_branches(options: Options | None, monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[int] = []
    work = recording.Recording.work
    monkeypatch.setattr(recording.Recording, "work", lambda self: (played.append(1), work(self))[1])  # type: ignore[misc]
    program = compiled(NESTED, options)
    backend = HostBackend(engine="jit")
    others = [HostBackend(engine="emulator"), HostBackend(engine="jit", profile=True)]  # step by step
    others.append(HostBackend(engine="jit", timeout_seconds=600))
    results: list[tuple[Any, Any]] = []
    for times in (2, 0, 1, 3, 3):  # memory of the arguments and of the result is another every time
        x = RNG.standard_normal((6, 6)).astype(np.float32) / 4
        result = backend.run(program, [np.array(times, np.int32), x])
        np.testing.assert_allclose(np.asarray(result), expected(times, x.astype(np.float64)), rtol=1e-3, atol=1e-6)
        results.append((result, np.asarray(result).copy()))
        for other in others:
            np.testing.assert_array_equal(other.run(program, [np.array(times, np.int32), x]), result)
    for kept, copy in results:
        np.testing.assert_array_equal(kept, copy, err_msg="a later run wrote into it")
    assert len(played) == 10


SLICES = """HloModule slices
condition { p = (s32[], f32[3,64], f32[3,64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT }
body { p = (s32[], f32[3,64], f32[3,64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[3,64] get-tuple-element(p), index=1
  y = f32[3,64] get-tuple-element(p), index=2
  one = s32[] constant(1)
  two = s32[] constant(2)
  z = s32[] constant(0)
  j = s32[] add(i, one)
  k = s32[] subtract(two, i)
  row = f32[1,64] dynamic-slice(x, i, z), dynamic_slice_sizes={1,64}
  v = f32[3,64] dynamic-update-slice(y, row, k, z)
  ROOT t = (s32[], f32[3,64], f32[3,64]) tuple(j, x, v) }
twice { p = (s32[], s32[], f32[3,64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] get-tuple-element(p), index=1
  ROOT c = pred[] compare(i, n), direction=LT }
outer { p = (s32[], s32[], f32[3,64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] get-tuple-element(p), index=1
  x = f32[3,64] get-tuple-element(p), index=2
  d = f32[3,64] add(x, x)
  one = s32[] constant(1)
  j = s32[] add(i, one)
  z = s32[] constant(0)
  s = (s32[], f32[3,64], f32[3,64]) tuple(z, d, x)
  w = (s32[], f32[3,64], f32[3,64]) while(s), condition=condition, body=body
  v = f32[3,64] get-tuple-element(w), index=2
  ROOT t = (s32[], s32[], f32[3,64]) tuple(j, n, v) }
ENTRY e { n = s32[] parameter(0)
  x = f32[3,64] parameter(1)
  z = s32[] constant(0)
  s = (s32[], s32[], f32[3,64]) tuple(z, n, x)
  w = (s32[], s32[], f32[3,64]) while(s), condition=twice, body=outer
  ROOT y = f32[3,64] get-tuple-element(w), index=2 }
"""


def test_copies_of_slices_in_loops() -> None:
    """The inner loop of each iteration doubles the rows and turns their order around."""
    program = compiled(SLICES)
    (copy,) = (thunk for thunk in every_thunk(program.thunks) if isinstance(thunk, SliceCopyThunk))
    assert (copy.size_bytes, copy.source_offset, copy.destination_offset) == (256, LoopOffset(0, 256), LoopOffset(512, -256))
    assert load(save(program), "m.hlox") == program
    x = RNG.standard_normal((3, 64)).astype(np.float32)
    backends = [HostBackend(engine="jit"), HostBackend(engine="emulator"), HostBackend(engine="jit", timeout_seconds=600)]
    for backend in backends:
        np.testing.assert_array_equal(backend.run(program, [np.array(3, np.int32), x]), x[::-1] * 8)


@pytest.mark.parametrize("engine", ["jit", "emulator"])
def test_arguments_given_again_are_read_again(engine: str) -> None:
    text = """HloModule again, input_output_alias={ {1}: (1, {}, may-alias) }
      ENTRY e { x = f32[64] parameter(0)
        y = f32[64] parameter(1)
        f = pred[3] parameter(2)
        g = f32[8,8]{0,1} parameter(3)
        a = f32[64] add(x, y)
        b = f32[64] multiply(y, y)
        n = pred[3] not(f)
        h = f32[8,8]{0,1} negate(g)
        ROOT t = (f32[64], f32[64], pred[3], f32[8,8]{0,1}) tuple(a, b, n, h) }"""
    program = compiled(text)
    backend = HostBackend(engine=engine)
    x, y = (RNG.standard_normal(64).astype(np.float32) for _ in range(2))
    f = np.array([True, False, True])
    g = RNG.standard_normal((8, 8)).astype(np.float32)
    kept: list[tuple[Any, list[Any]]] = []
    for number in range(4):
        if number == 2:
            x = x.copy()  # another address
        y[:] += 1  # the same address
        f[number % 3] ^= True
        g[:] *= 2
        result: Any = backend.run(program, [x, y, f, g])
        wanted = [x + y, y * y, ~f, -g]
        for got, want in zip(result, wanted, strict=True):
            np.testing.assert_array_equal(got, want)
        kept.append((result, wanted))
    for result, wanted in kept:
        for got, want in zip(result, wanted, strict=True):
            np.testing.assert_array_equal(got, want, err_msg="a later run wrote into it")


def test_a_long_launch_between_short_ones() -> None:
    text = """HloModule long
      ENTRY e { x = f32[2000,1500] parameter(0)
        y = f32[2000,1500] exponential(x)
        s = f32[1,1] slice(y), slice={[7:8], [9:10]}
        r = f32[] reshape(s)
        b = f32[2000,1500] broadcast(r), dimensions={}
        ROOT z = f32[2000,1500] divide(y, b) }"""
    program = compiled(text)
    backend = HostBackend(engine="jit")
    for _ in range(2):
        x = RNG.standard_normal((2000, 1500)).astype(np.float32)
        np.testing.assert_allclose(np.asarray(backend.run(program, [x])), np.exp(x - x[7, 9]), rtol=1e-4)


@pytest.mark.parametrize("blocks", [1, 100_000])
def test_a_fault_of_a_played_launch_says_where(blocks: int) -> None:
    program = compiled(NESTED)
    kernel = next(kernel for kernel in program.kernels if "neg.f32" in kernel.ptx)
    assert kernel.block == (36, 1, 1)
    wide = replace(kernel, block=(64, 1, 1), grid=(blocks, 1, 1), ptx=kernel.ptx.replace("reqntid 36", "reqntid 64"))
    broken = replace(program, kernels=tuple(wide if k is kernel else k for k in program.kernels))
    backend = HostBackend(engine="jit")
    x = RNG.standard_normal((6, 6)).astype(np.float32)
    np.testing.assert_array_equal(backend.run(broken, [np.array(0, np.int32), x]), x)  # compiled, not launched
    for _ in range(2):
        with pytest.raises(DeviceError, match="out-of-bounds") as info:
            backend.run(broken, [np.array(1, np.int32), x])
        assert "thread (36, 0, 0) of block" in info.value.message
    np.testing.assert_array_equal(backend.run(broken, [np.array(0, np.int32), x]), x)


def test_a_module_without_any_memory_runs() -> None:
    program = compiled("HloModule none\n ENTRY e { ROOT t = () tuple() }")
    nothing = Kernel("nothing", _NOTHING, (1, 1, 1), (32, 1, 1))
    program = replace(program, kernels=(nothing,), thunks=(KernelThunk("n", "nothing", ()),), allocations=())
    for _ in range(2):
        assert HostBackend(engine="jit").run(program, []) == ()


def test_an_endless_loop_can_be_interrupted() -> None:
    class Enough(Exception):
        pass

    def ring(number: int, frame: object) -> None:
        raise Enough

    text = NESTED.replace("j = s32[] add(i, one)\n  is_first", "j = s32[] multiply(i, one)\n  is_first")
    program = compiled(text)
    backend = HostBackend(engine="jit")
    arguments = [np.array(0, np.int32), RNG.standard_normal((6, 6)).astype(np.float32)]
    backend.run(program, arguments)  # compiles
    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Enough):
            backend.run(program, [np.array(1, np.int32), arguments[1]])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    np.testing.assert_array_equal(backend.run(program, arguments), arguments[1])


def test_an_endless_loop_runs_out_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    text = NESTED.replace("j = s32[] add(i, one)\n  is_first", "j = s32[] multiply(i, one)\n  is_first")
    program = compiled(text)
    backend = HostBackend(engine="jit", timeout_seconds=5000)
    x = RNG.standard_normal((6, 6)).astype(np.float32)
    clock = Clock(4999.9)
    use_clock(monkeypatch, clock, "backends.host.recording", "backends.host.machine")
    with pytest.raises(OutOfTime, match="ran out of time"):
        backend.run(program, [np.array(1, np.int32), x])
    clock.ahead = 0.0
    np.testing.assert_array_equal(backend.run(program, [np.array(0, np.int32), x]), x)


def test_a_deadline_may_come_and_go() -> None:
    program = compiled(NESTED)
    prepared = Prepared(HostBackend(engine="jit"), program, frozenset())
    arguments = [np.array(2, np.int32), RNG.standard_normal((6, 6)).astype(np.float32)]
    deadlines = [None, time.monotonic() + 600, None, time.monotonic() + 600]
    first, *others = [prepared.run(arguments, deadline, 0, NO_FEEDS(0)) for deadline in deadlines]
    for other in others:
        np.testing.assert_array_equal(other, first)


_COUNTS = """.version 8.6
.target sm_90
.address_size 64
.global .align 4 .u32 counter = 5;
.visible .entry NAME(.param .u64 first, .param .u64 second)
{
	.reg .b32 %r<4>;
	.reg .b64 %rd<4>;
	ld.param.u64 %rd1, [second];
	ld.global.u32 %r1, [counter];
	add.u32 %r2, %r1, 1;
	st.global.u32 [counter], %r2;
	st.global.u32 [%rd1], %r2;
	ret;
}
"""


@pytest.mark.parametrize("engine", ["jit", "emulator"])
def test_every_run_finds_the_first_values_of_variables(engine: str) -> None:
    program = compiled("HloModule m\n ENTRY e { x = u32[1] parameter(0)\n ROOT r = u32[1] negate(x) }")
    (kernel,) = program.kernels
    counting = replace(kernel, ptx=_COUNTS.replace("NAME", kernel.name), block=(1, 1, 1))
    program = replace(program, kernels=(counting,), thunks=program.thunks * 3)
    backend = HostBackend(engine=engine)
    for _ in range(3):
        np.testing.assert_array_equal(backend.run(program, [np.zeros(1, np.uint32)]), [8])
