"""The tiles of products: the first ones, those of a file, and the ranges they come from."""

from __future__ import annotations

from pathlib import Path

import pytest

import hlo_run
from hlo_run.analysis.block_level.config import TritonGemmConfig
from hlo_run.analysis.block_level.product_tiles import ProductTiles, first_tile, given_tile
from hlo_run.errors import UsageError
from hlo_run.hlo.graph import HloInstruction
from hlo_run.target import preset


def _dot(element_type: str, m: int, n: int, k: int) -> HloInstruction:
    text = f"""HloModule t
    ENTRY e {{
      a = {element_type}[{m},{k}] parameter(0)
      b = {element_type}[{k},{n}] parameter(1)
      ROOT d = {element_type}[{m},{n}] dot(a, b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
    }}"""
    return hlo_run.parse(text).entry.root


@pytest.mark.parametrize(
    ("element_type", "size", "expected"),
    [
        ("f32", (64, 192, 128), TritonGemmConfig(16, 8, 16, num_stages=1, num_warps=2)),
        ("bf16", (8192, 8192, 8192), TritonGemmConfig(64, 32, 64, num_stages=1, num_warps=4)),
        ("f32", (16384, 16384, 4096), TritonGemmConfig(64, 32, 64, num_stages=3, num_warps=2)),
    ],
)
def test_the_first_tile_is_that_of_the_release(element_type: str, size: tuple[int, int, int], expected: TritonGemmConfig) -> None:
    assert first_tile(_dot(element_type, *size), preset("h100")) == expected


def test_all_tiles_lie_in_their_ranges() -> None:
    tiles = ProductTiles.of(_dot("bf16", 100, 300, 512), preset("h100"))
    (least_m, least_n), (most_m, most_n) = tiles.smallest, tiles.largest
    found = list(tiles.tiles())
    assert len(found) == len(set(found)) > 100
    for tile in found:
        assert least_m <= tile.block_m <= most_m, tile
        assert least_n <= tile.block_n <= most_n, tile
        assert tiles.in_range(tile) == tile


def test_a_file_names_a_tile(tmp_path: Path) -> None:
    file = tmp_path / "tiles.txtpb"
    file.write_text("# large\nconfig { block_m: 32 block_n: 64 block_k: 16 num_stages: 2 num_warps: 8 is_tma_allowed: true }\n")
    expected = TritonGemmConfig(32, 64, 16, num_stages=2, num_warps=8, is_tma_allowed=True)
    assert given_tile("", str(file)) == expected
    assert given_tile("", "") is None
    file.write_text("nothing: 1\n")
    given_tile.cache_clear()
    with pytest.raises(UsageError, match="has no config"):
        given_tile("", str(file))
