"""Whole modules on Host whose thunks are loops, branches, calls, sorts, custom calls and transfers; and what goes wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import default_signals

import hlo_run
from hlo_run.artifact import WhileThunk, nested_sequences
from hlo_run.backends import memory
from hlo_run.backends.host import machine
from hlo_run.backends.host.backend import HostBackend
from hlo_run.backends.memory import check_memory, free_bytes, planned_bytes
from hlo_run.cli import run
from hlo_run.custom_calls import custom_call, unregister
from hlo_run.errors import DeviceError, OutOfTime, Unsupported, UsageError
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.target import preset

RNG = np.random.default_rng(11)
LOOP = """HloModule loop
condition { p = (s32[], s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] get-tuple-element(p), index=1
  ROOT c = pred[] compare(i, n), direction=LT }
body { p = (s32[], s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] get-tuple-element(p), index=1
  x = f32[8] get-tuple-element(p), index=2
  one = s32[] constant(STEP)
  j = s32[] add(i, one)
  y = f32[8] add(x, x)
  ROOT t = (s32[], s32[], f32[8]) tuple(j, n, y) }
ENTRY e { n = s32[] parameter(0)
  x = f32[8] parameter(1)
  z = s32[] constant(0)
  s = (s32[], s32[], f32[8]) tuple(z, n, x)
  w = (s32[], s32[], f32[8]) while(s), condition=condition, body=body
  ROOT y = f32[8] get-tuple-element(w), index=2 }
"""


def compiled(text: str) -> Any:
    return compile_module(PassContext(preset("h100"), Options(compile_processes=1)), hlo_run.parse(text))


def kinds(thunks: Any) -> list[str]:
    return [kind for thunk in thunks for kind in (thunk.kind, *(k for s in nested_sequences(thunk) for k in kinds(s)))]


def test_loops_ask_their_condition_or_know_how_often() -> None:
    x = RNG.standard_normal(8).astype(np.float32)
    program = compiled(LOOP.replace("STEP", "1"))
    backend = HostBackend()
    for times in (0, 1, 3, 2):
        result = backend.run(program, [np.array(times, np.int32), x])
        np.testing.assert_array_equal(result, x * 2**times)
    text = LOOP.replace("STEP", "2").replace("n = s32[] get-tuple-element(p), index=1\n  ROOT", "n = s32[] constant(7)\n  ROOT")
    known = compiled(text)
    assert [thunk.trip_count for thunk in known.thunks if isinstance(thunk, WhileThunk)] == [4]
    np.testing.assert_array_equal(backend.run(known, [np.array(99, np.int32), x]), x * 16)


def test_results_of_earlier_runs_stay() -> None:
    program = compiled(LOOP.replace("STEP", "1"))
    backend = HostBackend()
    inputs = [RNG.standard_normal(8).astype(np.float32) for _ in range(3)]
    results = [backend.run(program, [np.array(1, np.int32), x]) for x in inputs]
    for x, result in zip(inputs, results, strict=True):
        np.testing.assert_array_equal(result, 2 * x)


@pytest.mark.parametrize(("selector", "taken"), [(0, 0), (1, 1), (2, 2), (3, 2), (-1, 2)])
def test_a_number_out_of_range_chooses_the_last_branch(selector: int, taken: int) -> None:
    text = """HloModule branches
      a { p = f32[4] parameter(0)
        ROOT r = f32[4] negate(p) }
      b { p = f32[4] parameter(0)
        ROOT r = f32[4] add(p, p) }
      c { p = f32[4] parameter(0)
        ROOT r = f32[4] multiply(p, p) }
      ENTRY e { s = s32[] parameter(0)
        x = f32[4] parameter(1)
        ROOT r = f32[4] conditional(s, x, x, x), branch_computations={a, b, c} }"""
    x = RNG.standard_normal(4).astype(np.float32)
    result = hlo_run.run(hlo_run.parse(text), np.int32(selector), x, platform="Host")
    np.testing.assert_array_equal(result, [-x, x + x, x * x][taken])


def test_true_chooses_the_first_branch() -> None:
    text = """HloModule two
      a { p = f32[4] parameter(0)
        ROOT r = f32[4] negate(p) }
      b { p = f32[4] parameter(0)
        ROOT r = f32[4] add(p, p) }
      ENTRY e { s = pred[] parameter(0)
        x = f32[4] parameter(1)
        ROOT r = f32[4] conditional(s, x, x), true_computation=a, false_computation=b }"""
    x = RNG.standard_normal(4).astype(np.float32)
    module = hlo_run.parse(text)
    np.testing.assert_array_equal(hlo_run.run(module, np.bool_(True), x, platform="Host"), -x)
    np.testing.assert_array_equal(hlo_run.run(module, np.bool_(False), x, platform="Host"), x + x)


def test_a_comparator_without_keys_is_a_kernel() -> None:
    """Even numbers first, then by value: an order of its own."""
    text = """HloModule odd
      before { a = s32[] parameter(0)
        b = s32[] parameter(1)
        i = s32[] parameter(2)
        j = s32[] parameter(3)
        one = s32[] constant(1)
        c = s32[] and(a, one)
        d = s32[] and(b, one)
        l = pred[] compare(c, d), direction=LT
        q = pred[] compare(c, d), direction=EQ
        v = pred[] compare(a, b), direction=LE
        w = pred[] and(q, v)
        ROOT r = pred[] or(l, w) }
      ENTRY e { x = s32[3,21] parameter(0)
        y = s32[3,21] iota(), iota_dimension=1
        ROOT s = (s32[3,21], s32[3,21]) sort(x, y), dimensions={1}, to_apply=before }"""
    x = RNG.permutation(63).astype(np.int32).reshape(3, 21)
    values, places = hlo_run.run(hlo_run.parse(text), x, platform="Host")
    expected = np.array([sorted(row, key=lambda v: (v % 2, v)) for row in x.tolist()])
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(np.take_along_axis(x, np.asarray(places), 1), expected)


def test_the_numbers_of_the_only_device() -> None:
    text = """HloModule ids
      ENTRY e { i = u32[] partition-id()
        k = u32[] replica-id()
        ROOT o = (u32[], u32[]) tuple(i, k) }"""
    partition, replica = hlo_run.run(hlo_run.parse(text), platform="Host")
    assert (int(np.asarray(partition)), int(np.asarray(replica))) == (0, 0)


# ---- registered functions -------------------------------------------------------------------------------------------

CALL = """HloModule call
ENTRY e { x = f32[3,2]{0,1} parameter(0)
  p = pred[3] parameter(1)
  t = (pred[3], s32[]) custom-call(p), custom_call_target="test.count"
  y = f32[3,2] custom-call(x), custom_call_target="test.scale", backend_config="0.5"
  ROOT r = (f32[3,2], (pred[3], s32[])) tuple(y, t) }
