"""Normal form of transposes, and which of them pay for a tile."""

from __future__ import annotations

import pytest
from emitting import read_fusion

from hlo_run.analysis.decision import Decision
from hlo_run.analysis.tiling.transpose_description import TransposeDescription, judge_transpose, normalize_transpose


@pytest.mark.parametrize(
    ("dims", "permutation", "normal"),
    [
        ((170, 160, 20), (2, 1, 0), ((170, 160, 20), (2, 1, 0))),
        ((170, 1, 160, 20), (3, 1, 2, 0), ((170, 160, 20), (2, 1, 0))),
        ((5, 2, 3), (2, 0, 1), ((5, 6), (1, 0))),
        ((2, 3, 5), (0, 1, 2), ((30,), (0,))),
        ((1, 7, 1), (2, 1, 0), ((7,), (0,))),
        ((4, 6, 2, 3), (2, 0, 1, 3), ((4, 12, 3), (1, 0, 2))),
        ((1, 1), (1, 0), ((), ())),
        ((2, 3, 4, 5), (0, 3, 1, 2), ((2, 3, 20), (0, 2, 1))),
    ],
)
def test_normal_form(dims: tuple[int, ...], permutation: tuple[int, ...], normal: tuple[object, object]) -> None:
    assert normalize_transpose(dims, permutation) == normal


def judge(source: str, target: str, permutation: str) -> TransposeDescription | Decision:
    text = f"f {{ p = {source} parameter(0) ROOT t = {target} transpose(p), dimensions={{{permutation}}} }}"
    return judge_transpose(read_fusion(text)[1].fused_computation.root)


@pytest.mark.parametrize(
    ("source", "target", "permutation", "shared_bytes"),
    [
        ("f32[20,160,170]", "f32[170,160,20]", "2,1,0", 4224),
        ("f32[16,16]", "f32[16,16]", "1,0", 4224),
        ("f32[8,1024]", "f32[1024,8]", "1,0", 4224),  # 8 * 1024 = 64 * 128
        ("s8[160,170,3]", "s8[170,160,3]", "1,0,2", 3168),
        ("f32[4,8,2]", "f32[8,4,2]", "1,0,2", 8448),  # 64 bits * 4 rows
        ("f64[2,9,1]", "f64[9,2,1]", "1,0,2", None),
        ("f64[2,9,3,1]", "f64[9,2,3,1]", "1,0,2,3", None),
        ("f32[8,1016]", "f32[1016,8]", "1,0", None),
        ("f32[7,4096]", "f32[4096,7]", "1,0", None),
        ("f32[64,64,4]", "f32[64,64,4]", "1,0,2", None),  # minor of 128 bits
        ("f32[2,64,1,2]", "f32[64,2,1,2]", "1,0,2,3", 8448),
        ("s8[2,64,3]", "s8[64,2,3]", "1,0,2", None),  # rows of 48 bits
        ("f32[40,50]", "f32[40,50]", "0,1", None),
        ("f32[40,50]{0,1}", "f32[50,40]", "1,0", None),
    ],
)
def test_which_pay(source: str, target: str, permutation: str, shared_bytes: int | None) -> None:
    answer = judge(source, target, permutation)
    if shared_bytes is None:
        assert isinstance(answer, Decision)
        assert not answer
        assert answer.reason
    else:
        assert isinstance(answer, TransposeDescription)
        assert answer.shared_memory_bytes == shared_bytes


def test_input_dims_undo_the_permutation() -> None:
    answer = judge("f32[20,160,170]", "f32[170,20,160]", "2,0,1")
    assert isinstance(answer, TransposeDescription)
    assert answer.input_dims == (3200, 170)
    assert str(answer) == "[3200, 170] -> [170, 3200], permutation [1, 0]"
