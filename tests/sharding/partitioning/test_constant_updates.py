"""Updates at constant places with `--xla_enable_enzyme_comms_opt`: the values are those of the whole module."""

from __future__ import annotations

import pytest

from hlo_run.hlo_passes.collectives.exchange.collective_permute_cse import CollectivePermuteCse
from hlo_run.ops.parse import parse
from hlo_run.options import CompileOptions
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.partition import partition
from hlo_run.target import DEFAULT_TARGET, preset
from tests.sharding.partitioning.division import check_values

_OPTIONS = CompileOptions(xla_enable_enzyme_comms_opt=True)
_ROWS, _GRID = "{devices=[4,1]<=[4]}", "{devices=[2,2]<=[4]}"
# What the update is; the rest is `x = f32[16,10]`, at [5,3], under a sharding.
CASES = {
    "a value": (_ROWS, "u = f32[7,6] parameter(1), sharding={devices=[1,4]<=[4]}"),
    "a value, on a grid": (_GRID, "u = f32[7,6] parameter(1), sharding={replicated}"),
    "a scalar": (_GRID, "k = f32[] parameter(1) u = f32[7,6] broadcast(k), dimensions={}"),
    "a slice in place": (_ROWS, "y = f32[16,10] parameter(1) u = f32[7,6] slice(y), slice={[5:12], [1:7]}"),
    "a slice in one tile": (
        _ROWS,
        "y = f32[16,4] parameter(1), sharding={devices=[4,1]<=[4]} u = f32[3,4] slice(y), slice={[5:8], [0:4]}",
    ),
    "a slice that moves": (
        _GRID,
        "y = f32[9,12] parameter(1), sharding={devices=[2,2]<=[4]} u = f32[7,6] slice(y), slice={[0:7], [5:11]}",
    ),
    "a reversed slice": (
        _ROWS,
        """y = f32[14,9] parameter(1) s = f32[7,6] slice(y), slice={[2:9], [1:7]}
        u = f32[7,6] reverse(s), dimensions={1}""",
    ),
    # XLA puts the second piece where the first one belongs.
    "pieces along the tiles": (
        _ROWS,
        """v = f32[6,4] parameter(1) y = f32[16,9] parameter(2), sharding={devices=[4,1]<=[4]}
        s = f32[1,4] slice(y), slice={[6:7], [5:9]} u = f32[7,4] concatenate(v, s), dimensions={0}""",
    ),
    "pieces of the value itself": (
        _ROWS,
        """a = f32[2,6] slice(x), slice={[5:7], [3:9]} b = f32[5,6] slice(x), slice={[0:5], [3:9]}
        u = f32[7,6] concatenate(a, b), dimensions={0}""",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_divided_update_has_the_values_of_the_whole_one(name: str) -> None:
    check_values(_module(name), _OPTIONS, (CollectivePermuteCse(),))


def test_an_update_in_place_sends_nothing() -> None:
    for name in ("a scalar", "a slice in place", "a slice in one tile"):
        module = parse(_module(name))
        partition(PassContext(preset(DEFAULT_TARGET), _OPTIONS), module)
        opcodes = {instruction.opcode for instruction in module.instructions}
        assert "select" in opcodes
        assert not opcodes & {"all-gather", "all-reduce", "all-to-all", "collective-permute"}, name


def _module(name: str) -> str:
    sharding, update = CASES[name]
    return f"""HloModule m, num_partitions=4
      ENTRY e {{
        x = f32[16,10] parameter(0), sharding={sharding}
        {update}
        c5 = s32[] constant(5)
        c3 = s32[] constant(3)
        d = f32[16,10] dynamic-update-slice(x, u, c5, c3), sharding={sharding}
        ROOT n = f32[16,10] negate(d), sharding={sharding}
      }}"""
