"""The listings of the gpu dialect's first specification are read, and printed as MLIR prints them today."""

from __future__ import annotations

import pytest

from hlo_run.dialects.parse import parse_gpu_module
from hlo_run.dialects.printer import print_module
from hlo_run.errors import ParseError

IDS = """
%bDimX = "gpu.block_dim"() {dimension = "x"} : () -> (index)
%bIdY = "gpu.block_id"() {dimension = "y"} : () -> (index)
%gDimZ = "gpu.grid_dim"() {dimension = "z"} : () -> (index)
%tIdX = "gpu.thread_id"() {dimension = "x"} : () -> (index)
"gpu.barrier"() : () -> ()
"""
LAUNCH = """
func @main(%0 : index, %1 : index, %2 : index, %3 : index, %4 : index, %5 : index, %6 : f32, %7 : memref<?xf32, 1>) {
gpu.launch blocks(%bx, %by, %bz) in (%sz_bx = %0, %sz_by = %1, %sz_bz = %2)
           threads(%tx, %ty, %tz) in (%sz_tx = %3, %sz_ty = %4, %sz_tz = %5)
           args(%arg0 = %6, %arg1 = 7) : f32, memref<?xf32, 1> {
  // Ids and sizes are usable here.
  "some_op"(%bx, %tx) : (index, index) -> ()
  %42 = load %arg1[%bx] : memref<?xf32, 1>
}
return
}
"""
GENERIC = """
func @main(%cst : index, %c1 : index, %arg0 : f32, %arg1 : memref<?xf32, 1>) {
"gpu.launch"(%cst, %cst, %c1,  // Grid sizes.
             %cst, %c1, %c1,   // Block sizes.
             %arg0, %arg1)     // Actual arguments.
    {/*attributes*/}
    : (index, index, index, index, index, index, f32, memref<?xf32, 1>) -> () {
^bb0(%bx : index, %by : index, %bz : index,
     %tx : index, %ty : index, %tz : index,
     %num_bx : index, %num_by : index, %num_bz : index,
     %num_tx : index, %num_ty : index, %num_tz : index,
     %arg0 : f32, %arg1 : memref<?xf32, 1>):
  "some_op"(%bx, %tx) : (index, index) -> ()
  %3 = "std.load"(%arg1, %bx) : (memref<?xf32, 1>, index) -> f32
}
return
}
"""
MODULES = """
module attributes {gpu.container_module} {
module @kernels attributes {gpu.kernel_module} {
  func @kernel_1(%arg0 : f32, %arg1 : !llvm<"float*">)
      attributes { nvvm.kernel = true } {
    %tIdX = "gpu.thread_id"() {dimension = "x"} : () -> (index)
    "some_op"(%tIdX, %tIdX) : (index, index) -> ()
    %42 = load %arg1[%tIdX] : memref<?xf32, 1>
  }
}
func @main(%cst: index, %arg0: f32, %arg1: !llvm<"float*">) {
"gpu.launch_func"(%cst, %cst, %cst, %cst, %cst, %cst, %arg0, %arg1)
      { kernel_module = @kernels, kernel = "kernel_1" }
      : (index, index, index, index, index, index, f32, !llvm<"float*">) -> ()
  return
}
}
"""
REDUCE = """
func @main(%0 : f32, %m : memref<4x?xf32>) -> f32 {
%1 = "gpu.all_reduce"(%0) ({}) { op = "add" } : (f32) -> (f32)
%2 = "gpu.all_reduce"(%1) ({
^bb(%lhs : f32, %rhs : f32):
  %sum = addf %lhs, %rhs : f32
  "gpu.yield"(%sum) : (f32) -> ()
}) : (f32) -> (f32)
%n = dim %m, 1 : memref<4x?xf32>
%c = cmpi "slt", %n, %n : index
return %2 : f32
}
"""


def _today(text: str) -> str:
    """Return a text as it is printed, after a check that the printed text is read and printed the same."""
    printed = print_module(parse_gpu_module(text).module)
    assert print_module(parse_gpu_module(printed).module) == printed
    return printed


def test_ids_in_generic_form() -> None:
    text = _today(IDS)
    for line in ("gpu.block_dim  x", "gpu.block_id  y", "gpu.grid_dim  z", "gpu.thread_id  x", "gpu.barrier"):
        assert line in text


def test_launches_in_both_forms() -> None:
    text = _today(LAUNCH)
    assert "blocks(%bx, %by, %bz) in (%sz_bx = %arg0, %sz_by = %arg1, %sz_bz = %arg2)" in text
    assert "memref.load %arg7[%bx] : memref<?xf32, 1>" in text
    assert '"some_op"(%bx, %tx)' in text
    text = _today(GENERIC)
    assert "memref.load %arg1[%bx] : memref<?xf32, 1>" in text
    assert "gpu.terminator" in text


def test_modules_of_kernels_and_their_launch() -> None:
    text = _today(MODULES)
    assert "gpu.module @kernels {" in text
    assert "gpu.func @kernel_1(%arg0: f32, %arg1: memref<?xf32, 1>) kernel {" in text
    assert "gpu.launch_func @kernels::@kernel_1 blocks in (%cst, %cst, %cst) threads in (%cst, %cst, %cst) args(" in text


def test_pointers() -> None:
    text = _today('func @f(%a: !llvm<"i8*">, %b: !llvm<"double *">, %c: !llvm<"i8**">, %d: !llvm<"half">) { return }')
    assert "@f(%a: memref<?xi8, 1>, %b: memref<?xf64, 1>, %c: !llvm.ptr, %d: f16)" in text.replace("%arg0", "%a")


def test_reductions_and_old_names() -> None:
    text = _today(REDUCE)
    for line in ("gpu.all_reduce add %arg0", "arith.addf %lhs, %rhs", "gpu.yield %sum", "memref.dim %m, %c1", "arith.cmpi slt"):
        assert line in text


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("func.func @f() {\n  %y = gpu.thread_id w\n  return\n}", (2, 22), "Expected `x`, `y`, or `z`"),
        ("func.func @f(%a: f32) {\n  %1 = gpu.all_reduce xor %a {} : (f32) -> f32\n  return\n}", (2, 3), "cannot compute 'xor'"),
        ("func.func @f(%a: memref<4xf32>, %b: f32) {\n  memref.store %b, %a[] : memref<4xf32>\n  return\n}", (2, 3), "index"),
        ("func.func @f() {\n  gpu.dance\n  return\n}", (2, 3), "gpu.dance is not registered"),
        ("gpu.module @m {\n  gpu.func @k() -> f32 kernel {\n    gpu.return\n  }\n}", (2, 3), "a kernel returns nothing"),
    ],
)
def test_errors_point_at_the_operation(text: str, place: tuple[int, int], message: str) -> None:
    with pytest.raises(ParseError, match=message.replace("(", r"\(")) as error:
        parse_gpu_module(text, "m.mlir")
    where = error.value.where
    assert where is not None
    assert (where.line, where.column) == place