"""


@pytest.fixture
def registered() -> Generator[None]:
    @custom_call("test.scale")
    def scale(x: Any, config: str) -> Any:
        return x * x.dtype.type(float(config))

    @custom_call("test.count", platform="host")
    def count(p: Any) -> Any:
        return ~p, np.int32(p.sum())

    assert (scale, count) is not None
    yield
    unregister("test.scale")
    unregister("test.count")


@pytest.mark.usefixtures("registered")
def test_custom_calls_run_registered_functions() -> None:
    x, p = RNG.standard_normal((3, 2)).astype(np.float32), np.array([True, False, True])
    result: Any = hlo_run.run(hlo_run.parse(CALL), x, p, platform="Host")
    np.testing.assert_array_equal(result[0], x / 2)
    np.testing.assert_array_equal(result[1][0], ~p)
    assert int(result[1][1]) == 2
    with pytest.raises(Unsupported, match=r"test\.count"):
        hlo_run.evaluate(hlo_run.parse(CALL), x, p)  # registered for Host alone


def _fails(x: Any) -> Any:
    raise ZeroDivisionError(f"{x.shape}")


def _widens(x: Any) -> Any:
    return x.astype(np.float64)


def _doubles(x: Any) -> Any:
    return x, x


def test_what_a_custom_call_may_do_wrong() -> None:
    text = 'HloModule m\nENTRY e { x = f32[3] parameter(0)\n ROOT y = f32[3] custom-call(x), custom_call_target="test.bad" }'
    module, x = hlo_run.parse(text), np.ones(3, np.float32)
    with pytest.raises(Unsupported, match=r"No registered implementation for custom call to test\.bad"):
        hlo_run.run(module, x, platform="Host")
    with pytest.raises(UsageError, match="unknown platform"):
        custom_call("test.bad", platform="TPU")
    try:
        custom_call("test.bad")(_fails)
        with pytest.raises(DeviceError, match=r"test\.bad raised ZeroDivisionError.*%y"):
            hlo_run.run(module, x, platform="Host")
        custom_call("test.bad")(_widens)
        with pytest.raises(DeviceError, match=r"returned float64\[3\], not float32\[3\]"):
            hlo_run.run(module, x, platform="Host")
        custom_call("test.bad")(_doubles)
        with pytest.raises(DeviceError, match="returned"):
            hlo_run.run(module, x, platform="Host")
    finally:
        unregister("test.bad")


IN_A_BRANCH = """HloModule in_a_branch
calls { p = f32[2] parameter(0)
  c = f32[2] custom-call(p), custom_call_target="test.nowhere", custom_call_has_side_effect=true
  ROOT t = (f32[2]) tuple(c) }
