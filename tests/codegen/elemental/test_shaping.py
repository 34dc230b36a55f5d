"""Opcodes that move, select or create elements: results against the reference, and the emitted IR."""

from __future__ import annotations

import numpy as np
import pytest
from emitting import emit, run

from hlo_run.errors import Unsupported


def run_unary(root: str, shape: str = "f32[4,6,5]") -> None:
    run(f"f {{ p = {shape} parameter(0) n = {shape} negate(p) ROOT r = {root} }}")


@pytest.mark.parametrize(
    "root",
    [
        "f32[5,4,6] transpose(n), dimensions={2,0,1}",
        "f32[8,15] reshape(n)",
        "f32[2,60] reshape(n)",
        "f32[4,1,6,5] reshape(n)",
        "f32[120] bitcast(n)",
        "f32[5,6,4]{0,1,2} bitcast(n)",
        "f32[4,6,5] reverse(n), dimensions={0,2}",
        "f32[2,2,5] slice(n), slice={[1:4:2], [0:6:3], [0:5]}",
        "f32[4,3,6,2,5] broadcast(n), dimensions={0,2,4}",
        "f32[5,6,4] broadcast(n), dimensions={2,1,0}",
        "f32[4,6,5]{0,1,2} copy(n)",
        "s32[4,6,5] bitcast(n)",
    ],
)
def test_movers(root: str) -> None:
    run_unary(root)


@pytest.mark.parametrize(
    "padding", ["1_2x0_0x0_3", "0_0_2x1_1_1x0_0", "-1_-1x-2_3x1_-2", "-3_1x2_-5x0_0", "-1_2_1x0_0x-1_-1_2", "0_0x0_0x0_0"]
)
def test_pad(padding: str) -> None:
    sizes = [_padded(size, spec) for size, spec in zip((4, 6, 5), padding.split("x"), strict=True)]
    shape = ",".join(map(str, sizes))
    run(
        f"f {{ p = f32[4,6,5] parameter(0) v = f32[] parameter(1) n = f32[4,6,5] negate(p) w = f32[] exponential(v) "
        f"ROOT r = f32[{shape}] pad(n, w), padding={padding} }}"
    )


def _padded(size: int, spec: str) -> int:
    low, high, interior = (*map(int, spec.split("_")), 0)[:3]
    return low + size + max(size - 1, 0) * interior + high


def test_pad_of_nothing_is_padding() -> None:
    emitted = run(
        "f { p = f32[0,3] parameter(0) v = f32[] parameter(1) ROOT r = f32[2,3] pad(p, v), padding=1_1x0_0 }",
        np.zeros((0, 3), np.float32),
        np.array(2.5, np.float32),
    )
    assert "scf.if" not in emitted.text


def test_pad_checks_only_what_can_fail() -> None:
    text = emit("f { p = f32[4,6] parameter(0) v = f32[] constant(0) ROOT r = f32[6,6] pad(p, v), padding=2_0x0_0 }").text
    assert text.count("arith.cmpi") == 1
    assert "arith.cmpi sge, %i, %c2 : index" in text


@pytest.mark.parametrize("sizes", [[3, 4], [1, 2, 3, 4, 5], [2, 0, 3], [7]])
def test_concatenate(sizes: list[int]) -> None:
    parameters = "\n".join(f"p{n} = s32[2,{size},3] parameter({n})" for n, size in enumerate(sizes))
    operands = ", ".join(f"p{n}" for n in range(len(sizes)))
    emitted = run(
        f"f {{\n{parameters}\nc = s32[2,{sum(sizes)},3] concatenate({operands}), dimensions={{1}}\n"
        f"a = s32[2,{sum(sizes)},3] add(c, c)\nROOT r = s32[2,{sum(sizes)},3] reverse(a), dimensions={{2}}\n}}"
    )
    assert emitted.text.count("scf.if") == sum(size > 0 for size in sizes) - 1


def test_concatenate_of_one_operand_twice_reads_it_at_two_places() -> None:
    run(
        "f { p = f32[3,4] parameter(0) e = f32[3,4] exponential(p) c = f32[6,4] concatenate(e, e), dimensions={0} "
        "ROOT r = f32[6,4] negate(c) }"
    )


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64", "s8", "s64", "u16", "u32"])
def test_iota(dtype: str) -> None:
    run(
        f"f {{ p = {dtype}[3,200] parameter(0) i = {dtype}[3,200] iota(), iota_dimension=1 j = {dtype}[3,200] iota(), "
        f"iota_dimension=0 s = {dtype}[3,200] add(i, j) ROOT r = {dtype}[3,200] add(p, s) }}"
    )


def test_array_constant_is_a_dense_table() -> None:
    emitted = run("f { p = s32[2,3] parameter(0) c = s32[2,3] constant({{1,-2,3},{4,5,-6}}) ROOT r = s32[2,3] multiply(p, c) }")
    assert "dense<[[1, -2, 3], [4, 5, -6]]> : tensor<2x3xi32>" in emitted.text


def test_constants_of_equal_value_but_different_sign_stay_apart() -> None:
    text = "f { p = f32[2] parameter(0) z = f32[2] constant({0, 0}) m = f32[2] constant({-0.0, -0.0}) "
    emitted = run(text + "d = f32[2] divide(p, z) e = f32[2] divide(p, m) ROOT r = f32[2] maximum(d, e) }")
    assert "arith.constant 0.000000e+00" in emitted.text
    assert "arith.constant -0.000000e+00" in emitted.text
    assert "dense" not in emitted.text


@pytest.mark.parametrize(("source", "target"), [("u32[6]", "u8[6,4]"), ("f64[3]", "s32[3,2]"), ("s16[5]", "u8[5,2]")])
def test_bitcast_convert_between_widths(source: str, target: str) -> None:
    run(f"f {{ p = {source} parameter(0) ROOT r = {target} bitcast-convert(p) }}")
    run(f"f {{ p = {target} parameter(0) ROOT r = {source} bitcast-convert(p) }}")


def test_layouts_of_parameters_and_results_count() -> None:
    emitted = run(
        "f { p = f32[3,4]{0,1} parameter(0) q = f32[3,4] parameter(1) s = f32[3,4]{0,1} add(p, q) ROOT b = f32[4,3] bitcast(s) }"
    )
    assert "tensor<3x4xf32, dense<[0, 1]> : tensor<2xi64>>" in emitted.text


def test_opcode_without_emission_names_instruction_and_place() -> None:
    with pytest.raises(Unsupported, match="'cholesky' inside a fusion") as caught:
        emit(
            """HloModule m
            f { p = f32[8,8] parameter(0) ROOT factor = f32[8,8] cholesky(p), lower=true }
            ENTRY main { p = f32[8,8] parameter(0) ROOT r = f32[8,8] fusion(p), kind=kLoop, calls=f }"""
        )
    assert caught.value.where is not None
    assert caught.value.where.line == 2
    assert "factor" in caught.value.notes[0]
