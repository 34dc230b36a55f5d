"""Algebraic rules that move dots, gathers, reductions, updates and collectives past what rearranges or broadcasts."""

from __future__ import annotations

import pytest
from algebraic_cases import Case, apply, check, expression

import hlo_run
from hlo_run.hlo_passes.simplifiers.algsimp import AlgebraicSimplifier

Z = "z = f32[] constant(0);"
BATCHED = ", lhs_batch_dims={0,1}, rhs_batch_dims={0,1}, lhs_contracting_dims={3}, rhs_contracting_dims={2}"
GATHER = ", offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1"

CASES = (
    Case(
        "product of transposed matrices",
        "p=f32[2,3,4,5] q=f32[2,3,6,4]",
        "a = f32[3,2,5,4] transpose(p), dimensions={1,0,3,2}; b = f32[3,2,4,6] transpose(q), dimensions={1,0,3,2};"
        f"ROOT r = f32[3,2,5,6] dot(a, b){BATCHED}",
        "transpose<3,2,5,6>(dot<2,3,6,5>(q, p))",
    ),
    Case(
        "product of transposed batches",
        "p=f32[2,3,5,4] q=f32[2,3,4,6]",
        "a = f32[3,2,5,4] transpose(p), dimensions={1,0,2,3}; b = f32[3,2,4,6] transpose(q), dimensions={1,0,2,3};"
        f"ROOT r = f32[3,2,5,6] dot(a, b){BATCHED}",
        "transpose<3,2,5,6>(dot<2,3,5,6>(p, q))",
    ),
    Case(
        "transposed product whose batch is not first in an operand",
        "p=f32[2,5,4] q=f32[4,2,3]",
        "x = f32[2,5,3] dot(p, q), lhs_batch_dims={0}, rhs_batch_dims={1}, lhs_contracting_dims={2}, rhs_contracting_dims={0};"
        "ROOT r = f32[2,3,5] transpose(x), dimensions={0,2,1}",
        "transpose<2,3,5>(dot<2,5,3>(p, q))",
    ),
    Case(
        "product of a rearranged matrix and a constant",
        "p=f32[2,2,3]",
        "t = f32[2,3,2] transpose(p), dimensions={0,2,1}; a = f32[2,6] reshape(t);"
        "c = f32[6,2] constant({{1,2},{3,4},{5,6},{7,8},{9,1},{2,3}});"
        "ROOT r = f32[2,2] dot(a, c), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "dot<2,2>(reshape<2,6>(p), reshape<6,2>(transpose<2,3,2>(reshape<3,2,2>({1,2,3,4,5,6,7,8,9,1,2,3}))))",
    ),
    Case(
        "product of a matrix whose rows move as well",
        "p=f32[2,2,3]",
        "t = f32[2,3,2] transpose(p), dimensions={1,2,0}; a = f32[2,6] reshape(t);"
        "c = f32[6,1] constant({{1},{3},{5},{7},{9},{2}});"
        "ROOT r = f32[2,1] dot(a, c), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "reshape<2,1>(dot<2>(reshape<2,6>(transpose<2,3,2>(p)), reshape<6>({1,3,5,7,9,2})))",
    ),
    Case(
        "moved chunks",
        "p=f32[2,3,5,8]",
        "a = f32[2,3,5,2,4] reshape(p); t = f32[2,3,2,5,4] transpose(a), dimensions={0,1,3,2,4};ROOT r = f32[2,6,5,4] reshape(t)",
        "reshape<2,6,5,4>(concatenate<2,3,10,4>(slice<2,3,5,4>(p), slice<2,3,5,4>(p)))",
    ),
    Case(
        "reshape of update",
        "p=f32[4,6] u=f32[2,6] i=s32[]",
        "j = s32[] constant(0); d = f32[4,6] dynamic-update-slice(p, u, i, j); ROOT r = f32[4,1,6] reshape(d)",
        "dynamic-update-slice(reshape<4,1,6>(p), reshape<2,1,6>(u), i, {0}, {0})",
    ),
    Case(
        "gather of padded rows",
        "p=f32[9,3] i=s32[4,1]",
        Z + "a = f32[9,5] pad(p, z), padding=0_0x0_2; ROOT r = f32[4,5] gather(a, i), slice_sizes={1,5}" + GATHER,
        "pad<4,5>(gather(p, i), {0})",
    ),
    Case(
        "gather of more rows",
        "p=f32[9,3] i=s32[4,1]",
        Z + "a = f32[11,3] pad(p, z), padding=0_2x0_0; ROOT r = f32[4,3] gather(a, i), slice_sizes={1,3}" + GATHER,
        "gather(pad<11,3>(p, {0}), i)",
    ),
    Case(
        "gather of reshaped padded rows",
        "p=f32[2,9,3] i=s32[4,1]",
        Z + "a = f32[2,9,5] pad(p, z), padding=0_0x0_0x0_2; b = f32[18,5] reshape(a);"
        "ROOT r = f32[4,5] gather(b, i), slice_sizes={1,5}" + GATHER,
        "pad<4,5>(gather(reshape<18,3>(p), i), {0})",
    ),
    Case(
        "sum of broadcast matrix",
        "p=f32[5,6]",
        Z + "b = f32[3,5,6] broadcast(p), dimensions={1,2}; c = f32[] constant(2);"
        "ROOT r = f32[3] reduce(b, c), dimensions={1,2}, to_apply=sum",
        "broadcast<3>(reduce<>(p, {2}))",
    ),
    Case(
        "largest of one number and another",
        "p=f32[]",
        Z + "b = f32[3,5] broadcast(p), dimensions={}; ROOT r = f32[] reduce(b, z), dimensions={0,1}, to_apply=largest",
        "maximum(p, {0})",
    ),
    Case("real part of real numbers", "p=f32[4]", "ROOT r = f32[4] real(p)", "p"),
    Case("imaginary part of real numbers", "p=f32[4]", "ROOT r = f32[4] imag(p)", "broadcast<4>({0})"),
    Case(
        "quotient of a pred",
        "p=pred[4] q=f32[]",
        "a = f32[4] convert(p); b = f32[4] broadcast(q), dimensions={}; ROOT r = f32[4] divide(a, b)",
        "select(p, broadcast<4>(divide({1}, q)), broadcast<4>({0}))",
    ),
    Case(
        "two bounds, one mirrored",
        "p=s32[]",
        "a = s32[] constant(10); b = s32[] constant(100); x = pred[] compare(p, a), direction=LT;"
        "y = pred[] compare(b, p), direction=GT; ROOT r = pred[] and(x, y)",
        "compare.LT(p, {10})",
    ),
    Case(
        "unused part of a barrier",
        "p=f32[4] q=f32[4]",
        "a = f32[4] add(p, q); b = f32[4] multiply(p, q); t = (f32[4], f32[4]) tuple(a, b);"
        "o = (f32[4], f32[4]) opt-barrier(t); ROOT r = f32[4] get-tuple-element(o), index=1",
        "get-tuple-element(opt-barrier(tuple(multiply(p, q))))",
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rule(case: Case) -> None:
    check(case)


def test_collectives_of_one_value() -> None:
    text = """HloModule m, replica_count=4
sum { a = s32[] parameter(0) b = s32[] parameter(1) ROOT r = s32[] add(a, b) }
ENTRY e {
  c = s32[] constant(3)
  b = s32[8] broadcast(c), dimensions={}
  g = s32[32] all-gather(b), dimensions={0}, replica_groups={{0,1,2,3}}
  s = s32[2] reduce-scatter(b), dimensions={0}, replica_groups={{0,1,2,3}}, to_apply=sum
  ROOT t = (s32[32], s32[2]) tuple(g, s)
}"""
    module = hlo_run.parse(text)
    apply(module, AlgebraicSimplifier(repeat=True))
    assert expression(module.entry.root) == "tuple(broadcast<32>({3}), broadcast<2>({12}))"


def test_reductions_of_several_arrays() -> None:
    text = """HloModule m
both { a = f32[] parameter(0) b = f32[] parameter(1) c = f32[] parameter(2) d = f32[] parameter(3)
  x = f32[] add(a, c) y = f32[] multiply(b, d) ROOT r = (f32[], f32[]) tuple(x, y) }
one { a = f32[] parameter(0) b = f32[] parameter(1) x = f32[] add(a, b) ROOT r = (f32[]) tuple(x) }
ENTRY e {
  p = f32[0,4] parameter(0)
  q = f32[1,4] parameter(1)
  z = f32[] constant(0)
  o = f32[] constant(1)
  none = (f32[4], f32[4]) reduce(p, p, z, o), dimensions={0}, to_apply=both
  single = (f32[4], f32[4]) reduce(q, q, z, o), dimensions={0}, to_apply=both
  plain = (f32[1]) reduce(q, z), dimensions={1}, to_apply=one
  ROOT t = ((f32[4], f32[4]), (f32[4], f32[4]), (f32[1])) tuple(none, single, plain)
}"""
    module = hlo_run.parse(text)
    apply(module, AlgebraicSimplifier(repeat=True))
    none, single, plain = module.entry.root.operands
    assert expression(none) == "tuple(broadcast<4>({0}), broadcast<4>({1}))"
    assert expression(single) == "tuple(reshape<4>(q), reshape<4>(q))"
    assert expression(plain) == "tuple(reduce<1>(q, {0}))"
