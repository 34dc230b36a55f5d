"""Upstream MLIR (jaxlib's) reads every dump in generic form, and every dump past lower-tensors as it is printed."""

from __future__ import annotations

import pytest
from released_xla import as_installed_mlir_reads

from hlo_run.dialects.context import make_context
from hlo_run.dialects.parse import parse_module
from hlo_run.dialects.printer import print_module
from hlo_run.options import Options
from hlo_run.pipeline.kernel_table import KERNEL_PIPELINE, KernelContext
from hlo_run.pipeline.table_rows import base_name
from hlo_run.target import DEFAULT_TARGET, preset

ir = pytest.importorskip("jaxlib.mlir.ir", reason="jaxlib is not installed (extra 'xla')")
registration = pytest.importorskip("jaxlib.mlir._mlir_libs._jax_mlir_ext", reason="jaxlib without dialect registration")

# Two loops around a tile of shared memory, a guarded access, a constant table, a function that stays one, a reduction.
KERNEL = """
#read = #xla_gpu.indexing_map<"(th_x, bl_x)[i] -> (bl_x, i * 4 + th_x floordiv 32, th_x mod 32),"
  "domain: th_x in [0, 127], bl_x in [0, 4], i in [0, 7], th_x mod 32 in [0, 29]">
#write = #xla_gpu.indexing_map<"(th_x, bl_x)[i] -> (i * 4 + th_x floordiv 32, th_x mod 32),"
  "domain: th_x in [0, 127], bl_x in [0, 4], i in [0, 7], i * 4 + th_x floordiv 32 in [0, 29]">
module attributes {dlti.dl_spec = #dlti.dl_spec<index = 32 : i32>} {
  func.func @kernel(%p: tensor<5x32x30xf32> {llvm.align = 16 : index, xla.invariant, xla.slice_index = 0 : index},
      %out: tensor<30x32xf32> {llvm.align = 256 : index, xla.slice_index = 1 : index})
      -> tensor<30x32xf32> attributes {xla.entry} {
    %thread_id_x = gpu.thread_id  x {xla.range = [0 : index, 127 : index]}
    %block_id_x = gpu.block_id  x {xla.range = [0 : index, 4 : index]}
    %c0 = arith.constant 0 : index
    %c3 = arith.constant 3 : index
    %zero = arith.constant 0.0 : f32
    %table = arith.constant dense<[1.0, 2.0, 4.0, 8.0]> : tensor<4xf32>
    %shmem = xla_gpu.allocate_shared : tensor<32x33xf32>
    %filled = xla_gpu.loop (%thread_id_x, %block_id_x)[%i] -> (%a, %b, %c)
        in #read iter_args(%iter = %shmem) -> (tensor<32x33xf32>) {
      %in = arith.cmpi sle, %a, %c3 : index
      %x = xla_gpu.predicated_extract %p[%a, %b, %c] if %in else %zero : tensor<5x32x30xf32>
      %y = math.exp %x : f32
      %inserted = tensor.insert %y into %iter[%b, %c] : tensor<32x33xf32>
      xla_gpu.yield %inserted : tensor<32x33xf32>
    }
    %synced = xla_gpu.sync_threads %filled : tensor<32x33xf32>
    %written = xla_gpu.loop (%thread_id_x, %block_id_x)[%i] -> (%a, %b) in #write iter_args(%iter = %out) -> (tensor<30x32xf32>) {
      %x = tensor.extract %synced[%b, %a] : tensor<32x33xf32>
      %first = xla_gpu.pure_call @twice(%p, %a, %b) : (tensor<5x32x30xf32>, index, index) -> f32
      %second = xla_gpu.pure_call @twice(%p, %c0, %b) : (tensor<5x32x30xf32>, index, index) -> f32
      %sum = arith.addf %first, %second : f32
      %third = arith.addf %sum, %x : f32
      %reduced = xla_gpu.shuffle_reduce(%third) to 16 combiner=@add : f32
      %index = xla_gpu.apply_indexing #xla_gpu.indexing_map<"(a) -> (a mod 4), domain: a in [0, 29]">(%a)
      %factor = tensor.extract %table[%index] : tensor<4xf32>
      %value = arith.mulf %reduced, %factor : f32
      %inserted = tensor.insert %value into %iter[%a, %b] : tensor<30x32xf32>
      xla_gpu.yield %inserted : tensor<30x32xf32>
    }
    return %written : tensor<30x32xf32>
  }
  func.func private @twice(%p: tensor<5x32x30xf32>, %i: index, %j: index) -> f32 {
    %c0 = arith.constant 0 : index
    %x = tensor.extract %p[%c0, %j, %i] : tensor<5x32x30xf32>
    %y = math.log1p %x : f32
    return %y : f32
  }
  func.func private @add(%x: f32, %y: f32) -> f32 {
    %0 = arith.addf %x, %y : f32
    return %0 : f32
  }
}
"""


def _texts() -> list[tuple[str, str]]:
    """Return name and text of each dump that upstream has to read."""
    module = parse_module(KERNEL)
    ctx = KernelContext(preset(DEFAULT_TARGET), Options())
    texts = [("input", print_module(module, generic=True))]
    is_lowered = False
    for row in KERNEL_PIPELINE:
        row.make(ctx).apply(make_context(), module)
        module.verify()
        is_lowered = is_lowered or base_name(row.name) == "lower-tensors"
        texts.append((f"{row.name}, generic", print_module(module, generic=True)))
        if is_lowered:
            texts.append((row.name, print_module(module)))
    return texts


def test_upstream_reads_the_dumps_of_a_kernel() -> None:
    registry = ir.DialectRegistry()
    registration.register_dialects(registry)
    refused: list[str] = []
    with ir.Context() as context:
        context.append_dialect_registry(registry)
        context.load_all_available_dialects()
        context.allow_unregistered_dialects = True
        for name, text in _texts():
            try:
                ir.Module.parse(as_installed_mlir_reads(text))
            except ir.MLIRError as error:
                refused.append(f"{name}: {error}")
    assert not refused
