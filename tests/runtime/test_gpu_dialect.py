"""The host side as IR: MLIR parses and verifies it, and its ops correspond to the thunks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hlo_run.cli import run

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


SLICES = """HloModule slices
condition { p = (s32[], f32[3,64], f32[3,64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT }
rows { y = f32[3,64] parameter(0)
  i = s32[] parameter(1)
  x = f32[3,64] parameter(2)
  z = s32[] constant(0)
  d = f32[1,64] dynamic-slice(x, i, z), dynamic_slice_sizes={1,64}, backend_config={CONFIG}
  c = f32[1,64] copy(d)
  ROOT u = f32[3,64] dynamic-update-slice(y, c, i, z), backend_config={CONFIG} }
body { p = (s32[], f32[3,64], f32[3,64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[3,64] get-tuple-element(p), index=1
  y = f32[3,64] get-tuple-element(p), index=2
  one = s32[] constant(1)
  j = s32[] add(i, one)
  v = f32[3,64] fusion(y, i, x), kind=kCustom, calls=rows, backend_config=
    {"fusion_backend_config":{"kind":"__custom_fusion","custom_fusion_config":{"name":"dynamic_slice_fusion"}}}
  ROOT t = (s32[], f32[3,64], f32[3,64]) tuple(j, x, v) }
ENTRY e { k = s32[] parameter(0)
  x = f32[3,64] parameter(1)
  y = f32[3,64] parameter(2)
  zero = s32[] constant(0)
  s = (s32[], f32[3,64], f32[3,64]) tuple(BEGIN, x, y)
  w = (s32[], f32[3,64], f32[3,64]) while(s), condition=condition, body=body
  ROOT v = f32[3,64] get-tuple-element(w), index=2 }
""".replace("CONFIG", '"dynamic_slice_config":{"loop_index":"0","byte_offset":"0","byte_stride":"256"}')


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


def test_copies_of_slices_in_loops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for begin, loop in (("k", "scf.while (%i_"), ("zero", "scf.for")):
        (tmp_path / "m.hlo").write_text(SLICES.replace("BEGIN", begin), encoding="utf-8")
        assert run(["--stage=gpu-dialect", str(tmp_path / "m.hlo")]) == 0
        text = capsys.readouterr().out
        assert loop in text
        assert re.search(r"%o_\d+ = arith.muli %i_\d+, %c256 : index", text)
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
