"""Convolutions, scatters and reshapes of dynamic sizes on Host agree with the reference, at the bounds and below."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hlo_run
from hlo_run.errors import Unsupported

_CONVOLUTION = """HloModule m
ENTRY e {{
  x = f32[{source}] parameter(0)
  k = f32[{kernel}] parameter(1)
  n = s32[] parameter(2)
  d = f32[{dynamic}] set-dimension-size({which}, n), dimensions={{{dim}}}
  ROOT c = f32[{result}] convolution({operands}), window={{{window}}}, dim_labels=b01f_01io->b01f{groups}
}}
"""
_WINDOW = "size=3x3 stride=2x1 pad=1_2x1_1 rhs_dilate=1x2"


def _check(text: str, *arguments: Any) -> list[np.ndarray[Any, Any]]:
    """Return the results on Host, which are those of the reference."""
    module = hlo_run.parse(text)
    expected = _flat(hlo_run.evaluate(module, *arguments))
    actual = _flat(hlo_run.run(module, *arguments, platform="Host"))
    for one, two in zip(expected, actual, strict=True):
        assert one.shape == two.shape
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-5)
    return actual


def _flat(value: Any) -> list[np.ndarray[Any, Any]]:
    leaves: list[np.ndarray[Any, Any]] = []
    waiting: list[Any] = [value]
    while waiting:
        found = waiting.pop(0)
        if isinstance(found, tuple):
            waiting[:0] = found
        else:
            leaves.append(np.asarray(found))
    return leaves


def _floats(*dims: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(dims)).normal(size=dims).astype(np.float32)


def _convolution(which: str, dim: int, result: str, groups: str = "") -> str:
    shapes = {"x": [4, 9, 8, 2], "k": [3, 3, 2, 6]}
    dims = [str(size) for size in shapes[which]]
    dims[dim] = f"<={dims[dim]}"
    return _CONVOLUTION.format(
        source="4,9,8,2",
        kernel="3,3,2,6" if not groups else "3,3,1,6",
        dynamic=",".join(dims),
        which=which,
        dim=dim,
        operands="d, k" if which == "x" else "x, d",
        result=result,
        window=_WINDOW,
        groups=groups,
    )


@pytest.mark.parametrize(
    ("which", "dim", "result", "shape"),
    [
        ("x", 0, "<=4,5,6,6", (3, 5, 6, 6)),
        ("x", 1, "4,<=5,6,6", (4, 2, 6, 6)),
        ("x", 2, "4,5,<=6,6", (4, 5, 1, 6)),
    ],
)
def test_a_convolution_keeps_or_counts_its_sizes(which: str, dim: int, result: str, shape: tuple[int, ...]) -> None:
    (small,) = _check(_convolution(which, dim, result), _floats(4, 9, 8, 2), _floats(3, 3, 2, 6), np.int32(3))
    assert small.shape == shape
    (whole,) = _check(_convolution(which, dim, result), _floats(4, 9, 8, 2), _floats(3, 3, 2, 6), np.int32(99))
    assert whole.shape == (4, 5, 6, 6)


@pytest.mark.parametrize(("which", "dim"), [("x", 3), ("k", 2)])
def test_a_convolution_sums_the_features_that_count(which: str, dim: int) -> None:
    text = f"""HloModule m
