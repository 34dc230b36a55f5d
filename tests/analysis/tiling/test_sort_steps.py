"""Launches of sorts beside those of real XLA:GPU (jaxlib 0.10.2, H100), and the networks tried on all small sizes."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_run.analysis.tiling.sort_steps import (
    PairStep,
    SortSizes,
    SortStep,
    TileStep,
    sort_sizes,
    sort_steps,
    step_launch,
    takes_sort,
)
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.text.parser import parse_module
from hlo_run.target import preset

H100 = preset("h100")


def sort_of(dims: str, dim: int, *types: str) -> HloInstruction:
    numbered = list(enumerate(types))
    pairs = "\n".join(f"  a{n} = {t}[] parameter({2 * n})\n  b{n} = {t}[] parameter({2 * n + 1})" for n, t in numbered)
    parameters = "\n".join(f"  x{n} = {type_}[{dims}] parameter({n})" for n, type_ in enumerate(types))
    operands = ", ".join(f"x{n}" for n in range(len(types)))
    shape = ", ".join(f"{type_}[{dims}]" for type_ in types)
    shape = f"({shape})" if len(types) > 1 else shape
    text = f"""HloModule m
less {{
{pairs}
  ROOT r = pred[] compare(a0, b0), direction=LT }}
ENTRY e {{
{parameters}
  ROOT s = {shape} sort({operands}), dimensions={{{dim}}}, to_apply=less }}
"""
    return parse_module(text).entry.root


TILE, PAIRS = (15, 1024), (96, 128)
# Blocks and threads of each launch that real XLA's thunk sequence shows.
LAUNCHES: list[tuple[str, int, tuple[str, ...], list[tuple[int, int]]]] = [
    ("6,2", 1, ("f32",), [(1, 6)]),
    ("6,3", 1, ("f32",), [(6, 1)]),
    ("6,4", 1, ("f32",), [(6, 1)]),
    ("3,5,7", 1, ("c64",), [(21, 2)]),
    ("6,100", 1, ("c128", "s32"), [(6, 32)]),
    ("5,30", 1, ("f32", "s64", "s32"), [(5, 8)]),
    ("33,4", 0, ("s32", "s32"), [(4, 16)]),
    ("20000,3", 0, ("f32", "s32"), [TILE, PAIRS, TILE, PAIRS, PAIRS, TILE, PAIRS, PAIRS, PAIRS, TILE]),
]


@pytest.mark.parametrize(("dims", "dim", "types", "expected"), LAUNCHES)
def test_launches_are_xlas(dims: str, dim: int, types: tuple[str, ...], expected: list[tuple[int, int]]) -> None:
    sizes = sort_sizes(sort_of(dims, dim, *types), H100)
    launches = [step_launch(step, sizes, H100) for step in sort_steps(sizes)]
    assert [(launch.blocks, launch.threads_per_block) for launch in launches] == expected


def test_tiles_have_room_for_all_operands() -> None:
    assert sort_sizes(sort_of("9000", 0, "f32"), H100).tile_stages == 12
    assert sort_sizes(sort_of("9000", 0, "f64", "f64", "s8"), H100).tile_stages == 11
    assert sort_sizes(sort_of("9000", 0, *["c128"] * 1000), H100).tile_stages == 0


def _place(step: SortStep, stages: int, values: list[int]) -> list[int]:
    """Do what a step says with a row."""
    if isinstance(step, PairStep):
        return _exchange(values, step.exponent, step.is_mirrored)
    for stage in range(step.stages - 1 if step.is_merge else 0, step.stages):
        for exponent in range(stage, -1, -1):
            values = _exchange(values, exponent, exponent == stage and not step.is_merge)
    return values


def _exchange(values: list[int], exponent: int, is_mirrored: bool) -> list[int]:
    values = list(values)
    for lower in range(len(values)):
        upper = lower ^ ((2 << exponent) - 1 if is_mirrored else 1 << exponent)
        if lower < upper < len(values) and values[upper] < values[lower]:
            values[lower], values[upper] = values[upper], values[lower]
    return values


@pytest.mark.parametrize("tile_stages", [0, 2, 3])
def test_the_steps_sort(tile_stages: int) -> None:
    """A network that sorts all zeros and ones sorts everything."""
    random = np.random.default_rng(3)
    for length in range(1, 40):
        stages = max(1, (length - 1).bit_length())
        sizes = SortSizes(0, length, (), tile_stages if stages >= tile_stages else 0)
        steps = sort_steps(sizes)
        assert [step.is_first for step in steps] == [True] + [False] * (len(steps) - 1)
        assert all(isinstance(step, PairStep) or step.stages == sizes.tile_stages for step in steps)
        for _ in range(30):
            values = random.integers(0, 2, length).tolist()
            found = values
            for step in steps:
                found = _place(step, stages, found)
            assert found == sorted(values), (length, steps)


def test_a_merge_of_tiles_follows_every_wide_stage() -> None:
    steps = sort_steps(SortSizes(0, 30, (), 3))
    assert steps[0] == TileStep(3, is_merge=False, is_first=True)
    assert [step for step in steps if isinstance(step, TileStep)][1:] == [TileStep(3, is_merge=True)] * 2
    assert [(step.exponent, step.is_mirrored) for step in steps if isinstance(step, PairStep)] == [
        (3, True),
        (4, True),
        (3, False),
    ]


@pytest.mark.parametrize(
    ("operand", "attributes", "taken"),
    [
        ("s8[9] iota(), iota_dimension=0", "", True),
        ("s8[9] negate(p)", "", False),
        ("s8[9] iota(), iota_dimension=0", ", is_stable=true", False),
        ("s4[9] iota(), iota_dimension=0", "", False),
    ],
)
def test_which_fusions_are_taken(operand: str, attributes: str, taken: bool) -> None:
    type_ = operand.partition("[")[0]
    text = f"""HloModule m
less {{
  a = s8[] parameter(0)
  b = s8[] parameter(1)
  c = {type_}[] parameter(2)
  d = {type_}[] parameter(3)
  ROOT r = pred[] compare(a, b), direction=LT }}
sorted {{
  p = s8[9] parameter(0)
  q = {operand}
  ROOT s = (s8[9], {type_}[9]) sort(p, q), dimensions={{0}}, to_apply=less{attributes} }}
ENTRY e {{
  x = s8[9] parameter(0)
  ROOT f = (s8[9], {type_}[9]) fusion(x), kind=kCustom, calls=sorted }}
"""
    assert takes_sort(parse_module(text).entry.root) is taken
