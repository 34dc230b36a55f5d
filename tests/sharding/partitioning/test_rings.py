"""Products in loops whose tiles go round the devices have the values of the whole products."""

from __future__ import annotations

import pytest

from hlo_run.hlo.graph import HloModule
from hlo_run.ops.parse import parse
from hlo_run.options import CompileOptions
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.sharding.partitioning.spmd_partitioning import SpmdPartitioning
from hlo_run.target import DEFAULT_TARGET, preset
from tests.sharding.partitioning.division import check_values

PLAIN = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
BATCHED = "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}"
TWO = "lhs_contracting_dims={1,2}, rhs_contracting_dims={0,1}"
TURNED = "[2,4]T(1,0) last_tile_dim_replicate"
# Shapes, tiles and dimensions of lhs, rhs and result.
CASES = {
    "lhs goes round": ("[7,5]", "[4,1]", "[5,6]", "[1,4]", "[7,6]", "[1,4]", PLAIN, 4),
    "rhs goes round": ("[8,5]", "[4,1]", "[5,6]", "[1,4]", "[8,6]", "[4,1]", PLAIN, 4),
    "along the contracting dimension": ("[6,7]", "[1,4]", "[7,8]", "[1,4]", "[6,8]", "[1,4]", PLAIN, 4),
    "along the batch": ("[6,4,3]", "[4,1,1]", "[6,3,8]", "[1,1,4]", "[6,4,8]", "[1,1,4]", BATCHED, 4),
    "sums go round": ("[7,6]", "[1,4]", "[6,8]", "[4,1]", "[7,8]", "[4,1]", PLAIN, 4),
    "sums of three devices": ("[7,6]", "[1,3]", "[6,8]", "[3,1]", "[7,8]", "[1,3]", PLAIN, 3),
    "other contracting tiles": ("[4,2,4]", "[1,2,4]", "[2,4,8]", "[1,8,1]", "[4,8]", "[1,8]", TWO, 8),
    "inside of groups": ("[4,6,8]", "[2,1,4]", "[8,4]", f"[4,1,2]<={TURNED}", "[4,6,4]", "[2,4,1]", "2", 8),
    "one of two dimensions": ("[4,6,3]", "[2,4,1]", "[3,8]", f"[1,4,2]<={TURNED}", "[4,6,8]", "[2,1,4]", "2", 8),
}


def _text(name: str) -> str:
    lhs, lhs_tiles, rhs, rhs_tiles, out, out_tiles, dims, count = CASES[name]
    one, two, three = (
        f"sharding={{devices={tiles}{'' if '<=' in tiles else f'<=[{count}]'}}}" for tiles in (lhs_tiles, rhs_tiles, out_tiles)
    )
    numbers = "lhs_contracting_dims={2}, rhs_contracting_dims={0}" if dims == "2" else dims
    return f"""HloModule m, num_partitions={count}
    ENTRY e {{
      l = f32{lhs} parameter(0), {one}
      r = f32{rhs} parameter(1), {two}
      ROOT d = f32{out} dot(l, r), {numbers}, {three}
    }}"""


def _options(unrolls: bool = True, most: int = -1) -> CompileOptions:
    return CompileOptions(
        xla_gpu_threshold_for_windowed_einsum_mib=0,
        xla_gpu_multi_streamed_windowed_einsum=unrolls,
        xla_gpu_operand_bytes_threshold_for_windowed_einsum=most,
    )


def _divided(text: str, options: CompileOptions) -> HloModule:
    module = parse(text)
    SpmdPartitioning().apply(PassContext(preset(DEFAULT_TARGET), options), module)
    return module


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    for unrolls in (True, False):
        check_values(_text(name), _options(unrolls))


@pytest.mark.parametrize("name", CASES)
def test_a_loop_replaces_gathers_and_sums(name: str) -> None:
    module = _divided(_text(name), _options())
    assert len(module.instructions_of("while")) == 1
    if name != "other contracting tiles":  # an operand is gathered to divide it as the other one
        assert not module.instructions_of("all-gather", "all-reduce")


