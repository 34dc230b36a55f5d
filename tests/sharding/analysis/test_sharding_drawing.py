"""Drawings show which device holds which piece of an array."""

from __future__ import annotations

from textwrap import dedent

import pytest

from hlo_run.ops.parse import parse
from hlo_run.sharding.analysis.drawing import draw, legend


def _drawn(shape: str, sharding: str, partitions: int = 4) -> list[str]:
    text = f"HloModule m, num_partitions={partitions}\nENTRY e {{ ROOT p = {shape} parameter(0), sharding={sharding} }}"
    parameter = parse(text).entry.root
    assert parameter.sharding is not None
    return draw("p", parameter.shape, parameter.sharding, partitions).splitlines()


def test_two_dimensions_are_a_table_of_ranges_and_devices() -> None:
    found = "\n".join(_drawn("f32[5,4]", "{devices=[2,2]<=[2,2]T(1,0)}"))
    expected = """\
        p f32[5,4], sharding={devices=[2,2]<=[2,2]T(1,0)}: tiles of f32[3,2], the last ones padded
                0:2   2:4
              +-----+-----+
          0:3 | 0   | 2   |
              +-----+-----+
          3:5 | 1   | 3   |
              +-----+-----+"""
    assert found == dedent(expected)


@pytest.mark.parametrize(
    ("shape", "sharding", "rows", "words"),
    [
        ("f32[5]", "{devices=[4]<=[4]}", ["0:2 2:4 4:5 none", "| 0 | 1 | 2 | 3 |"], "tiles of f32[2], the last ones padded"),
        ("f32[4]", "{devices=[2,2]<=[4] last_tile_dim_replicate}", ["0:2 2:4", "| 0,1 | 2,3 |"], "tiles of f32[2]"),
        ("f32[4]", "{devices=[2,2]<=[4] last_tile_dims={unreduced}}", ["0:2 2:4", "| 0 + 1 | 2 + 3 |"], "tiles of f32[2]"),
        ("f32[4]", "{devices=[2,2]<=[4] last_tile_dims={manual}}", ["0:2 2:4", "| 0 / 1 | 2 / 3 |"], "tiles of f32[2]"),
        ("f32[4]", "{replicated}", ["0:4", "| 0-3 |"], "every device has the whole array"),
        ("f32[4]", "{manual}", ["0:4", "| 0 / 1 / 2 / 3 |"], "every device has an array of its own"),
        ("f32[4]", "{unreduced}", ["0:4", "| 0 + 1 + 2 + 3 |"], "every device has a part of the sum"),
        ("f32[4]", "{maximal device=2}", ["0:4", "| 2 |"], "device 2 has the whole array"),
        ("f32[]", "{replicated}", ["whole: 0-3"], "every device has the whole array"),
        ("f32[4,2,2]", "{devices=[2,1,2]<=[4]}", ["[0:2, 0:2, 0:1]: 0", "[0:2, 0:2, 1:2]: 1"], "tiles of f32[2,2,1]"),
        ("f32[4]", "{mesh['a'=2,'b'=2], [{'b'}]}", ["0:2 2:4", "| 0,2 | 1,3 |"], "tiles of f32[2]"),
    ],
)
def test_kinds_of_shardings(shape: str, sharding: str, rows: list[str], words: str) -> None:
    title, *lines = _drawn(shape, sharding)
    shown = [" ".join(line.split()) for line in lines if "--" not in line]
    assert shown[: len(rows)] == rows
    assert title.endswith(f": {words}")


def test_several_subgroups_and_wide_tables() -> None:
    found = _drawn("f32[4]", "{devices=[2,2,2]<=[8] last_tile_dims={unreduced, replicated}}", 8)
    assert "| 0,1 + 2,3 | 4,5 + 6,7 |" in found[3]
    many = _drawn("f32[256]", "{devices=[128]<=[128]}", 128)
    assert many[1] == "  [0:2]: 0"
    assert many[-1] == "  .. 64 more pieces"


def test_leaves_of_tuples_and_the_legend() -> None:
    found = "\n".join(_drawn("(f32[4], f32[2])", "{{devices=[4]<=[4]}, {devices=[2,2]<=[4] last_tile_dims={unreduced}}}"))
    assert "p{0} f32[4]" in found
    assert "p{1} f32[2]" in found
    assert legend(found) == "0 + 1: the data are the sum of what devices 0 and 1 have"
    assert not legend("| 0,1 |")
