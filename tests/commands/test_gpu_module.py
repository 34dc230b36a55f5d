"""`hlo-run KERNEL.mlir`: modes and flags of modules of the gpu dialect."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from gpu_programs import DATA, EXAMPLES

from hlo_run.cli import run
from hlo_run.formats.gpu_modules import is_gpu_module


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLES / "saxpy.mlir", "saxpy.mlir")


def test_a_run_with_given_arguments(capfd: pytest.CaptureFixture[str]) -> None:
    x, y = np.arange(8, dtype=np.float32), np.ones(8, np.float32)
    np.savez("in.npz", arg0=np.float32(2), arg1=x, arg2=y)
    words = ["saxpy.mlir", "--platform=Host", "--one_process", "--sizes=8", "--inputs=in.npz", "--save_outputs=out.npz"]
    assert run([*words, "--host_check=race,init"]) == 0
    assert "8 elements agree" in capfd.readouterr().err
    with np.load("out.npz") as results:
        np.testing.assert_array_equal(next(iter(results.values())), 2 * x + y)


def test_every_row_from_the_input_to_ptx_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["saxpy.mlir", "--platform=Host", "--one_process", "--v=5"]) == 0
    text = capfd.readouterr().err
    rows = ("gpu-input", "gpu-kernel-outlining", "specialize-kernel", "lower-memrefs", "lower-to-llvm-gpu", "llvm", "ptx")
    places = [text.index(f"IR Dump After {row} ") for row in rows]
    assert places == sorted(places)
    assert ".visible .entry main_kernel" in text


def test_a_file_may_have_the_name_of_a_type(capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copy("saxpy.mlir", "u1.mlir")
    assert run(["u1.mlir", "--platform=Host", "--one_process", "--sizes=8", "--check_kernels=off"]) == 0
    assert "8 elements agree" in capfd.readouterr().err


def test_stages_and_what_has_none(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["saxpy.mlir", "--one_process", "--stage=gpu-kernel-outlining"]) == 0
    assert "gpu.launch_func @main_kernel::@main_kernel" in capfd.readouterr().out
    assert run(["saxpy.mlir", "--one_process", "--stage=hlo"]) == 0
    assert "has no stage 'hlo'" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--localize"], 2, "--localize needs an HLO module"),
        (["--reference_platform=CUDA"], 2, "compared with its interpretation"),
        (["--sizes=n=2000"], 5, "saxpy.mlir:12:7: device error: index 1024 is out of bounds"),
    ],
)
def test_errors(words: list[str], code: int, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["saxpy.mlir", "--platform=Host", "--one_process", *words]) == code
    text = capfd.readouterr().err
    assert message in text
    assert "next:" not in text


def test_sizes_are_for_these_modules(capfd: pytest.CaptureFixture[str]) -> None:
    Path("m.hlo").write_text("HloModule m\nENTRY e {\n  ROOT p = f32[2] parameter(0)\n}\n")
    assert run(["m.hlo", "--platform=Host", "--one_process", "--sizes=4"]) == 2
    assert "not a module of the gpu dialect" in capfd.readouterr().err


def test_which_files_are_such_modules() -> None:
    assert all(is_gpu_module(str(file)) for file in DATA.glob("*.mlir"))
    Path("s.mlir").write_text(
        "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {\n  // gpu.launch\n  return %x : tensor<2xf32>\n}\n"
    )
    assert not is_gpu_module("s.mlir")
    assert not is_gpu_module("missing.mlir")
