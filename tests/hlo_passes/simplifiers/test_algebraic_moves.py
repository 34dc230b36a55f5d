"""Algebraic rules that slice, gather, scatter and rearrange: each matches its case, not the nearest other."""

from __future__ import annotations

import numpy as np
import pytest
from algebraic_cases import Case, apply, check, expression, module_of

import hlo_run
from hlo_run.hlo_passes.simplifiers.algebraic.signs import is_non_negative
from hlo_run.hlo_passes.simplifiers.algsimp import AlgebraicSimplifier
from hlo_run.reference.evaluate.evaluate import evaluate

P, I, Z = "p=f32[4,6]", "i=s32[]", "z = f32[] constant(0);"
SPLAT = "c = f32[] constant(3); b = f32[4,6] broadcast(c), dimensions={};"
ARG = ", to_apply=sum"
WHOLE_SCATTER = (
    ", to_apply=sum, update_window_dims={1,2,3}, inserted_window_dims={}, scatter_dims_to_operand_dims={0}, index_vector_dim=1"
)
SCATTER = ", to_apply=sum, update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1"

CASES = (
    Case("idle stride", P, "ROOT r = f32[1,6] slice(p), slice={[1:3:2], [0:6]}", "slice<1,6>(p)"),
    Case(
        "slice of broadcast",
        "p=f32[8]",
        "b = f32[8,5] broadcast(p), dimensions={0}; ROOT r = f32[3,2] slice(b), slice={[1:4], [2:4]}",
        "broadcast<3,2>(slice<3>(p))",
    ),
    Case(
        "slice beside broadcast",
        "p=f32[8]",
        "b = f32[8,5] broadcast(p), dimensions={0}; ROOT r = f32[8,2] slice(b), slice={[0:8], [2:4]}",
        "broadcast<8,2>(p)",
    ),
    Case(
        "bits of broadcast",
        "p=f32[4]",
        "b = f32[3,4] broadcast(p), dimensions={1}; ROOT r = s32[3,4] bitcast-convert(b)",
        "broadcast<3,4>(bitcast-convert(p))",
    ),
    Case(
        "bits of another width of broadcast",
        "p=s8[4,2]",
        "b = s8[3,4,2] broadcast(p), dimensions={1,2}; ROOT r = s16[3,4] bitcast-convert(b)",
        "bitcast-convert(broadcast<3,4,2>(p))",
    ),
    Case(
        "bits of another width of broadcast scalar",
        "p=s32[]",
        "b = s32[3] broadcast(p), dimensions={}; ROOT r = s8[3,4] bitcast-convert(b)",
        "bitcast-convert(broadcast<3>(p))",
    ),
    Case(
        "slice of reverse",
        "p=f32[20]",
        "x = f32[20] reverse(p), dimensions={0}; ROOT r = f32[6] slice(x), slice={[3:20:3]}",
        "reverse(slice<6>(p))",
    ),
    Case(
        "slice of rows",
        "p=f32[16,4]",
        "x = f32[64] reshape(p); ROOT r = f32[8] slice(x), slice={[0:8]}",
        "reshape<8>(slice<2,4>(p))",
    ),
    Case(
        "slice of later rows",
        "p=f32[16,4]",
        "x = f32[64] reshape(p); ROOT r = f32[8] slice(x), slice={[8:16]}",
        "reshape<8>(slice<2,4>(p))",
    ),
    Case(
        "slice of a part of one row",
        "p=f32[16,4]",
        "x = f32[64] reshape(p); ROOT r = f32[2] slice(x), slice={[0:2]}",
        "slice<2>(reshape<64>(p))",
    ),
    Case(
        "first of a pair",
        "p=u32[1,2]",
        "x = u32[2] reshape(p); ROOT r = u32[1] slice(x), slice={[0:1]}",
        "reshape<1>(slice<1,1>(p))",
    ),
    Case(
        "last of a pair",
        "p=u32[1,2]",
        "x = u32[2] reshape(p); ROOT r = u32[1] slice(x), slice={[1:2]}",
        "reshape<1>(slice<1,1>(p))",
    ),
    Case(
        "slice of parts of rows",
        "p=f32[16,4]",
        "x = f32[64] reshape(p); ROOT r = f32[6] slice(x), slice={[0:6]}",
        "slice<6>(reshape<64>(p))",
    ),
    Case(
        "end of a running sum",
        P,
        Z + "w = f32[4,6] reduce-window(p, z), window={size=1x6 pad=0_0x5_0}, to_apply=sum;"
        "ROOT r = f32[4,1] slice(w), slice={[0:4], [5:6]}",
        "reshape<4,1>(reduce<4>(p, {0}))",
    ),
    Case(
        "middle of a running sum",
        P,
        Z + "w = f32[4,6] reduce-window(p, z), window={size=1x6 pad=0_0x5_0}, to_apply=sum;"
        "ROOT r = f32[4,1] slice(w), slice={[0:4], [4:5]}",
        "slice<4,1>(reduce-window(p, {0}))",
    ),
    Case(
        "slice of some that are joined",
        "p=f32[3] q=f32[4] s=f32[5]",
        "x = f32[12] concatenate(p, q, s), dimensions={0}; ROOT r = f32[6] slice(x), slice={[4:10]}",
        "slice<6>(concatenate<9>(q, s))",
    ),
    Case(
        "slice of padding",
        P,
        Z + "x = f32[8,6] pad(p, z), padding=3_1x0_0; ROOT r = f32[2,6] slice(x), slice={[1:3], [0:6]}",
        "broadcast<2,6>({0})",
    ),
    Case(
        "slice that undoes a pad",
        P,
        Z + "x = f32[8,6] pad(p, z), padding=1_0_1x0_0; ROOT r = f32[4,6] slice(x), slice={[1:8:2], [0:6]}",
        "p",
    ),
    Case(
        "dynamic slice of broadcast",
        "p=f32[8] i=s32[]",
        "z = s32[] constant(0); b = f32[8,5] broadcast(p), dimensions={0};"
        "ROOT r = f32[3,5] dynamic-slice(b, i, z), dynamic_slice_sizes={3,5}",
        "broadcast<3,5>(dynamic-slice(p, i))",
    ),
    Case(
        "dynamic slice of added ones",
        "p=f32[8,3] i=s32[]",
        "z = s32[] constant(0); b = f32[8,1,3] reshape(p);"
        "ROOT r = f32[2,1,3] dynamic-slice(b, i, z, z), dynamic_slice_sizes={2,1,3}",
        "reshape<2,1,3>(dynamic-slice(p, i, {0}))",
    ),
    Case(
        "dynamic slice of transpose",
        "p=f32[8,3] i=s32[]",
        "z = s32[] constant(0); b = f32[3,8] transpose(p), dimensions={1,0};"
        "ROOT r = f32[3,2] dynamic-slice(b, z, i), dynamic_slice_sizes={3,2}",
        "transpose<3,2>(dynamic-slice(p, i, {0}))",
    ),
    Case(
        "gather of few",
        "p=f32[2] i=s32[5]",
        "ROOT r = f32[5] gather(p, i), offset_dims={}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1,"
        " slice_sizes={1}",
        "select(compare.GE(i, broadcast<5>({1})), broadcast<5>(reshape<>(slice<1>(p))), broadcast<5>(reshape<>(slice<1>(p))))",
    ),
    Case(
        "sum with scattered",
        "p=f32[9,3] i=s32[2,1] u=f32[2,3]",
        Z + "b = f32[9,3] broadcast(z), dimensions={}; s = f32[9,3] scatter(b, i, u)" + SCATTER + ";ROOT r = f32[9,3] add(p, s)",
        "scatter(p, i, u)",
    ),
    Case(
        "sum of scattered",
        "p=f32[9,3] i=s32[2,1] u=f32[2,1,3] j=s32[3,1] v=f32[3,1,3]",
        "s = f32[9,3] scatter(p, i, u)"
        + SCATTER.replace("{1}", "{1,2}", 1).replace("window_dims={0}", "window_dims={}")
        + ";t = f32[9,3] scatter(p, j, v)"
        + SCATTER.replace("{1}", "{1,2}", 1).replace("window_dims={0}", "window_dims={}")
        + ";ROOT r = f32[9,3] add(s, t)",
        "scatter(add(p, p), concatenate<5,1>(i, j), concatenate<5,1,3>(u, v))",
    ),
    Case(
        "transpose of scattered",
        "p=f32[9,3,4] i=s32[5,1] u=f32[5,1,3,4]",
        "s = f32[9,3,4] scatter(p, i, u)" + WHOLE_SCATTER + ";ROOT r = f32[4,9,3] transpose(s), dimensions={2,0,1}",
        "scatter(transpose<4,9,3>(p), i, transpose<5,4,1,3>(u))",
    ),
    Case(
        "transpose of scattered rows",
        "p=f32[9,3] i=s32[5,1] u=f32[5,3]",
        "s = f32[9,3] scatter(p, i, u)" + SCATTER + ";ROOT r = f32[3,9] transpose(s), dimensions={1,0}",
        "transpose<3,9>(scatter(p, i, u))",
    ),
    Case(
        "sum with scattered that is used",
        "p=f32[9,3] i=s32[2,1] u=f32[2,3]",
        "s = f32[9,3] scatter(p, i, u)" + SCATTER + ";a = f32[9,3] add(p, s);ROOT r = f32[9,3] multiply(a, s)",
        "multiply(add(p, scatter(p, i, u)), scatter(p, i, u))",
    ),
    Case(
        "reshapes and transposes of nothing",
        "p=f32[2,3]",
        "x = f32[2,1,3] reshape(p); y = f32[3,2,1] transpose(x), dimensions={2,0,1}; z = f32[1,3,2] reshape(y);"
        "w = f32[2,1,3] transpose(z), dimensions={2,0,1}; ROOT r = f32[2,3] reshape(w)",
        "p",
    ),
    Case(
        "reshape of a transposed reshape",
        "p=f32[6,8]",
        "x = f32[2,3,2,4] reshape(p); y = f32[2,4,2,3] transpose(x), dimensions={2,3,0,1}; ROOT r = f32[8,6] reshape(y)",
        "transpose<8,6>(p)",
    ),
    Case(
        "reshape that joins strangers",
        "p=f32[6,8]",
        "x = f32[2,3,8] reshape(p); y = f32[3,2,8] transpose(x), dimensions={1,0,2}; ROOT r = f32[6,8] reshape(y)",
        "reshape<6,8>(transpose<3,2,8>(reshape<2,3,8>(p)))",
    ),
    Case(
        "reshape that splits what counts",
        P,
        "x = s32[6] iota(), iota_dimension=0; ROOT r = s32[2,3] reshape(x)",
        "add(iota<s32>(), multiply(iota<s32>(), broadcast<2,3>({3})))",
    ),
    Case(
        "broadcast of a one",
        "p=f32[5,1]",
        "ROOT r = f32[5,1,7] broadcast(p), dimensions={0,1}",
        "broadcast<5,1,7>(reshape<5>(p))",
    ),
    Case("broadcast that permutes", P, "ROOT r = f32[6,4] broadcast(p), dimensions={1,0}", "transpose<6,4>(p)"),
    Case(
        "reverse twice",
        P,
        "x = f32[4,6] reverse(p), dimensions={0,1}; ROOT r = f32[4,6] reverse(x), dimensions={1}",
        "reverse(p)",
    ),
    Case("reverse back", P, "x = f32[4,6] reverse(p), dimensions={0}; ROOT r = f32[4,6] reverse(x), dimensions={0}", "p"),
    Case(
        "reverse before a constant",
        P,
        SPLAT + "x = f32[4,6] subtract(b, p); ROOT r = f32[4,6] reverse(x), dimensions={0}",
        "subtract(broadcast<4,6>({3}), reverse(p))",
    ),
    Case(
        "reverse of added ones",
        P,
        "x = f32[4,1,6] reshape(p); ROOT r = f32[4,1,6] reverse(x), dimensions={1,2}",
        "reshape<4,1,6>(reverse(p))",
    ),
    Case(
        "copies side by side",
        "p=f32[4,1]",
        "ROOT r = f32[4,3] concatenate(p, p, p), dimensions={1}",
        "broadcast<4,3>(reshape<4>(p))",
    ),
    Case("two copies", "p=f32[4,1]", "ROOT r = f32[4,2] concatenate(p, p), dimensions={1}", "concatenate<4,2>(p, p)"),
    Case("nothing between one", "p=f32[1]", Z + "ROOT r = f32[4] pad(p, z), padding=1_2_5", "pad<4>(p, {0})"),
    Case(
        "pad of broadcast",
        "p=f32[4]",
        Z + "b = f32[2,4,3] broadcast(p), dimensions={1}; ROOT r = f32[2,6,3] pad(b, z), padding=0_0x1_1x0_0",
        "broadcast<2,6,3>(pad<6>(p, {0}))",
    ),
    Case(
        "max of tanh",
        "p=f32[4] q=f32[4]",
        "a = f32[4] tanh(p); b = f32[4] tanh(q); ROOT r = f32[4] maximum(a, b)",
        "tanh(maximum(p, q))",
    ),
    Case("max of max", "p=f32[4] q=f32[4]", "a = f32[4] maximum(p, q); ROOT r = f32[4] maximum(q, a)", "maximum(q, p)"),
    Case(
        "exp of zero", P, Z + "b = f32[4,6] broadcast(z), dimensions={}; ROOT r = f32[4,6] exponential(b)", "broadcast<4,6>({1})"
    ),
    Case(
        "greater than the lesser",
        "p=f32[4] q=f32[4]",
        "a = f32[4] minimum(p, q); ROOT r = pred[4] compare(p, a), direction=GT",
        "compare.GT(p, q)",
    ),
    Case(
        "choice by comparison",
        "p=pred[4] q=pred[4]",
        "a = pred[4] compare(p, q), direction=LE; ROOT r = pred[4] select(a, p, q)",
        "and(p, q)",
    ),
    Case(
        "choice of updated",
        "c=pred[] p=f32[8] u=f32[2] i=s32[]",
        "d = f32[8] dynamic-update-slice(p, u, i); ROOT r = f32[8] select(c, p, d)",
        "dynamic-update-slice(p, select(c, dynamic-slice(p, i), u), i)",
    ),
    Case(
        "narrow integers",
        "p=s8[4] q=s8[4]",
        "a = s32[4] convert(p); b = s32[4] convert(q); x = s32[4] multiply(a, b); ROOT r = s8[4] convert(x)",
        "multiply(p, q)",
    ),
    Case(
        "narrow quotient",
        "p=s8[4] q=s8[4]",
        "a = s32[4] convert(p); b = s32[4] convert(q); x = s32[4] divide(a, b); ROOT r = s8[4] convert(x)",
        "convert<s8>(divide(convert<s32>(p), convert<s32>(q)))",
    ),
    Case(
        "bits that are joined",
        "p=f32[4] q=f32[3]",
        "a = s32[4] bitcast-convert(p); b = s32[3] bitcast-convert(q); x = s32[7] concatenate(a, b), dimensions={0};"
        "ROOT r = f32[7] bitcast-convert(x)",
        "concatenate<7>(p, q)",
    ),
    Case(
        "scaled and broadcast",
        "p=f32[4,6] q=f32[4]",
        SPLAT + "a = f32[4,6] multiply(p, b); d = f32[4,6] broadcast(q), dimensions={0}; ROOT r = f32[4,6] multiply(a, d)",
        "multiply(multiply(p, broadcast<4,6>({3})), broadcast<4,6>(q))",
    ),
    Case(
        "counting is computed before it is broadcast",
        "p=f32[4]",
        "i = s32[4] iota(), iota_dimension=0; b = s32[4,2] broadcast(i), dimensions={0}; c = s32[] constant(5);"
        "d = s32[4,2] broadcast(c), dimensions={}; ROOT r = s32[4,2] multiply(b, d)",
        "broadcast<4,2>(multiply(iota<s32>(), broadcast<4>({5})))",
    ),
    Case(
        "negated sum",
        P,
        Z + "n = f32[4,6] negate(p); ROOT r = f32[4] reduce(n, z), dimensions={1}, to_apply=sum",
        "negate(reduce<4>(p, {0}))",
    ),
    Case(
        "sum of joined",
        "p=f32[4,6] q=f32[4,6]",
        Z + "n = f32[8,6] concatenate(p, q), dimensions={0}; ROOT r = f32[6] reduce(n, z), dimensions={0}, to_apply=sum",
        "add(reduce<6>(p, {0}), reduce<6>(q, {0}))",
    ),
    Case(
        "sum beside what is joined",
        "p=f32[4,6] q=f32[4,6]",
        Z + "n = f32[8,6] concatenate(p, q), dimensions={0}; ROOT r = f32[8] reduce(n, z), dimensions={1}, to_apply=sum",
        "reduce<8>(concatenate<8,6>(p, q), {0})",
    ),
    Case(
        "window of all",
        P,
        Z + "ROOT r = f32[4,1] reduce-window(p, z), window={size=1x6}, to_apply=sum",
        "reshape<4,1>(reduce<4>(p, {0}))",
    ),
    Case(
        "running sum of a constant",
        P,
        Z + SPLAT + "ROOT r = f32[4,6] reduce-window(b, z), window={size=4x1 pad=3_0x0_0}, to_apply=sum",
        "multiply(broadcast<4,6>({3}), convert<f32>(add(iota<s32>(), broadcast<4,6>({1}))))",
    ),
    Case(
        "window of a dilating pad",
        "p=f32[4]",
        Z + "x = f32[10] pad(p, z), padding=1_2_1; ROOT r = f32[9] reduce-window(x, z), window={size=2}, to_apply=sum",
        "reduce-window(p, {0})",
    ),
    Case(
        "window with one value",
        "p=f32[1,4]",
        Z + "x = f32[3,4] pad(p, z), padding=1_1x0_0; ROOT r = f32[2,4] reduce-window(x, z), window={size=2x1}, to_apply=sum",
        "broadcast<2,4>(reshape<4>(p))",
    ),
    Case(
        "square root of a positive squared",
        "p=f32[4]",
        "a = f32[4] exponential(p); b = f32[4] sqrt(a); ROOT r = f32[4] multiply(b, b)",
        "exponential(p)",
    ),
    Case(
        "square root of any squared",
        "p=f32[4]",
        "b = f32[4] sqrt(p); ROOT r = f32[4] multiply(b, b)",
        "multiply(sqrt(p), sqrt(p))",
    ),
    Case(
        "index that is not negative",
        "i=s32[4]",
        "z = s32[] constant(0); b = s32[4] broadcast(z), dimensions={}; m = s32[4] maximum(i, b);"
        "ROOT r = pred[4] compare(m, b), direction=LT",
        "broadcast<4>({false})",
    ),
    Case(
        "what may be NaN is not at least 0",
        "p=f32[4]",
        "z = f32[] constant(0); b = f32[4] broadcast(z), dimensions={}; m = f32[4] exponential(p);"
        "ROOT r = pred[4] compare(m, b), direction=GE",
        "compare.GE(exponential(p), broadcast<4>({0}))",
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rule(case: Case) -> None:
    check(case)


ARGMAX = """HloModule m
largest { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] maximum(a, b) }
argmax {
  a = f32[] parameter(0)
  i = s32[] parameter(1)
  b = f32[] parameter(2)
  j = s32[] parameter(3)
  gt = pred[] compare(a, b), direction=GT
  is_nan = pred[] compare(a, a), direction=NE
  better = pred[] or(gt, is_nan)
  eq = pred[] compare(a, b), direction=EQ
  lt = pred[] compare(i, j), direction=DIRECTION
  first = pred[] and(eq, lt)
  here = pred[] or(better, first)
  v = f32[] select(better, a, b)
  n = s32[] select(here, i, j)
  ROOT r = (f32[], s32[]) tuple(v, n)
}
ENTRY e {
  p = f32[4,6] parameter(0)
  low = f32[] constant(-inf)
  zero = s32[] constant(0)
  n = s32[4,6] iota(), iota_dimension=1
  both = (f32[4], s32[4]) reduce(p, n, low, zero), dimensions={1}, to_apply=argmax
  m = f32[4] reduce(p, low), dimensions={1}, to_apply=largest
  k = s32[4] get-tuple-element(both), index=1
  ROOT t = (f32[4], s32[4]) tuple(m, k)
}"""


@pytest.mark.parametrize(("direction", "fires"), [("LT", True), ("GT", False)])
def test_max_beside_argmax(direction: str, fires: bool) -> None:
    module = hlo_run.parse(ARGMAX.replace("DIRECTION", direction))
    values = np.random.default_rng(3).integers(-3, 4, (4, 6)).astype(np.float32)
    values[1, 2], values[2, :] = np.nan, -np.inf
    expected = evaluate(module, [values])
    apply(module, AlgebraicSimplifier(repeat=True))
    assert (module.entry.root.operands[0].opcode == "get-tuple-element") == fires
    for one, two in zip(expected, evaluate(module, [values]), strict=True):
        np.testing.assert_array_equal(one, two)


SPECIAL = np.array([0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan, 0.25], np.float32)


@pytest.mark.parametrize(
    "body",
    [
        "a = f32[8] tanh(p); b = f32[8] tanh(q); ROOT r = f32[8] maximum(a, b)",
        "a = f32[8] maximum(p, q); ROOT r = pred[8] compare(a, p), direction=GT",
        "a = f32[8] exponential(p); ROOT r = f32[8] abs(a)",
        "a = f32[8] exponential(p); b = f32[8] sqrt(a); ROOT r = f32[8] multiply(b, b)",
        "c = f32[] constant(0); d = f32[8] broadcast(c), dimensions={}; a = f32[8] maximum(p, d); ROOT r = f32[8] abs(a)",
        "c = f32[] constant(-2); d = f32[8] broadcast(c), dimensions={}; a = f32[8] abs(p); b = f32[8] power(a, d);"
        "ROOT r = f32[8] rsqrt(b)",
        "c = f32[] constant(0); d = f32[8] broadcast(c), dimensions={}; a = f32[8] exponential(p);"
        "ROOT r = pred[8] compare(a, d), direction=LT",
        "a = f32[8] maximum(p, q); ROOT r = f32[8] maximum(a, q)",
    ],
)
def test_special_values_stay(body: str) -> None:
    module = module_of(Case("special", "p=f32[8] q=f32[8]", body, ""))
    arguments = [SPECIAL, np.roll(SPECIAL, 3)]
    before = expression(module.entry.root)
    expected = np.asarray(evaluate(module, arguments))
    apply(module, AlgebraicSimplifier(repeat=True))
    assert expression(module.entry.root) != before
    np.testing.assert_allclose(np.asarray(evaluate(module, arguments)), expected, rtol=2e-6)


@pytest.mark.parametrize(
    ("body", "known"),
    [
        ("ROOT r = f32[4] exponential(p)", True),
        ("ROOT r = s8[4] abs(s)", False),
        ("ROOT r = s8[200] iota(), iota_dimension=0", False),
        ("ROOT r = s8[100] iota(), iota_dimension=0", True),
        ("ROOT r = f32[] constant(-0.0)", False),
        ("ROOT r = f32[] constant(nan)", False),
        ("ROOT r = s8[4] multiply(s, s)", False),
        ("a = f32[4] abs(p); ROOT r = f32[4] minimum(a, p)", False),
    ],
)
def test_is_non_negative(body: str, known: bool) -> None:
    module = module_of(Case("sign", "p=f32[4] s=s8[4]", body, ""))
    assert is_non_negative(module.entry.root) == known
