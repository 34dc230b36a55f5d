"""Logs of kernel passes of real XLA as inputs: each dump continues after our row and runs right; launches; hlo-opt.

The data is XLA's of `subtract(multiply(p, 0.5), broadcast(q))` (jaxlib 0.10.2), its log shortened to five dumps.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hlo_run.cli import run, run_opt
from hlo_run.pass_support.xla_kernel_dumps import read_xla_dump

DATA = Path(__file__).parent.parent / "data" / "xla_kernel_dumps"
LOG = DATA / "module_0000.halves.loop_subtract_fusion.mlir-passes.log"
PASSES = {
    "xla-simplify-arith": "emit-kernels",
    "xla-gpu-peel-loops": "cse-2",
    "xla-lower-tensors": "convert-pure-call-ops",
    "xla-gpu-convert-index-type": "simplify-affine",
    "reconcile-unrealized-casts": "lower-to-llvm-gpu",
}


@pytest.mark.parametrize("before", PASSES)
def test_a_dump_of_xla_continues_and_agrees_with_the_reference(before: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert read_xla_dump(LOG.read_text(), str(LOG), before).row == PASSES[before]
    assert run(["--platform=Host", "--cache=off", f"--kernel_ir_before={before}", str(LOG)]) == 0
    assert "the comparison sees the kernel" in capsys.readouterr().err


def test_the_kernel_of_the_dump_is_the_one_that_runs(tmp_path: Path) -> None:
    for file in DATA.iterdir():
        shutil.copy(file, tmp_path)
    edited = tmp_path / LOG.name
    edited.write_text(LOG.read_text().replace("5.000000e-01", "6.000000e-01"))
    assert run(["--platform=Host", "--cache=off", str(edited)]) == 1


def test_the_launch_is_in_the_files_beside_in_the_ids_or_in_a_flag(tmp_path: Path) -> None:
    text = LOG.read_text()
    whole = read_xla_dump(text, str(LOG)).launch
    assert (whole.grid, whole.block) == ((16, 1, 1), (128, 1, 1))
    alone = tmp_path / "kernel.mlir"
    assert read_xla_dump(text, str(alone)).launch == whole
    last = text[text.rindex("// -----// IR Dump") :]
    given = read_xla_dump(last, str(alone), launch="2x1x1,64x4x1").launch
    assert (given.grid, given.block) == ((2, 1, 1), (64, 4, 1))


def test_problems_are_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = LOG.read_text()
    alone = tmp_path / "kernel.mlir"
    alone.write_text(text[text.rindex("// -----// IR Dump") :])
    assert run(["--stage=ptx", str(alone)]) == 2
    assert "does not show the launch dimensions" in capsys.readouterr().err
    assert run(["--stage=ptx", "--kernel_launch=16", str(alone)]) == 2
    assert "'16' is not a launch" in capsys.readouterr().err
    assert run(["--stage=ptx", "--kernel_ir_before=cse", str(LOG)]) == 2
    assert "has no dump before the pass 'cse'" in capsys.readouterr().err
    alone.write_text(text.replace("xla-simplify-arith{", "xla-other{", 1).replace(": xla-simplify-arith", ": xla-other"))
    assert run(["--stage=ptx", str(alone)]) == 3
    assert "XLA's pass 'xla-other' has no row" in capsys.readouterr().err


def test_hlo_opt_prints_a_dump_of_xla_as_ours_and_runs_kernel_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_opt(["--kernel_ir_before=xla-gpu-peel-loops", str(LOG)]) == 0
    assert "xla_gpu.loop" in capsys.readouterr().out
    assert run_opt(["--kernel_ir_before=xla-lower-tensors", "--passes=xla-lower-tensors,xla-lower-pdl-wait", str(LOG)]) == 0
    text = capsys.readouterr().out
    assert "llvm.store" in text
    assert "griddepcontrol wait" in text
    assert run_opt(["--passes=xla-gpu-recover-exp", str(LOG)]) == 2
    assert "did you mean recover-exp2?" in capsys.readouterr().err


_MODULE = """HloModule m
ENTRY e {{
  p = {type} parameter(0)
  q = {type} parameter(1)
  ROOT r = {type} {op}(p, q)
}}
"""


def _emitted(tmp_path: Path, hlo: str) -> Path:
    (tmp_path / "m.hlo").write_text(hlo)
    assert run(["--stage=ptx", f"--xla_dump_to={tmp_path}/d", "--dump_kernel_rows", str(tmp_path / "m.hlo")]) == 0
    return next((tmp_path / "d").glob("*.000.after_emit-kernels.mlir"))


def _run_after(tmp_path: Path, dump: Path, pass_name: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run the module with the kernel after a pass, and return the kernel's text; the run must agree with the reference."""
    header = dump.read_text().partition("\n")[0]
    capsys.readouterr()
    assert run_opt([f"--passes={pass_name}", str(dump)]) == 0
    kernel = tmp_path / "edited.mlir"
    text = capsys.readouterr().out
    kernel.write_text(f"{header}\n{text}")
    assert run(["--platform=Host", "--cache=off", f"--kernel_ir_file={kernel}", str(tmp_path / "m.hlo")]) == 0
    return text


