"""Algebraic rules of sums, differences, products and quotients: each matches its case, not the nearest other; values stay."""

from __future__ import annotations

import pytest
from algebraic_cases import Case, check

P, PQ, I, IJ = "p=f32[4]", "p=f32[4] q=f32[4]", "i=s32[4]", "i=s32[4] j=s32[4]"
C = "c = f32[] constant({}); b = f32[4] broadcast(c), dimensions={{}};"
D = "d = f32[] constant({}); e = f32[4] broadcast(d), dimensions={{}};"
N = "c = s32[] constant({}); b = s32[4] broadcast(c), dimensions={{}};"
ROOT = "ROOT r = f32[4] "

_INTEGERS = (
    "c = s32[] constant(3); b = s32[4] broadcast(c), dimensions={};d = s32[] constant(5); e = s32[4] broadcast(d), dimensions={};"
)
CASES = (
    Case("add zero", P, C.format(0) + ROOT + "add(p, b)", "p"),
    Case("zero added", P, C.format(0) + ROOT + "add(b, p)", "p"),
    Case("add half", P, C.format(0.5) + ROOT + "add(p, b)", "add(p, broadcast<4>({0.5}))"),
    Case("constant first", P, "c = f32[4] constant({1,2,3,5});" + ROOT + "add(c, p)", "add(p, {1,2,3,5})"),
    Case("broadcast constant first", P, C.format(0.5) + ROOT + "add(b, p)", "add(broadcast<4>({0.5}), p)"),
    Case(
        "two integers",
        "p=s32[4]",
        _INTEGERS + "s = s32[4] add(p, b);ROOT r = s32[4] add(s, e)",
        "add(p, broadcast<4>(add({3}, {5})))",
    ),
    Case(
        "difference and integer",
        "p=s32[4]",
        _INTEGERS + "s = s32[4] subtract(b, p);ROOT r = s32[4] add(s, e)",
        "subtract(broadcast<4>(add({3}, {5})), p)",
    ),
    Case(
        "two integer factors",
        "p=s32[4]",
        _INTEGERS + "s = s32[4] multiply(p, b);ROOT r = s32[4] multiply(s, e)",
        "multiply(p, broadcast<4>(multiply({3}, {5})))",
    ),
    Case(
        "two scaled integers",
        "p=s32[] q=s32[]",
        _INTEGERS + "s = s32[] multiply(p, c); t = s32[] multiply(q, d);ROOT r = s32[] multiply(s, t)",
        "multiply(multiply(p, q), multiply({3}, {5}))",
    ),
    Case(
        "scaled integers and broadcast",
        "p=s32[4] q=s32[]",
        _INTEGERS + "a = s32[4] multiply(p, b); w = s32[4] broadcast(q), dimensions={};ROOT r = s32[4] multiply(a, w)",
        "multiply(p, broadcast<4>(multiply(q, {3})))",
    ),
    Case(
        "two constants",
        P,
        C.format(0.5) + D.format(2) + "s = f32[4] add(p, b);" + ROOT + "add(s, e)",
        "add(add(p, broadcast<4>({0.5})), broadcast<4>({2}))",
    ),
    Case(
        "difference and constant",
        P,
        C.format(0.5) + D.format(2) + "s = f32[4] subtract(b, p);" + ROOT + "add(s, e)",
        "add(subtract(broadcast<4>({0.5}), p), broadcast<4>({2}))",
    ),
    Case("add the subtracted", IJ, "s = s32[4] subtract(j, i); ROOT r = s32[4] add(i, s)", "j"),
    Case("floats round", PQ, "s = f32[4] subtract(q, p);" + ROOT + "add(p, s)", "add(p, subtract(q, p))"),
    Case(
        "one factor",
        "i=s32[4] j=s32[4] k=s32[4]",
        "x = s32[4] multiply(i, k); y = s32[4] multiply(k, j); ROOT r = s32[4] add(x, y)",
        "multiply(add(i, j), k)",
    ),
    Case(
        "both factors, of which the second is a power of two",
        P,
        C.format(0.25) + "x = f32[4] multiply(p, b); y = f32[4] multiply(p, b);" + ROOT + "add(x, y)",
        "multiply(add(p, p), broadcast<4>({0.25}))",
    ),
    Case(
        "one factor that is a power of two",
        PQ,
        C.format(0.25) + "x = f32[4] multiply(p, b); y = f32[4] multiply(q, b);" + ROOT + "add(x, y)",
        "multiply(add(p, q), broadcast<4>({0.25}))",
    ),
    Case(
        "one factor that is none",
        PQ,
        C.format(0.3) + "x = f32[4] multiply(p, b); y = f32[4] multiply(q, b);" + ROOT + "add(x, y)",
        "add(multiply(p, broadcast<4>({0.3})), multiply(q, broadcast<4>({0.3})))",
    ),
    Case(
        "add to updated zeros",
        "p=f32[4] q=f32[2] i=s32[]",
        C.format(0) + "u = f32[4] dynamic-update-slice(b, q, i);" + ROOT + "add(p, u)",
        "dynamic-update-slice(p, add(dynamic-slice(p, i), q), i)",
    ),
    Case("subtract zero", P, C.format(0) + ROOT + "subtract(p, b)", "p"),
    Case("subtract itself", I, "ROOT r = s32[4] subtract(i, i)", "broadcast<4>({0})"),
    Case("floats may be infinite", P, ROOT + "subtract(p, p)", "subtract(p, p)"),
    Case("subtract constant", P, C.format(3) + ROOT + "subtract(p, b)", "add(p, broadcast<4>(negate({3})))"),
    Case("subtract difference", IJ, "s = s32[4] subtract(i, j); ROOT r = s32[4] subtract(i, s)", "j"),
    Case("subtract sum", IJ, "s = s32[4] add(j, i); ROOT r = s32[4] subtract(i, s)", "negate(j)"),
    Case("part of sum", IJ, "s = s32[4] add(j, i); ROOT r = s32[4] subtract(s, i)", "j"),
    Case("times one", P, C.format(1) + ROOT + "multiply(b, p)", "p"),
    Case("times zero", I, N.format(0) + "ROOT r = s32[4] multiply(i, b)", "broadcast<4>({0})"),
    Case("zero times NaN", P, C.format(0) + ROOT + "multiply(p, b)", "multiply(p, broadcast<4>({0}))"),
    Case("two negated", PQ, "x = f32[4] negate(p); y = f32[4] negate(q);" + ROOT + "multiply(x, y)", "multiply(p, q)"),
    Case("two magnitudes", P, "x = f32[4] abs(p);" + ROOT + "multiply(x, x)", "multiply(p, p)"),
    Case(
        "two factors",
        P,
        C.format(3) + D.format(0.5) + "s = f32[4] multiply(p, b);" + ROOT + "multiply(s, e)",
        "multiply(multiply(p, broadcast<4>({3})), broadcast<4>({0.5}))",
    ),
    Case(
        "two scaled",
        "p=f32[] q=f32[]",
        "c = f32[] constant(3); d = f32[] constant(0.5); s = f32[] multiply(p, c); t = f32[] multiply(q, d);"
        "ROOT r = f32[] multiply(s, t)",
        "multiply(multiply(p, {3}), multiply(q, {0.5}))",
    ),
    Case(
        "times a converted pred",
        "p=f32[4] m=pred[4]",
        "x = f32[4] convert(m);" + ROOT + "multiply(p, x)",
        "select(m, p, broadcast<4>({0}))",
    ),
    Case(
        "exponentials multiplied",
        PQ,
        "x = f32[4] exponential(p); y = f32[4] exponential(q);" + ROOT + "multiply(x, y)",
        "multiply(exponential(p), exponential(q))",
    ),
    Case("over one", P, C.format(1) + ROOT + "divide(p, b)", "p"),
    Case(
        "shift down",
        "i=u32[4]",
        "c = u32[] constant(8); b = u32[4] broadcast(c), dimensions={}; ROOT r = u32[4] divide(i, b)",
        "shift-right-logical(i, broadcast<4>({3}))",
    ),
    Case(
        "shift signed down",
        I,
        N.format(8) + "ROOT r = s32[4] divide(i, b)",
        "select(compare.LT(i, broadcast<4>({0})), negate(shift-right-logical(select(compare.LT(i, broadcast<4>({0})), "
        "negate(i), i), broadcast<4>({3}))), shift-right-logical(select(compare.LT(i, broadcast<4>({0})), negate(i), i), "
        "broadcast<4>({3})))",
    ),
    Case("over seven", I, N.format(7) + "ROOT r = s32[4] divide(i, b)", "divide(i, broadcast<4>({7}))"),
    Case(
        "exponentials divided",
        PQ,
        "x = f32[4] exponential(p); y = f32[4] exponential(q);" + ROOT + "divide(x, y)",
        "divide(exponential(p), exponential(q))",
    ),
    Case("over exponential", PQ, "y = f32[4] exponential(q);" + ROOT + "divide(p, y)", "divide(p, exponential(q))"),
    Case("over root", PQ, "s = f32[4] abs(q); y = f32[4] sqrt(s);" + ROOT + "divide(p, y)", "multiply(p, rsqrt(abs(q)))"),
    Case("over rsqrt", PQ, "s = f32[4] abs(q); y = f32[4] rsqrt(s);" + ROOT + "divide(p, y)", "multiply(p, sqrt(abs(q)))"),
    Case(
        "over constant",
        P,
        C.format(3) + ROOT + "divide(p, b)",
        "multiply(p, broadcast<4>({0.333333}))",
    ),
    Case(
        "over quotient",
        "p=f32[4] q=f32[4] s=f32[4]",
        "x = f32[4] divide(p, q);" + ROOT + "divide(x, s)",
        "divide(p, multiply(q, s))",
    ),
    Case(
        "quotient below",
        "p=f32[4] q=f32[4] s=f32[4]",
        "x = f32[4] divide(q, s);" + ROOT + "divide(p, x)",
        "divide(multiply(p, s), q)",
    ),
    Case("integers cut off", IJ, "x = s32[4] divide(i, j); ROOT r = s32[4] divide(x, j)", "divide(divide(i, j), j)"),
    Case("negated twice", P, "x = f32[4] negate(p);" + ROOT + "negate(x)", "p"),
    Case("abs of square", P, "x = f32[4] multiply(p, p);" + ROOT + "abs(x)", "multiply(p, p)"),
    Case("abs twice", P, "x = f32[4] abs(p);" + ROOT + "abs(x)", "abs(p)"),
    Case("abs of integers twice", I, "x = s32[4] abs(i); ROOT r = s32[4] abs(x)", "abs(abs(i))"),
    Case("imaginary part", PQ, "x = c64[4] complex(p, q);" + ROOT + "imag(x)", "q"),
    Case("whole of parts", "z=c64[4]", "x = f32[4] real(z); y = f32[4] imag(z); ROOT r = c64[4] complex(x, y)", "z"),
    Case(
        "swapped parts",
        "z=c64[4]",
        "x = f32[4] real(z); y = f32[4] imag(z); ROOT r = c64[4] complex(y, x)",
        "complex(imag(z), real(z))",
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rule(case: Case) -> None:
    check(case)
