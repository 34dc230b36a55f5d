"""`gpu.all_reduce` in a kernel, run on Host with all checks and compared with the reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlo_run.cli import run

MODULE = """HloModule rows
combine {{ x = {type}[] parameter(0)
  y = {type}[] parameter(1)
  ROOT s = {type}[] {combine}(x, y) }}
f {{ a = {type}[4,{size}] parameter(0)
  z = {type}[] constant({init})
  r = {type}[4] reduce(a, z), dimensions={{1}}, to_apply=combine
  ROOT b = {type}[4,{size}] broadcast(r), dimensions={{0}} }}
ENTRY e {{ a = {type}[4,{size}] parameter(0)
  ROOT k = {type}[4,{size}] fusion(a), kind=kInput, calls=f }}
"""
KERNEL = """// row: emit-kernels; kernel: k; launch: grid 4x1x1 block {block}; unroll: 1; target: h100_sxm; module: rows
module attributes {{dlti.dl_spec = #dlti.dl_spec<index = 32 : i32>}} {{
  func.func @k(%arg0: tensor<4x{size}x{type}> {{xla.slice_index = 0 : index}},
      %arg1: tensor<4x{size}x{type}> {{xla.slice_index = 1 : index}})
      -> tensor<4x{size}x{type}> attributes {{{known}xla.entry}} {{
    %x = gpu.thread_id x {{xla.range = [0 : index, {last} : index]}}
    %y = gpu.thread_id y
    %c = arith.constant {width} : index
    %w = arith.muli %y, %c : index
    %t = arith.addi %x, %w : index
    %b = gpu.block_id x {{xla.range = [0 : index, 3 : index]}}
    %v = tensor.extract %arg0[%b, %t] : tensor<4x{size}x{type}>
    %s = gpu.all_reduce {reduction} : ({type}) -> {type}
    %r = tensor.insert %s into %arg1[%b, %t] : tensor<4x{size}x{type}>
    return %r : tensor<4x{size}x{type}>
  }}
}}
"""
ADD = "add %v {\n    }"
BODY = "%v {\n    ^bb0(%p: i32, %q: i32):\n      %m = arith.maxsi %p, %q : i32\n      gpu.yield %m : i32\n    }"


@pytest.mark.parametrize(
    ("block", "known", "type_", "hlo_type", "reduction", "combine", "init"),
    [
        ((64, 1), True, "f32", "f32", ADD, "add", "0"),
        ((16, 3), False, "f32", "f32", ADD, "add", "0"),
        ((48, 1), True, "i32", "s32", BODY, "maximum", "-2147483648"),
    ],
)
def test_all_reduce(
    block: tuple[int, int], known: bool, type_: str, hlo_type: str, reduction: str, combine: str, init: str, tmp_path: Path
) -> None:
    width, height = block
    size = width * height
    attribute = f"gpu.known_block_size = array<i32: {width}, {height}, 1>, " if known else ""
    module, kernel = tmp_path / "rows.hlo", tmp_path / "k.mlir"
    module.write_text(MODULE.format(type=hlo_type, size=size, combine=combine, init=init))
    text = KERNEL.format(
        block=f"{width}x{height}x1",
        size=size,
        type=type_,
        known=attribute,
        last=width - 1,
        width=width,
        reduction=reduction,
    )
    kernel.write_text(text)
    flags = ["--platform=Host", "--xla_disable_all_hlo_passes", "--host_check=all", f"--kernel_ir_file={kernel}"]
    assert run([*flags, str(module)]) == 0
