"""Algebraic rules of shapes, slices, reductions and products: each matches its case, not the nearest other; values stay."""

from __future__ import annotations

import pytest
from algebraic_cases import Case, check

from hlo_run.hlo_passes.simplifiers.algsimp import AlgebraicSimplifier

P, S, X = "p=f32[2,3]", "s=f32[]", "p=f32[4,6]"
Z = "z = f32[] constant(0);"
LOW = "z = f32[] constant(-inf);"

CASES = (
    Case("reshape to own shape", P, "ROOT r = f32[2,3] reshape(p)", "p"),
    Case("reshape twice", P, "x = f32[6] reshape(p); ROOT r = f32[3,2] reshape(x)", "reshape<3,2>(p)"),
    Case("reshape of splat", S, "x = f32[6] broadcast(s), dimensions={}; ROOT r = f32[3,2] reshape(x)", "broadcast<3,2>(s)"),
    Case(
        "reshape of broadcast",
        "p=f32[3]",
        "x = f32[4,3,2] broadcast(p), dimensions={1}; ROOT r = f32[2,2,3,1,2] reshape(x)",
        "broadcast<2,2,3,1,2>(p)",
    ),
    Case(
        "reshape of split broadcast",
        "p=f32[4]",
        "x = f32[3,4] broadcast(p), dimensions={1}; ROOT r = f32[3,2,2] reshape(x)",
        "reshape<3,2,2>(broadcast<3,4>(p))",
    ),
    Case("reshape of iota", P, "x = s32[6,2] iota(), iota_dimension=1; ROOT r = s32[2,3,2] reshape(x)", "iota<s32>()"),
    Case("no transpose", P, "ROOT r = f32[2,3] transpose(p), dimensions={0,1}", "p"),
    Case(
        "transpose twice",
        "p=f32[2,3,4]",
        "x = f32[3,4,2] transpose(p), dimensions={1,2,0}; ROOT r = f32[4,2,3] transpose(x), dimensions={1,2,0}",
        "transpose<4,2,3>(p)",
    ),
    Case(
        "transpose back", P, "x = f32[3,2] transpose(p), dimensions={1,0}; ROOT r = f32[2,3] transpose(x), dimensions={1,0}", "p"
    ),
    Case(
        "transpose of broadcast",
        "p=f32[3]",
        "x = f32[3,4] broadcast(p), dimensions={0}; ROOT r = f32[4,3] transpose(x), dimensions={1,0}",
        "broadcast<4,3>(p)",
    ),
    Case(
        "transpose of two",
        P,
        "x = f32[2,3,4] broadcast(p), dimensions={0,1}; ROOT r = f32[3,2,4] transpose(x), dimensions={1,0,2}",
        "transpose<3,2,4>(broadcast<2,3,4>(p))",
    ),
    Case(
        "transpose of iota",
        P,
        "x = s32[6,2] iota(), iota_dimension=1; ROOT r = s32[2,6] transpose(x), dimensions={1,0}",
        "iota<s32>()",
    ),
    Case(
        "transpose of ones", "p=f32[1,3,1,2]", "ROOT r = f32[3,2,1,1] transpose(p), dimensions={1,3,0,2}", "reshape<3,2,1,1>(p)"
    ),
    Case("no broadcast", P, "ROOT r = f32[2,3] broadcast(p), dimensions={0,1}", "p"),
    Case("broadcast to ones", P, "ROOT r = f32[2,1,3] broadcast(p), dimensions={0,2}", "reshape<2,1,3>(p)"),
    Case(
        "broadcast twice",
        "p=f32[3]",
        "x = f32[3,2] broadcast(p), dimensions={0}; ROOT r = f32[4,3,2] broadcast(x), dimensions={1,2}",
        "broadcast<4,3,2>(p)",
    ),
    Case(
        "broadcast of iota",
        P,
        "x = s32[3] iota(), iota_dimension=0; ROOT r = s32[2,3] broadcast(x), dimensions={1}",
        "iota<s32>()",
    ),
    Case(
        "broadcast of a one",
        "p=f32[3]",
        "x = f32[3,1] reshape(p); ROOT r = f32[3,1,5] broadcast(x), dimensions={0,1}",
        "broadcast<3,1,5>(p)",
    ),
    Case("iota of one", P, "ROOT r = s32[1,3] iota(), iota_dimension=0", "broadcast<1,3>({0})"),
    Case("constant of one value", P, "ROOT c = f32[3] constant({2, 2, 2})", "broadcast<3>({2})"),
    Case("zeros have signs", P, "ROOT c = f32[2] constant({0, -0.0})", "{0,-0}"),
    Case("constant that counts", P, "ROOT c = s32[4] constant({0, 1, 2, 3})", "iota<s32>()"),
    Case("constant that strides", P, "ROOT c = s32[4] constant({0, 3, 6, 9})", "multiply(iota<s32>(), broadcast<4>({3}))"),
    Case("constant that jumps", P, "ROOT c = s32[4] constant({0, 3, 5, 9})", "{0,3,5,9}"),
    Case(
        "compute before broadcast", S, "x = f32[3] broadcast(s), dimensions={}; ROOT r = f32[3] tanh(x)", "broadcast<3>(tanh(s))"
    ),
    Case(
        "compute before two broadcasts",
        "p=f32[3] s=f32[]",
        "x = f32[3,2] broadcast(p), dimensions={0}; y = f32[3,2] broadcast(s), dimensions={}; ROOT r = f32[3,2] add(x, y)",
        "broadcast<3,2>(add(p, broadcast<3>(s)))",
    ),
    Case(
        "broadcasts of two shapes",
        "p=f32[3] q=f32[2]",
        "x = f32[3,2] broadcast(p), dimensions={0}; y = f32[3,2] broadcast(q), dimensions={1}; ROOT r = f32[3,2] add(x, y)",
        "add(broadcast<3,2>(p), broadcast<3,2>(q))",
    ),
    Case("reverse of ones", "p=f32[1,3]", "ROOT r = f32[1,3] reverse(p), dimensions={0}", "p"),
    Case("copy", P, "x = f32[2,3] copy(p); ROOT r = f32[2,3] negate(x)", "negate(p)"),
    Case("slice of all", P, "ROOT r = f32[2,3] slice(p), slice={[0:2], [0:3]}", "p"),
    Case(
        "slice twice",
        "p=f32[20]",
        "x = f32[6] slice(p), slice={[3:9]}; ROOT r = f32[2] slice(x), slice={[1:3]}",
        "slice<2>(p)",
    ),
    Case(
        "bitcast of broadcast",
        "p=f32[4]",
        "b = f32[3,4] broadcast(p), dimensions={1}; ROOT r = f32[4,3]{0,1} bitcast(b)",
        "broadcast<4,3>(p)",
    ),
    Case(
        "bitcast of broadcast in another order",
        "p=f32[3,4]",
        "b = f32[3,2,4] broadcast(p), dimensions={0,2}; ROOT r = f32[4,2,3]{0,1,2} bitcast(b)",
        "bitcast<4,2,3>(broadcast<3,2,4>(p))",
    ),
    Case(
        "strided slice of slice",
        "p=f32[20]",
        "x = f32[6] slice(p), slice={[3:9]}; ROOT r = f32[3] slice(x), slice={[1:6:2]}",
        "slice<3>(slice<6>(p))",
    ),
    Case(
        "slice of splat", S, "x = f32[6] broadcast(s), dimensions={}; ROOT r = f32[2] slice(x), slice={[1:3]}", "broadcast<2>(s)"
    ),
    Case(
        "slice of joined",
        "p=f32[3] q=f32[4]",
        "x = f32[7] concatenate(p, q), dimensions={0}; ROOT r = f32[2] slice(x), slice={[4:6]}",
        "slice<2>(q)",
    ),
    Case(
        "slice of both",
        "p=f32[3] q=f32[4]",
        "x = f32[7] concatenate(p, q), dimensions={0}; ROOT r = f32[2] slice(x), slice={[2:4]}",
        "slice<2>(concatenate<7>(p, q))",
    ),
    Case(
        "slice of padded",
        "p=f32[3]",
        Z + "x = f32[7] pad(p, z), padding=2_2; ROOT r = f32[2] slice(x), slice={[3:5]}",
        "slice<2>(p)",
    ),
    Case("dynamic slice of all", "p=f32[3] i=s32[]", "ROOT r = f32[3] dynamic-slice(p, i), dynamic_slice_sizes={3}", "p"),
    Case(
        "dynamic slice of a dynamic slice that has all elements where the index is not known",
        "p=f32[8,5] i=s32[] j=s32[]",
        "z = s32[] constant(0); x = f32[1,5] dynamic-slice(p, i, z), dynamic_slice_sizes={1,5}; "
        "ROOT r = f32[1,2] dynamic-slice(x, z, j), dynamic_slice_sizes={1,2}",
        "dynamic-slice(p, add(clamp({0}, {0}, {0}), clamp({0}, i, {7})), add(clamp({0}, j, {3}), clamp({0}, {0}, {0})))",
    ),
    Case(
        "dynamic slice at 9",
        "p=f32[8]",
        "i = s32[] constant(9); ROOT r = f32[3] dynamic-slice(p, i), dynamic_slice_sizes={3}",
        "slice<3>(p)",
    ),
    Case(
        "full dimension",
        "p=f32[4,3] i=s32[] j=s32[]",
        "ROOT r = f32[2,3] dynamic-slice(p, i, j), dynamic_slice_sizes={2,3}",
        "dynamic-slice(p, i, {0})",
    ),
    Case(
        "element of iota",
        "i=s32[]",
        "x = u32[5] iota(), iota_dimension=0; ROOT r = u32[1] dynamic-slice(x, i), dynamic_slice_sizes={1}",
        "reshape<1>(convert<u32>(clamp({0}, i, {4})))",
    ),
    Case(
        "element of a float iota",
        "i=s32[]",
        "x = f32[5] iota(), iota_dimension=0; ROOT r = f32[1] dynamic-slice(x, i), dynamic_slice_sizes={1}",
        "dynamic-slice(iota<f32>(), i)",
    ),
    Case("update of all", "p=f32[3] q=f32[3] i=s32[]", "ROOT r = f32[3] dynamic-update-slice(p, q, i)", "q"),
    Case(
        "update with itself",
        "p=f32[5] i=s32[]",
        "x = f32[2] dynamic-slice(p, i), dynamic_slice_sizes={2}; ROOT r = f32[5] dynamic-update-slice(p, x, i)",
        "dynamic-update-slice(p, dynamic-slice(p, i), i)",
    ),
    Case(
        "update of zeros",
        "q=f32[2]",
        Z + "x = f32[5] broadcast(z), dimensions={}; i = s32[] constant(1); ROOT r = f32[5] dynamic-update-slice(x, q, i)",
        "pad<5>(q, {0})",
    ),
    Case("one joined", P, "ROOT r = f32[2,3] concatenate(p), dimensions={0}", "p"),
    Case("nothing joined", "p=f32[3] q=f32[0]", "ROOT r = f32[3] concatenate(p, q), dimensions={0}", "p"),
    Case(
        "joined twice",
        "p=f32[1] q=f32[2]",
        "x = f32[3] concatenate(p, q), dimensions={0}; ROOT r = f32[4] concatenate(x, p), dimensions={0}",
        "concatenate<4>(p, q, p)",
    ),
    Case(
        "neighbours joined",
        "p=f32[8]",
        "x = f32[3] slice(p), slice={[1:4]}; y = f32[2] slice(p), slice={[4:6]};"
        "ROOT r = f32[5] concatenate(x, y), dimensions={0}",
        "slice<5>(p)",
    ),
    Case(
        "strangers joined",
        "p=f32[8]",
        "x = f32[3] slice(p), slice={[1:4]}; y = f32[2] slice(p), slice={[5:7]};"
        "ROOT r = f32[5] concatenate(x, y), dimensions={0}",
        "concatenate<5>(slice<3>(p), slice<2>(p))",
    ),
    Case(
        "joined with one value",
        "p=f32[3] s=f32[]",
        "x = f32[2] broadcast(s), dimensions={}; ROOT r = f32[5] concatenate(x, p), dimensions={0}",
        "pad<5>(p, s)",
    ),
    Case("padded by nothing", "p=f32[3]", Z + "ROOT r = f32[3] pad(p, z), padding=0_0", "p"),
    Case("padding of nothing", "p=f32[0] s=f32[]", "ROOT r = f32[3] pad(p, s), padding=1_2", "broadcast<3>(s)"),
    Case(
        "padding with the number that is padded stays",
        S,
        "x = f32[3] broadcast(s), dimensions={}; ROOT r = f32[5] pad(x, s), padding=1_1",
        "pad<5>(broadcast<3>(s), s)",
    ),
    Case(
        "two paddings stay",
        "p=f32[3] s=f32[]",
        "x = f32[5] pad(p, s), padding=1_1; ROOT r = f32[8] pad(x, s), padding=1_2",
        "pad<8>(pad<5>(p, s), s)",
    ),
    Case("padded by less", "p=f32[5] s=f32[]", "ROOT r = f32[4] pad(p, s), padding=-2_1", "slice<4>(pad<6>(p, s))"),
    Case("sum of nothing", "p=f32[0,3]", Z + "ROOT r = f32[3] reduce(p, z), dimensions={0}, to_apply=sum", "broadcast<3>({0})"),
    Case("sum of ones", "p=f32[1,3]", Z + "ROOT r = f32[3] reduce(p, z), dimensions={0}, to_apply=sum", "reshape<3>(p)"),
    Case(
        "sum of ones from elsewhere",
        "p=f32[1,3] z=f32[]",
        "ROOT r = f32[3] reduce(p, z), dimensions={0}, to_apply=sum",
        "reduce<3>(p, z)",
    ),
    Case(
        "sum of transpose",
        "p=f32[2,3,4]",
        Z + "x = f32[4,2,3] transpose(p), dimensions={2,0,1}; ROOT r = f32[4,3] reduce(x, z), dimensions={1}, to_apply=sum",
        "transpose<4,3>(reduce<3,4>(p, {0}))",
    ),
    Case(
        "sum of sum",
        "p=f32[2,3,4]",
        Z + "x = f32[2,4] reduce(p, z), dimensions={1}, to_apply=sum; ROOT r = f32[2] reduce(x, z), dimensions={1}, to_apply=sum",
        "reduce<2>(p, {0})",
    ),
    Case(
        "max of sum",
        "p=f32[2,3,4]",
        Z + "i = f32[] constant(-inf); x = f32[2,4] reduce(p, z), dimensions={1}, to_apply=sum;"
        "ROOT r = f32[2] reduce(x, i), dimensions={1}, to_apply=largest",
        "reduce<2>(reduce<2,4>(p, {0}), {-inf})",
    ),
    Case(
        "sum of reshape",
        "p=f32[2,3,4]",
        Z + "x = f32[2,12] reshape(p); ROOT r = f32[2] reduce(x, z), dimensions={1}, to_apply=sum",
        "reduce<2>(p, {0})",
    ),
    Case(
        "reduce of a moved dimension of size 1",
        "p=f32[3,1,4]",
        Z + "x = f32[1,3,4] reshape(p); ROOT r = f32[1,3] reduce(x, z), dimensions={2}, to_apply=sum",
        "reshape<1,3>(reduce<3,1>(p, {0}))",
    ),
    Case(
        "sum of reshape that keeps",
        "p=f32[6,4]",
        Z + "x = f32[2,3,4] reshape(p); ROOT r = f32[2,3] reduce(x, z), dimensions={2}, to_apply=sum",
        "reshape<2,3>(reduce<6>(p, {0}))",
    ),
    Case(
        "sum of reshape that mixes",
        "p=f32[6,4]",
        Z + "x = f32[2,3,4] reshape(p); ROOT r = f32[2,4] reduce(x, z), dimensions={1}, to_apply=sum",
        "reduce<2,4>(reshape<2,3,4>(p), {0})",
    ),
    Case(
        "sum of broadcast",
        "p=f32[3] z=f32[]",
        "x = f32[3,4,2] broadcast(p), dimensions={0}; ROOT r = f32[3] reduce(x, z), dimensions={1,2}, to_apply=sum",
        "add(broadcast<3>(z), multiply(p, broadcast<3>({8})))",
    ),
    Case(
        "max of broadcast",
        "p=f32[] z=f32[]",
        "x = f32[3,4] broadcast(p), dimensions={}; ROOT r = f32[] reduce(x, z), dimensions={0,1}, to_apply=largest",
        "maximum(p, z)",
    ),
    Case("window of one", P, LOW + "ROOT r = f32[2,3] reduce-window(p, z), window={size=1x1}, to_apply=largest", "p"),
    Case(
        "window of padded",
        "p=f32[6]",
        LOW + "x = f32[8] pad(p, z), padding=1_1; ROOT r = f32[7] reduce-window(x, z), window={size=2}, to_apply=largest",
        "reduce-window(p, {-inf})",
    ),
    Case("map", P, "ROOT r = f32[2,3] map(p, p), dimensions={0,1}, to_apply=sum", "add(p, p)"),
    Case(
        "product of nothing",
        "p=f32[2,0] q=f32[0,3]",
        "ROOT r = f32[2,3] dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "broadcast<2,3>({0})",
    ),
    Case(
        "product of one row",
        "p=f32[1,4] q=f32[4,3]",
        "ROOT r = f32[1,3] dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "reshape<1,3>(dot<3>(reshape<4>(p), q))",
    ),
    Case(
        "product of batches of one",
        "p=f32[1,2,4] q=f32[1,4,3]",
        "ROOT r = f32[1,2,3] dot(p, q), lhs_batch_dims={0}, rhs_batch_dims={0},"
        "lhs_contracting_dims={2}, rhs_contracting_dims={1}",
        "reshape<1,2,3>(dot<2,3>(reshape<2,4>(p), reshape<4,3>(q)))",
    ),
    Case(
        "product of one column and row",
        "p=f32[2,1] q=f32[1,3]",
        "ROOT r = f32[2,3] dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "multiply(broadcast<2,3>(reshape<2>(p)), broadcast<2,3>(reshape<3>(q)))",
    ),
    Case(
        "outer product of integers",
        "p=s8[5,2] q=s8[5,3]",
        "ROOT r = s32[5,2,3] dot(p, q), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={}, rhs_contracting_dims={}",
        "multiply(broadcast<5,2,3>(convert<s32>(p)), broadcast<5,2,3>(convert<s32>(q)))",
    ),
    Case(
        "transpose of product",
        "p=f32[5,2,4] q=f32[5,4,3]",
        "x = f32[5,2,3] dot(p, q), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1};"
        "ROOT r = f32[5,3,2] transpose(x), dimensions={0,2,1}",
        "dot<5,3,2>(q, p)",
    ),
)
WITH_LAYOUTS = (
    Case("reshape as bitcast", P, "ROOT r = f32[3,2] reshape(p)", "bitcast<3,2>(p)"),
    Case("reshape to own shape", P, "r = f32[2,3] reshape(p); ROOT n = f32[2,3] negate(r)", "negate(p)"),
    Case(
        "reshape of broadcast",
        P,
        "x = f32[4,5,2,3] broadcast(p), dimensions={2,3}; ROOT r = f32[20,2,3] reshape(x)",
        "broadcast<20,2,3>(p)",
    ),
    Case("transpose as bitcast", P, "ROOT r = f32[3,2]{0,1} transpose(p), dimensions={1,0}", "bitcast<3,2>(p)"),
    Case("transpose that moves", P, "ROOT r = f32[3,2] transpose(p), dimensions={1,0}", "transpose<3,2>(p)"),
    Case(
        "transpose of product",
        "p=f32[5,2,4] q=f32[5,4,3]",
        "x = f32[5,2,3] dot(p, q), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1};"
        "ROOT r = f32[5,3,2] transpose(x), dimensions={0,2,1}",
        "dot<5,3,2>(q, p)",
    ),
    Case(
        "transpose of product to another layout",
        "p=f32[2,4] q=f32[4,3]",
        "x = f32[2,3]{0,1} dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0};"
        "ROOT r = f32[3,2]{0,1} transpose(x), dimensions={1,0}",
        "transpose<3,2>(dot<2,3>(p, q))",
    ),
    Case("copy as bitcast", "p=f32[3,1]", "ROOT r = f32[3,1]{0,1} copy(p)", "bitcast<3,1>(p)"),
    Case("copy that moves", P, "ROOT r = f32[2,3]{0,1} copy(p)", "copy(p)"),
    Case("bitcast twice", P, "x = f32[6] bitcast(p); ROOT r = f32[3,2] bitcast(x)", "bitcast<3,2>(p)"),
    Case("bitcast of splat", S, "x = f32[6] broadcast(s), dimensions={}; ROOT r = f32[3,2] bitcast(x)", "broadcast<3,2>(s)"),
    Case(
        "bitcast around tanh",
        P,
        "x = f32[6] bitcast(p); y = f32[6] tanh(x); ROOT r = f32[3,2] bitcast(y)",
        "bitcast<3,2>(tanh(p))",
    ),
    Case("broadcasts sink", S, "x = f32[6] broadcast(s), dimensions={}; ROOT r = f32[6] tanh(x)", "broadcast<6>(tanh(s))"),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rule(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", WITH_LAYOUTS, ids=lambda case: case.name)
def test_rule_where_layouts_are_settled(case: Case) -> None:
    check(case, AlgebraicSimplifier(sees_layouts=True, repeat=True))
