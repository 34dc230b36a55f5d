"""Fake arguments: ranges per type, constraints of the uses, and equal values for a seed on every machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_running import Array

import hlo_run
from hlo_run.errors import Unsupported
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.literal import float_info
from hlo_run.reference.arguments.constraints import MOST_ROUNDS, Constraints, constraints_of
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments
from hlo_run.reference.random import RandomEngine
from hlo_run.reference.values import Value


def _argument(shape: str, seed: int = 42, large: bool = False, zero: bool = False) -> Any:
    module = hlo_run.parse(f"HloModule m\nENTRY e {{\n  ROOT x = {shape} parameter(0)\n}}")
    (value,) = make_fake_arguments(module, seed, large, zero)
    return value


def _constraints(body: str, number: int = 0, path: tuple[int, ...] = ()) -> Constraints:
    text = body if "HloModule" in body else "HloModule m\nENTRY e {\n" + body + "\n}"
    return constraints_of(hlo_run.parse(text).entry.parameters[number], path)


# The values from Philox's raw bits of key 42, on every machine and with every numpy version.
GOLDEN: list[tuple[str, bool, list[float]]] = [
    ("f32", False, [0.14605945348739624, -0.043226324021816254, 0.16029825806617737, 0.018374435603618622]),
    ("f64", False, [0.14605944435826632, -0.04322631277406351, 0.16029824446464389, 0.01837444108481609]),
    ("bf16", False, [0.146484375, -0.043212890625, 0.16015625, 0.0184326171875]),
    ("s8", False, [-114, -2, -125, -39]),
    ("u64", False, [15129985323320379406, 3490965594592278910, 16005516994917231875, 7278743398533373529]),
    ("pred", False, [0, 0, 1, 1]),
    ("f32", True, [-1.2796763648736942e-10, 1.4384775568032637e-05, -7.8302238788929e-24, 6.472632349949935e-34]),
]


@pytest.mark.parametrize(("dtype", "large", "expected"), GOLDEN)
def test_values_are_the_same_everywhere(dtype: str, large: bool, expected: list[float]) -> None:
    found: Array = _argument(f"{dtype}[4]", large=large)
    assert [float(x) if DTYPES[dtype].is_float else int(x) for x in found] == expected


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64", "f8e5m2", "f8e4m3fn", "f8e4m3fnuz"])
def test_floats_lie_in_the_small_range(dtype: str) -> None:
    values: Array = _argument(f"{dtype}[100000]")
    assert values.dtype == DTYPES[dtype].numpy
    wide = values.astype(np.float64)
    step = 0.02 if DTYPES[dtype].bits < 16 else 1e-3
    assert -0.1 - step < wide.min() < -0.09
    assert 0.19 - step < wide.max() < 0.2 + step
    assert abs(wide.mean() - 0.05) < 0.005
    if DTYPES[dtype].bits >= 32:
        assert wide.max() < 0.2
        assert len(np.unique(values)) > 90000


@pytest.mark.parametrize("dtype", ["s4", "u4", "s8", "u8", "s16", "u32", "s64", "u64"])
def test_ints_fill_their_range(dtype: str) -> None:
    values: Array = _argument(f"{dtype}[100000]").astype(object)
    bits, signed = DTYPES[dtype].bits, DTYPES[dtype].is_signed
    low = -(2 ** (bits - 1)) if signed else 0
    high = low + 2**bits - 1
    assert low <= min(values) < low + 2**bits // 100 + 1
    assert high - 2**bits // 100 - 1 < max(values) <= high


def test_other_kinds() -> None:
    assert 0.45 < _argument("pred[10000]").mean() < 0.55
    pair: Array = _argument("c64[1000]")
    assert pair.dtype == np.complex64
    assert not np.array_equal(np.real(pair), np.imag(pair))
    assert len(np.unique(_argument("f4e2m1fn[1000]").astype(np.float32))) == 15
    scales = _argument("f8e8m0fnu[1000]").astype(np.float32)
    assert np.isfinite(scales).all()
    nested: Any = _argument("(s32[2], (f32[3], token[]))")
    assert (nested[0].shape, nested[1][0].shape, nested[1][1]) == ((2,), (3,), ())


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_large_range_covers_the_exponents(dtype: str) -> None:
    info = {"f16": (15, -14), "bf16": (127, -126), "f32": (127, -126), "f64": (1023, -1022)}[dtype]
    values: Array = _argument(f"{dtype}[200000]", large=True).astype(np.float64)
    finite = values[np.isfinite(values) & (values != 0)]
    exponents = np.log2(np.abs(finite))
    assert info[1] - 0.1 <= exponents.min() < info[1] + 1
    assert info[0] - 1 < exponents.max() <= info[0]
    assert abs(exponents.mean() - (info[0] + info[1]) / 2) < (info[0] - info[1]) * 0.01
    assert 0.49 < (finite < 0).mean() < 0.51


def test_seeds_and_engines() -> None:
    module = hlo_run.parse(
        "HloModule m\nENTRY e {\n  x = f32[100] parameter(0)\n  y = f32[100] parameter(1)\n  ROOT r = f32[100] add(x, y)\n}"
    )
    engine = RandomEngine(1)
    first, second = make_fake_arguments(module, engine), make_fake_arguments(module, engine)
    again = make_fake_arguments(module, 1)
    lines = [np.asarray(value).tolist() for value in (*first, *second)]
    assert [np.asarray(value).tolist() for value in again] == lines[:2]
    assert len({tuple(line) for line in lines}) == 4
    assert np.asarray(make_fake_arguments(module, 2)[0]).tolist() != lines[0]
    assert np.asarray(make_fake_arguments(module, -1)[0]).tolist() != lines[0]


def test_without_random_data_everything_is_zero() -> None:
    values: tuple[Value, ...] = _argument("(bf16[3], s4[2], pred[4])", zero=True)
    assert all(isinstance(value, np.ndarray) and not value.astype(np.float32).any() for value in values)


DYNAMIC_SLICES = """
  x = f32[10,20] parameter(0)
  i = s32[] parameter(1)
  j = s32[] parameter(2)
  a = f32[4,5] dynamic-slice(x, i, j), dynamic_slice_sizes={4,5}
  u = f32[7,1] parameter(3)
  ROOT b = f32[10,20] dynamic-update-slice(x, u, i, j)"""


def test_slice_starts_stay_in_bounds_for_every_use() -> None:
    assert _constraints(DYNAMIC_SLICES, 1) == Constraints(index_limit=3)
    assert _constraints(DYNAMIC_SLICES, 2) == Constraints(index_limit=15)
    assert _constraints(DYNAMIC_SLICES, 0) == Constraints()
    module = hlo_run.parse("HloModule m\nENTRY e {\n" + DYNAMIC_SLICES + "\n}")
    starts = {int(np.asarray(make_fake_arguments(module, seed)[1])) for seed in range(60)}
    assert starts == {0, 1, 2, 3}


GATHER = """
  x = f32[10,20] parameter(0)
  i = s32[6,2] parameter(1)
  k = s32[2,6] parameter(2)
  m = s32[6,2] transpose(k), dimensions={1,0}
  g = f32[6] gather(x, i), offset_dims={}, collapsed_slice_dims={0,1}, start_index_map={1,0}, index_vector_dim=1,
    slice_sizes={1,1}
  h = f32[6] gather(x, m), offset_dims={}, collapsed_slice_dims={0,1}, start_index_map={0,1}, index_vector_dim=1,
    slice_sizes={1,1},
    indices_are_sorted=true
  ROOT t = (f32[6], f32[6]) tuple(g, h)"""


def test_gather_indices() -> None:
    assert _constraints(GATHER, 1) == Constraints(index_limit=9)
    assert _constraints(GATHER, 2) == Constraints(index_limit=9, sorted_=True)
    module = hlo_run.parse("HloModule m\nENTRY e {\n" + GATHER + "\n}")
    found = np.asarray(make_fake_arguments(module, 3)[2]).reshape(-1)
    assert (np.diff(found) >= 0).all()
    assert found.max() <= 9


WINDOWS = """HloModule m
last {
  a = f32[] parameter(0)
  ROOT b = f32[] parameter(1)
}
ENTRY e {
  x = f32[7,9,4] parameter(0)
  i = s32[12,2] parameter(1)
  u = f32[12,3,4] parameter(2)
  ROOT s = f32[7,9,4] scatter(x, i, u), update_window_dims={1,2}, inserted_window_dims={0},
    scatter_dims_to_operand_dims={1,0}, index_vector_dim=1, to_apply=last, unique_indices=true FLAGS
}"""


@pytest.mark.parametrize("flags", ["", ", indices_are_sorted=true"])
def test_windows_of_a_scatter_with_unique_indices_do_not_overlap(flags: str) -> None:
    module = hlo_run.parse(WINDOWS.replace("FLAGS", flags))
    assert constraints_of(module.entry.parameters[1]).windows == ((3, 3), (7, 1))
    for seed in range(5):
        starts = np.asarray(make_fake_arguments(module, seed)[1])
        rows = [tuple(row) for row in starts.tolist()]
        assert len(set(rows)) == 12
        assert set(starts[:, 0]) <= {0, 3, 6}
        assert (starts >= 0).all()
        assert starts[:, 1].max() < 7
        assert not flags or rows == sorted(rows)


def test_more_windows_than_there_is_room_for_are_drawn_alike() -> None:
    module = hlo_run.parse(WINDOWS.replace("FLAGS", "").replace("[12,", "[22,"))
    assert np.asarray(make_fake_arguments(module, 0)[1]).max() <= 8


def test_sizes_of_dynamic_dimensions_are_within_the_bound() -> None:
    body = """
      x = f32[2,5] parameter(0)
      n = s32[] parameter(1)
      ROOT d = f32[2,<=5] set-dimension-size(x, n), dimensions={1}"""
    assert _constraints(body, 1) == Constraints(index_limit=5)


ADD = "add {\n a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT c = f32[] OP(a, b)\n}\n"
REDUCE = """HloModule m
{ADD}
body {
  x = f32[8,4] parameter(0)
  z = f32[] parameter(1)
  ROOT r = f32[8] reduce(x, z), dimensions={1}, to_apply=add
}
ENTRY e {
  x = f32[8,4] parameter(0)
  z = f32[] parameter(1)
  ROOT r = f32[8] fusion(x, z), kind=kInput, calls=body
}"""


@pytest.mark.parametrize(("opcode", "identity"), [("add", 0), ("multiply", 1), ("maximum", None)])
def test_inits_of_reductions_are_identities_also_through_fusions(opcode: str, identity: int | None) -> None:
    text = REDUCE.replace("{ADD}", ADD.replace("OP", opcode))
    assert _constraints(text, 1) == Constraints(identity=identity)
    value = np.asarray(make_fake_arguments(hlo_run.parse(text), 42)[1])
    assert value.dtype == np.float32
    assert identity is None or float(value) == identity


def test_each_init_of_several_arrays_has_its_identity() -> None:
    text = """HloModule m
    both { a = f32[] parameter(0) b = f32[] parameter(1) c = f32[] parameter(2) d = f32[] parameter(3)
      s = f32[] add(a, c) p = f32[] multiply(d, b) ROOT t = (f32[], f32[]) tuple(s, p) }
    ENTRY e { x = f32[8] parameter(0) i = f32[] parameter(1) j = f32[] parameter(2)
      ROOT r = (f32[], f32[]) reduce(x, x, i, j), dimensions={0}, to_apply=both }"""
    assert [_constraints(text, number).identity for number in (1, 2)] == [0, 1]
    assert _constraints(text.replace("add(a, c)", "add(a, d)"), 1) == Constraints()


def test_a_reducer_of_one_parameter_twice_has_no_identity() -> None:
    text = REDUCE.replace("{ADD}", ADD.replace("OP(a, b)", "add(a, a)"))
    assert _constraints(text, 1) == Constraints()


SORT = """HloModule m
lt {
  a = s32[] parameter(0)
  b = s32[] parameter(1)
  p = f32[] parameter(2)
  q = f32[] parameter(3)
  ROOT c = pred[] compare(a, b), direction=LT
}
ENTRY e {
  k = s32[101] parameter(0)
  v = f32[101] parameter(1)
  ROOT r = (s32[101], f32[101]) sort(k, v), dimensions={0}, to_apply=lt
}"""


def test_groups_of_a_ragged_dot_fit_into_what_they_divide() -> None:
    text = """HloModule m