def test_small_products_have_no_loop() -> None:
    name = "lhs goes round"
    assert not _divided(_text(name), CompileOptions()).instructions_of("while")
    for most, is_loop in ((4 * (7 * 5 + 5 * 6), True), (4 * (7 * 5 + 5 * 6) + 1, False)):
        options = _options(most=most)
        assert bool(_divided(_text(name), options).instructions_of("while")) is is_loop


def test_an_attribute_excludes_a_product() -> None:
    text = _text("lhs goes round").replace("sharding={devices=[1,4]<=[4]}\n    }", "ATTRIBUTES")
    attribute = 'frontend_attributes={_xla_collective_matmul="none"}'
    text = text.replace("ATTRIBUTES", f"sharding={{devices=[1,4]<=[4]}}, {attribute}\n    }}")
    assert not _divided(text, _options()).instructions_of("while")


_ADD = "add { x = f32[] parameter(0) y = f32[] parameter(1) ROOT r = f32[] add(x, y) }"
_ROWS, _COLUMNS, _TILES = (f"sharding={{devices={tiles}<=[4]}}" for tiles in ("[4,1]", "[1,4]", "[4]"))
# Each has an operand that the loop makes, or a reduction that moves into the loop.
MOVES = {
    "an operand": f"""
      l = f32[8,12] parameter(0), {_COLUMNS}
      v = f32[16] parameter(1), {_TILES}
      b = f32[12,16] broadcast(v), dimensions={{1}}, {_COLUMNS}
      i = f32[12,16] iota(), iota_dimension=0, {_COLUMNS}
      r = f32[12,16] multiply(b, i), {_COLUMNS}
      ROOT d = f32[8,16] dot(l, r), {PLAIN}, {_COLUMNS}""",
    "a sum over tiles": f"""
      l = f32[7,12] parameter(0), {_ROWS}
      r = f32[12,16] parameter(1), {_COLUMNS}
      d = f32[7,16] dot(l, r), {PLAIN}, {_COLUMNS}
      v = f32[16] parameter(2), {_TILES}
      w = f32[7,16] broadcast(v), dimensions={{1}}, {_COLUMNS}
      m = f32[7,16] multiply(d, w), {_COLUMNS}
      z = f32[] constant(0)
      ROOT s = f32[16] reduce(m, z), dimensions={{0}}, to_apply=add, {_TILES}""",
    "a sum inside of tiles": f"""
      l = f32[7,12] parameter(0), {_ROWS}
      r = f32[12,16] parameter(1), {_COLUMNS}
      d = f32[7,16] dot(l, r), {PLAIN}, {_COLUMNS}
      z = f32[] constant(0)
      ROOT s = f32[7] reduce(d, z), dimensions={{1}}, to_apply=add, sharding={{replicated}}""",
}


@pytest.mark.parametrize("name", MOVES)
def test_cheap_work_moves_into_the_loop(name: str) -> None:
    text = f"HloModule m, num_partitions=4\n{_ADD}\nENTRY e {{{MOVES[name]}\n}}"
    for unrolls in (True, False):
        check_values(text, _options(unrolls))
    module = _divided(text, _options())
    (loop,) = module.instructions_of("while")
    moved = {"multiply", "reduce"} & {i.opcode for i in loop.while_body.instructions}
    assert moved
    assert not moved & {i.opcode for i in module.entry.instructions}


def test_a_maximum_stays_behind_the_loop() -> None:
    text = f"HloModule m, num_partitions=4\n{_ADD.replace('add(', 'maximum(')}\nENTRY e {{{MOVES['a sum over tiles']}\n}}"
    check_values(text, _options())
    assert "reduce" in {i.opcode for i in _divided(text, _options()).entry.instructions}
