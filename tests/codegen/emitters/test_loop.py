"""Loop kernels: their results, and special forms."""

from __future__ import annotations

import numpy as np
import pytest
from emitting import emit, run, run_on_host


@pytest.mark.parametrize("shape", ["f32[]", "f32[1,1]", "f32[5]", "f32[129]", "f32[3,7,11]", "f32[4,50]{0,1}", "f32[1000]"])
def test_every_element_is_written_once(shape: str) -> None:
    run(f"f {{ p = {shape} parameter(0) e = {shape} exponential(p) ROOT r = {shape} add(e, p) }}")


def test_unrolled_kernel() -> None:
    # 270336 elements fill an H100; the symbol counts four neighbours.
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


_BEST = """best { a = f32[] parameter(0) i = s32[] parameter(1) b = f32[] parameter(2) j = s32[] parameter(3)
  m = f32[] maximum(a, b) o = s32[] minimum(i, j) ROOT t = (f32[], s32[]) tuple(m, o) }
"""


@pytest.mark.parametrize(
    "body",
    [
        # A parameter and a constant.
        "s = f32[3] slice(p), slice={[1:7:2]} c = f32[] constant(-1.5) ROOT t = (f32[9], f32[3], f32[]) tuple(p, s, c)",
        # The first result is not the largest, and each size occurs twice.
        """s = f32[3] slice(p), slice={[4:7]} e = f32[3] exponential(s) b = f32[3,90] broadcast(s), dimensions={0}
        w = f32[90,3] bitcast(b) v = f32[90,3] reverse(w), dimensions={0,1}
        ROOT t = (f32[3], f32[3,90], f32[90,3], f32[3]) tuple(s, b, v, e)""",
        "z = f32[0] slice(p), slice={[2:2]} n = f32[9] negate(p) ROOT t = (f32[0], f32[9]) tuple(z, n)",
        """c = f32[] constant(-1.5) x = s32[] constant(5) i = s32[9] iota(), iota_dimension=0 z = f32[0] slice(p), slice={[2:2]}
        r = (f32[], s32[]) reduce(p, i, c, x), dimensions={0}, to_apply=best
        n = (f32[], f32[0]) tuple(c, z) ROOT t = ((f32[], s32[]), f32[9], (f32[], f32[0])) tuple(r, p, n)""",
        """l = pred[9] compare(p, p), direction=NE s = f32[3] slice(p), slice={[0:3]} k = s4[5] iota(), iota_dimension=0
        ROOT t = (pred[9], f32[3], s4[5]) tuple(l, s, k)""",
    ],
)
def test_roots_of_different_sizes_have_loops_of_their_own(body: str) -> None:
    run_on_host(f"{_BEST if 'best' in body else ''}f {{ p = f32[9] parameter(0) {body} }}")


def test_elements_below_a_word_are_loaded_by_words_over_the_end() -> None:
    body = "p = bf16[3] parameter(0) r = (bf16[], s32[]) reduce(p, i, c, x), dimensions={0}, to_apply=best"
    constants = "c = bf16[] constant(-1.5) x = s32[] constant(5) i = s32[3] iota(), iota_dimension=0"
    run_on_host(f"{_BEST.replace('f32', 'bf16')}f {{ {constants} {body} ROOT g = bf16[] get-tuple-element(r), index=0 }}")


@pytest.mark.parametrize("dtype", ["s4", "u4", "s2", "u2"])
def test_integers_below_a_byte_are_called_with(dtype: str) -> None:
    lines = [
        f"least {{ a = {dtype}[] parameter(0) b = {dtype}[] parameter(1) m = {dtype}[] minimum(a, b)",
        f"n = {dtype}[] maximum(b, m) ROOT s = {dtype}[] subtract(n, m) }}",
        f"f {{ p = {dtype}[9] parameter(0) q = {dtype}[9] parameter(1)",
        f"ROOT c = {dtype}[9] map(p, q), dimensions={{0}}, to_apply=least }}",
    ]
    run_on_host("\n".join(lines))


def test_argument_records_become_attributes() -> None:
    text = emit("f { p = f32[9] parameter(0) ROOT r = f32[9] negate(p) }").text
    first = "{llvm.align = 16 : index, llvm.dereferenceable = 36 : index, xla.invariant, xla.slice_index = 0 : index}"
    second = "{llvm.align = 256 : index, llvm.dereferenceable = 36 : index, xla.slice_index = 1 : index}"
    assert f"%arg0: tensor<9xf32> {first}, %arg1: tensor<9xf32> {second}" in text


def test_a_function_called_as_its_kernel_gets_another_name() -> None:
    text = emit("k { p = f32[9] parameter(0) ROOT kernel = f32[9] negate(p) }", name="k_kernel").text
    assert "pure_call @k_kernel_0(" in text
    assert "func.func private @k_kernel_0(" in text


def test_a_chain_longer_than_the_stack() -> None:
    count = 1200
    lines = ["p0 = f32[8] parameter(0)", *(f"p{n} = f32[8] negate(p{n - 1})" for n in range(1, count))]
    body = "\n".join(lines)
    emitted = emit(f"f {{ {body}\nROOT r = f32[8] add(p{count - 1}, p0) }}")
    assert emitted.text.count("func.func private") == 1
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
