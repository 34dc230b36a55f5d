"""The chosen tiles and warps are those that the release chooses for the same kernels."""

from __future__ import annotations

import pytest

from hlo_run.analysis.block_level.config import BlockLevelConfig
from hlo_run.analysis.block_level.fused_ops import ops_of_computation
from hlo_run.analysis.block_level.tiled_cost import Configurations, TiledCost, TiledTime, best_configuration, candidates
from hlo_run.analysis.block_level.tiling import tile
from hlo_run.analysis.decision import Decision
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.text.parser import parse_module
from hlo_run.ops.infer import infer_module
from hlo_run.target import preset

REDUCERS = """
max { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] maximum(a, b) }
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
"""


def read(body: str) -> HloModule:
    module = parse_module(f"HloModule m\n{REDUCERS}ENTRY e {{ {body} }}")
    infer_module(module)
    return module


def softmax(rows: int, columns: int) -> str:
    whole = f"f32[{rows},{columns}]"
    return f"""p = {whole} parameter(0) low = f32[] constant(-inf) zero = f32[] constant(0)
      m = f32[{rows}] reduce(p, low), dimensions={{1}}, to_apply=max
      ms = {whole} broadcast(m), dimensions={{0}} d = {whole} subtract(p, ms) x = {whole} exponential(d)
      s = f32[{rows}] reduce(x, zero), dimensions={{1}}, to_apply=add
      ss = {whole} broadcast(s), dimensions={{0}} ROOT q = {whole} divide(x, ss)"""


def rms(rows: int, columns: int) -> str:
    whole = f"f32[{rows},{columns}]"
    return f"""p = {whole} parameter(0) g = f32[{columns}] parameter(1) zero = f32[] constant(0) square = {whole} multiply(p, p)
      s = f32[{rows}] reduce(square, zero), dimensions={{1}}, to_apply=add
      c = f32[] constant({1 / columns}) cs = f32[{rows}] broadcast(c), dimensions={{}} mean = f32[{rows}] multiply(s, cs)
      eps = f32[] constant(1e-6) es = f32[{rows}] broadcast(eps), dimensions={{}} shifted = f32[{rows}] add(mean, es)
      r = f32[{rows}] rsqrt(shifted) rs = {whole} broadcast(r), dimensions={{0}} n = {whole} multiply(p, rs)
      gs = {whole} broadcast(g), dimensions={{1}} ROOT q = {whole} multiply(n, gs)"""


def config(body: str, target: str = "h100") -> tuple[tuple[int, ...], int]:
    found = best_configuration(ops_of_computation(read(body).entry), preset(target))
    assert isinstance(found, TiledTime), found
    return found.config.output_tiles[0], found.config.num_warps


@pytest.mark.parametrize(
    ("rows", "columns", "tile_sizes", "warps"),
    [
        (128, 1000, (2, 1024), 4),
        (1600, 1024, (2, 1024), 4),
        (4096, 128, (16, 128), 4),
        (16, 32, (1, 4), 1),
        (1024, 4096, (1, 4096), 4),
        (32, 8192, (1, 8192), 8),
        (64, 16384, (1, 16384), 8),
        (100000, 64, (32, 64), 4),
    ],
)
def test_softmax_has_the_tiles_of_the_release(rows: int, columns: int, tile_sizes: tuple[int, ...], warps: int) -> None:
    assert config(softmax(rows, columns)) == (tile_sizes, warps)


def test_normalisation_takes_more_rows_where_a_scale_is_read_again() -> None:
    assert config(rms(1024, 4096)) == ((4, 4096), 8)
    assert config(rms(1024, 1024)) == ((2, 1024), 4)


def test_transpose_and_integer_sum_have_the_tiles_of_the_release() -> None:
    assert config("p = f32[5,6,4] parameter(0) ROOT t = f32[4,6,5] transpose(p), dimensions={2,1,0}") == ((2, 2, 8), 1)
    flat = "p = f32[24,40] parameter(0) b = f32[4,6,5,8] bitcast(p) ROOT t = f32[8,6,5,4] transpose(b), dimensions={3,1,2,0}"
    assert config(flat) == ((8, 1, 2, 4), 1)


def test_rows_that_do_not_fit_into_registers_have_no_configuration() -> None:
    found = best_configuration(ops_of_computation(read(softmax(30, 30000)).entry), preset("h100"))
    assert isinstance(found, Decision)
    assert "does not fit into the registers" in found.reason


def test_last_candidate_covers_the_dimension() -> None:
    assert list(candidates((3, 1))) == [(1, 1), (2, 1), (4, 1)]


def test_rows_are_read_once_per_block_that_needs_them() -> None:
    tiled = tile(ops_of_computation(read(softmax(1024, 1024)).entry))
    assert not isinstance(tiled, Decision)
    cost = TiledCost(tiled, preset("h100"))
    whole, half = cost.at((1, 1024), 2), cost.at((1, 512), 2)
    assert isinstance(whole, TiledTime)
    assert isinstance(half, TiledTime)
    assert whole.config == BlockLevelConfig(((1, 1024),), 2)
    assert half.ticks > whole.ticks


def test_equal_kernels_share_a_configuration() -> None:
    known = Configurations(preset("h100"))
    one, two = (ops_of_computation(read(softmax(16, 32)).entry) for _ in range(2))
    assert known.key(one) == known.key(two)
    assert known.best(one) is known.best(two)
    assert known.key(one) != known.key(ops_of_computation(read(softmax(16, 64)).entry))


def test_product_has_no_estimate_here() -> None:
    body = "p = f32[64,32] parameter(0) ROOT d = f32[64,64] dot(p, p), lhs_contracting_dims={1}, rhs_contracting_dims={1}"
    found = best_configuration(ops_of_computation(read(body).entry), preset("h100"))
    assert isinstance(found, Decision)
