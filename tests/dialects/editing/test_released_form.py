"""The form of kernel IR that released XLA prints, made from ours. The expected lines are those of jaxlib 0.10.2's dumps."""

from __future__ import annotations

import pytest
from emitting import emit

from hlo_run.dialects.editing.released_form import Stage, print_released
from hlo_run.dialects.parse import parse_module
from hlo_run.dialects.printer import print_module

LOOP = """
fusion {
  a = f32[8,4] parameter(0)
  b = f32[8,4] parameter(1)
  sum = f32[8,4] add(a, b)
  product = f32[8,4] multiply(a, b)
  flat = f32[32] bitcast(product)
  ROOT t = (f32[8,4], f32[32]) tuple(sum, flat)
}
"""
CONCATENATE = """
fusion {
  a = f32[200] parameter(0)
  b = f32[400] parameter(1)
  ROOT c = f32[600] concatenate(a, b), dimensions={0}
}
"""
TRANSPOSE = """
fusion {
  a = f32[64,64] parameter(0)
  ROOT t = f32[64,64] transpose(a), dimensions={1,0}
}
"""


def _released(text: str, stage: Stage = "shared") -> str:
    kernel = emit(text, name="k").kernel
    return print_released(kernel.module, kernel.kind, stage=stage)


def test_loops_share_their_outputs_between_threads() -> None:
    text = _released(LOOP)
    for line in (
        '#indexing_map = #xla.indexing_map<"(th_x) -> (th_x / 4, th_x mod 4), domain: th_x in [0, 31]">',
        "module @k_kernel_module attributes",
        "attributes {xla.backend_kind = #xla.backend_kind<gpu>, xla.entry} {",
        "%0:2 = scf.forall (%arg4) in (32) shared_outs(%arg5 = %arg2, %arg6 = %arg3) -> (tensor<8x4xf32>, tensor<32xf32>) {",
        "%xla_loop, %xla_loop_0 = xla.loop (%arg4)[] -> (%ra, %rb) in #indexing_map iter_args(%iter = %arg5, %iter_1 = %arg6) ->",
        "%pure_call, %pure_call_2 = xla.pure_call @fusion_t(%arg0, %arg1, %ra, %rb)",
        "%inserted_3 = tensor.insert %pure_call_2 into %iter_1[%1] : tensor<32xf32>",
        "scf.forall.in_parallel {",
        "tensor.parallel_insert_slice %xla_loop into %arg5[0, 0] [8, 4] [1, 1] : tensor<8x4xf32> into tensor<8x4xf32>",
        "return %0#0, %0#1 : tensor<8x4xf32>, tensor<32xf32>",
    ):
        assert line in text


def test_blocks_have_xlas_ids_and_concatenations_carry_the_arguments() -> None:
    text = _released(CONCATENATE)
    assert "%0 = xla.workgroup_id x {xla.range = [0 : index, 3 : index]}\n" in text
    assert "%1 = scf.forall (%arg3) in (128) shared_outs(%arg4 = %arg2) -> (tensor<600xf32>) {" in text
    assert "iter_args(%iter = %arg2)" in text


def test_after_lower_xla_shared_the_ids_of_blocks_come_first() -> None:
    text = _released(CONCATENATE, "lowered")
    assert "scf.forall" not in text
    assert text.index("%block_id_x = gpu.block_id x") < text.index("%thread_id_x = gpu.thread_id x")


def test_other_emitters_read_the_ids_from_the_start() -> None:
    text = _released(TRANSPOSE)
    assert text.count("module attributes") == 1
    assert "%thread_id_x = gpu.thread_id x {xla.range = [0 : index, 127 : index]}" in text
    assert "xla.loop (%thread_id_x, %block_id_x)[%i, %j]" in text
    assert "xla_gpu.sync_threads" in text


def test_emitted_maps_have_all_ids() -> None:
    text = _released(CONCATENATE, "emitted")
    ids = "th_x in [0, 127], th_y in [0, 0], th_z in [0, 0], bl_x in [0, 3], bl_y in [0, 0], bl_z in [0, 0]"
    assert f'"(th_x, th_y, th_z, bl_x, bl_y, bl_z) -> (bl_x * 128 + th_x + 200), domain: {ids}' in text
    assert "%1 = xla.workgroup_id y {xla.range = [0 : index, 0 : index]}" in text
    assert "%3 = scf.forall (%arg3, %arg4, %arg5) in (128, 1, 1) shared_outs(%arg6 = %arg2)" in text
    assert "%xla_loop = xla.loop (%arg3, %arg4, %arg5, %0, %1, %2)[] -> (%ra)" in text
    text = _released(TRANSPOSE, "emitted")
    assert text.index("%thread_id_z") < text.index("%block_id_x") < text.index("%block_id_z") < text.index("%shmem")


@pytest.mark.parametrize("text", [LOOP, CONCATENATE, TRANSPOSE])
def test_the_text_is_read_back(text: str) -> None:
    kernel = emit(text, name="k").kernel
    released = print_released(kernel.module, kernel.kind, stage="shared")
    again = parse_module(released)
    assert print_released(again, kernel.kind, stage="shared") == released
    assert print_module(parse_module(print_module(again))) == print_module(again)
    assert "xla.loop" not in print_module(again)
