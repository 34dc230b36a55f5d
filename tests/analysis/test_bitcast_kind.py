"""Reshapes that move no byte, against the offsets of all elements, for all layouts of small shapes."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest

from hlo_run.analysis.bitcast_kind import aligned_order, reshape_is_bitcast, unmodified_dims
from hlo_run.hlo.values.shape import Shape

_PAIRS = [
    ((2, 3), (6,)),
    ((2, 3), (3, 2)),
    ((4, 3), (2, 2, 3)),
    ((2, 3, 4), (2, 12)),
    ((2, 3, 4), (6, 4)),
    ((2, 3, 4), (4, 6)),
    ((2, 1, 3), (2, 3)),
    ((2, 3), (1, 2, 1, 3)),
    ((4, 6), (2, 2, 3, 2)),
]


def _offsets(shape: Shape) -> list[int]:
    """Return the byte order of the elements, listed by logical index."""
    order = tuple(reversed(shape.minor_to_major))
    physical = np.arange(math.prod(shape.dims)).reshape([shape.dims[d] for d in order])
    return physical.transpose(np.argsort(order)).reshape(-1).tolist()


@pytest.mark.parametrize(("source", "target"), _PAIRS)
def test_against_offsets(source: tuple[int, ...], target: tuple[int, ...]) -> None:
    for order in permutations(range(len(source))):
        one = Shape.array("f32", source, order)
        fits: list[tuple[int, ...]] = []
        for other in permutations(range(len(target))):
            two = Shape.array("f32", target, other)
            is_same = _offsets(one) == _offsets(two)
            assert reshape_is_bitcast(one, two) == is_same, f"{one} -> {two}"
            fits += [other] * is_same
        found = aligned_order(one, target)
        assert found in fits if fits else found is None, f"{one} -> {target}"


@pytest.mark.parametrize(
    ("one", "two", "pairs"),
    [
        ((3, 1, 4), (1, 3, 4), [(0, 1), (2, 2)]),
        ((3, 1, 4), (3, 4), [(0, 0), (2, 1)]),
        ((2, 3, 4), (6, 4), [(2, 1)]),
        ((1, 1), (1,), [(0, 0)]),
    ],
)
def test_a_reshape_keeps_dimensions(one: tuple[int, ...], two: tuple[int, ...], pairs: list[tuple[int, int]]) -> None:
    assert unmodified_dims(one, two) == pairs
