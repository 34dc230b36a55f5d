"""Unrolled loops of products have the values of the whole products, on every device."""

from __future__ import annotations

import re

import pytest

from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.dots.windowed_einsum.windowed_einsum_handler import WindowedEinsumHandler
from hlo_run.hlo_passes.simplifiers.algsimp import AlgebraicSimplifier
from hlo_run.hlo_passes.simplifiers.constant_folding import ConstantFolding
from hlo_run.ops.parse import parse
from hlo_run.ops.verify import verify
from hlo_run.options import CompileOptions
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.sharding.partitioning.spmd_partitioning import SpmdPartitioning
from hlo_run.target import DEFAULT_TARGET, preset
from tests.sharding.partitioning.division import check_values

OPTIONS = CompileOptions(xla_gpu_threshold_for_windowed_einsum_mib=0)
HANDLER = WindowedEinsumHandler(simplifiers=(AlgebraicSimplifier(), ConstantFolding()))
DIMS = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
ROWS, COLUMNS = "sharding={devices=[4,1]<=[4]}", "sharding={devices=[1,4]<=[4]}"


def _text(lhs: str, rhs: str, result: str, more: str = "ROOT d") -> str:
    return f"""HloModule m, num_partitions=4
    ENTRY e {{
      l = f32[8,12] parameter(0), {lhs}
      r = f32[12,16] parameter(1), {rhs}
      {more} = f32[8,16] dot(l, r), {DIMS}, {result}
    """


CASES = {
    "tiles of rows": _text(ROWS, COLUMNS, COLUMNS) + "}",
    "tiles of the contracting dimension": _text(COLUMNS, COLUMNS, COLUMNS) + "}",
    "sums": _text(COLUMNS, ROWS, ROWS) + "}",
    "two products of one operand": _text(ROWS, COLUMNS, COLUMNS, "d")
    + f"""s = f32[12,16] parameter(2), {COLUMNS}
      e = f32[8,16] dot(l, s), {DIMS}, {COLUMNS}
      ROOT t = f32[8,16] multiply(d, e), {COLUMNS} }}""",
    "two products with tiles of the contracting dimension": _text(COLUMNS, COLUMNS, COLUMNS, "d")
    + f"""s = f32[12,16] parameter(2), {COLUMNS}
      e = f32[8,16] dot(l, s), {DIMS}, {COLUMNS}
      ROOT t = f32[8,16] multiply(d, e), {COLUMNS} }}""",
}


def _handled(text: str) -> HloModule:
    module = parse(text)
    for hlo_pass in (SpmdPartitioning(), HANDLER):
        hlo_pass.apply(PassContext(preset(DEFAULT_TARGET), OPTIONS), module)
    verify(module)
    return module


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    check_values(CASES[name], OPTIONS, [HANDLER])


@pytest.mark.parametrize("name", CASES)
def test_all_steps_are_in_one_iteration(name: str) -> None:
    module = _handled(CASES[name])
    (loop,) = module.instructions_of("while")
    assert loop.while_body.name.startswith("unrolled_windowed_dot_general_body")
    dots = [i for i in loop.while_body.instructions if i.opcode == "dot"]
    queues = [re.findall(r'"operation_queue_id":"(\d+)"', str(dot.attrs["backend_config"])) for dot in dots]
    assert len(dots) == len({queue for (queue,) in queues}) == 4
    assert not module.instructions_of("all-gather")


def test_products_of_tiles_are_added_after_the_loop() -> None:
    module = _handled(CASES["tiles of the contracting dimension"])
    (total,) = module.instructions_of("reduce")
    assert total.parent is module.entry
    assert total.operands[0].shape.dims == (4, 8, 4)
    assert len(_handled(CASES["sums"]).instructions_of("reduce")) == 0


