"""Algebraic rules of functions, bits, comparisons, selects and converts: each matches its case, not the nearest other."""

from __future__ import annotations

import pytest
from algebraic_cases import Case, check

from hlo_run.hlo_passes.simplifiers.algsimp import AlgebraicSimplifier

P, PQ, I, IJ, MN = "p=f32[4]", "p=f32[4] q=f32[4]", "i=s32[4]", "i=s32[4] j=s32[4]", "m=pred[4] n=pred[4]"
C = "c = f32[] constant({}); b = f32[4] broadcast(c), dimensions={{}};"
D = "d = f32[] constant({}); e = f32[4] broadcast(d), dimensions={{}};"
N = "c = s32[] constant({}); b = s32[4] broadcast(c), dimensions={{}};"
T = "tc = pred[] constant({}); tb = pred[4] broadcast(tc), dimensions={{}};"
ROOT, IROOT, MROOT = "ROOT r = f32[4] ", "ROOT r = s32[4] ", "ROOT r = pred[4] "

CASES = (
    Case("power 0", P, C.format(0) + ROOT + "power(p, b)", "broadcast<4>({1})"),
    Case("power 2", P, C.format(2) + ROOT + "power(p, b)", "multiply(p, p)"),
    Case("power 3", P, C.format(3) + ROOT + "power(p, b)", "multiply(p, multiply(p, p))"),
    Case("power -1", P, C.format(-1) + ROOT + "power(p, b)", "divide(broadcast<4>({1}), p)"),
    Case("power 4", P, C.format(4) + ROOT + "power(p, b)", "power(p, broadcast<4>({4}))"),
    Case("power of exp", PQ, "x = f32[4] exponential(p);" + ROOT + "power(x, q)", "power(exponential(p), q)"),
    Case(
        "log of power",
        PQ,
        "a = f32[4] abs(p); x = f32[4] power(a, q);" + ROOT + "log(x)",
        "select(compare.EQ(q, broadcast<4>({0})), broadcast<4>({0}), multiply(log(abs(p)), q))",
    ),
    Case(
        "log of sqrt", P, "a = f32[4] abs(p); x = f32[4] sqrt(a);" + ROOT + "log(x)", "multiply(log(abs(p)), broadcast<4>({0.5}))"
    ),
    Case("max of itself", P, ROOT + "maximum(p, p)", "p"),
    Case("max with -inf", P, C.format("-inf") + ROOT + "maximum(p, b)", "p"),
    Case("max with inf: NaN", P, C.format("inf") + ROOT + "maximum(p, b)", "maximum(p, broadcast<4>({inf}))"),
    Case("min with lowest", I, N.format(-2147483648) + IROOT + "minimum(i, b)", "minimum(i, broadcast<4>({-2.14748e+09}))"),
    Case(
        "max of max",
        P,
        C.format(1) + D.format(2) + "x = f32[4] maximum(p, b);" + ROOT + "maximum(x, e)",
        "maximum(maximum(p, broadcast<4>({1})), broadcast<4>({2}))",
    ),
    Case(
        "clamp",
        P,
        C.format(-0.5) + D.format(0.5) + "x = f32[4] maximum(p, b);" + ROOT + "minimum(x, e)",
        "clamp(broadcast<4>({-0.5}), p, broadcast<4>({0.5}))",
    ),
    Case(
        "clamp from above",
        P,
        C.format(-0.5) + D.format(0.5) + "x = f32[4] minimum(e, p);" + ROOT + "maximum(b, x)",
        "clamp(broadcast<4>({-0.5}), p, broadcast<4>({0.5}))",
    ),
    Case(
        "bounds the wrong way round",
        P,
        C.format(-0.5) + D.format(0.5) + "x = f32[4] minimum(p, b);" + ROOT + "maximum(x, e)",
        "maximum(minimum(p, broadcast<4>({-0.5})), broadcast<4>({0.5}))",
    ),
    Case(
        "no clamp between arrays of one element",
        "i=s32[1]",
        "a = s32[1] constant({0}); b = s32[1] constant({5}); x = s32[1] maximum(a, i); ROOT r = s32[1] minimum(b, x)",
        "minimum({5}, maximum({0}, i))",
    ),
    Case("clamp twice", "l=f32[4] p=f32[4] h=f32[4]", "x = f32[4] clamp(l, p, h);" + ROOT + "clamp(l, x, h)", "clamp(l, p, h)"),
    Case("and true", "m=pred[4]", T.format("true") + MROOT + "and(tb, m)", "m"),
    Case("and false", "m=pred[4]", T.format("false") + MROOT + "and(m, tb)", "broadcast<4>({false})"),
    Case("and ones", I, N.format(-1) + IROOT + "and(i, b)", "and(i, broadcast<4>({-1}))"),
    Case("and one", I, N.format(1) + IROOT + "and(i, b)", "and(i, broadcast<4>({1}))"),
    Case("or zero", I, N.format(0) + IROOT + "or(i, b)", "i"),
    Case("or true", "m=pred[4]", T.format("true") + MROOT + "or(m, tb)", "broadcast<4>({true})"),
    Case("or itself", I, IROOT + "or(i, i)", "or(i, i)"),
    Case(
        "and false",
        "p=pred[4]",
        "c = pred[] constant(false); b = pred[4] broadcast(c), dimensions={};ROOT r = pred[4] and(p, b)",
        "broadcast<4>({false})",
    ),
    Case(
        "or true",
        "p=pred[4]",
        "c = pred[] constant(true); b = pred[4] broadcast(c), dimensions={};ROOT r = pred[4] or(p, b)",
        "broadcast<4>({true})",
    ),
    Case("xor zero", "i=s32[4]", "c = s32[] constant(0); b = s32[4] broadcast(c), dimensions={};ROOT r = s32[4] xor(b, i)", "i"),
    Case(
        "two scalar bounds",
        "i=s32[]",
        "c = s32[] constant(3); d = s32[] constant(5);x = pred[] compare(i, c), direction=LT; "
        "y = pred[] compare(i, d), direction=LT;ROOT r = pred[] and(x, y)",
        "compare.LT(i, {3})",
    ),
    Case("xor itself", I, IROOT + "xor(i, i)", "broadcast<4>({0})"),
    Case("xor equals", I, "a = s32[4] abs(i); b = s32[4] abs(i); " + IROOT + "xor(a, b)", "broadcast<4>({0})"),
    Case("xor others", I, "a = s32[4] abs(i); b = s32[4] not(i); " + IROOT + "xor(a, b)", "xor(abs(i), not(i))"),
    Case(
        "two bounds",
        I,
        N.format(3) + "d = s32[] constant(5); e = s32[4] broadcast(d), dimensions={}; x = pred[4] compare(i, b), direction=LT;"
        "y = pred[4] compare(i, e), direction=LT;" + MROOT + "and(x, y)",
        "and(compare.LT(i, broadcast<4>({3})), compare.LT(i, broadcast<4>({5})))",
    ),
    Case("not not", "m=pred[4]", "x = pred[4] not(m);" + MROOT + "not(x)", "m"),
    Case("not less", IJ, "x = pred[4] compare(i, j), direction=LT;" + MROOT + "not(x)", "not(compare.LT(i, j))"),
    Case("not less of floats", PQ, "x = pred[4] compare(p, q), direction=LT;" + MROOT + "not(x)", "not(compare.LT(p, q))"),
    Case("shift by nothing", I, N.format(0) + IROOT + "shift-left(i, b)", "shift-left(i, broadcast<4>({0}))"),
    Case("equal to itself", I, MROOT + "compare(i, i), direction=EQ", "broadcast<4>({true})"),
    Case("NaN is not itself", P, MROOT + "compare(p, p), direction=EQ", "compare.EQ(p, p)"),
    Case(
        "unsigned below 0",
        "i=u32[4]",
        "c = u32[] constant(0); b = u32[4] broadcast(c), dimensions={};" + MROOT + "compare(i, b), direction=LT",
        "broadcast<4>({false})",
    ),
    Case(
        "iota below less",
        P,
        N.format(3) + "x = s32[4] iota(), iota_dimension=0;" + MROOT + "compare(x, b), direction=LT",
        "compare.LT(iota<s32>(), broadcast<4>({3}))",
    ),
    Case("pred is true", "m=pred[4]", T.format("true") + MROOT + "compare(m, tb), direction=EQ", "m"),
    Case(
        "pred is not true",
        "m=pred[4]",
        T.format("true") + MROOT + "compare(tb, m), direction=NE",
        "compare.NE(broadcast<4>({true}), m)",
    ),
    Case("pred is itself", "m=pred[4]", MROOT + "compare(m, m), direction=EQ", "compare.EQ(m, m)"),
    Case(
        "false above pred",
        "m=pred[4]",
        T.format("false") + MROOT + "compare(tb, m), direction=GT",
        "compare.GT(broadcast<4>({false}), m)",
    ),
    Case(
        "above the largest",
        "i=u8[4]",
        "c = u8[] constant(255); b = u8[4] broadcast(c), dimensions={};" + MROOT + "compare(i, b), direction=GT",
        "compare.GT(i, broadcast<4>({255}))",
    ),
    Case(
        "chosen one",
        IJ,
        N.format(0)
        + "d = s32[] constant(1); e = s32[4] broadcast(d), dimensions={}; m = pred[4] compare(i, j), direction=GE;"
        + "x = s32[4] select(m, e, b);"
        + MROOT
        + "compare(x, b), direction=NE",
        "compare.GE(i, j)",
    ),
    Case(
        "one chosen by a parameter",
        "m=pred[4]",
        N.format(0)
        + "d = s32[] constant(1); e = s32[4] broadcast(d), dimensions={}; x = s32[4] select(m, e, b);"
        + MROOT
        + "compare(x, b), direction=NE",
        "compare.NE(select(m, broadcast<4>({1}), broadcast<4>({0})), broadcast<4>({0}))",
    ),
    Case(
        "converted pred",
        "m=pred[4]",
        N.format(0) + "x = s32[4] convert(m);" + MROOT + "compare(x, b), direction=NE",
        "compare.NE(convert<s32>(m), broadcast<4>({0}))",
    ),
    Case("equal arms", "m=pred[4] p=f32[4]", ROOT + "select(m, p, p)", "p"),
    Case("known choice", "p=f32[4] q=f32[4]", T.format("false") + ROOT + "select(tb, p, q)", "q"),
    Case("negated choice", "m=pred[4] p=f32[4] q=f32[4]", "x = pred[4] not(m);" + ROOT + "select(x, p, q)", "select(m, q, p)"),
    Case("choice of preds stays", MN, T.format("false") + MROOT + "select(m, n, tb)", "select(m, n, broadcast<4>({false}))"),
    Case("other choice of preds stays", MN, T.format("true") + MROOT + "select(m, tb, n)", "select(m, broadcast<4>({true}), n)"),
    Case("remainder twice", IJ, "x = s32[4] remainder(i, j);" + IROOT + "remainder(x, j)", "remainder(i, j)"),
    Case(
        "remainder of 8",
        "i=u32[4]",
        "c = u32[] constant(8); b = u32[4] broadcast(c), dimensions={}; ROOT r = u32[4] remainder(i, b)",
        "and(i, broadcast<4>({7}))",
    ),
    Case(
        "signed remainder of 8",
        I,
        N.format(8) + IROOT + "remainder(i, b)",
        "select(compare.LT(i, broadcast<4>({0})), negate(and(select(compare.LT(i, broadcast<4>({0})), negate(i), i), "
        "broadcast<4>({7}))), and(select(compare.LT(i, broadcast<4>({0})), negate(i), i), broadcast<4>({7})))",
    ),
    Case("remainder of iota", P, N.format(7) + "x = s32[4] iota(), iota_dimension=0;" + IROOT + "remainder(x, b)", "iota<s32>()"),
    Case(
        "remainder of shifted iota",
        P,
        N.format(3) + "x = s32[4] iota(), iota_dimension=0; y = s32[4] add(x, b);" + IROOT + "remainder(y, b)",
        "remainder(iota<s32>(), broadcast<4>({3}))",
    ),
    Case("convert to own type", P, ROOT + "convert(p)", "p"),
    Case("there and back", "i=s8[4]", "x = s32[4] convert(i); ROOT r = s8[4] convert(x)", "i"),
    Case("there cut off", I, "x = s8[4] convert(i);" + IROOT + "convert(x)", "convert<s32>(convert<s8>(i))"),
    Case("there rounded", P, "x = bf16[4] convert(p);" + ROOT + "convert(x)", "convert<f32>(convert<bf16>(p))"),
    Case("two steps", "p=bf16[4]", "x = f32[4] convert(p); ROOT r = f64[4] convert(x)", "convert<f64>(p)"),
    Case(
        "two steps, one too small",
        "p=bf16[4]",
        "x = f16[4] convert(p); ROOT r = f32[4] convert(x)",
        "convert<f32>(convert<f16>(p))",
    ),
    Case("signs", "i=s8[4]", "x = u32[4] convert(i); ROOT r = s64[4] convert(x)", "convert<s64>(convert<u32>(i))"),
    Case("bits twice", P, "x = u32[4] bitcast-convert(p); ROOT r = s32[4] bitcast-convert(x)", "bitcast-convert(p)"),
    Case("bits back", P, "x = u32[4] bitcast-convert(p);" + ROOT + "bitcast-convert(x)", "p"),
    Case(
        "precision stays",
        P,
        ROOT + "reduce-precision(p), exponent_bits=8, mantissa_bits=23",
        "reduce-precision(p)",
    ),
)
WITH_LAYOUTS = (
    Case("own precision", P, ROOT + "reduce-precision(p), exponent_bits=8, mantissa_bits=23", "p"),
    Case("less precision", P, ROOT + "reduce-precision(p), exponent_bits=8, mantissa_bits=7", "reduce-precision(p)"),
    Case("bytes", P, "ROOT r = u8[4,4] bitcast-convert(p)", "bitcast<4,4>(p)"),
    Case("packed", "p=s4[4,2]{1,0:E(4)}", "ROOT r = s8[4] bitcast-convert(p)", "bitcast<4>(p)"),
    Case("not packed", "p=s4[4,2]", "ROOT r = s8[4] bitcast-convert(p)", "bitcast-convert(p)"),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rule(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", WITH_LAYOUTS, ids=lambda case: case.name)
def test_rule_of_the_last_pipeline(case: Case) -> None:
    check(case, AlgebraicSimplifier(sees_layouts=True, repeat=True, is_last=True))
