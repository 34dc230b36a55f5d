"""Modules of the gpu dialect run on Host as their IR says, on both engines and with all checks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gpu_programs import DATA, EXAMPLES, Array, compiled, interpreted, made_arguments, on_host

FILES = sorted(DATA.glob("*.mlir")) + [EXAMPLES / name for name in ("saxpy.mlir", "block_sums.mlir")]
_LAUNCHES = {"kernel_only": "8,128"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_host_agrees_with_the_ir(file: Path) -> None:
    placed, program, executable = compiled(file.read_text(), launch=_LAUNCHES.get(file.stem, ""))
    given = made_arguments(program)
    expected = interpreted(placed, program, executable, given)
    for engine, checks in (("emulator", ["race", "init", "barrier"]), ("jit", [])):
        actual = on_host(executable, given, engine, checks)
        assert len(actual) == len(expected) > 0
        for one, two in zip(actual, expected, strict=True):
            assert one.dtype == two.dtype
            np.testing.assert_allclose(one.astype(np.float64), two.astype(np.float64), rtol=2e-5, atol=2e-5)


def _results(name: str, sizes: str = "") -> tuple[list[Array], list[Array]]:
    folder = EXAMPLES if (EXAMPLES / name).exists() else DATA
    placed, program, executable = compiled((folder / name).read_text(), sizes)
    given = made_arguments(program, 1)
    return given, interpreted(placed, program, executable, given)


def test_the_interpretation_is_what_numpy_computes() -> None:
    (a, x, y), (new,) = _results("saxpy.mlir", "n=1000,x=1000,y=1000")
    np.testing.assert_allclose(new, a * x + y, rtol=1e-6)
    (values, _, _), (sums, largest) = _results("block_sums.mlir")
    np.testing.assert_allclose(sums, values.reshape(16, 256).sum(1), rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(largest, values.reshape(16, 256).max(1))
    (matrix, _), (transposed,) = _results("transpose_tile.mlir")
    np.testing.assert_array_equal(transposed, matrix.T)
    (one, two, _), (product,) = _results("matmul.mlir", "32")
    np.testing.assert_allclose(product, one @ two, rtol=1e-4, atol=1e-4)
    (numbers, bins), (counted,) = _results("histogram.mlir")
    np.testing.assert_array_equal(counted, bins + np.bincount(numbers & 15, minlength=16).astype(np.int32))
    (values, _), (found,) = _results("max_region.mlir")
    np.testing.assert_array_equal(found, np.repeat(values.reshape(4, 100).max(1), 100))
    assert _results("mlir_all_reduce.mlir")[1][0].tolist() == np.full((2, 4, 13), 103 * 104 / 2).tolist()


REDUCE = """
func.func @main(%x: memref<3x{threads}x{type}>) {{
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %n = arith.constant {threads} : index
  gpu.launch blocks(%bx, %by, %bz) in (%gx = %c3, %gy = %c1, %gz = %c1)
             threads(%tx, %ty, %tz) in (%sx = %n, %sy = %c1, %sz = %c1) {{
    %v = memref.load %x[%bx, %tx] : memref<3x{threads}x{type}>
    %r = gpu.all_reduce {kind} %v {{}} : ({type}) -> {type}
    memref.store %r, %x[%bx, %tx] : memref<3x{threads}x{type}>
    gpu.terminator
  }}
  return
}}
"""


@pytest.mark.parametrize(
    ("threads", "type_", "kind"),
    [
        *((threads, "f32", "add") for threads in (1, 7, 32, 33, 96, 160)),
        *((64, "i32", kind) for kind in ("mul", "minsi", "maxui", "and", "or", "xor")),
        *((96, type_, "add") for type_ in ("f16", "bf16", "f64", "i8", "i64", "index")),
        *((64, "f32", kind) for kind in ("minnumf", "maxnumf", "minimumf", "maximumf")),
    ],
)
def test_reductions_of_a_block(threads: int, type_: str, kind: str) -> None:
    placed, program, executable = compiled(REDUCE.format(threads=threads, type=type_, kind=kind))
    given = made_arguments(program)
    (expected,) = interpreted(placed, program, executable, given)
    (actual,) = on_host(executable, given, "emulator", ["race", "init"])
    bound = 5e-2 if type_ in ("f16", "bf16") else 1e-5
    np.testing.assert_allclose(actual.astype(np.float64), expected.astype(np.float64), rtol=bound, atol=bound * 10)
    if type_ in ("f32", "f64") and kind == "add":
        sums = given[0].astype(np.float64).sum(1, keepdims=True)
        np.testing.assert_allclose(actual, np.broadcast_to(sums, actual.shape), rtol=1e-4, atol=1e-4)


WARP = """
gpu.module @m {
  gpu.func @k(%x: memref<64xf32>, %q: memref<64xi32>, %p: memref<64xf32>) kernel {
    %i = gpu.global_id x
    %v = memref.load %x[%i] : memref<64xf32>
    %s = gpu.subgroup_reduce add %v : (f32) -> f32
    %one = arith.constant 1 : i32
    %width = arith.constant 32 : i32
    %other, %valid = gpu.shuffle xor %v, %one, %width : f32
    %d = arith.subf %s, %other : f32
    memref.store %d, %x[%i] : memref<64xf32>
    %lane = gpu.lane_id
    %warp = gpu.subgroup_id : index
    %warps = gpu.num_subgroups : index
    %size = gpu.subgroup_size : index
    %a = arith.muli %warp, %size : index
    %b = arith.addi %a, %lane : index
    %c = arith.addi %b, %warps : index
    %n = arith.index_cast %c : index to i32
    %three = arith.constant 3 : i32
    %minus = arith.constant -40 : i32
    %m = arith.addi %n, %minus : i32
    %f = arith.floordivsi %m, %three : i32
    %u = arith.ceildivsi %m, %three : i32
    %w = arith.ceildivui %n, %three : i32
    %fu = arith.muli %f, %u : i32
    %all = arith.addi %fu, %w : i32
    memref.store %all, %q[%i] : memref<64xi32>
    %old = memref.atomic_rmw maximumf %v, %p[%lane] : (f32, memref<64xf32>) -> f32
    gpu.return
  }
}
"""


def test_warps_divisions_and_a_compare_and_swap_loop() -> None:
    placed, program, executable = compiled(WARP, launch="1,64")
    given = made_arguments(program)
    expected = interpreted(placed, program, executable, given)
    for engine in ("emulator", "jit"):
        for one, two in zip(on_host(executable, given, engine), expected, strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5)


HOST = """
func.func @step(%x: memref<?xf32>, %by: f32, %n: index) {
  %c1 = arith.constant 1 : index
  %c16 = arith.constant 16 : index
  %g = arith.ceildivsi %n, %c16 : index
  gpu.launch blocks(%bx, %by0, %bz) in (%gx = %g, %gy = %c1, %gz = %c1)
             threads(%tx, %ty, %tz) in (%sx = %c16, %sy = %c1, %sz = %c1) {
    %i = gpu.global_id x
    %in = arith.cmpi ult, %i, %n : index
    scf.if %in {
      %v = memref.load %x[%i] : memref<?xf32>
      %w = arith.mulf %v, %by : f32
      memref.store %w, %x[%i] : memref<?xf32>
    }
    gpu.terminator
  }
  return
}
func.func @main(%x: memref<50xf32>, %n: index) -> memref<?xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %half = arith.constant 0.5 : f32
  %two = arith.constant 2.0 : f32
  %m = memref.alloc(%n) : memref<?xf32>
  %d = memref.cast %x : memref<50xf32> to memref<?xf32>
  memref.copy %d, %m : memref<?xf32> to memref<?xf32>
  scf.for %i = %c0 to %n step %c1 {
    %odd = arith.remui %i, %c2 : index
    %is = arith.cmpi eq, %odd, %c1 : index
    %small = arith.cmpi ult, %i, %c2 : index
    %both = arith.andi %is, %small : i1
    scf.if %both {
      func.call @step(%m, %half, %n) : (memref<?xf32>, f32, index) -> ()
    } else {
      %first = arith.cmpi eq, %i, %c0 : index
      scf.if %first {
        func.call @step(%m, %two, %c2) : (memref<?xf32>, f32, index) -> ()
      }
    }
  }
  memref.store %half, %m[%c1] : memref<?xf32>
  return %m : memref<?xf32>
}
"""


def test_the_host_loops_branches_calls_and_stores() -> None:
    placed, program, executable = compiled(HOST, "n=50")
    given = made_arguments(program)
    (expected,) = interpreted(placed, program, executable, given)
    wanted = given[0] * np.float32(0.5)
    wanted[0], wanted[1] = given[0][0], 0.5
    np.testing.assert_array_equal(expected, wanted)
    np.testing.assert_array_equal(on_host(executable, given, "emulator")[0], wanted)
    assert len(executable.executable.kernels) == 2  # two grids
