"""Dot, gather, scatter and sort against plain loops over every index."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
from reference_running import Array, array, assert_same, run


def _ints(shape: tuple[int, ...], seed: int, low: int = -9, high: int = 9) -> Array:
    return np.random.default_rng(seed).integers(low, high, shape).astype(np.int32)


def test_dot_general() -> None:
    x, y = _ints((2, 3, 4, 5), 1), _ints((5, 6, 2, 4), 2)
    text = """
      x = s32[2,3,4,5] parameter(0)
      y = s32[5,6,2,4] parameter(1)
      ROOT r = s32[2,3,6] dot(x, y), lhs_batch_dims={0}, rhs_batch_dims={2},
        lhs_contracting_dims={3,2}, rhs_contracting_dims={0,3}"""
    assert_same(run(text, x, y), np.einsum("bmkn,nqbk->bmq", x, y).astype(np.int32))


def test_dot_wraps_and_widens() -> None:
    x, y = array("s8", [100, 100]), array("s8", [100, 100])
    dims = "lhs_contracting_dims={0}, rhs_contracting_dims={0}"
    text = "x = s8[2] parameter(0)\ny = s8[2] parameter(1)\nROOT r = TYPE[] dot(x, y), " + dims
    assert_same(run(text.replace("TYPE", "s8"), x, y), array("s8", 20000))
    assert_same(run(text.replace("TYPE", "s32"), x, y), array("s32", 20000))


def test_dot_rounds_operands_to_the_result_first() -> None:
    x = np.random.default_rng(3).standard_normal((8, 300)).astype(np.float32)
    y = np.random.default_rng(4).standard_normal((300, 7)).astype(np.float32)
    text = """
      x = f32[8,300] parameter(0)
      y = f32[300,7] parameter(1)
      ROOT r = bf16[8,7] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}"""
    kind = array("bf16", 0).dtype
    exact = x.astype(kind).astype(np.float64) @ y.astype(kind).astype(np.float64)
    assert_same(run(text, x, y), exact.astype(np.float32).astype(kind))


@pytest.mark.parametrize(
    "opcode",
    [
        "dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "convolution(x, y), dim_labels=bf_io->bf",
        "ragged-dot(x, z, n), lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0}",
    ],
)
def test_products_of_floats_into_ints_sum_as_floats_of_the_wider_operand(opcode: str) -> None:
    x, y = array("bf16", [[0.5, 0.75, 1.5]]), array("f32", [[1], [2], [3.25]])
    text = f"""
      x = bf16[1,3] parameter(0)
      y = f32[3,1] parameter(1)
      z = f32[1,3,1] reshape(y)
      n = s32[1] constant({{1}})
      ROOT r = s32[1,1] {opcode}"""
    assert_same(run(text, x, y), array("s32", [[6]]))


def test_dot_of_preds_is_or_of_ands() -> None:
    x, y = np.array([[True, True], [False, True]]), np.array([[True], [False]])
    text = """
      x = pred[2,2] parameter(0)
      y = pred[2,1] parameter(1)
      ROOT r = pred[2,1] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}"""
    assert run(text, x, y).tolist() == [[True], [False]]


def test_gather_clamps_and_places_windows() -> None:
    operand, indices = _ints((5, 6, 7), 5), _ints((2, 3, 4), 6, -4, 10)
    text = """
      x = s32[5,6,7] parameter(0)
      i = s32[2,3,4] parameter(1)
      ROOT r = s32[3,2,4,3] gather(x, i), offset_dims={0,3}, collapsed_slice_dims={1}, start_index_map={2,0,1},
        index_vector_dim=1,
        slice_sizes={3,1,3}"""
    expected = np.empty((3, 2, 4, 3), np.int32)
    for w0, a, b, w2 in np.ndindex(*expected.shape):
        third, first, second = (int(v) for v in indices[a, :, b])
        start = [min(max(first, 0), 2), min(max(second, 0), 5), min(max(third, 0), 4)]
        expected[w0, a, b, w2] = operand[start[0] + w0, start[1], start[2] + w2]
    assert_same(run(text, operand, indices), expected)


def test_gather_with_batching_dims_and_scalar_indices() -> None:
    operand, indices = _ints((3, 8), 7), _ints((3, 2), 8, 0, 9)
    text = """
      x = s32[3,8] parameter(0)
      i = s32[3,2] parameter(1)
      ROOT r = s32[3,2] gather(x, i), offset_dims={}, collapsed_slice_dims={1}, start_index_map={1}, index_vector_dim=2,
        slice_sizes={1,1}, operand_batching_dims={0}, start_indices_batching_dims={0}"""
    assert_same(run(text, operand, indices), np.take_along_axis(operand, np.minimum(indices, 7), 1))


def test_gather_unsigned_indices_clamp_high() -> None:
    operand, indices = _ints((9,), 9), array("u64", [2**64 - 1, 3])
    text = """
      x = s32[9] parameter(0)
      i = u64[2] parameter(1)
      ROOT r = s32[2] gather(x, i), offset_dims={}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1,
        slice_sizes={1}"""
    assert_same(run(text, operand, indices), operand[[8, 3]])


def _add(a: float, b: float) -> float:
    return a + b


def _overwrite(_a: float, b: float) -> float:
    return b


def _mix(a: float, b: float) -> float:
    return 2 * a + b


COMBINERS: dict[str, tuple[str, Callable[[float, float], float]]] = {
    "add": ("ROOT c = T[] add(a, b)", _add),
    "overwrite": ("ROOT c = T[] copy(b)", _overwrite),
    "mix": ("two = T[] constant(2)\n d = T[] multiply(a, two)\n ROOT c = T[] add(d, b)", _mix),
}


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("dtype", ["s32", "f32", "bf16"])
def test_scatter_in_order_and_only_whole_windows(combiner: str, dtype: str) -> None:
    body, function = COMBINERS[combiner]
    kind = array(dtype, 0).dtype
    operand, updates = _ints((6, 5), 10).astype(kind), _ints((20, 2), 11).astype(kind)
    indices = _ints((20, 2), 12, -1, 7)
    text = f"""HloModule m
    f {{ a = T[] parameter(0)
      b = T[] parameter(1)
      {body} }}
    ENTRY e {{ x = T[6,5] parameter(0)
      i = s32[20,2] parameter(1)
      u = T[20,2] parameter(2)
      ROOT r = T[6,5] scatter(x, i, u), update_window_dims={{1}}, inserted_window_dims={{0}},
        scatter_dims_to_operand_dims={{1,0}},
        index_vector_dim=1, to_apply=f }}""".replace("T[", f"{dtype}[")
    expected = operand.astype(np.float32)
    for k in range(20):
        column, row = (int(v) for v in indices[k])
        if 0 <= row < 6 and 0 <= column <= 3:
            for w in (0, 1):
                new = function(float(expected[row, column + w]), float(updates[k, w]))
                expected[row, column + w] = np.float32(np.asarray(new).astype(kind))
    assert_same(run(text, operand, indices, updates), expected.astype(kind))


def test_scatter_of_two_operands() -> None:
    text = """HloModule m
    f { a = s32[] parameter(0)
      p = f32[] parameter(1)
      b = s32[] parameter(2)
      q = f32[] parameter(3)
      s = s32[] add(a, b)
      m = f32[] maximum(p, q)
      ROOT t = (s32[], f32[]) tuple(s, m) }
    ENTRY e { x = s32[4] parameter(0)
      y = f32[4] parameter(1)
      i = s32[5,1] parameter(2)
      u = s32[5] parameter(3)
      v = f32[5] parameter(4)
      ROOT r = (s32[4], f32[4]) scatter(x, y, i, u, v), update_window_dims={}, inserted_window_dims={0},
        scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=f }"""
    i = np.array([[1], [1], [3], [4], [0]], np.int32)
    u, v = _ints((5,), 13), _ints((5,), 14).astype(np.float32)
    sums, tops = run(text, np.zeros(4, np.int32), np.zeros(4, np.float32), i, u, v)
    assert_same(sums, np.array([u[4], u[0] + u[1], 0, u[2]], np.int32))
    assert_same(tops, np.array([max(v[4], 0), max(v[0], v[1], 0), 0, max(v[2], 0)], np.float32))


SORT = """HloModule m
before { a = T[] parameter(0)
  b = T[] parameter(1)
  p = s32[] parameter(2)
  q = s32[] parameter(3)
  BODY }
