"""Opcodes that loop: reduce, reduce-window, map and dot."""

from __future__ import annotations

import numpy as np
import pytest
from emitting import emit, run

MODULE = """HloModule m
sum {{ a = {0}[] parameter(0) b = {0}[] parameter(1) ROOT s = {0}[] add(a, b) }}
larger {{ a = {0}[] parameter(0) b = {0}[] parameter(1) ROOT s = {0}[] maximum(a, b) }}
argmax {{
  v = {0}[] parameter(0)
  i = s32[] parameter(1)
  w = {0}[] parameter(2)
  j = s32[] parameter(3)
  ge = pred[] compare(v, w), direction=GE
  x = {0}[] select(ge, v, w)
  k = s32[] select(ge, i, j)
  ROOT t = ({0}[], s32[]) tuple(x, k)
}}
f {{ {1} }}
ENTRY main {{ {2} ROOT r = {3} fusion({4}), kind=kInput, calls=f }}"""


def run_body(dtype: str, body: str, parameters: list[str], result: str) -> str:
    entry = " ".join(f"p{n} = {shape} parameter({n})" for n, shape in enumerate(parameters))
    operands = ", ".join(f"p{n}" for n in range(len(parameters)))
    return run(MODULE.format(dtype, f"{entry} {body}", entry, result, operands)).text


@pytest.mark.parametrize("dtype", ["f32", "f64", "s32", "bf16"])
@pytest.mark.parametrize(("dims", "result"), [("0", "[6,5]"), ("1", "[4,5]"), ("2,0", "[6]"), ("0,1,2", "[]")])
def test_reduce(dtype: str, dims: str, result: str) -> None:
    # The ops after the reduce prevent it from being the hero of a reduction kernel.
    repeated = f"[2,{result[1:]}".replace(",]", "]")
    kept = ",".join(str(dim) for dim in range(1, 4 - len(dims.split(","))))
    body = f"""z = {dtype}[] parameter(1)
      n = {dtype}[4,6,5] negate(p0)
      m = {dtype}{result} reduce(n, z), dimensions={{{dims}}}, to_apply=larger
      ROOT r = {dtype}{repeated} broadcast(m), dimensions={{{kept}}}"""
    text = run(
        MODULE.format(
            dtype,
            f"p0 = {dtype}[4,6,5] parameter(0) {body}",
            f"p0 = {dtype}[4,6,5] parameter(0) p1 = {dtype}[] parameter(1)",
            f"{dtype}{repeated}",
            "p0, p1",
        )
    ).text
    assert text.count("scf.for") == len(dims.split(","))
    assert "call @larger" in text
    assert "xla.is_reduction" in text


def test_variadic_reduce() -> None:
    run_body(
        "f32",
        """i = s32[6,4] iota(), iota_dimension=0
        v = f32[] constant(-inf)
        z = s32[] constant(0)
        ROOT r = (f32[4], s32[4]) reduce(p0, i, v, z), dimensions={0}, to_apply=argmax""",
        ["f32[6,4]"],
        "(f32[4], s32[4])",
    )


def test_one_result_of_a_variadic_reduce() -> None:
    run_body(
        "f32",
        """i = s32[6,4] iota(), iota_dimension=0
        v = f32[] constant(-inf)
        z = s32[] constant(0)
        t = (f32[4], s32[4]) reduce(p0, i, v, z), dimensions={0}, to_apply=argmax
        a = s32[4] get-tuple-element(t), index=1
        b = f32[4] get-tuple-element(t), index=0
        c = s32[4] convert(b)
        ROOT r = s32[4] add(a, c)""",
        ["f32[6,4]"],
        "s32[4]",
    )


def test_variadic_reduce_inside_a_tuple_of_results() -> None:
    run_body(
        "f32",
        """i = s32[6,4] iota(), iota_dimension=0
        v = f32[] constant(-inf)
        z = s32[] constant(0)
        t = (f32[4], s32[4]) reduce(p0, i, v, z), dimensions={0}, to_apply=argmax
        l = f32[4] exponential(p1)
        ROOT r = ((f32[4], s32[4]), f32[4]) tuple(t, l)""",
        ["f32[6,4]", "f32[4]"],
        "((f32[4], s32[4]), f32[4])",
    )


def test_fusion_on_scalars_inside_a_reducer_is_a_call() -> None:
    text = MODULE.replace(
        "f {{",
        "g {{ a = {0}[] parameter(0) ROOT n = {0}[] negate(a) }}\nneg {{ a = {0}[] parameter(0) "
        "b = {0}[] parameter(1) n = {0}[] fusion(b), kind=kLoop, calls=g ROOT s = {0}[] subtract(a, n) }}\nf {{",
    )
    body = "p0 = f32[6,4] parameter(0) z = f32[] constant(0) ROOT r = f32[4] reduce(p0, z), dimensions={0}, to_apply=neg"
    assert "pure_call @g_n(" in run(text.format("f32", body, "p0 = f32[6,4] parameter(0)", "f32[4]", "p0")).text


def test_reduce_over_nothing_is_the_init_value() -> None:
    text = run_body(
        "f32",
        "z = f32[] constant(3) ROOT r = f32[4] reduce(p0, z), dimensions={1}, to_apply=sum",
        ["f32[4,0]"],
        "f32[4]",
    )
    assert "scf.for" not in text


@pytest.mark.parametrize(
    ("window", "result"),
    [
        ("{size=3x1 pad=1_1x0_0}", "[7,5]"),
        ("{size=2x2 stride=2x3}", "[3,2]"),
        ("{size=2x3 pad=0_0x2_1 rhs_dilate=3x1}", "[4,6]"),
        ("{size=3x2 pad=2_0x0_1 lhs_dilate=2x1}", "[13,5]"),
    ],
)
def test_reduce_window_skips_padding_and_holes(window: str, result: str) -> None:
    run_body(
        "f32",
        f"z = f32[] constant(0.5) ROOT r = f32{result} reduce-window(p0, z), window={window}, to_apply=larger",
        ["f32[7,5]"],
        f"f32{result}",
    )


def test_map_calls_its_computation_without_side_effects() -> None:
    text = run_body(
        "f32", "ROOT r = f32[3,4] map(p0, p1), dimensions={0,1}, to_apply=larger", ["f32[3,4]", "f32[3,4]"], "f32[3,4]"
    )
    assert "pure_call @larger" in text


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "s32", "u8", "pred"])
def test_dot(dtype: str) -> None:
    run(
        f"""f {{ a = {dtype}[2,5,3,4] parameter(0) b = {dtype}[4,2,6,3] parameter(1)
        ROOT r = {dtype}[2,5,6] dot(a, b), lhs_batch_dims={{0}}, rhs_batch_dims={{1}}, lhs_contracting_dims={{3,2}},
        rhs_contracting_dims={{0,3}} }}"""
    )


def test_bf16_dot_accumulates_in_f32() -> None:
    text = emit(
        "f { a = bf16[5,4] parameter(0) b = bf16[4,6] parameter(1) "
        "ROOT r = bf16[5,6] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0} }"
    ).text
    assert text.count("arith.extf") == 2
    assert text.count("arith.truncf") == 1
    assert [line.rsplit(" : ")[1] for line in text.splitlines() if "arith.mulf" in line] == ["f32"]


def test_mixed_dot_widens_its_operands() -> None:
    run(
        "f { a = s8[5,4] parameter(0) b = s8[4,6] parameter(1) "
        "ROOT r = s32[5,6] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0} }",
        np.full((5, 4), -128, np.int8),
        np.full((4, 6), 127, np.int8),
    )
