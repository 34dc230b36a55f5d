"""Loop kernels: what they compute, and the forms that need care."""

from __future__ import annotations

import numpy as np
import pytest
from emitting import emit, run

from hlo_run.errors import Unsupported


@pytest.mark.parametrize("shape", ["f32[]", "f32[1,1]", "f32[5]", "f32[129]", "f32[3,7,11]", "f32[4,50]{0,1}", "f32[1000]"])
def test_every_element_is_written_once(shape: str) -> None:
    run(f"f {{ p = {shape} parameter(0) e = {shape} exponential(p) ROOT r = {shape} add(e, p) }}")


def test_unrolled_kernel() -> None:
    # 270336 elements fill an H100; the symbol walks four neighbours.
    emitted = run("f { p = f32[96,2816] parameter(0) ROOT r = f32[96,2816] negate(p) }")
    assert emitted.kernel.unroll_factor == 4
    assert emitted.kernel.launch.grid == (528, 1, 1)
    assert "[%vector_index]" in emitted.text


def test_nothing_to_compute() -> None:
    emitted = run("f { p = f32[0,4] parameter(0) ROOT r = f32[0,4] negate(p) }", np.zeros((0, 4), np.float32))
    assert "xla_gpu.loop" not in emitted.text


def test_several_roots_of_several_types_and_layouts() -> None:
    run(
        """f {
          p = f32[4,6] parameter(0)
          q = f32[4,6] exponential(p)
          i = s32[4,6] convert(q)
          b = f32[3,8] bitcast(q)
          l = f32[6,4]{0,1} bitcast(q)
          z = pred[4,6] compare(p, q), direction=LT
          ROOT t = (f32[4,6], (s32[4,6], f32[3,8]), f32[6,4]{0,1}, pred[4,6]) tuple(q, n, l, z)
        }""".replace("ROOT t", "n = (s32[4,6], f32[3,8]) tuple(i, b) ROOT t")
    )


def test_one_instruction_as_two_roots() -> None:
    run("f { p = f32[9] parameter(0) e = f32[9] exponential(p) ROOT t = (f32[9], f32[9], f32[9]) tuple(e, p, e) }")


def test_roots_of_different_sizes_are_refused() -> None:
    with pytest.raises(Unsupported, match="element counts differ"):
        emit("f { p = f32[9] parameter(0) s = f32[3] slice(p), slice={[0:3]} ROOT t = (f32[9], f32[3]) tuple(p, s) }")


def test_argument_records_become_attributes() -> None:
    text = emit("f { p = f32[9] parameter(0) ROOT r = f32[9] negate(p) }").text
    first = "{llvm.align = 16 : index, llvm.dereferenceable = 36 : index, xla.invariant, xla.slice_index = 0 : index}"
    second = "{llvm.align = 256 : index, llvm.dereferenceable = 36 : index, xla.slice_index = 1 : index}"
    assert f"%arg0: tensor<9xf32> {first}, %arg1: tensor<9xf32> {second}" in text


def test_a_computation_called_as_its_kernel_gets_another_name() -> None:
    text = emit("kernel { p = f32[9] parameter(0) ROOT r = f32[9] negate(p) }").text
    assert "pure_call @kernel_0(" in text
    assert "func.func private @kernel_0(" in text


def test_a_chain_longer_than_the_stack() -> None:
    count = 3000
    lines = ["p0 = f32[8] parameter(0)", *(f"p{n} = f32[8] negate(p{n - 1})" for n in range(1, count))]
    body = "\n".join(lines)
    emitted = emit(f"f {{ {body}\nROOT r = f32[8] add(p{count - 1}, p0) }}")
    # 2000 instructions are the most that one function takes.
    assert emitted.text.count("func.func private") == 2
    movers = "\n".join(f"p{n} = f32[8] reverse(p{n - 1}), dimensions={{0}}" for n in range(1, count))
    run(f"f {{ p0 = f32[8] parameter(0)\n{movers}\nROOT r = f32[8] negate(p{count - 1}) }}")


def test_code_does_not_double_with_every_slice() -> None:
    def level(n: int) -> str:
        size = 40 - n
        return f"""a{n} = f32[{size}] slice(x{n - 1}), slice={{[0:{size}]}}
        b{n} = f32[{size}] slice(x{n - 1}), slice={{[1:{size + 1}]}}
        x{n} = f32[{size}] add(a{n}, b{n})"""

    body = "\n".join(level(n) for n in range(1, 12))
    emitted = run(f"f {{ x0 = f32[40] parameter(0)\n{body}\nROOT r = f32[29] negate(x11) }}")
    assert emitted.text.count("arith.addf") == 11
    assert emitted.text.count("\n") < 150


def test_text_does_not_depend_on_earlier_kernels() -> None:
    first = "f { p = f32[6,4] parameter(0) s = f32[3,4] slice(p), slice={[1:6:2], [0:4]} ROOT r = f32[12] reshape(s) }"
    other = "g { p = f32[12] parameter(0) ROOT r = f32[3,4] reshape(p) }"
    before = emit(first).text
    emit(other)
    assert emit(first).text == before
