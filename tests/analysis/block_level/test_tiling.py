"""A tile names the elements that its block needs: each is compared with what the instruction reads there."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from hlo_run.analysis.block_level.dim_tile import Tile
from hlo_run.analysis.block_level.fused_ops import ops_of_instructions
from hlo_run.analysis.block_level.tiling import Tiling, tile, tile_computation
from hlo_run.analysis.decision import Decision
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.text.parser import parse_module
from hlo_run.indexing.expr import constant
from hlo_run.indexing.substitute import Substitution
from hlo_run.ops.infer import infer_module
from hlo_run.reference.evaluate.evaluate import evaluate

ROWS = """HloModule rows
add { a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT r = f32[] add(a, b) }
ENTRY e { p = f32[6,5] parameter(0)
 zero = f32[] constant(0)
 sum = f32[6] reduce(p, zero), dimensions={1}, to_apply=add
 wide = f32[6,5] broadcast(sum), dimensions={0}
 ROOT quotient = f32[6,5] divide(p, wide) }"""


def read(text: str) -> HloModule:
    module = parse_module(text if text.startswith("HloModule") else f"HloModule m\nENTRY e {{ {text} }}")
    infer_module(module)
    return module


def tiling(text: str, root: tuple[int, ...], contracting: int = 1) -> Tiling | Decision:
    """The tiling of the entry with these sizes of the root's tile."""
    tiled = tile_computation(read(text).entry)
    return tiled if isinstance(tiled, Decision) else tiled.at(tiled.space.tile_sizes(root, contracting))


def sizes(text: str, root: tuple[int, ...], contracting: int = 1) -> dict[str, list[tuple[int, ...]]]:
    """The sizes of the tiles of each instruction."""
    found = tiling(text, root, contracting)
    assert isinstance(found, Tiling), found
    result: dict[str, list[tuple[int, ...]]] = {}
    for op in found.region.walk():
        result.setdefault(op.op.name, []).append(op.sizes)
    return result


def refusal(text: str, root: tuple[int, ...]) -> str:
    found = tiling(text, root)
    assert isinstance(found, Decision), found
    return found.reason