ENTRY e { x = f32[11,5] parameter(0)
  y = f32[3,5,7] parameter(1)
  sizes = s32[3] parameter(2)
  ROOT r = f32[11,7] ragged-dot(x, y, sizes), lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0},
    rhs_group_dims={0} }"""
    sizes = np.asarray(make_fake_arguments(hlo_run.parse(text), 1)[2])
    assert sizes.min() >= 0
    assert sizes.sum() <= 11


def test_sort_keys_have_no_duplicates() -> None:
    assert _constraints(SORT, 0) == Constraints(no_duplicates=True)
    keys = np.asarray(make_fake_arguments(hlo_run.parse(SORT), 42)[0])
    assert sorted(keys.tolist()) == list(range(-51, 50))
    assert keys.tolist() != sorted(keys.tolist())


@pytest.mark.parametrize("root", ["v", "w"])
def test_a_loop_may_convert_what_it_converted(root: str) -> None:
    text = f"""HloModule m
body {{ s = s32[] parameter(0)
  v = s32[] convert(s)
  w = s32[] convert(v)
  ROOT r = s32[] convert({root}) }}
condition {{ s = s32[] parameter(0)
  k = s32[] constant(7)
  ROOT c = pred[] compare(s, k), direction=LT }}
ENTRY e {{ p = s32[] parameter(0)
  ROOT w = s32[] while(p), condition=condition, body=body }}"""
    assert _constraints(text) == Constraints(index_limit=MOST_ROUNDS)


def test_conversions_hand_constraints_on() -> None:
    body = """
      x = f32[10] parameter(0)
      i = s8[] parameter(1)
      w = s32[] convert(i)
      ROOT r = f32[3] dynamic-slice(x, w), dynamic_slice_sizes={3}"""
    assert _constraints(body, 1) == Constraints(index_limit=7)


def test_a_leaf_of_a_tuple_has_its_own_constraints() -> None:
    body = """
      p = (f32[10], s32[], s32[]) parameter(0)
      x = f32[10] get-tuple-element(p), index=0
      i = s32[] get-tuple-element(p), index=1
      ROOT r = f32[3] dynamic-slice(x, i), dynamic_slice_sizes={3}"""
    assert _constraints(body, 0, (1,)) == Constraints(index_limit=7)
    assert _constraints(body, 0, (2,)) == Constraints()


def test_contradictions_are_refused() -> None:
    body = """
      x = s32[10] parameter(0)
      z = s32[] parameter(1)
      a = s32[3] dynamic-slice(x, z), dynamic_slice_sizes={3}
      ROOT r = s32[] reduce(x, z), dimensions={0}, to_apply=add"""
    text = "HloModule m\n" + ADD.replace("OP", "add").replace("f32", "s32") + "ENTRY e {" + body + "\n}"
    with pytest.raises(Unsupported, match="conflicting operand generation constraints"):
        _constraints(text, 1)


LOOP = """HloModule m
cond {
  s = (s32[], f32[20], s32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT
}
slice_it {
  v = f32[20] parameter(0)
  at = s32[] parameter(1)
  ROOT d = f32[4] dynamic-slice(v, at), dynamic_slice_sizes={4}
}
body {
  s = (s32[], f32[20], s32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[20] get-tuple-element(s), index=1
  j = s32[] get-tuple-element(s), index=2
  d = f32[4] call(x, j), to_apply=slice_it
  u = f32[20] dynamic-update-slice(x, d, i)
  one = s32[] constant(1)
  k = s32[] add(i, one)
  ROOT t = (s32[], f32[20], s32[]) tuple(k, u, j)
}
ENTRY e {
  p = (f32[20], (s32[], s32[])) parameter(0)
  x = f32[20] get-tuple-element(p), index=0
  q = (s32[], s32[]) get-tuple-element(p), index=1
  i = s32[] get-tuple-element(q), index=0
  j = s32[] get-tuple-element(q), index=1
  t = (s32[], f32[20], s32[]) tuple(i, x, j)
  ROOT w = (s32[], f32[20], s32[]) while(t), condition=cond, body=body
}"""


def test_indices_are_followed_through_tuples_loops_and_calls() -> None:
    assert _constraints(LOOP, 0, (1, 0)) == Constraints(index_limit=16), "the loop's counter begins as an index"
    assert _constraints(LOOP, 0, (1, 1)) == Constraints(index_limit=16)
    assert _constraints(LOOP, 0, (0,)) == Constraints()


ROUNDS = """HloModule m
cond {
  s = (s32[], s64[], f32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s64[] get-tuple-element(s), index=1
  m = s32[] convert(n)
  ROOT c = pred[] compare(i, m), direction=LT
}
body {
  s = (s32[], s64[], f32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s64[] get-tuple-element(s), index=1
  x = f32[] get-tuple-element(s), index=2
  one = s32[] constant(1)
  j = s32[] add(i, one)
  ROOT t = (s32[], s64[], f32[]) tuple(j, n, x)
}
ENTRY e {
  i = s32[] parameter(0)
  n = s64[] parameter(1)
  x = f32[] parameter(2)
  k = s32[] parameter(3)
  t = (s32[], s64[], f32[]) tuple(i, n, x)
  w = (s32[], s64[], f32[]) while(t), condition=cond, body=body
  r = s32[] get-tuple-element(w), index=0
  ROOT c = pred[] compare(r, k), direction=LT
}"""


def test_a_loop_with_random_arguments_ends() -> None:
    assert _constraints(ROUNDS, 0) == Constraints(index_limit=MOST_ROUNDS), "the counter begins there"
    assert _constraints(ROUNDS, 1) == Constraints(index_limit=MOST_ROUNDS), "also through a convert"
    assert _constraints(ROUNDS, 2) == Constraints()
    assert _constraints(ROUNDS, 3) == Constraints(), "compared outside of a condition"


BRANCH = """HloModule m
take {
  s = (f32[9], s32[]) parameter(0)
  x = f32[9] get-tuple-element(s), index=0
  i = s32[] get-tuple-element(s), index=1
  ROOT d = f32[5] dynamic-slice(x, i), dynamic_slice_sizes={5}
}
leave {
  s = f32[9] parameter(0)
  ROOT d = f32[5] slice(s), slice={[0:5]}
}
ENTRY e {
  c = pred[] parameter(0)
  x = f32[9] parameter(1)
  i = s32[] parameter(2)
  b = (f32[9], s32[]) tuple(x, i)
  o = (f32[9], s32[]) opt-barrier(b)
  ROOT r = f32[5] conditional(c, o, x), true_computation=take, false_computation=leave
}"""


def test_indices_are_followed_into_branches() -> None:
    assert _constraints(BRANCH, 2) == Constraints(index_limit=4)
    assert _constraints(BRANCH, 0) == Constraints()


def test_what_a_branch_returns_is_followed_out_of_it() -> None:
    text = """HloModule m
same { ROOT s = s32[] parameter(0) }
ENTRY e {
  c = pred[] parameter(0)
  x = f32[9] parameter(1)
  i = s32[] parameter(2)
  j = s32[] conditional(c, i, i), true_computation=same, false_computation=same
  ROOT d = f32[5] dynamic-slice(x, j), dynamic_slice_sizes={5}
}"""
    assert _constraints(text, 2) == Constraints(index_limit=4)


def test_moved_indices_are_found_in_fusions_and_after_converts_but_not_in_callees() -> None:
    gather = """
  g = f32[6] gather(x, k), offset_dims={}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1}"""
    body = f"""{{
  x = f32[10] parameter(0)
  i = s8[2,3] parameter(1)
  w = s32[2,3] convert(i)
  r = s32[6] reshape(w)
  k = s32[6,1] reshape(r){gather.replace("g =", "ROOT g =")}
}}"""
    entry = "ENTRY e {\n  x = f32[10] parameter(0)\n  i = s8[2,3] parameter(1)\n  ROOT r = f32[6] CALL\n}"
    fused = f"HloModule m\nf {body}\n" + entry.replace("CALL", "fusion(x, i), kind=kLoop, calls=f")
    assert _constraints(fused, 1) == Constraints(index_limit=9)
    assert _constraints(f"HloModule m\nENTRY f {body}", 1) == Constraints(index_limit=9)
    called = f"HloModule m\nf {body.replace('s8[2,3]', 's32[2,3]').replace('convert', 'copy')}\n"
    called += entry.replace("s8[2,3]", "s32[2,3]").replace("CALL", "call(x, i), to_apply=f")
    assert _constraints(called, 1) == Constraints()


SCATTER = """HloModule m
plus {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  c = f32[] parameter(2)
  d = f32[] parameter(3)
  ROOT t = (f32[], f32[]) tuple(a, d)
}
ENTRY e {
  x = f32[10] parameter(0)
  y = f32[10] parameter(1)
  i = u8[6,1] parameter(2)
  u = f32[6] parameter(3)
  ROOT s = (f32[10], f32[10]) scatter(x, y, i, u, u), update_window_dims={}, inserted_window_dims={0},
    scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=plus
}"""


def test_indices_of_a_scatter_of_several_arrays() -> None:
    assert _constraints(SCATTER, 2) == Constraints(index_limit=9, scattered=True)
    assert _constraints(SCATTER, 1) == Constraints()


@pytest.mark.parametrize("dtype", [name for name, row in DTYPES.items() if row.is_float and row.bits == 8])
def test_the_large_range_of_bytes_ends_below_the_largest_power_of_two(dtype: str) -> None:
    info = float_info(DTYPES[dtype])
    values: Array = np.abs(_argument(f"{dtype}[20000]", large=True).astype(np.float64))
    values = values[(values != 0) & np.isfinite(values)]
    assert len(values) > 19900
    assert values.max() == 2.0 ** (info.maxexp - 1)
    assert 2.0**info.minexp <= values.min() <= 2.0 ** (info.minexp + 1)


@pytest.mark.parametrize("shape", ["s4[40000]", "s8[0]", "pred[70000]", "u64[33000]", "f4e2m1fn[33000]", "s32[]"])
def test_long_arguments_are_one_stream(shape: str) -> None:
    """Chunks do not change the values: half as many elements are the first half."""
    values: Array = np.ravel(_argument(shape)).astype(np.float64)
    count = len(values) // 2
    dtype = shape.partition("[")[0]
    assert values[:count].tolist() == np.ravel(_argument(f"{dtype}[{count}]")).astype(np.float64).tolist()


INTEGERS = [name for name, row in DTYPES.items() if row.is_integer]
_seeds = st.integers(-(2**63), 2**63 - 1)
_slices = st.lists(
    st.integers(1, 300).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size))), min_size=1, max_size=3
)


@settings(max_examples=60, deadline=None)
@given(_slices, st.sampled_from([name for name in INTEGERS if DTYPES[name].bits >= 8]), _seeds)
def test_every_start_of_a_slice_lets_it_fit(sizes: list[tuple[int, int]], dtype: str, seed: int) -> None:
    """Also if the type has fewer values than the array has elements."""
    dims, window = (",".join(str(pair[part]) for pair in sizes) for part in (0, 1))
    starts = [f"start{number}" for number in range(len(sizes))]
    lines = [f"{name} = {dtype}[] parameter({number + 1})" for number, name in enumerate(starts)]
    module = hlo_run.parse(
        f"HloModule m\nENTRY e {{\n  x = f32[{dims}] parameter(0)\n  " + "\n  ".join(lines) + "\n"
        f"  ROOT d = f32[{window}] dynamic-slice(x, {', '.join(starts)}), dynamic_slice_sizes={{{window}}}\n}}"
    )
    found = [int(np.asarray(value).astype(object)) for value in make_fake_arguments(module, seed)[1:]]
    assert all(0 <= start <= size - part for start, (size, part) in zip(found, sizes, strict=True))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(INTEGERS), st.integers(0, 300), st.booleans(), _seeds)
def test_keys_are_distinct_while_there_are_fewer_than_the_largest_number(dtype: str, count: int, stable: bool, seed: int) -> None:
    text = SORT.replace("s32", dtype).replace("101", str(count))
    if stable:
        text = text.replace("to_apply", "is_stable=true, to_apply")
    keys = np.asarray(make_fake_arguments(hlo_run.parse(text), seed)[0]).astype(object).tolist()
    row = DTYPES[dtype]
    highest = (1 << (row.bits - row.is_signed)) - 1
    lowest = -highest - 1 if row.is_signed else 0
    assert all(lowest <= key <= highest for key in keys)
    if count < highest:
        first = count // 2 - count if row.is_signed else 0
        assert sorted(keys) == list(range(first, first + count))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([name for name, row in DTYPES.items() if row.is_float and row.bits > 4]), st.integers(0, 2000), _seeds)
def test_ordinary_floats_stay_in_their_range_for_every_seed(dtype: str, count: int, seed: int) -> None:
    values: Array = _argument(f"{dtype}[{count}]", seed).astype(np.float64)
    # The bounds are rounded to the type, so a narrow type may have its number next to 0.2.
    with np.errstate(all="ignore"):
        low, high = (float(np.float32(end).astype(DTYPES[dtype].numpy).astype(np.float64)) for end in (-0.1, 0.2))
    if dtype == "f8e8m0fnu":
        low = 0.0
    assert all(low <= value <= high for value in values.tolist())
    assert dtype not in ("f32", "f64") or all(value < 0.2 for value in values.tolist())
