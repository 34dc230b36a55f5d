"""Divided modules where XLA's own division has other values, or fails: ours have those of the whole module."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path

import pytest

from tests.sharding.partitioning.division import check_values

_FINDINGS = sorted((Path(__file__).resolve().parents[3] / "docs" / "findings" / "divided").glob("*.hlo"))
_HALVES, _QUARTERS = "{devices=[2]<=[2]}", "{devices=[4]<=[4]}"
_OTHERS = """
add { x = f32[] parameter(0) y = f32[] parameter(1) ROOT r = f32[] add(x, y) }
max { x = s32[] parameter(0) y = s32[] parameter(1) ROOT r = s32[] maximum(x, y) }
ge { x = f32[] parameter(0) y = f32[] parameter(1) ROOT r = pred[] compare(x, y), direction=GE }
both { a = f32[] parameter(0) b = f32[] parameter(1) c = f32[] parameter(2) d = f32[] parameter(3)
  s = f32[] add(a, c) m = f32[] maximum(b, d) ROOT t = (f32[], f32[]) tuple(s, m) }
greater { x = f32[] parameter(0) y = f32[] parameter(1) ROOT r = pred[] compare(x, y), direction=GT }
inner { v = f32[8] parameter(0) ROOT n = f32[8] negate(v) }
outer { v = f32[8] parameter(0) ROOT c = f32[8] call(v), to_apply=inner }
"""
_CONV = "dim_labels=b01f_01io->b01f"
CASES = {
    "product whose operands list the devices in other orders": """
      a = f16[4] parameter(0), sharding={devices=[2,2]2,0,1,3 last_tile_dim_replicate}
      b = f16[4,1,6] parameter(1), sharding={devices=[2,1,2]0,2,3,1}
      ROOT d = f16[1,6] dot(a, b), lhs_contracting_dims={0}, rhs_contracting_dims={0}, sharding={replicated}""",
    "product of tiles inside of the result's tiles": """
      a = s32[4,4,4,1] parameter(0), sharding={devices=[1,1,4,2]<=[8]}
      b = s32[4,4,4] parameter(1), sharding={devices=[4,1,2]<=[8]}
      ROOT d = s32[4,4,1] dot(a, b), lhs_batch_dims={0,1}, rhs_batch_dims={2,1}, lhs_contracting_dims={2},
        rhs_contracting_dims={0}, sharding={devices=[1,2,4]0,5,4,3,7,2,6,1}""",
    "scatter by indices whose devices are in another order": """
      i = s64[4,3,16] parameter(0), sharding={devices=[1,3,4]6,7,2,9,10,0,3,1,5,8,11,4}
      t = s32[8,8,4] parameter(1), sharding={devices=[6,1,1,2]<=[12] last_tile_dim_replicate}
      u = s32[1,1,4,2,16] parameter(2)
      ROOT s = s32[8,8,4] scatter(t, i, u), update_window_dims={0,1,3}, inserted_window_dims={},
        scatter_dims_to_operand_dims={0,1,2}, index_vector_dim=1, to_apply=max, sharding={devices=[1,12,1]<=[12]}""",
    "scatter without components of an index": """
      i = s64[1,1,0] parameter(0), sharding={devices=[1,8,1]3,4,6,5,0,7,1,2}
      t = s32[2,1] parameter(1), sharding={devices=[1,8]<=[8]}
      u = s32[1,1,1] parameter(2), sharding={devices=[1,2,2,2]2,0,4,3,7,1,6,5 last_tile_dim_replicate}
      ROOT s = s32[2,1] scatter(t, i, u), update_window_dims={2}, inserted_window_dims={}, scatter_dims_to_operand_dims={},
        index_vector_dim=2, input_batching_dims={1}, scatter_indices_batching_dims={0}, to_apply=max,
        sharding={devices=[8,1]0,1,5,4,2,7,3,6}""",
    "gather whose result has more tiles than its indices": """
      p = f32[6,16] parameter(0), sharding={devices=[1,4]2,1,3,0}
      i = s32[2,4,12] parameter(1), sharding={devices=[2,2,1]<=[4]}
      g = f32[4,12,6] gather(p, i), offset_dims={2}, collapsed_slice_dims={1}, start_index_map={0,1}, index_vector_dim=0,
        slice_sizes={6,1}, sharding={devices=[2,2,1]<=[2,2]T(1,0)}
      ROOT c = f32[4,12,6] copy(g), sharding={devices=[2,1,2]<=[4]}""",
    "gather whose operand and indices list the devices with copies in other orders": """
      p = f32[4,4] parameter(0), sharding={devices=[3,2]3,5,0,1,4,2}
      i = s16[1,16] parameter(1), sharding={devices=[1,6]<=[6]}
      ROOT g = f32[16,1] gather(p, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={1}, index_vector_dim=0,
        slice_sizes={1,1}, sharding={devices=[1,6]<=[6]}""",
    "convolution whose halos begin and end with paddings of several lengths": """
      p = f16[8,3,6,1] parameter(0), sharding={devices=[1,1,1,16]<=[16]}
      k = f16[2,3,2,1] parameter(1), sharding={devices=[1,1,4,4]<=[16]}
      v = f16[2,4,8,4] convolution(p, k), window={size=2x1 stride=2x1 pad=2_2x2_1 rhs_dilate=2x2},
        dim_labels=bf01_oi01->f0b1, sharding={devices=[1,2,4,2]<=[16]}
      ROOT c = f16[2,4,8,4] copy(v), sharding={replicated}""",
    "reduction of windows of two arrays in other tiles": """
      a = f32[2,3] parameter(0), sharding={devices=[2,1]<=[2]}
      b = f32[2,3] parameter(1), sharding={replicated}
      z = f32[] constant(0)
      l = f32[] constant(-inf)
      ROOT r = (f32[3,1], f32[3,1]) reduce-window(a, b, z, l), window={size=1x2 stride=1x2 pad=-1_2x0_0}, to_apply=both,
        sharding={{devices=[1,2]<=[2]}, {devices=[1,2]<=[2]}}""",
    "reduction of windows of an empty array": """
      a = f32[2,0] parameter(0), sharding={devices=[2,1,2]<=[4] last_tile_dim_replicate}
      z = f32[] constant(0)
      ROOT r = f32[2,2] reduce-window(a, z), window={size=1x2 pad=0_0x1_2}, to_apply=add, sharding={devices=[1,4]<=[4]}""",
    "empty array in other tiles": """
      a = f32[0,0] parameter(0), sharding={devices=[3,1,4]<=[12] last_tile_dim_replicate}
      ROOT c = f32[0,0] copy(a), sharding={devices=[6,2]<=[12]}""",
    "pad that cuts all elements": """
      a = f32[2] parameter(0), sharding={devices=[4]<=[4]}
      z = f32[] parameter(1)
      ROOT p = f32[2] pad(a, z), padding=3_-3, sharding={devices=[4]<=[4]}""",
    "slice of a pad behind all elements": """
      b = f32[6] parameter(0), sharding={devices=[4]<=[4]}
      z = f32[] parameter(1)
      a = f32[6] negate(b), sharding={devices=[4]<=[4]}
      p = f32[14] pad(a, z), padding=0_8
      ROOT s = f32[2] slice(p), slice={[9:11]}, sharding={devices=[4]<=[4]}""",
    "convolution with groups of features, without windows": """
      a = f32[6,3] parameter(0)
      k = f32[2,3] parameter(1), sharding={devices=[1,2]<=[2]}
      ROOT c = f32[3,3] convolution(a, k), dim_labels=fb_io->bf, feature_group_count=3, sharding={devices=[1,2]<=[2]}""",
    "convolution with groups of batches, without windows": """
      a = f32[4,4] parameter(0), sharding={devices=[8,1]<=[8]}
      k = f32[2,4] parameter(1), sharding={devices=[1,8]<=[8]}
      ROOT c = f32[2,2] convolution(a, k), dim_labels=bf_oi->bf, batch_group_count=2, sharding={devices=[2,4]<=[2,4]T(1,0)}""",
    "convolution with tiles of a spatial dimension that is one of the kernel": """
      a = f32[1,3,1,6] parameter(0)
      k = f32[3,2,1,2] parameter(1), sharding={devices=[3,1,1,2]<=[6]}
      ROOT c = f32[1,2,1,4] convolution(a, k), window={size=2x2 stride=1x2 pad=1_1x0_2 rhs_reversal=1x1},
        dim_labels=bf01_i0o1->b0f1, sharding={devices=[2,3,1,1]2,0,3,5,4,1}""",
    "convolution with a dilated kernel as batches": """
      a = f32[1,6,3,3,6] parameter(0)
      k = f32[3,1,3,2,1] parameter(1), sharding={devices=[1,1,8,1,1]<=[8]}
      ROOT c = f32[6,3,3,7,7] convolution(a, k), dim_labels=fb102_oi012->bf012, sharding={devices=[4,1,1,2,1]<=[8]},
        window={size=3x2x1 pad=0_0x-1_2x0_1 lhs_dilate=3x3x1 rhs_dilate=2x1x1 rhs_reversal=0x1x0}""",
    "largest elements by a partial order, in uneven tiles": """
      a = f32[2,5] parameter(0), sharding={devices=[4,2]<=[8]}
      ROOT t = (f32[2,1], s32[2,1]) custom-call(a), custom_call_target="TopK", called_computations={greater},
        sharding={{devices=[4,1,2]<=[8] last_tile_dim_replicate}, {devices=[4,1,2]<=[8] last_tile_dim_replicate}}""",
    "largest elements on one device": """
      a = f32[13] parameter(0), sharding={devices=[2]<=[2]}
      ROOT t = (f32[12], s32[12]) custom-call(a), custom_call_target="TopK", called_computations={greater},
        sharding={{maximal device=1}, {maximal device=1}}""",
    "gather with batching dimensions, in more tiles than elements": """
      p = s32[2,2] parameter(0), sharding={devices=[2,2]<=[4]}
      i = s32[2,2] parameter(1)
      g = s32[2,2,2] gather(p, i), offset_dims={2}, collapsed_slice_dims={}, start_index_map={1}, operand_batching_dims={0},
        start_indices_batching_dims={0}, index_vector_dim=2, slice_sizes={1,2}
      ROOT t = s32[2,2,2] transpose(g), dimensions={2,1,0}, sharding={devices=[1,1,4]<=[4]}""",
    "gather by indices of a type that has not all places": """
      t = f32[130] parameter(0), sharding={devices=[4]<=[4]}
      i = s8[12,1] parameter(1)
      ROOT g = f32[12] gather(t, i), offset_dims={}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1,
        slice_sizes={1}, sharding={replicated}""",
    "scatter by uneven indices of a type that has not all places": """
      t = s32[400] parameter(0), sharding={devices=[4]<=[4]}
      i = u8[6,1] parameter(1), sharding={devices=[4,1]<=[4]}
      u = s32[6] parameter(2), sharding={devices=[4]<=[4]}
      ROOT s = s32[400] scatter(t, i, u), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0},
        index_vector_dim=1, to_apply=max""",
    "update out of bounds of a divided dimension": """
      a = f32[8,2] parameter(0), sharding={devices=[4,1]<=[4]}
      u = f32[1,2] parameter(1)
      i = s8[] constant(100)
      k = s8[] parameter(2)
      j = s8[] maximum(i, k)
      z = s8[] constant(0)
      ROOT d = f32[8,2] dynamic-update-slice(a, u, j, z), sharding={devices=[4,1]<=[4]}""",
    "scatter of uneven updates by their maximum": """
      t = s32[12] parameter(0), sharding={devices=[4]<=[4]}
      i = s32[30,1] parameter(1)
      u = s32[30] parameter(2), sharding={devices=[4]<=[4]}
      n = s32[30] negate(u)
      ROOT s = s32[12] scatter(t, i, n), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0},
        index_vector_dim=1, to_apply=max""",
    "convolution of an input with copies": f"""
      a = f32[2,5,4,3] parameter(0), sharding={{devices=[1,2,1,1,2]<=[4] last_tile_dim_replicate}}
      k = f32[3,3,3,4] parameter(1), sharding={{devices=[2,1,1,2]<=[4]}}
      ROOT c = f32[2,5,4,4] convolution(a, k), window={{size=3x3 pad=1_1x1_1}}, {_CONV},
        sharding={{devices=[1,1,2,2]<=[4]}}""",
    "convolution of dilated input, with another order of dimensions": """
      a = f32[4,2,5,8] parameter(0)
      k = f32[4,2,5,2] parameter(1)
      ROOT c = f32[4,3,8,2] convolution(a, k), window={size=2x5 pad=2_0x-1_-1 lhs_dilate=2x2}, dim_labels=f01b_i01o->01bf,
        sharding={devices=[4,1,1,1]<=[4]}""",
    "convolution in groups of batches": f"""
      a = f32[16,4,4,1] parameter(0)
      k = f32[2,2,1,2] parameter(1)
      ROOT c = f32[8,4,4,2] convolution(a, k), window={{size=2x2 pad=0_1x0_1}}, {_CONV}, batch_group_count=2,
        sharding={{devices=[4,1,1,1]<=[4]}}""",
    "convolution in fewer groups than tiles": f"""
      a = f32[4,4,4,3] parameter(0)
      k = f32[3,3,3,4] parameter(1), sharding={{devices=[1,1,1,4]<=[4]}}
      ROOT c = f32[2,4,4,4] convolution(a, k), window={{size=3x3 pad=1_1x1_1}}, {_CONV}, batch_group_count=2,
        sharding={{devices=[1,1,1,4]<=[4]}}""",
    "convolution by halos from far away, with a padding": """
      a = f32[2,4,3] parameter(0), sharding={devices=[1,4,1]<=[4]}
      k = f32[2,2,4] parameter(1), sharding={devices=[1,4,1]<=[4]}
      ROOT c = f32[3,3,4] convolution(a, k), window={size=2 pad=0_1 rhs_dilate=2}, dim_labels=f0b_i0o->0bf""",
    "convolution of integers to a wider type": """
      a = s8[1,9,2] parameter(0), sharding={devices=[1,4,1]<=[4]}
      k = s8[3,2,4] parameter(1)
      ROOT c = s32[1,9,4] convolution(a, k), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f, sharding={devices=[1,4,1]<=[4]}""",
    "results of one window that are divided in different ways": """
      x = f32[8,8] parameter(0), sharding={devices=[4,1]<=[4]}
      z = f32[] constant(0)
      l = f32[] constant(-inf)
      ROOT r = (f32[6,4], f32[6,4]) reduce-window(x, x, z, l), window={size=3x2 stride=1x2}, to_apply=both,
        sharding={{devices=[1,4]<=[4]}, {replicated}}""",
    "slice of a value that is whole elsewhere": """
      x = f32[8] parameter(0), sharding={devices=[4]<=[4]}
      n = f32[8] negate(x), sharding={replicated}
      y = f32[8] copy(x), sharding={replicated}
      s = f32[4] slice(x), slice={[0:4]}, sharding={replicated}
      m = f32[4] multiply(s, s), sharding={replicated}
      ROOT t = (f32[8], f32[8], f32[4]) tuple(n, y, m)""",
    "call in a call": """
      x = f32[8] parameter(0), sharding={devices=[4]<=[4]}
      ROOT c = f32[8] call(x), to_apply=outer, sharding={replicated}""",
    "values without a zero": """
      x = f8e8m0fnu[6,3] parameter(0), sharding={devices=[4,1]<=[4]}
      c = f8e8m0fnu[6,3] copy(x), sharding={devices=[1,2,2]<=[4] last_tile_dim_replicate}
      ROOT f = f32[6,3] convert(c), sharding={replicated}""",
}


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    tiles = re.search(r"devices=\[([\d,]+)\]", CASES[name])
    count = math.prod(map(int, tiles[1].split(","))) if tiles is not None else 4
    check_values(f"HloModule m, num_partitions={count}\n{_OTHERS}\nENTRY e {{{CASES[name]}\n}}")


@pytest.mark.parametrize("file", _FINDINGS, ids=lambda file: file.stem)
def test_findings(file: Path) -> None:
    check_values(file.read_text(encoding="utf-8"))


def _pad(rng: random.Random, size: int, sharding: str) -> str | None:
    low, high, inner = rng.randint(-2, 5), rng.randint(-2, 5), rng.choice([0, 1, 2, 3])
    result = size + low + high + (size - 1) * inner
    own = f", sharding={sharding}" if rng.random() < 0.7 else ""
    if size < 3 or result < 1:
        return None
    return f"""a = f32[{size}] parameter(0){own}
      z = f32[] constant({rng.choice([0, 1])})
      ROOT p = f32[{result}] pad(a, z), padding={low}_{high}_{inner}, sharding={sharding}"""


def _slice(rng: random.Random, size: int, sharding: str) -> str:
    start, stride = rng.randint(0, size - 1), rng.choice([1, 2, 3])
    limit = rng.randint(start + 1, size)
    return f"""a = f32[{size}] parameter(0), sharding={sharding}
      ROOT p = f32[{-(-(limit - start) // stride)}] slice(a), slice={{[{start}:{limit}:{stride}]}}, sharding={sharding}"""


def _pool(rng: random.Random, size: int, sharding: str) -> str | None:
    window, stride = rng.randint(1, 4), rng.choice([1, 2, 3])
    low, high = rng.randint(0, window - 1), rng.randint(0, window - 1)
    if size + low + high < window:
        return None
    count = (size + low + high - window) // stride + 1
    return f"""a = f32[{size}] parameter(0), sharding={sharding}
      s = f32[{count}] parameter(1), sharding={sharding}
      z = f32[] constant(0)
      ROOT p = f32[{size}] select-and-scatter(a, s, z), window={{size={window} stride={stride} pad={low}_{high}}},
        select=ge, scatter=add, sharding={sharding}"""


def _conv(rng: random.Random, size: int, sharding: str) -> str | None:
    window, stride, dilated, reach = rng.randint(1, 4), rng.choice([1, 1, 2]), rng.choice([1, 1, 2]), rng.choice([1, 1, 2])
    low, high = rng.randint(-1, 3), rng.randint(-1, 3)
    left = 1 + (size - 1) * dilated + low + high - (1 + (window - 1) * reach)
    if left < 0:
        return None
    one, other = (sharding.replace("]<", ",1,1]<") if rng.random() < 0.6 else "{replicated}" for _ in range(2))
    return f"""a = f32[{size},2,3] parameter(0), sharding={one}
      k = f32[{window},3,2] parameter(1), sharding={other}
      ROOT c = f32[{left // stride + 1},2,2] convolution(a, k), dim_labels=0bf_0io->0bf,
        window={{size={window} stride={stride} pad={low}_{high} lhs_dilate={dilated} rhs_dilate={reach}
        rhs_reversal={rng.choice([0, 0, 1])}}}, sharding={sharding.replace("]<", ",1,1]<")}"""


@pytest.mark.parametrize("draw", [_pad, _slice, _pool, _conv])
def test_windows(draw: object) -> None:
    """All sizes, paddings, strides and dilations, in tiles that are even or not."""
    assert callable(draw)
    rng = random.Random(3)
    for _ in range(25):
        sharding = rng.choice([_HALVES, _QUARTERS])
        body = draw(rng, rng.randint(1, 12), sharding)
        if body is not None:
            count = 2 if sharding == _HALVES else 4
            check_values(f"HloModule m, num_partitions={count}\n{_OTHERS}\nENTRY e {{{body}\n}}")


def test_a_loop_in_a_manual_computation_has_no_replicated_elements() -> None:
    check_values("""
HloModule m, num_partitions=4, frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["x"=4]>}}
cond { p = (s32[], f32[2]) parameter(0) i = s32[] get-tuple-element(p), index=0 n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT }
loop { p = (s32[], f32[2]) parameter(0) i = s32[] get-tuple-element(p), index=0 o = s32[] constant(1) j = s32[] add(i, o)
  v = f32[2] get-tuple-element(p), index=1 w = f32[2] cosine(v)
  s = f32[2] collective-permute(w), channel_id=1, source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
  ROOT t = (s32[], f32[2]) tuple(j, s) }
local { v = f32[2] parameter(0) z = s32[] constant(0) t = (s32[], f32[2]) tuple(z, v)
  l = (s32[], f32[2]) while(t), condition=cond, body=loop ROOT e = f32[2] get-tuple-element(l), index=1 }
ENTRY e {
  x = f32[8] parameter(0)
  a = f32[2] custom-call(x), custom_call_target="xla.sdy.GlobalToLocalShape", custom_call_has_side_effect=true,
    frontend_attributes={xla.sdy.in_shardings="#sdy.sharding_per_value<[<@mesh, [{\\"x\\"}]>]>",
    xla.sdy.manual_axes="#sdy<manual_axes{\\"x\\"}>"}
  b = f32[2] call(a), to_apply=local, frontend_attributes={inlineable="false"}
  ROOT c = f32[8] custom-call(b), custom_call_target="xla.sdy.LocalToGlobalShape", custom_call_has_side_effect=true,
    frontend_attributes={xla.sdy.out_shardings="#sdy.sharding_per_value<[<@mesh, [{\\"x\\"}]>]>",
    xla.sdy.manual_axes="#sdy<manual_axes{\\"x\\"}>"}
}""")