def elements(tile: Tile, ids: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The indices of a tile's elements that are not masked, in order."""
    at = Substitution([constant(number) for number in ids])
    per_dim: list[list[int]] = []
    for part in tile:
        first, bound = at(part.offset).value, at(part.upper_bound).value
        per_dim.append([index for index in range(first, first + part.size * part.stride, part.stride) if index < bound])
    return list(product(*per_dim))


@pytest.mark.parametrize(
    ("text", "root"),
    [
        ("p = f32[12,8] parameter(0) ROOT t = f32[8,12] transpose(p), dimensions={1,0}", (4, 2)),
        ("p = f32[96] parameter(0) ROOT r = f32[12,8] reshape(p)", (2, 8)),
        ("p = f32[12,8] parameter(0) ROOT r = f32[96] reshape(p)", (16,)),
        ("p = f32[12,8] parameter(0) ROOT r = f32[3,4,8] reshape(p)", (2, 4, 8)),
        ("p = f32[3,1,8] parameter(0) ROOT r = f32[3,8] reshape(p)", (2, 4)),
        ("p = f32[12,8] parameter(0) ROOT s = f32[4,3] slice(p), slice={[1:9:2],[2:5]}", (2, 2)),
        ("p = f32[12,8]{1,0} parameter(0) ROOT b = f32[8,12]{0,1} bitcast(p)", (4, 4)),
        ("p = f32[4,3,8]{2,0,1} parameter(0) ROOT b = f32[12,8] bitcast(p)", (4, 8)),
    ],
)
def test_operand_tile_has_the_elements_of_the_result(text: str, root: tuple[int, ...]) -> None:
    found = tiling(text, root)
    assert isinstance(found, Tiling), found
    (operand,) = found.root.operands
    numbers = np.arange(np.prod(operand.op.shape.dims)).reshape(operand.op.shape.dims)
    result = np.asarray(evaluate(read(text), [numbers.astype(np.float32)]))
    for ids in product(*(range(-(-size // part)) for size, part in zip(result.shape, root, strict=True))):
        wanted = sorted(result[index] for index in elements(found.root.tile, ids))
        assert sorted(numbers[index] for index in elements(operand.tile, ids)) == wanted


def test_reduced_dimension_is_one_tile_of_a_power_of_two() -> None:
    assert sizes(ROWS, (2, 8)) == {
        "p": [(2, 8)],
        "zero": [()],
        "sum": [(2,)],
        "wide": [(2, 8)],
        "quotient": [(2, 8)],
    }


def test_instruction_that_is_needed_at_two_tiles_is_there_twice() -> None:
    assert sizes(ROWS, (2, 4))["p"] == [(2, 4), (2, 8)]


def test_reduce_with_a_smaller_tile_reads_its_operand_in_a_loop() -> None:
    module = read(ROWS.replace("to_apply=add", 'to_apply=add, backend_config={"sizes":["2"]}'))
    tiled = tile_computation(module.entry)
    assert not isinstance(tiled, Decision)
    placed = tiled.at(tiled.space.configured_sizes((2, 8)))
    assert isinstance(placed, Tiling)
    assert [op.op.name for op in placed.region.ops] == ["p", "zero", "sum", "wide", "quotient"]
    total = placed.region.ops[2]
    assert [op.sizes for op in total.regions[0].ops] == [(2, 2)]
    assert total.operands == (total.regions[0].ops[0], placed.region.ops[1])
    assert elements(total.operands[0].tile, (0, 0, 2)) == [(0, 4), (1, 4)]


def test_offsets_are_those_of_the_kernels_of_the_release() -> None:
    """Of `triton_softmax.12` of vit_2l_fwd: extracts at (pid / 17) * 17 + pid mod 17, with tile ids pid / 17 and pid mod 17."""
    found = tiling("p = f32[34,32] parameter(0) b = f32[2,17,32] bitcast(p) ROOT n = f32[2,17,32] negate(b)", (1, 1, 32))
    assert isinstance(found, Tiling)
    source = next(op for op in found.region.ops if op.op.name == "p")
    assert [str(part.offset) for part in source.tile] == ["d0 * 17 + d1", "0"]
    assert [str(part.upper_bound) for part in source.tile] == ["d0 * 17 + d1 + 1", "32"]


def test_block_count_rounds_up() -> None:
    found = tiling(ROWS, (4, 4))
    assert isinstance(found, Tiling)
    assert found.block_count == 4


def test_dot_has_its_operands_in_a_region_with_a_step_of_the_contracting_dimension() -> None:
    text = """p = f32[4,64,32] parameter(0) q = f32[4,96,32] parameter(1)
      d = f32[4,64,96] dot(p, q), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={2}
      ROOT t = f32[4,96,64] transpose(d), dimensions={0,2,1}"""
    assert sizes(text, (1, 8, 16), contracting=4) == {"d": [(1, 16, 8)], "p": [(1, 16, 4)], "q": [(1, 8, 4)], "t": [(1, 8, 16)]}
    found = tiling(text, (1, 8, 16))
    assert isinstance(found, Tiling)
    dot = found.root.operands[0]
    assert [op.op.name for op in dot.regions[0].ops] == ["p", "q"]
    assert found.sizes_of(dot.op.instruction) == (1, 16, 8)


def test_operands_of_concatenate_are_regions_of_their_own() -> None:
    text = "p = f32[16] parameter(0) q = f32[10] parameter(1) ROOT c = f32[26] concatenate(p, q), dimensions={0}"
    found = tiling(text, (8,))
    assert isinstance(found, Tiling)
    assert [[elements(op.tile, (2,)) for op in region.ops] for region in found.root.regions] == [
        [[]],
        [[(index,) for index in range(8)]],
    ]
    assert "no multiple of the tile's 32" in refusal(text, (32,))


def test_pad_reads_its_operand_behind_the_low_elements() -> None:
    text = "p = f32[5] parameter(0) z = f32[] constant(0) ROOT d = f32[12] pad(p, z), padding=3_4"
    found = tiling(text, (4,))
    assert isinstance(found, Tiling)
    assert elements(found.root.operands[0].tile, (1,)) == [(1,), (2,), (3,), (4,)]


@pytest.mark.parametrize(
    ("text", "root", "reason"),
    [
        ("p = f32[6,5] parameter(0) ROOT r = f32[10,3] reshape(p)", (1, 1), "a reshape of [10, 3] to [6, 5] has no tiles"),
        ("p = f32[6,5] parameter(0) ROOT r = f32[30] reshape(p)", (4,), "is not a number"),
        ("p = f32[12,8] parameter(0) ROOT r = f32[4,3,8] reshape(p)", (2, 2, 8), "a tile of [2, 2] of [4, 3] is not contiguous"),
        ("p = f32[3] parameter(0) ROOT r = f32[3] reverse(p), dimensions={0}", (1,), "reverse has no tiles"),
        (
            "p = f32[3] parameter(0) z = f32[] constant(0) ROOT d = f32[5] pad(p, z), padding=0_0_1",
            (1,),
            "a pad between elements",
        ),
        ("p = f32[3] parameter(0) ROOT t = (f32[3], f32[3]) tuple(p, p)", (1,), "several roots"),
    ],
)
def test_what_has_no_tiles(text: str, root: tuple[int, ...], reason: str) -> None:
    assert reason in refusal(text, root)


def test_instructions_of_a_larger_computation_are_tiled_alone() -> None:
    entry = read("p = f32[6,5] parameter(0) v = f32[6,5] reverse(p), dimensions={0} t = f32[5,6] transpose(v), dimensions={1,0} "
                 "ROOT n = f32[5,6] negate(t)").entry  # fmt: skip
    members = [i for i in entry.instructions if i.name in ("t", "n")]
    tiled = tile(ops_of_instructions(entry.root, members))
    assert not isinstance(tiled, Decision)
    assert [op.op.name for op in tiled.region.ops] == ["n", "t", "v"]
    assert isinstance(tile(ops_of_instructions(entry.root, [*members, entry.instructions[1]])), Decision)
