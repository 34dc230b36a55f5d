"""Places of nodes in layers."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from hlo_run.report.layers import place


@pytest.mark.parametrize("seed", range(20))
def test_operands_are_above_and_boxes_do_not_overlap(seed: int) -> None:
    draw = random.Random(seed)
    operands = [[draw.randrange(node) for _ in range(draw.randrange(4))] if node else [] for node in range(2 * seed)]
    places = place(operands)
    for node, sources in enumerate(operands):
        assert all(places[source][0] < places[node][0] for source in sources)
    rows: dict[int, list[float]] = {}
    for layer, column in places:
        rows.setdefault(layer, []).append(column)
    for columns in rows.values():
        columns.sort()
        assert all(right - left > 0.97 for left, right in pairwise(columns))
        assert columns[0] >= 0


def test_a_late_parameter_is_near_its_user() -> None:
    #        0: p   1: a(p)  2: b(a)  3: q  4: c(b, q)
    assert [layer for layer, _ in place([[], [0], [1], [], [2, 3]])] == [0, 1, 2, 2, 3]