adds { p = f32[2] parameter(0)
  s = f32[2] add(p, p)
  ROOT t = (f32[2]) tuple(s) }
ENTRY e { which = pred[] parameter(0)
  x = f32[2] parameter(1)
  t = (f32[2]) conditional(which, x, x), true_computation=calls, false_computation=adds
  ROOT y = f32[2] get-tuple-element(t), index=0 }
"""


@pytest.mark.parametrize("platform", ["Host", "Interpreter"])
def test_a_custom_call_without_a_function_fails_when_it_is_reached(platform: str) -> None:
    module, x = hlo_run.parse(IN_A_BRANCH), np.ones(2, np.float32)
    np.testing.assert_array_equal(hlo_run.run(module, np.array(False), x, platform=platform), x + x)
    with pytest.raises(Unsupported, match=r"custom call.* to test\.nowhere.*%c|custom call 'test\.nowhere'") as raised:
        hlo_run.run(module, np.array(True), x, platform=platform)
    assert "%c" in raised.value.render()
    assert '@hlo_run.custom_call("test.nowhere")' in raised.value.hint
    assert "--custom_calls" in raised.value.hint


def test_files_of_custom_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, calls = tmp_path / "m.hlo", tmp_path / "calls.py"
    source.write_text(
        'HloModule m\nENTRY e { x = f32[3] parameter(0)\n ROOT y = f32[3] custom-call(x), custom_call_target="test.f" }'
    )
    calls.write_text("import hlo_run\n@hlo_run.custom_call('test.f')\ndef f(x):\n    return -x\n")
    try:
        assert run([f"--custom_calls={calls}", "--platform=Host", str(source)]) == 0
    finally:
        unregister("test.f")
    calls.write_text("import nothing_of_that_name\n")
    assert run([f"--custom_calls={calls}", str(source)]) == 2
    assert "ModuleNotFoundError" in capsys.readouterr().err
    assert run([f"--custom_calls={tmp_path / 'none.py'}", str(source)]) == 2


# ---- faults ---------------------------------------------------------------------------------------------------------


def test_a_loop_that_never_ends_runs_out_of_time() -> None:
    program = compiled(LOOP.replace("STEP", "0"))
    arguments = [np.array(1, np.int32), np.ones(8, np.float32)]
    with pytest.raises(OutOfTime, match="ran out of time"):
        HostBackend(timeout_seconds=0.2).run(program, arguments)


def test_memory_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    program = compiled(LOOP.replace("STEP", "1"))
    arguments = [np.array(1, np.int32), np.ones(8, np.float32)]
    backend = HostBackend()
    with monkeypatch.context() as patch:
        patch.setattr(machine, "poisoned", _no_memory)
        with pytest.raises(DeviceError, match=r"no memory for allocation \d+ of \d+ bytes"):
            backend.run(program, arguments)
    np.testing.assert_array_equal(backend.run(program, arguments), 2 * arguments[1])
    check_memory(program)
    monkeypatch.setattr(memory, "free_bytes", lambda: planned_bytes(program))
    with pytest.raises(DeviceError, match=r"loop needs about .* are free"):
        check_memory(program)


def _no_memory(size: int) -> Any:
    raise MemoryError(size)


def test_workspaces_of_libraries_that_are_not_here_take_no_memory() -> None:
    text = """HloModule gemm
      ENTRY e { x = f32[32,32] parameter(0)
        ROOT d = f32[32,32] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0} }"""
    program = compiled(text)
    assert "kCublasLtMatmul" in kinds(program.thunks)
    assert sum(allocation.size_bytes for allocation in program.allocations) > 4 << 20
    assert planned_bytes(program) < 1 << 20
    assert (free_bytes() or 1 << 20) > 1 << 19


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no SIGINT to a single process")
def test_ctrl_c_ends_native_code_that_never_returns(tmp_path: Path) -> None:
    source, ptx = tmp_path / "m.hlo", tmp_path / "m.ptx"
    source.write_text("HloModule m\nENTRY e { x = f32[64] parameter(0)\n ROOT y = f32[64] negate(x) }")
    program = compiled(source.read_text(encoding="utf-8"))
    ptx.write_text(program.kernels[0].ptx.replace("ret;", "$SPIN:\n\tbra $SPIN;\n\tret;"), encoding="utf-8")
    command = [sys.executable, "-m", "hlo_run", f"--xla_gpu_ptx_file={ptx}", "--host_engine=jit", "--platform=Host", str(source)]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    (tmp_path / "temporary").mkdir()
    with default_signals():
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    with process:
        assert process.stderr is not None
        while not process.stderr.readline().startswith("Running HLO module with runner Host"):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert "interrupted" in process.stderr.read()
    assert list((tmp_path / "temporary").iterdir()) == []
