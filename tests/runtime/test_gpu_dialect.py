"""The host side as IR: MLIR parses and verifies it, and its ops correspond to the thunks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hlo_run.artifact import ArraySpec, BufferAllocation, BufferSlice, Executable, LoopOffset, SliceCopyThunk, WhileThunk
from hlo_run.cli import run
from hlo_run.runtime.gpu_dialect import gpu_dialect_text

ir = pytest.importorskip("jaxlib.mlir.ir", reason="jaxlib is not installed (extra 'xla')")
registration = pytest.importorskip("jaxlib.mlir._mlir_libs._jax_mlir_ext", reason="jaxlib without dialect registration")

MODULE = """HloModule launches
condition { p = (s32[], f32[64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(5)
  ROOT c = pred[] compare(i, n), direction=LT }
body { p = (s32[], f32[64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[64] get-tuple-element(p), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  t = f32[64] tanh(x)
  ROOT r = (s32[], f32[64]) tuple(j, t) }
first { p = f32[64] parameter(0)
  ROOT s = f32[64] sine(p) }
second { p = f32[64] parameter(0)
  ROOT s = f32[64] cosine(p) }
ENTRY e { x = f32[64] parameter(0)
  q = pred[] parameter(1)
  k = s32[] parameter(2)
  zero = s32[] constant(0)
  s = (s32[], f32[64]) tuple(BEGIN, x)
  w = (s32[], f32[64]) while(s), condition=condition, body=body
  v = f32[64] get-tuple-element(w), index=1
  c = f32[64] conditional(q, v, x), true_computation=first, false_computation=second
  d = f32[64] conditional(k, c, x, v), branch_computations={first, second, second}
  ROOT f = c64[33] fft(d), fft_type=RFFT, fft_length={64} }
"""


@pytest.mark.parametrize(("begin", "expected"), [("k", "scf.while"), ("zero", "scf.for")])
def test_upstream_reads_it(begin: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "m.hlo"
    file.write_text(MODULE.replace("BEGIN", begin), encoding="utf-8")
    # Without --disable, cheap branches become selects.
    assert run(["--stage=gpu-dialect", "--disable=simplify-conditional", str(file)]) == 0
    text = capsys.readouterr().out
    for part in (expected, "scf.if", "scf.index_switch", "case 1 {", "llvm.intr.memcpy", "func.call @kFft_f_1("):
        assert part in text, part
    launch = "gpu.launch_func @wrapped_tanh::@wrapped_tanh blocks in (%c1, %c1, %c1) threads in (%c64, %c1, %c1) args("
    assert launch in text
    _verify(text)


def test_copies_of_slices_in_loops() -> None:
    x, y, flag = BufferSlice(0, 0, 768), BufferSlice(1, 0, 768), BufferSlice(2, 0, 1)
    copy = SliceCopyThunk("c", x, y, 256, LoopOffset(512, -256, 1), LoopOffset(0, 256))
    inner = WhileThunk("i", flag, (), (copy,))
    outer = WhileThunk("o", flag, (), (inner,), trip_count=3)
    allocations = tuple(BufferAllocation(number, size) for number, size in enumerate((768, 768, 1)))
    spec = ArraySpec("f32", (192,), (0,), y)
    text = gpu_dialect_text(Executable("m", "h100", (), (outer,), allocations, (), spec), {})
    assert re.search(r"%o_\d+ = arith.muli %i_1, %c-256 : index", text)
    assert re.search(r"%o_\d+ = arith.muli %i_3, %c256 : index", text)
    _verify(text)


def _verify(text: str) -> None:
    context = ir.Context()
    registry = ir.DialectRegistry()
    registration.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    context.allow_unregistered_dialects = True
    with context:
        module = ir.Module.parse(text)
        assert module.operation.verify()