ENTRY e { k = T[SHAPE] parameter(0)
  v = s32[SHAPE] iota(), iota_dimension=DIM
  ROOT r = (T[SHAPE], s32[SHAPE]) sort(k, v), dimensions={DIM}, is_stable=true, to_apply=before }"""


def _sort(dtype: str, keys: Array, dim: int, body: str) -> tuple[Array, Array]:
    text = SORT.replace("SHAPE", ",".join(map(str, keys.shape))).replace("DIM", str(dim)).replace("BODY", body)
    return run(text.replace("T[", f"{dtype}["), keys)


@pytest.mark.parametrize("shape", [(37,), (4, 33), (2, 3, 1), (5, 0)])
@pytest.mark.parametrize(("direction", "sign"), [("LT", 1), ("GT", -1)])
def test_sort_is_stable(shape: tuple[int, ...], direction: str, sign: int) -> None:
    keys = _ints(shape, 15, 0, 9)
    order = np.argsort(sign * keys, axis=-1, kind="stable")
    sorted_keys, places = _sort("s32", keys, len(shape) - 1, f"ROOT c = pred[] compare(a, b), direction={direction}")
    assert_same(sorted_keys, np.take_along_axis(keys, order, -1))
    assert_same(places, order.astype(np.int32))


@pytest.mark.parametrize("size", [1, 2, 7, 64, 101])
def test_sort_with_any_comparator(size: int) -> None:
    keys = _ints((3, size), 16, -20, 20)
    body = "x = s32[] abs(a)\n y = s32[] abs(b)\n ROOT c = pred[] compare(x, y), direction=LT"
    found, places = _sort("s32", keys, 1, body)
    order = np.argsort(np.abs(keys), axis=1, kind="stable")
    assert_same(found, np.take_along_axis(keys, order, 1))
    assert_same(places, order.astype(np.int32))


def test_gather_where_the_operand_has_fewer_batches_than_the_indices_takes_the_last() -> None:
    x, places = _ints((2, 3), 18), np.array([[0], [1], [2], [0]], np.int32)
    text = """
      x = s32[2,3] parameter(0)
      i = s32[4,1] parameter(1)
      ROOT r = s32[4,1] gather(x, i), offset_dims={1}, collapsed_slice_dims={}, start_index_map={1},
        operand_batching_dims={0}, start_indices_batching_dims={0}, index_vector_dim=1, slice_sizes={1,1}"""
    assert_same(run(text, x, places), np.array([[x[0, 0]], [x[1, 1]], [x[1, 2]], [x[1, 0]]], np.int32))


def test_scatter_where_the_operand_has_fewer_batches_than_the_indices_drops_the_others() -> None:
    x, places, updates = _ints((2, 3), 19), np.array([[0], [1], [2], [0]], np.int32), _ints((4, 1), 20)
    text = """HloModule m
    f { a = s32[] parameter(0)
      b = s32[] parameter(1)
      ROOT s = s32[] add(a, b) }
    ENTRY e { x = s32[2,3] parameter(0)
      i = s32[4,1] parameter(1)
      u = s32[4,1] parameter(2)
      ROOT r = s32[2,3] scatter(x, i, u), update_window_dims={1}, inserted_window_dims={},
        scatter_dims_to_operand_dims={1}, input_batching_dims={0}, scatter_indices_batching_dims={0},
        index_vector_dim=1, to_apply=f }"""
    expected = x.copy()
    expected[0, 0] += updates[0, 0]
    expected[1, 1] += updates[1, 0]
    assert_same(run(text, x, places, updates), expected)


def test_sort_by_two_keys_along_the_first_dimension() -> None:
    keys = _ints((50, 2), 17, 0, 4)
    body = """lt = pred[] compare(a, b), direction=LT
      eq = pred[] compare(a, b), direction=EQ
      later = pred[] compare(p, q), direction=GT
      both = pred[] and(eq, later)
      ROOT c = pred[] or(lt, both)"""
    _, places = _sort("s32", keys, 0, body)
    for column in range(2):
        line = list(range(50))
        line.sort(key=functools.cmp_to_key(lambda i, j, c=column: int(keys[i, c]) - int(keys[j, c]) or j - i))
        assert places[:, column].tolist() == line


def test_sort_floats_in_total_order() -> None:
    keys = np.array([np.nan, 1.0, -0.0, 0.0, -np.inf, -np.nan, np.inf], np.float32)
    found, _ = _sort("f32", keys, 0, "ROOT c = pred[] compare(a, b), direction=LT, type=TOTALORDER")
    assert_same(found, np.array([np.nan, -np.inf, -0.0, 0.0, 1.0, np.inf, np.nan], np.float32))
    assert np.signbit(found[0])


def test_topk_breaks_ties_by_index() -> None:
    x = array("f32", [[1, 3, 2, 3, np.nan], [5, 5, 5, 1, 0]])
    values, places = run("x = f32[2,5] parameter(0)\nROOT r = (f32[2,3], s32[2,3]) topk(x), k=3", x)
    assert_same(values, array("f32", [[np.nan, 3, 3], [5, 5, 5]]))
    assert places.tolist() == [[4, 1, 3], [0, 1, 2]]
    values, _ = run("x = f32[2,5] parameter(0)\nROOT r = (f32[2,2], s32[2,2]) topk(x), k=2, largest=false", x)
    assert_same(values, array("f32", [[1, 2], [0, 1]]))


def test_gather_of_a_collapsed_slice_without_elements_gives_zeros() -> None:
    text = """
      x = f32[2] parameter(0)
      i = s32[3,1] parameter(1)
      ROOT g = f32[3] gather(x, i), offset_dims={}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1,
        slice_sizes={0}"""
    result = run(text, array("f32", [10, 20]), np.array([[0], [1], [5]], np.int32))
    assert_same(result, array("f32", [0, 0, 0]))
