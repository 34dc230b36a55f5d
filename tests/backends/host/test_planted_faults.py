"""Kernels of our own compiler with a fault planted into their IR: `--host_check` finds each and says where it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from xdsl.parser import Parser

import hlo_run
from hlo_run.artifact import Executable
from hlo_run.backends.host.backend import HostBackend
from hlo_run.dialects.context import make_context
from hlo_run.dialects.printer import print_module
from hlo_run.errors import DeviceError
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.wrap import wrap_bare_module
from hlo_run.options import Options
from hlo_run.pipeline.compile import compile_module
from hlo_run.pipeline.emitters.emit import EmittedKernel, EntryArgument, emit_kernel
from hlo_run.pipeline.passes import PassContext
from hlo_run.reference.agreement import disagreements
from hlo_run.reference.arguments import make_fake_arguments
from hlo_run.reference.evaluate import evaluate
from hlo_run.target import TargetSpec, preset

TRANSPOSE = """HloModule m
f {
  p = f32[37,50] parameter(0)
  e = f32[37,50] exponential(p)
  ROOT t = f32[50,37] transpose(e), dimensions={1,0}
}
ENTRY main {
  x = f32[37,50] parameter(0)
  ROOT r = f32[50,37] fusion(x), kind=kInput, calls=f
}"""
LOOP = """HloModule m
f {
  a = f32[999] parameter(0)
  b = f32[999] parameter(1)
  ROOT sum = f32[999] add(a, b)
}
ENTRY main {
  x = f32[999] parameter(0)
  y = f32[999] parameter(1)
  ROOT r = f32[999] fusion(x, y), kind=kLoop, calls=f
}"""
Edits = Sequence[tuple[str, str]]


class Planter:
    """Emits kernels as the compiler does, then replaces pieces of their text."""

    def __init__(self, edits: Edits) -> None:
        self._edits = edits

    def __call__(
        self, fusion: HloInstruction, name: str, target: TargetSpec, arguments: Sequence[EntryArgument]
    ) -> EmittedKernel:
        emitted = emit_kernel(fusion, name, target, arguments)
        text = print_module(emitted.module, print_locations=True)
        for old, new in self._edits:
            assert old in text, (old, text)
            text = text.replace(old, new)
        return replace(emitted, module=Parser(make_context(), text).parse_module())


def run(text: str, edits: Edits, monkeypatch: pytest.MonkeyPatch, checks: str = "all") -> HostBackend:
    monkeypatch.setattr("hlo_run.pipeline.kernels.emit_kernel", Planter(edits))
    module = wrap_bare_module(hlo_run.parse(text))
    executable: Executable = compile_module(PassContext(preset("h100"), Options(host_check=checks)), module.clone())
    arguments = make_fake_arguments(module, 3)
    backend = HostBackend(checks=checks.split(","))
    got = backend.run(executable, arguments)
    assert not list(disagreements(evaluate(module, arguments), got, module.entry.root.shape))
    return backend


def fault(text: str, edits: Edits, monkeypatch: pytest.MonkeyPatch, checks: str = "all") -> DeviceError:
    with pytest.raises(DeviceError) as caught:
        run(text, edits, monkeypatch, checks)
    return caught.value


@pytest.mark.parametrize("text", [TRANSPOSE, LOOP])
def test_kernels_as_they_are_have_no_fault(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (statistics,) = run(text, [], monkeypatch).statistics
    assert statistics.bank_conflicts == 0


SYNC = '%synced_tensor = xla_gpu.sync_threads %xla_loop {hlo.op = "r"} : tensor<32x33xf32>'


def test_a_removed_sync_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    error = fault(TRANSPOSE, [(SYNC, ""), ("%synced_tensor", "%xla_loop")], monkeypatch)
    assert "race in shared memory: load of byte" in error.message
    assert "kernel 'r', PTX line" in error.message
    assert "of block (0, 0, 0)" in error.message
    write, read = error.notes
    assert "llvm.store" in write
    assert "of HLO instruction 'e'" in write
    assert "llvm.load" in read
    assert "of HLO instruction 'r'" in read


def test_a_barrier_that_some_threads_do_not_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    sync = SYNC.replace("%synced_tensor", "%met")
    choice = f"""%c40 = arith.constant 40 : index
    %early = arith.cmpi ult, %thread_id_x, %c40 : index
    %synced_tensor = scf.if %early -> (tensor<32x33xf32>) {{
      {sync}
      scf.yield %met : tensor<32x33xf32>
    }} else {{
      scf.yield %xla_loop : tensor<32x33xf32>
    }}"""
    error = fault(TRANSPOSE, [(SYNC, choice)], monkeypatch, "barrier")
    assert "not all threads of the block reach the barrier" in error.message
    assert "thread (0, 0, 0) of block (0, 0, 0)" in error.message
    assert error.notes[0] == "thread (40, 0, 0) of block (0, 0, 0) has ended"
    assert "nvvm.barrier" in error.notes[1]
    assert "race in shared memory" in fault(TRANSPOSE, [(SYNC, choice)], monkeypatch).message, "they read before it"


def test_a_skewed_map_makes_two_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    skew = [("(bl_x * 128 + th_x),", "(bl_x * 128 + (th_x floordiv 2) * 2),")]
    error = fault(LOOP, skew, monkeypatch)
    assert "race in global memory: store of byte 0 of argument 2 (allocation 2), which another thread writes" in error.message
    assert error.notes[0] == "so does thread (1, 0, 0) of block (0, 0, 0)"
    assert "llvm.store" in error.notes[1]


def test_two_blocks_that_write_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    error = fault(LOOP, [("(bl_x * 128 + th_x),", "((bl_x floordiv 2) * 128 + th_x),")], monkeypatch)
    assert "store of byte 0 of argument 2 (allocation 2), which another thread writes" in error.message
    assert error.notes[0] == "so does thread (0, 0, 0) of block (1, 0, 0)"


@pytest.mark.parametrize("shift", [1, 1000])
def test_an_access_out_of_bounds(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    error = fault(LOOP, [("(bl_x * 128 + th_x),", f"(bl_x * 128 + th_x + {shift}),")], monkeypatch)
    assert "out-of-bounds global load of 4 bytes" in error.message
    assert "of HLO instruction 'a'" in error.notes[-1]


def test_shared_memory_that_is_read_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    shorter = [("i in [0, 7], j in [0, 0], (bl_x floordiv 2) * 32 + i", "i in [0, 6], j in [0, 0], (bl_x floordiv 2) * 32 + i")]
    error = fault(TRANSPOSE, shorter, monkeypatch)
    assert "uninitialised shared load: nothing has written byte 112 of shared memory" in error.message
    assert "thread (28, 0, 0) of block (0, 0, 0)" in error.message
    assert "of HLO instruction 'r'" in error.notes[-1]


def test_elements_of_the_result_that_nobody_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    error = fault(LOOP, [("in [0, 998]", "in [0, 899]")], monkeypatch)
    assert error.message == "uninitialised result: nothing has written byte 3600 of an array of 3996"


def test_without_the_checks_the_text_says_how_to_learn_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hlo_run.pipeline.kernels.emit_kernel", Planter([("th_x),", "th_x + 1),")]))
    module = wrap_bare_module(hlo_run.parse(LOOP))
    executable = compile_module(PassContext(preset("h100"), Options()), module.clone())
    with pytest.raises(DeviceError, match="out-of-bounds") as caught:
        HostBackend().run(executable, make_fake_arguments(module, 3))
    assert "--host_check" in caught.value.hint
