"""Tiles of transposes: known sizes, and every element of input, tile and output touched exactly once."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from emitting import read_fusion

from hlo_run.analysis.tiling.transpose_description import describe_transpose
from hlo_run.analysis.tiling.transpose_tiling import TransposeTiling, tile_transpose
from hlo_run.hlo.graph import HloInstruction
from hlo_run.target import preset


def tile(source: str, target: str, permutation: str, card: str = "h100") -> tuple[TransposeTiling, HloInstruction]:
    text = f"f {{ p = {source} parameter(0) ROOT t = {target} transpose(p), dimensions={{{permutation}}} }}"
    hero = read_fusion(text)[1].fused_computation.root
    description = describe_transpose(hero)
    assert description is not None
    return tile_transpose(description, [hero.shape.dtype.bits // 8], preset(card)), hero


@pytest.mark.parametrize(
    ("source", "target", "permutation", "shared", "blocks", "vector"),
    [
        ("f32[20,160,170]", "f32[170,160,20]", "2,1,0", (32, 1, 33), 960, 1),
        ("f32[20,160,170]", "f32[20,170,160]", "0,2,1", (1, 32, 33), 600, 1),
        ("s8[160,170,3]", "s8[170,160,3]", "1,0,2", (32, 33, 3), 30, 3),
        ("bf16[8192,8192]", "bf16[8192,8192]", "1,0", (64, 65), 128 * 128, 2),
        ("s8[8192,8192]", "s8[8192,8192]", "1,0", (128, 129), 64 * 64, 4),
        # 91 * 92 tiles are fewer than the 8448 that a vector of 2 needs on an H100.
        ("bf16[2912,2944]", "bf16[2944,2912]", "1,0", (32, 33), 91 * 92, 1),
        # An odd size cannot be cut into vectors.
        ("bf16[8193,8192]", "bf16[8192,8193]", "1,0", (32, 33), 257 * 256, 1),
    ],
)
def test_sizes(source: str, target: str, permutation: str, shared: tuple[int, ...], blocks: int, vector: int) -> None:
    tiling, _ = tile(source, target, permutation)
    assert tiling.shared_dims == shared
    assert tiling.vector_size == vector
    assert tiling.launch.grid == (blocks, 1, 1)
    assert tiling.launch.block == (128, 1, 1)


SMALL = [
    ("f32[33,20]", "f32[20,33]", "1,0"),
    ("f32[2,17,34]", "f32[2,34,17]", "0,2,1"),
    ("f32[18,2,33]", "f32[33,2,18]", "2,1,0"),
    ("s8[34,33,3]", "s8[33,34,3]", "1,0,2"),
    ("f32[2,16,3,2]", "f32[2,3,16,2]", "0,2,1,3"),
    ("f32[1,34,1,18]", "f32[18,1,1,34]", "3,0,2,1"),
]


@pytest.mark.parametrize(("source", "target", "permutation"), SMALL)
def test_each_element_is_touched_once(source: str, target: str, permutation: str) -> None:
    tiling, hero = tile(source, target, permutation)
    read, write = tiling.input_map(hero.operands[0].shape), tiling.output_map(hero.shape)
    put, get = tiling.shared_write_map(), tiling.shared_read_map()
    stored: dict[tuple[int, tuple[int, ...]], tuple[int, ...]] = {}
    for block in range(tiling.launch.blocks):
        for thread, i, j in itertools.product(range(128), range(tiling.steps), range(tiling.vector_size)):
            place, symbols = (thread, 0, 0, block, 0, 0), (i, j)
            if read.contains(place, symbols):
                key = block, put.evaluate(place, symbols)
                assert key not in stored
                assert all(0 <= index < size for index, size in zip(key[1], tiling.shared_dims, strict=True))
                stored[key] = read.evaluate(place, symbols)
    assert Counter(stored.values()) == Counter(itertools.product(*map(range, hero.operands[0].shape.dims)))
    dimensions = hero.dimensions
    written: Counter[tuple[int, ...]] = Counter()
    for block in range(tiling.launch.blocks):
        for thread, i, j in itertools.product(range(128), range(tiling.steps), range(tiling.vector_size)):
            place, symbols = (thread, 0, 0, block, 0, 0), (i, j)
            if write.contains(place, symbols):
                output = write.evaluate(place, symbols)
                source_index = stored[block, get.evaluate(place, symbols)]
                assert tuple(source_index[d] for d in dimensions) == output
                written[output] += 1
    assert written == Counter(itertools.product(*map(range, hero.shape.dims)))


def test_no_two_threads_of_a_warp_share_a_bank() -> None:
    tiling, _ = tile("f32[20,160,170]", "f32[170,160,20]", "2,1,0")
    for indexing_map in (tiling.shared_read_map(), tiling.shared_write_map()):
        banks: set[int] = set()
        for thread in range(32):
            row, _, column = indexing_map.evaluate((thread, 0, 0, 0, 0, 0), (0, 0))
            banks.add((row * 33 + column) % 32)
        assert len(banks) == 32
