"""Alignment of lines, and the figures with their tolerances."""

from __future__ import annotations

import random

import pytest

from hlo_run.diff.lines import align, rows_of, unified
from hlo_run.diff.numbers import Tolerance, diff_figures, figures_text, read_figures, read_tolerances
from hlo_run.errors import UsageError
from hlo_run.pipeline.observers.line_diff import longest_increasing


def test_an_alignment_holds_every_line_once_and_in_order() -> None:
    chance = random.Random(1)
    for _ in range(300):
        one, two = ([chance.choice("abcdefgh") for _ in range(chance.randrange(12))] for _ in range(2))
        pairs = align(one, two)
        assert [a for a, _ in pairs if a is not None] == list(range(len(one)))
        assert [b for _, b in pairs if b is not None] == list(range(len(two)))
        assert all(one[a] == two[b] for a, b in pairs if a is not None and b is not None)
        if one == two:
            assert all(a == b for a, b in pairs)


def test_one_changed_line_of_many_equal_ones() -> None:
    one = ["x"] * 500 + ["y"] + ["x"] * 500
    two = ["x"] * 500 + ["z"] + ["x"] * 500
    assert sum(a is None or b is None for a, b in align(one, two)) == 2


def test_the_longest_increasing_subsequence() -> None:
    assert longest_increasing([]) == []
    assert longest_increasing([3, 0, 1, 4, 2]) in ([1, 2, 4], [1, 2, 3])
    assert longest_increasing([4, 3, 2]) in ([0], [1], [2])


def test_unified_lines_of_two_places() -> None:
    one = [str(n) for n in range(30)]
    two = [*one[:3], "new", *one[4:20], *one[21:]]
    lines = unified(rows_of(one, two, one, two))
    assert lines == [
        *("@@ line 1 @@", " 0", " 1", " 2", "-3", "+new", " 4", " 5", " 6"),
        *("@@ line 18 @@", " 17", " 18", " 19", "-20", " 21", " 22", " 23"),
    ]


def test_tolerances() -> None:
    assert read_tolerances("bytes=1%, registers=2") == {
        "bytes-read": Tolerance(1, True),
        "bytes-written": Tolerance(1, True),
        "registers": Tolerance(2),
    }
    for wrong in ("bytes", "bytes=", "bytes=-1", "speed=1", "bytes=1%%"):
        with pytest.raises(UsageError):
            read_tolerances(wrong)


def test_figures() -> None:
    before = {"kernels": 2, "k registers": 30, "old registers": 4}
    after = {"kernels": 2, "k registers": 33, "new registers": 4}
    assert read_figures(figures_text(before)) == before
    changed = diff_figures(before, after, read_tolerances("registers=3"))
    assert [(figure.name, figure.accepted) for figure in changed] == [
        ("k registers", True),
        ("old registers", False),
        ("new registers", False),
    ]
    assert not diff_figures(before, after, read_tolerances("registers=2"))[0].accepted