ENTRY e {{
  x = f32[4,9,8,2] parameter(0)
  k = f32[3,3,2,6] parameter(1)
  n = s32[] parameter(2)
  d = f32[4,9,8,<=2] set-dimension-size(x, n), dimensions={{3}}
  l = f32[3,3,<=2,6] set-dimension-size(k, n), dimensions={{2}}
  ROOT c = f32[4,5,6,6] convolution(d, l), window={{{_WINDOW}}}, dim_labels=b01f_01io->b01f
}}"""
    _check(text, _floats(4, 9, 8, 2), _floats(3, 3, 2, 6), np.int32(1))
    with pytest.raises(Unsupported, match="groups of dynamic size"):
        hlo_run.run(
            hlo_run.parse(_convolution("x", 3, "4,5,6,6", ", feature_group_count=2")),
            _floats(4, 9, 8, 2),
            _floats(3, 3, 1, 6),
            np.int32(1),
            platform="Host",
        )


_SCATTER = """HloModule m
add {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }}
ENTRY e {{
  x = f32[5,3] parameter(0)
  i = {index}[4,1] parameter(1)
  u = f32[4,3] parameter(2)
  n = s32[] parameter(3)
{body}
  ROOT s = f32[{result},3] scatter({operands}), update_window_dims={{1}}, inserted_window_dims={{0}},
      scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=add
}}
"""
_INDICES = np.array([[4], [0], [4], [2]])


@pytest.mark.parametrize("index", ["s32", "u8", "s64"])
def test_a_scatter_leaves_out_indices_past_the_size(index: str) -> None:
    body = f"  j = {index}[<=4,1] set-dimension-size(i, n), dimensions={{0}}\n"
    body += "  v = f32[<=4,3] set-dimension-size(u, n), dimensions={0}"
    text = _SCATTER.format(index=index, body=body, operands="x, j, v", result="5")
    indices = _INDICES.astype({"s32": np.int32, "u8": np.uint8, "s64": np.int64}[index])
    x, updates = _floats(5, 3), _floats(4, 3)
    (result,) = _check(text, x, indices, updates, np.int32(2))
    np.testing.assert_allclose(result[4], x[4] + updates[0], rtol=1e-6)


def test_a_scatter_into_fewer_rows() -> None:
    body = "  d = f32[<=5,3] set-dimension-size(x, n), dimensions={0}"
    text = _SCATTER.format(index="s32", body=body, operands="d, i, u", result="<=5")
    (result,) = _check(text, _floats(5, 3), _INDICES.astype(np.int32), _floats(4, 3), np.int32(3))
    assert result.shape == (3, 3)


def test_updates_of_dynamic_windows_are_refused() -> None:
    body = "  v = f32[4,<=3] set-dimension-size(u, n), dimensions={1}"
    text = _SCATTER.format(index="s32", body=body, operands="x, i, v", result="5")
    with pytest.raises(Unsupported, match="updates of dynamic size"):
        hlo_run.run(hlo_run.parse(text), _floats(5, 3), _INDICES.astype(np.int32), _floats(4, 3), np.int32(2), platform="Host")


def test_a_dynamic_reshape_hands_over_the_elements_that_count() -> None:
    text = """HloModule m
ENTRY e {
  x = f32[4,6] parameter(0)
  a = s32[] parameter(1)
  b = s32[] parameter(2)
  c = s32[] parameter(3)
  rows = f32[<=4,6] set-dimension-size(x, a), dimensions={0}
  d = f32[<=4,<=6] set-dimension-size(rows, b), dimensions={1}
  two = s32[] constant(2)
  r = f32[<=12,2] dynamic-reshape(d, c, two)
  zero = f32[] constant(0)
  ROOT t = (f32[<=12,2], s32[]) tuple(r, size)
}""".replace("  zero", "  size = s32[] get-dimension-size(r), dimensions={0}\n  zero")
    x = _floats(4, 6)
    result, size = _check(text, x, np.int32(3), np.int32(4), np.int32(6))
    np.testing.assert_array_equal(result, x[:3, :4].reshape(6, 2))
    assert int(size) == 6


def test_a_reshape_across_a_dynamic_dimension() -> None:
    text = """HloModule m
ENTRY e {
  x = f32[3,8] parameter(0)
  n = s32[] parameter(1)
  d = f32[3,<=8] set-dimension-size(x, n), dimensions={1}
  ROOT r = f32[<=24] reshape(d)
}"""
    x = _floats(3, 8)
    (result,) = _check(text, x, np.int32(5))
    np.testing.assert_array_equal(result, x[:, :5].reshape(-1))