def test_integer_powers_are_those_of_the_reference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = _emitted(tmp_path, _MODULE.format(type="s32[300]", op="power"))
    (tmp_path / "add").mkdir()
    before = _emitted(tmp_path / "add", _MODULE.format(type="s32[300]", op="add")).read_text()
    assert "arith.addi" in before
    dump.write_text(before.replace("arith.addi", "math.ipowi").replace("wrapped_add", "wrapped_power"))
    assert "ipowi" not in _run_after(tmp_path, dump, "integer-power", capsys)


def test_exp2_has_the_values_of_the_exponential(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hlo = """HloModule m
    ENTRY e {
      p = f32[300] parameter(0)
      c = f32[] constant(0.693147182)
      b = f32[300] broadcast(c), dimensions={}
      m = f32[300] multiply(p, b)
      ROOT r = f32[300] exponential(m)
    }
    """
    text = _run_after(tmp_path, _emitted(tmp_path, hlo), "recover-exp2", capsys)
    assert "math.exp2" in text
    assert "math.exp " not in text


def test_the_sizes_of_grid_and_block_are_read_from_registers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # 512 threads in four blocks: each adds its index, which is an id times a size, plus an id.
    hlo = "HloModule m\nENTRY e {\n  ROOT r = s32[512] iota(), iota_dimension=0\n}\n"
    dump = _emitted(tmp_path, hlo)
    header = dump.read_text().partition("\n")[0]
    kernel = tmp_path / "edited.mlir"
    name = header.partition("kernel: ")[2].partition(";")[0]
    kernel.write_text(
        f"""{header}
module attributes {{dlti.dl_spec = #dlti.dl_spec<index = 32 : i32>}} {{
  func.func @{name}(%a: tensor<512xi32> {{xla.slice_index = 0 : index}}) -> tensor<512xi32> attributes {{xla.entry}} {{
    %t = gpu.thread_id x {{xla.range = [0 : index, 127 : index]}}
    %b = gpu.block_id x {{xla.range = [0 : index, 3 : index]}}
    %threads = gpu.block_dim x
    %blocks = gpu.grid_dim x
    %first = arith.muli %b, %threads : index
    %i = arith.addi %first, %t : index
    %size = arith.muli %blocks, %threads : index
    %last = arith.remui %i, %size : index
    %value = arith.index_castui %last : index to i32
    %r = tensor.insert %value into %a[%i] : tensor<512xi32>
    return %r : tensor<512xi32>
  }}
}}
"""
    )
    flags = ["--platform=Host", "--cache=off", f"--kernel_ir_file={kernel}"]
    kernel.write_text(kernel.read_text().replace("grid 1x1x1 block 128x1x1", "grid 4x1x1 block 128x1x1"))
    assert run([*flags, str(tmp_path / "m.hlo")]) == 0