def test_other_loops_stay() -> None:
    text = """HloModule m
    c { s = (s32[], f32[2,2]) parameter(0) i = s32[] get-tuple-element(s), index=0 n = s32[] constant(2)
      ROOT r = pred[] compare(i, n), direction=LT }
    b { s = (s32[], f32[2,2]) parameter(0) i = s32[] get-tuple-element(s), index=0 one = s32[] constant(1)
      x = f32[2,2] get-tuple-element(s), index=1 j = s32[] add(i, one)
      d = f32[2,2] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
      e = f32[2,2] dot(d, x), lhs_contracting_dims={1}, rhs_contracting_dims={0} ROOT t = (s32[], f32[2,2]) tuple(j, e) }
    ENTRY e { z = s32[] constant(0) x = f32[2,2] parameter(0) t = (s32[], f32[2,2]) tuple(z, x)
      ROOT w = (s32[], f32[2,2]) while(t), condition=c, body=b }"""
    module = parse(text)
    before = module.to_string()
    HANDLER.apply(PassContext(preset(DEFAULT_TARGET), OPTIONS), module)
    assert module.to_string() == before


def _scaled(shapes: tuple[str, str, str], dims: str, tiles: tuple[str, str, str], more: str) -> str:
    lhs, rhs, out = (f"sharding={{devices={one}}}" for one in tiles)
    left, right, result = shapes
    whole = "sharding={replicated}"
    return f"""HloModule m, num_partitions=4
    ENTRY e {{
      x = f8e4m3fn{left} parameter(0), {lhs}
      y = f8e4m3fn{right} parameter(1), {rhs}
      s = f32[] parameter(2), {whole}
      t = f32[] parameter(3), {whole}
      xw = f32{left} convert(x), {lhs}
      yw = f32{right} convert(y), {rhs}
      xs = f32{left} broadcast(s), dimensions={{}}, {lhs}
      ys = f32{right} broadcast(t), dimensions={{}}, {rhs}
      l = f32{left} multiply(xw, xs), {lhs}
      r = f32{right} divide(yw, ys), {rhs}
      {more} = f32{result} dot(l, r), {dims}, {out}
    """


_SHAPES, _DIMS = ("[2,8,6]", "[6,12]", "[2,8,12]"), "lhs_contracting_dims={2}, rhs_contracting_dims={0}"
_GATHERED = ("[1,4,1]<=[4]", "[1,4]<=[4]", "[1,1,4]<=[4]")
_ADDED = ("[1,1,4]<=[4]", "[4,1]<=[4]", "[1,4,1]<=[4]")
SCALED = {
    "tiles of rows": _scaled(_SHAPES, _DIMS, _GATHERED, "ROOT d") + "}",
    "sums": _scaled(("[2,8,12]", "[12,12]", "[2,8,12]"), _DIMS, _ADDED, "ROOT d") + "}",
    "two products of one operand": _scaled(_SHAPES, _DIMS, _GATHERED, "d")
    + f"""z = f32[6,12] parameter(4), sharding={{devices={_GATHERED[1]}}}
      e = f32[2,8,12] dot(l, z), {_DIMS}, sharding={{devices={_GATHERED[2]}}}
      ROOT p = f32[2,8,12] multiply(d, e), sharding={{devices={_GATHERED[2]}}} }}""",
}


@pytest.mark.parametrize("name", SCALED)
def test_scales_of_8_bit_floats_move_into_the_loop(name: str) -> None:
    check_values(SCALED[name], OPTIONS, [HANDLER])
    module = _handled(SCALED[name])
    (loop,) = module.instructions_of("while")
    left, right = loop.operands[0].operands[:2]
    assert (left.shape.element_type, right.shape.element_type) == ("f8e4m3fn", "f8e4m3fn")
    if name != "sums":
        moved = [i for i in loop.while_body.instructions if i.opcode == "collective-permute"]
        assert {i.shape.element_type for i in moved} == {"f8e4m3fn"}
    assert not module.instructions_of("all-gather")


def test_sums_of_8_bit_products_are_sent_in_the_type_of_the_result() -> None:
    module = _handled(SCALED["sums"])
    (loop,) = module.instructions_of("while")
    state = [(shape.element_type, shape.rank) for shape in loop.shape.tuple_shapes]
    # The operands, two sums that go round, the counter, and a scale of each operand.
    assert state == [("f8e4m3fn", 3), ("f8e4m3fn", 2), ("f32", 3), ("f32", 3), ("u32", 0), ("f32", 0), ("f32", 0)]
    steps = [i for i in loop.while_body.instructions if i.opcode == "dot"]
    sent = [i for i in loop.while_body.instructions if i.opcode == "collective-permute"]
    assert (len(steps), len(sent)) == (4, 4)
    assert {i.shape.element_type for i in (*steps, *sent)} == {"f32"}
