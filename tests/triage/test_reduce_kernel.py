"""`hlo-tool reduce` on a dump of kernel IR: by a command, and by the failure of its compilation."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlo_run.dialects.parse import parse_module
from hlo_run.tool import run_tool

_DUMP = """// row: flatten-tensors; kernel: k; launch: grid 1x1x1 block 32x1x1; unroll: 1; target: h100_sxm; module: m
module {
  func.func @k(%arg0: tensor<32xf32>, %arg1: tensor<32xf32>) -> tensor<32xf32> attributes {xla.entry} {
    %c4 = arith.constant 4 : index
    %thread_id_x = gpu.thread_id  x {xla.range = [0 : index, 31 : index]}
    %0 = arith.cmpi sle, %thread_id_x, %c4 : index
    %1 = scf.if %0 -> (f32) {
      %extracted = tensor.extract %arg0[%thread_id_x] : tensor<32xf32>
      %pure_call = xla_gpu.pure_call @add(%extracted, %extracted) : (f32, f32) -> f32
      scf.yield %pure_call : f32
    } else {
      %cst = arith.constant 2.000000e+00 : f32
      scf.yield %cst : f32
    }
    %inserted = tensor.insert %1 into %arg1[%thread_id_x] : tensor<32xf32>
    return %inserted : tensor<32xf32>
  }
  func.func private @add(%arg0: f32, %arg1: f32) -> f32 attributes {llvm.linkage = #llvm.linkage<internal>} {
    %0 = arith.addf %arg0, %arg1 : f32
    return %0 : f32
  }
}
"""
_PLANT = """from hlo_run.codegen.kernel_passes.optimize_loops import OptimizeLoops
def wrong(self, ctx, op):
    assert not any(inner.name == "tensor.insert" for inner in op.walk())
OptimizeLoops.apply = wrong
"""


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    path = tmp_path / "k.mlir"
    path.write_text(_DUMP, encoding="utf-8")
    return path


def test_a_command_keeps_one_operation(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tool(["reduce", str(dump), "--test=grep -q tensor.extract {}", "--jobs=2"]) == 0
    text = dump.with_name("k.reduced.mlir").read_text(encoding="utf-8")
    assert text.startswith("// row: flatten-tensors; kernel: k;")
    assert "tensor.extract" in text
    assert "scf.if" not in text
    assert "@add" not in text
    parse_module(text).verify()
    assert "of 16 operations" in capsys.readouterr().out


def test_the_failure_of_a_row_is_kept(dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant = tmp_path / "plant.py"
    plant.write_text(_PLANT, encoding="utf-8")
    output = tmp_path / "small.mlir"
    assert run_tool(["reduce", str(dump), f"--run=hlo-run --custom_calls={plant}", f"--output={output}", "--jobs=2"]) == 0
    assert "AssertionError" in capsys.readouterr().err
    assert output.read_text(encoding="utf-8").count("tensor.") == 1


def test_a_dump_that_does_not_fail_gives_1(dump: Path) -> None:
    assert run_tool(["reduce", str(dump), "--test=false {}"]) == 1
