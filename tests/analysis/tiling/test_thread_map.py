"""Loop kernels: launch, unroll factor, and a map from threads to elements that is one to one."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from emitting import fusion_analysis

from hlo_run.analysis.tiling.analyze_fusion import analyze
from hlo_run.analysis.tiling.launch_dimensions import LaunchDimensions, calculate_launch
from hlo_run.analysis.tiling.thread_map import drop_unused_ids, loop_map
from hlo_run.analysis.tiling.unroll_factor import max_unroll_factor, unroll_factor
from hlo_run.hlo.values.shape import Shape
from hlo_run.indexing.text import parse_indexing_map
from hlo_run.records import replace
from hlo_run.target import TargetSpec, preset

H100 = preset("h100")


@pytest.mark.parametrize(
    ("elements", "unroll", "grid", "block"),
    [
        (0, 1, (1, 1, 1), 1),
        (1, 1, (1, 1, 1), 1),
        (5, 1, (1, 1, 1), 5),
        (129, 1, (2, 1, 1), 128),
        (12582912, 4, (24576, 1, 1), 128),
        (7, 2, (1, 1, 1), 4),
        (2**31 * 128 * 4, 1, (1717986919, 5, 1), 128),
    ],
)
def test_launch(elements: int, unroll: int, grid: tuple[int, int, int], block: int) -> None:
    launch = calculate_launch(elements, unroll, H100)
    assert launch == LaunchDimensions(grid, (block, 1, 1))
    assert launch.blocks * launch.threads_per_block * unroll >= elements


@pytest.mark.parametrize(
    ("dims", "layout", "unroll"),
    [((5,), (0,), 1), ((3, 50), (1, 0), 1), ((3, 50), (0, 1), 1), ((7, 11, 13), (1, 2, 0), 4), ((), (), 1), ((2, 3), (1, 0), 2)],
)
def test_each_element_has_one_thread(dims: tuple[int, ...], layout: tuple[int, ...], unroll: int) -> None:
    shape = Shape.array("f32", dims, layout)
    launch = calculate_launch(shape.element_count, unroll, H100)
    indexing_map = loop_map(launch, unroll, shape)
    sizes = {"th_x": launch.block[0], "bl_x": launch.grid[0]}
    places = itertools.product(*(range(sizes[variable.name]) for variable in indexing_map.dims))
    hits: Counter[tuple[int, ...]] = Counter()
    for place, symbols in itertools.product(places, itertools.product(*(range(unroll) for _ in indexing_map.ranges))):
        if indexing_map.contains(place, symbols):
            hits[indexing_map.evaluate(place, symbols)] += 1
    assert hits == Counter(itertools.product(*map(range, dims)))


def test_map_of_the_gelu_example() -> None:
    shape = Shape.array("bf16", (6, 512, 4096))
    indexing_map = loop_map(calculate_launch(shape.element_count, 4, H100), 4, shape)
    assert str(indexing_map) == (
        "(th_x, bl_x)[vector_index] -> (bl_x floordiv 4096, (bl_x floordiv 8) mod 512, "
        "(bl_x mod 8) * 512 + th_x * 4 + vector_index), "
        "domain: th_x in [0, 127], bl_x in [0, 24575], vector_index in [0, 3]"
    )


def test_unused_ids_go_but_one_variable_stays() -> None:
    text = "(th_x, bl_x)[i] -> (th_x + i), domain: th_x in [0, 3], bl_x in [0, 5], i in [0, 1]"
    assert str(drop_unused_ids(parse_indexing_map(text))) == "(th_x)[i] -> (th_x + i), domain: th_x in [0, 3], i in [0, 1]"
    constant = "(th_x, bl_x) -> (0), domain: th_x in [0, 0], bl_x in [0, 0]"
    assert str(drop_unused_ids(parse_indexing_map(constant))) == "(th_x) -> (0), domain: th_x in [0, 0]"


SIMPLE = "f {{ p = {0}[{1}] parameter(0) ROOT r = {0}[{1}] negate(p) }}"


@pytest.mark.parametrize(
    ("card", "elements", "factor"),
    [
        ("h100", 270336, 4),
        ("h100", 270335, 1),
        ("v100", 163840, 4),
        ("a100", 221184, 4),
        ("h100", 270338, 2),
        ("h100", 270337, 1),
    ],
)
def test_unrolls_from_a_full_card_on(card: str, elements: int, factor: int) -> None:
    assert unroll_factor(fusion_analysis(SIMPLE.format("f32", elements), card), elements) == factor


def test_expensive_operations_are_not_unrolled() -> None:
    dot = """f { a = f32[512,8] parameter(0) b = f32[8,1024] parameter(1)
      ROOT r = f32[512,1024] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0} }"""
    assert unroll_factor(fusion_analysis(dot), 512 * 1024) == 1
    operands = ", ".join("p" for _ in range(11))
    concat = f"f {{ p = f32[32768] parameter(0) ROOT r = f32[360448] concatenate({operands}), dimensions={{0}} }}"
    assert unroll_factor(fusion_analysis(concat), 360448) == 1


def _blackwell(toolkit: tuple[int, int]) -> TargetSpec:
    return replace(preset("b200"), toolkit_version=toolkit)


@pytest.mark.parametrize(
    ("toolkit", "dtype", "factor"),
    [
        ((12, 8), "f32", 4),
        ((12, 8), "bf16", 8),
        ((12, 8), "s8", 16),
        ((12, 9), "f32", 8),
        ((12, 9), "bf16", 16),
        ((12, 9), "s8", 32),
        ((12, 9), "f64", 4),
    ],
)
def test_blackwell_takes_wider_vectors(toolkit: tuple[int, int], dtype: str, factor: int) -> None:
    analysis = fusion_analysis(SIMPLE.format(dtype, 1024))
    assert max_unroll_factor(analyze(analysis.fusion, _blackwell(toolkit))) == factor
    assert max_unroll_factor(fusion_analysis(SIMPLE.format(dtype, 1024), "rtx6000pro")) == 4
