"""Convolutions inside fusions, against the reference: strides, padding, dilation, reversal, groups, layouts of dimensions."""

from __future__ import annotations

import pytest
from emitting import run_on_host

_LABELS = "dim_labels=b0f_0io->b0f"
_CASES = {
    "plain": ("f32[2,7,3]", "f32[3,3,4]", "f32[2,5,4]", f"window={{size=3}}, {_LABELS}"),
    "padding and stride": ("f32[2,8,3]", "f32[3,3,4]", "f32[2,5,4]", f"window={{size=3 stride=2 pad=2_1}}, {_LABELS}"),
    "dilation": (
        "f32[1,5,2]",
        "f32[3,2,3]",
        "f32[1,7,3]",
        f"window={{size=3 pad=1_1 lhs_dilate=2 rhs_dilate=2}}, {_LABELS}",
    ),
    "negative padding": ("f32[2,9,3]", "f32[2,3,4]", "f32[2,5,4]", f"window={{size=2 pad=-1_-2}}, {_LABELS}"),
    "reversal, two dimensions": (
        "f32[2,3,6,5]",
        "f32[4,3,2,3]",
        "f32[2,4,5,5]",
        "window={size=2x3 pad=0_0x1_1 rhs_reversal=1x1}, dim_labels=bf01_oi01->bf01",
    ),
    "feature groups": (
        "f32[2,6,4]",
        "f32[2,2,6]",
        "f32[2,5,6]",
        f"window={{size=2}}, {_LABELS}, feature_group_count=2",
    ),
    "batch groups": ("f32[4,6,3]", "f32[2,3,6]", "f32[2,5,6]", f"window={{size=2}}, {_LABELS}, batch_group_count=2"),
    "window of one": ("f32[2,6,3]", "f32[1,3,4]", "f32[2,6,4]", f"window={{size=1}}, {_LABELS}"),
    "only padding": ("f32[1,1,2]", "f32[2,2,3]", "f32[1,4,3]", f"window={{size=2 pad=2_2}}, {_LABELS}"),
    "no spatial dimension": ("f32[5,3]", "f32[3,4]", "f32[5,4]", "dim_labels=bf_io->bf"),
}


@pytest.mark.parametrize("case", _CASES)
def test_convolution(case: str) -> None:
    source, kernel, result, attributes = _CASES[case]
    run_on_host(
        f"f {{ p = {source} parameter(0) n = {source} negate(p) k = {kernel} parameter(1) "
        f"c = {result} convolution(n, k), {attributes} ROOT r = {result} abs(c) }}"
    )


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f64", "s32", "c64", "f8e5m2"])
def test_types(dtype: str) -> None:
    run_on_host(
        f"f {{ p = {dtype}[2,6,3] parameter(0) k = {dtype}[2,3,4] parameter(1) "
        f"ROOT c = {dtype}[2,5,4] convolution(p, k), window={{size=2}}, dim_labels=b0f_0io->b0f }}"
    )


def test_scaled_dot() -> None:
    run_on_host(
        """f { p = f8e4m3fn[6,64] parameter(0) q = f8e4m3fn[64,5] parameter(1)
          s = f8e8m0fnu[6,2] parameter(2) t = f8e8m0fnu[2,5] parameter(3)
          ROOT r = bf16[6,5] scaled-dot(p, q, s, t), lhs_contracting_dims={1}, rhs_contracting_dims={0} }"""
    )
