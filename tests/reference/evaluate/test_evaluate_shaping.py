"""Ops that move elements, against plain loops and hand-made arrays; layouts count for `bitcast` alone."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from reference_running import Array, array, assert_same, run

import hlo_run
from hlo_run.errors import ParseError, Unsupported


def _random(shape: tuple[int, ...], seed: int = 1) -> Array:
    return np.random.default_rng(seed).integers(-1000, 1000, shape).astype(np.int32)


def test_iota_wraps_in_small_types() -> None:
    assert_same(run("ROOT r = s8[2,300] iota(), iota_dimension=1"), np.broadcast_to(np.arange(300).astype(np.int8), (2, 300)))
    assert_same(run("ROOT r = bf16[300,1] iota(), iota_dimension=0"), np.arange(300.0)[:, None].astype(ml_dtypes.bfloat16))
    assert_same(run("ROOT r = c64[3] iota(), iota_dimension=0"), array("c64", [0, 1, 2]))


def test_an_iota_without_elements_needs_no_memory() -> None:
    assert run("ROOT r = f32[1000000000000,0] iota(), iota_dimension=0").shape == (10**12, 0)


def test_broadcast_maps_dimensions_in_any_order() -> None:
    x = _random((2, 3))
    text = "x = s32[2,3] parameter(0)\nROOT r = s32[3,4,2] broadcast(x), dimensions={2,0}"
    expected = np.empty((3, 4, 2), np.int32)
    for i, j, k in np.ndindex(3, 4, 2):
        expected[i, j, k] = x[k, i]
    assert_same(run(text, x), expected)


def test_transpose_reverse_slice_concatenate() -> None:
    x = _random((4, 5, 6))
    text = """
      x = s32[4,5,6] parameter(0)
      t = s32[6,4,5] transpose(x), dimensions={2,0,1}
      v = s32[6,4,5] reverse(t), dimensions={0,2}
      s = s32[3,4,2] slice(v), slice={[0:6:2], [0:4], [1:5:3]}
      ROOT c = s32[3,8,2] concatenate(s, s), dimensions={1}"""
    half = np.transpose(x, (2, 0, 1))[::-1, :, ::-1][0:6:2, :, 1:5:3]
    assert_same(run(text, x), np.concatenate([half, half], 1))


def _padded(x: Array, fill: int, padding: list[tuple[int, int, int]]) -> Array:
    """Pad plain lists dimension by dimension: interior first, then the edges."""
    for dim, (low, high, interior) in enumerate(padding):
        rows = list(np.moveaxis(x, dim, 0))
        blank = np.full_like(rows[0], fill) if rows else np.full([s for d, s in enumerate(x.shape) if d != dim], fill, x.dtype)
        line: list[Array] = []
        for number, row in enumerate(rows):
            line += [blank] * (interior if number else 0) + [row]
        line = [blank] * low + line if low >= 0 else line[-low:]
        line = line + [blank] * high if high >= 0 else line[:high]
        x = np.moveaxis(np.stack(line), 0, dim) if line else x.take([], axis=dim)
    return x


@pytest.mark.parametrize(
    ("dims", "padding", "text"),
    [
        ((3,), [(1, 2, 0)], "1_2"),
        ((4, 3), [(-1, -2, 1), (2, -1, 2)], "-1_-2_1x2_-1_2"),
        ((5,), [(-2, 1, 3)], "-2_1_3"),
        ((5,), [(-7, 3, 2)], "-7_3_2"),
        ((2, 2), [(-3, 4, 0), (0, 0, 1)], "-3_4x0_0_1"),
        ((0, 2), [(1, 1, 5), (0, -1, 0)], "1_1_5x0_-1"),
    ],
)
def test_pad(dims: tuple[int, ...], padding: list[tuple[int, int, int]], text: str) -> None:
    x = _random(dims)
    out = [low + high + size + max(size - 1, 0) * interior for size, (low, high, interior) in zip(dims, padding, strict=True)]
    shape, result = (",".join(map(str, d)) for d in (dims, out))
    module = f"x = s32[{shape}] parameter(0)\nf = s32[] constant(7)\nROOT r = s32[{result}] pad(x, f), padding={text}"
    found = run(module, x)
    if 0 in dims:
        assert_same(found, np.full(out, 7, np.int32))
    elif padding == [(-3, 4, 0), (0, 0, 1)]:
        # Negative padding beyond the array removes padding of the other edge: positions decide, not the list's order.
        assert_same(found, np.full((3, 3), 7, np.int32))
    else:
        assert_same(found, _padded(x, 7, padding))


def test_dynamic_slices_clamp_their_start() -> None:
    x = _random((6, 7))
    text = """
      x = s32[6,7] parameter(0)
      i = s32[] parameter(1)
      j = s32[] parameter(2)
      ROOT r = s32[2,3] dynamic-slice(x, i, j), dynamic_slice_sizes={2,3}"""
    for i, j in ((1, 2), (-5, 100), (5, -1)):
        a, b = min(max(i, 0), 4), min(max(j, 0), 4)
        assert_same(run(text, x, array("s32", i), array("s32", j)), x[a : a + 2, b : b + 3])


def test_unsigned_start_is_large_not_negative() -> None:
    x = _random((10,))
    text = "x = s32[10] parameter(0)\ni = u8[] parameter(1)\nROOT r = s32[3] dynamic-slice(x, i), dynamic_slice_sizes={3}"
    assert_same(run(text, x, array("u8", 255)), x[7:])


def test_dynamic_update_slice_leaves_its_operand_alone() -> None:
    x, update = _random((5, 5)), _random((2, 2), seed=2)
    before = x.copy()
    text = """
      x = s32[5,5] parameter(0)
      u = s32[2,2] parameter(1)
      i = s32[] constant(9)
      j = s32[] constant(1)
      ROOT r = s32[5,5] dynamic-update-slice(x, u, i, j)"""
    expected = x.copy()
    expected[3:5, 1:3] = update
    assert_same(run(text, x, update), expected)
    assert_same(x, before)


def _buffer(x: Array, minor_to_major: tuple[int, ...]) -> list[object]:
    """Return the elements in memory order: the first dimension of the list varies fastest."""
    strides: dict[int, int] = {}
    stride = 1
    for dim in minor_to_major:
        strides[dim] = stride
        stride *= x.shape[dim]
    line: list[object] = [None] * x.size
    for index in np.ndindex(*x.shape):
        line[sum(i * strides[d] for d, i in enumerate(index))] = x[index]
    return line


@pytest.mark.parametrize(("source", "target"), [((2, 1, 0), (1, 0)), ((0, 2, 1), (0, 1)), ((1, 0, 2), (1, 0))])
def test_bitcast_moves_bytes(source: tuple[int, ...], target: tuple[int, ...]) -> None:
    x = _random((2, 3, 4))
    names = ["{" + ",".join(map(str, order)) + "}" for order in (source, target)]
    found = run(f"x = s32[2,3,4]{names[0]} parameter(0)\nROOT r = s32[6,4]{names[1]} bitcast(x)", x)
    assert _buffer(found, target) == _buffer(x, source)


def test_bitcast_changes_types_of_one_size() -> None:
    x = np.random.default_rng(6).standard_normal((4, 6)).astype(np.float16)
    found = run("x = f16[4,6]{0,1} parameter(0)\nROOT r = s16[24]{0} bitcast(x)", x)
    assert_same(found, x.T.reshape(-1).view(np.int16))


def test_bitcast_unpacks_nibbles_low_first() -> None:
    x = array("u8", [0x21, 0xF3])
    assert_same(run("x = u8[2] parameter(0)\nROOT r = s4[4] bitcast(x)", x), array("s4", [1, 2, 3, -1]))
    y = array("s4", [1, 2, 3, -1])
    assert_same(run("x = s4[4] parameter(0)\nROOT r = u8[2] bitcast(x)", y), x)


def test_copy_changes_only_the_layout() -> None:
    x = _random((3, 4))
    assert_same(run("x = s32[3,4]{0,1} parameter(0)\nROOT r = s32[3,4]{1,0} copy(x)", x), x)


def test_a_bitcast_to_more_bytes_is_refused() -> None:
    module = hlo_run.parse("HloModule m\nENTRY e { p = s32[] parameter(0)\n ROOT b = s32[32] bitcast(p) }")
    with pytest.raises(ParseError, match=r"'b' \(bitcast\): expected at most the bytes of s32\[\], found s32\[32\]"):
        hlo_run.evaluate(module, np.int32(1))


@pytest.mark.parametrize(
    "root", ["f32[3,2] transpose(x), dimensions={1,0}", "f32[6] reshape(x)", "f32[2,3] reverse(x), dimensions={0}"]
)
def test_what_moves_elements_does_not_round_them(root: str) -> None:
    with pytest.raises(Unsupported, match=r"from f64 to f32 in the reference"):
        run(f"x = f64[2,3] parameter(0)\nROOT r = {root}", np.ones((2, 3)))


def test_a_body_of_another_float_type_is_not_converted() -> None:
    text = """HloModule m
    f { x = f32[2] parameter(0) ROOT c = bf16[2] convert(x) }
    ENTRY e { x = f32[2] parameter(0) ROOT f = f32[2] fusion(x), kind=kLoop, calls=f }"""
    with pytest.raises(Unsupported, match=r"'fusion' from bf16 to f32 in the reference"):
        hlo_run.evaluate(hlo_run.parse(text, "m"), np.zeros(2, np.float32))
