"""Kernels of our own compiler with a fault planted into their IR: `--host_check` finds each and says where it comes from."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from xdsl.parser import Parser

import hlo_run
from hlo_run.artifact import Executable
from hlo_run.backends.host.backend import HostBackend
from hlo_run.codegen.emitters.emit import EmittedKernel, EntryArgument, emit_kernel
from hlo_run.dialects.context import make_context
from hlo_run.dialects.printer import print_module
from hlo_run.errors import DeviceError
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.wrap import wrap_bare_module
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.records import replace
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments
from hlo_run.reference.compare.agreement import disagreements
from hlo_run.reference.evaluate.evaluate import evaluate
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
REDUCE = """HloModule m
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}
f {
  p = f32[3,700] parameter(0)
  z = f32[] constant(0)
  ROOT row = f32[3] reduce(p, z), dimensions={1}, to_apply=add
}
ENTRY main {
  x = f32[3,700] parameter(0)
  ROOT r = f32[3] fusion(x), kind=kInput, calls=f
}"""
SCATTER = """HloModule m
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}
f {
  o = f32[100] parameter(0)
  i = s32[4,1] parameter(1)
  u = f32[4,8] parameter(2)
  ROOT placed = f32[100] scatter(o, i, u), update_window_dims={1}, inserted_window_dims={}, scatter_dims_to_operand_dims={0},
    index_vector_dim=1, unique_indices=UNIQUE, to_apply=add
}
ENTRY main {
  x = f32[100] parameter(0)
  y = s32[4,1] parameter(1)
  z = f32[4,8] parameter(2)
  ROOT r = f32[100] fusion(x, y, z), kind=kInput, calls=f
}"""
Edits = Sequence[tuple[str, str]]


class Planter:
    """Emits kernels as the compiler does, then replaces pieces of their text; the patterns are regular expressions."""

    def __init__(self, edits: Edits) -> None:
        self._edits = edits

    def __call__(
        self, fusion: HloInstruction, name: str, target: TargetSpec, arguments: Sequence[EntryArgument], part: int = 0
    ) -> EmittedKernel:
        emitted = emit_kernel(fusion, name, target, arguments, part)
        text = print_module(emitted.module, print_locations=True)
        for old, new in self._edits:
            text, count = re.subn(old, new, text)
            assert count, (old, text)
        return replace(emitted, module=Parser(make_context(), text).parse_module())


def run(
    text: str, edits: Edits, monkeypatch: pytest.MonkeyPatch, checks: str = "all", given: Sequence[Literal] = ()
) -> HostBackend:
    monkeypatch.setattr("hlo_run.pipeline.kernels.emit_kernel", Planter(edits))
    module = wrap_bare_module(hlo_run.parse(text))
    executable: Executable = compile_module(PassContext(preset("h100"), Options(), locates=True), module.clone())
    arguments = given or make_fake_arguments(module, 3)
    backend = HostBackend(checks=checks.split(","))
    got = backend.run(executable, arguments)
    assert not list(disagreements(evaluate(module, arguments), got, module.entry.root.shape))
    return backend


def fault(
    text: str, edits: Edits, monkeypatch: pytest.MonkeyPatch, checks: str = "all", given: Sequence[Literal] = ()
) -> DeviceError:
    with pytest.raises(DeviceError) as caught:
        run(text, edits, monkeypatch, checks, given)
    return caught.value


@pytest.mark.parametrize("text", [TRANSPOSE, LOOP])
def test_kernels_as_they_are_have_no_fault(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (statistics,) = run(text, [], monkeypatch).statistics
    assert statistics.bank_conflicts == 0


SYNC = r"%synced_tensor = xla_gpu\.sync_threads %\w+ .*"
NO_SYNC = (r"(?s)%synced_tensor = xla_gpu\.sync_threads (%\w+)[^\n]*\n(.*)%synced_tensor\b", r"\2\1")


def test_a_removed_sync_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    error = fault(TRANSPOSE, [NO_SYNC], monkeypatch)
    assert "race in shared memory: load of byte" in error.message
    assert "kernel 'input_transpose_fusion', PTX line" in error.message
    assert "of block (0, 0, 0)" in error.message
    write, read = error.notes
    assert "llvm.store" in write
    assert "of HLO instruction 'e'" in write
    assert "llvm.load" in read
    assert "of HLO instruction 'input_transpose_fusion'" in read


def test_a_reduction_without_its_barrier_or_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    run(REDUCE, [], monkeypatch)
    error = fault(REDUCE, [NO_SYNC], monkeypatch)
    assert "race in shared memory: load" in error.message
    assert "of HLO instruction 'row'" in error.notes[-1]
    everybody = [(r"(%\w+ = xla_gpu\.predicated_insert .*) if %\w+", r"%always = arith.constant true\n\1 if %always")]
    assert "different values" in fault(REDUCE, everybody, monkeypatch).message


def test_a_scatter_whose_promise_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    operand, updates = (rng.standard_normal(dims).astype(np.float32) for dims in (100, (4, 8)))
    apart, close = (np.array(starts, np.int32).reshape(4, 1) for starts in ((0, 8, 40, 92), (0, 8, 12, 92)))
    honest, promised = SCATTER.replace("UNIQUE", "false"), SCATTER.replace("UNIQUE", "true")
    run(promised, [], monkeypatch, given=[operand, apart, updates])
    run(honest, [], monkeypatch, given=[operand, close, updates])
    error = fault(promised, [], monkeypatch, given=[operand, close, updates])
    assert "race in global memory" in error.message
    assert "of HLO instruction 'placed'" in error.notes[-1]


def test_a_barrier_that_some_threads_do_not_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    sync = "%met = xla_gpu.sync_threads %xla_loop : tensor<32x33xf32>"
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


MAP = re.escape("(bl_x * 128 + th_x),")


def test_a_skewed_map_makes_two_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    skew = [(MAP, "(bl_x * 128 + (th_x floordiv 2) * 2),")]
    error = fault(LOOP, skew, monkeypatch)
    assert "race in global memory: store of byte 0 of argument 2 (allocation 0), which another thread writes" in error.message
    assert error.notes[0] == "so does thread (1, 0, 0) of block (0, 0, 0)"
    assert "llvm.store" in error.notes[1]


def test_two_blocks_that_write_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    error = fault(LOOP, [(MAP, "((bl_x floordiv 2) * 128 + th_x),")], monkeypatch)
    assert "store of byte 0 of argument 2 (allocation 0), which another thread writes" in error.message
    assert error.notes[0] == "so does thread (0, 0, 0) of block (1, 0, 0)"


@pytest.mark.parametrize("shift", [1, 1000])
def test_an_access_out_of_bounds(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    error = fault(LOOP, [(MAP, f"(bl_x * 128 + th_x + {shift}),")], monkeypatch)
    assert "out-of-bounds global load of 4 bytes" in error.message
    assert "of HLO instruction 'a'" in error.notes[-1]


def test_shared_memory_that_is_read_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "], j in [0, 0], (bl_x floordiv 2) * 32 + i"
    shorter = [(re.escape("i in [0, 7" + rows), "i in [0, 6" + rows)]
    error = fault(TRANSPOSE, shorter, monkeypatch)
    assert "uninitialised shared load: nothing has written byte 112 of shared memory" in error.message
    assert "thread (28, 0, 0) of block (0, 0, 0)" in error.message
    assert "of HLO instruction 'input_transpose_fusion'" in error.notes[-1]


def test_elements_of_the_result_that_nobody_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    error = fault(LOOP, [(r"in \[0, 998\]", "in [0, 899]")], monkeypatch)
    assert error.message == "uninitialised result: nothing has written byte 3600 of an array of 3996"


def test_without_the_checks_the_text_says_how_to_learn_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hlo_run.pipeline.kernels.emit_kernel", Planter([(MAP, "(bl_x * 128 + th_x + 1),")]))
    module = wrap_bare_module(hlo_run.parse(LOOP))
    executable = compile_module(PassContext(preset("h100"), Options()), module.clone())
    with pytest.raises(DeviceError, match="out-of-bounds") as caught:
        HostBackend().run(executable, make_fake_arguments(module, 3))
    assert "--host_check" in caught.value.hint
