"""Divided modules have the values of the whole ones, on every device."""

from __future__ import annotations

import pytest

from tests.sharding.partitioning.division import check_values

ROWS, COLUMNS, BOTH = "{devices=[4,1]<=[4]}", "{devices=[1,4]<=[4]}", "{devices=[2,2]<=[4]}"
ROWS_TWICE = "{devices=[2,1,2]<=[4] last_tile_dim_replicate}"
ADD = "add { x = f32[] parameter(0) y = f32[] parameter(1) ROOT r = f32[] add(x, y) }"
MAX = "max { x = f32[] parameter(0) y = f32[] parameter(1) ROOT r = f32[] maximum(x, y) }"
GREATER = """greater {
  a = s32[] parameter(0) b = s32[] parameter(1) c = s32[] parameter(2) d = s32[] parameter(3)
  ROOT r = pred[] compare(a, b), direction=GT
}"""

CASES = {
    "elementwise": f"""
      a = f32[8,6] parameter(0), sharding={BOTH}
      b = f32[8,6] parameter(1), sharding={ROWS}
      ROOT r = f32[8,6] add(a, b), sharding={COLUMNS}""",
    "uneven": f"""
      a = f32[5,7] parameter(0), sharding={BOTH}
      n = f32[5,7] exponential(a)
      t = f32[7,5] transpose(n), dimensions={{1,0}}
      ROOT r = f32[35] reshape(t), sharding={{devices=[4]<=[4]}}""",
    "dot": f"""
      a = f32[6,8] parameter(0), sharding={BOTH}
      b = f32[8,10] parameter(1), sharding={BOTH}
      ROOT d = f32[6,10] dot(a, b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, sharding={ROWS_TWICE}""",
    "batch dot": """
      a = f32[4,3,5] parameter(0), sharding={devices=[4,1,1]<=[4]}
      b = f32[4,5,6] parameter(1), sharding={devices=[1,2,2]<=[4]}
      ROOT d = f32[4,3,6] dot(a, b), lhs_batch_dims={0}, lhs_contracting_dims={2},
        rhs_batch_dims={0}, rhs_contracting_dims={1}""",
    "reduce": f"""
      a = f32[7,9] parameter(0), sharding={BOTH}
      z = f32[] constant(0)
      ROOT r = f32[9] reduce(a, z), dimensions={{0}}, to_apply=add""",
    "ragged sum over tiles": """
      x = f32[5,6] parameter(0), sharding={devices=[1,4]<=[4]}
      w = f32[3,6,7] parameter(1), sharding={devices=[1,4,1]<=[4]}
      g = s32[3] constant({2,0,3})
      ROOT d = f32[5,7] ragged-dot(x, w, g), lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0},
        rhs_group_dims={0}, sharding={replicated}""",
    "ragged batches": """
      x = f32[6,3,4] parameter(0), sharding={devices=[2,1,2]<=[4]}
      w = f32[6,4,2] parameter(1), sharding={devices=[2,2,1]<=[4]}
      g = s32[3] constant({2,0,3})
      ROOT d = f32[6,3,2] ragged-dot(x, w, g), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2},
        rhs_contracting_dims={1}, lhs_ragged_dims={0}, sharding={devices=[2,1,1,2]<=[4] last_tile_dim_replicate}""",
    "ragged operands divided otherwise": """
      x = f32[5,6] parameter(0), sharding={devices=[1,4]<=[4]}
      w = f32[3,6,7] parameter(1), sharding={devices=[1,4,1]3,1,0,2}
      g = s32[3] constant({2,0,3})
      ROOT d = f32[5,7] ragged-dot(x, w, g), lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0},
        rhs_group_dims={0}, sharding={replicated}""",
    "transform": """
      a = f32[2,3,24] parameter(0), sharding={devices=[1,1,4]<=[4]}
      c = c64[2,3,24] convert(a), sharding={devices=[1,1,4]<=[4]}
      t = c64[2,3,24] fft(c), fft_type=FFT, fft_length={24}, sharding={devices=[1,1,4]<=[4]}
      ROOT i = f32[2,3,24] imag(t), sharding={devices=[1,1,4]<=[4]}""",
    "greatest of uneven batches": """
      x = s32[3,17] parameter(0), sharding={devices=[2,2]<=[2,2]T(1,0)}
      ROOT t = (s32[3,5], s32[3,5]) custom-call(x), custom_call_target="TopK", called_computations={greater}""",
    "pad and slice": f"""
      a = f32[9,4] parameter(0), sharding={ROWS}
      z = f32[] constant(1)
      p = f32[14,4] pad(a, z), padding=2_3x0_0, sharding={ROWS}
      ROOT s = f32[6,4] slice(p), slice={{[1:12:2], [0:4]}}, sharding={ROWS}""",
    "slice of a pad": f"""
      a = f32[10,4] parameter(0), sharding={ROWS}
      z = f32[] constant(1)
      p = f32[13,4] pad(a, z), padding=1_2x0_0, sharding={ROWS}
      ROOT s = f32[10,4] slice(p), slice={{[2:12], [0:4]}}, sharding={ROWS}""",
    "rotation of uneven tiles": f"""
      a = f32[9,4] parameter(0), sharding={ROWS}
      e = f32[4,4] slice(a), slice={{[5:9], [0:4]}}, sharding={ROWS}
      s = f32[5,4] slice(a), slice={{[0:5], [0:4]}}, sharding={ROWS}
      ROOT r = f32[9,4] concatenate(e, s), dimensions={{0}}, sharding={ROWS}""",
    "value between its ends": f"""
      a = f32[12,4] parameter(0), sharding={ROWS}
      e = f32[2,4] slice(a), slice={{[9:11], [0:4]}}, sharding={ROWS}
      n = f32[2,4] negate(e), sharding={ROWS}
      s = f32[1,4] slice(a), slice={{[0:1], [0:4]}}, sharding={ROWS}
      ROOT r = f32[15,4] concatenate(n, a, s), dimensions={{0}}, sharding={ROWS}""",
    "reverse": f"""
      a = f32[9,4] parameter(0), sharding={ROWS}
      ROOT r = f32[9,4] reverse(a), dimensions={{0}}, sharding={ROWS}""",
    "concatenate": f"""
      a = f32[3,8] parameter(0), sharding={COLUMNS}
      b = f32[2,8] parameter(1), sharding={BOTH}
      ROOT c = f32[5,8] concatenate(a, b), dimensions={{0}}, sharding={BOTH}""",
    "clamp by scalars": f"""
      a = f32[6,8] parameter(0), sharding={BOTH}
      l = f32[] constant(-0.5)
      h = f32[] parameter(1)
      ROOT c = f32[6,8] clamp(l, a, h), sharding={BOTH}""",
    "reshape of no elements": """
      a = f32[0,8,4] parameter(0), sharding={devices=[1,4,1]<=[4]}
      ROOT r = f32[4,0,2] reshape(a), sharding={devices=[4,1,1]<=[4]}""",
    "iota": f"""
      a = f32[9,4] parameter(0), sharding={ROWS}
      i = f32[9,4] iota(), iota_dimension=0, sharding={ROWS}
      ROOT r = f32[9,4] multiply(a, i)""",
    "dynamic slice": f"""
      a = f32[8,8] parameter(0), sharding={BOTH}
      u = f32[1,8] parameter(1), sharding={COLUMNS}
      i = s32[] constant(5)
      z = s32[] constant(0)
      d = f32[8,8] dynamic-update-slice(a, u, i, z), sharding={BOTH}
      ROOT s = f32[2,8] dynamic-slice(d, i, z), dynamic_slice_sizes={{2,8}}, sharding={COLUMNS}""",
    "gather": f"""
      t = f32[10,6] parameter(0), sharding={BOTH}
      i = s32[5,1] parameter(1), sharding={{devices=[2,1,2]<=[4] last_tile_dim_replicate}}
      ROOT g = f32[5,6] gather(t, i), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}},
        index_vector_dim=1, slice_sizes={{1,6}}, sharding={BOTH}""",
    "scatter": f"""
      t = f32[10,6] parameter(0), sharding={ROWS}
      i = s32[5,1] parameter(1), sharding={ROWS}
      u = f32[5,6] parameter(2), sharding={ROWS}
      ROOT s = f32[10,6] scatter(t, i, u), update_window_dims={{1}}, inserted_window_dims={{0}},
        scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=add""",
    "scatter with divided components": """
      t = f32[4,3,5] parameter(0), sharding={devices=[2,1,2]<=[4]}
      i = s32[2,3] constant({{1,2,3},{3,0,4}}), sharding={devices=[1,4]<=[4]}
      u = f32[2] parameter(1)
      ROOT s = f32[4,3,5] scatter(t, i, u), update_window_dims={}, inserted_window_dims={0,1,2},
        scatter_dims_to_operand_dims={0,1,2}, index_vector_dim=1, to_apply=add, sharding={devices=[2,1,2]<=[4]}""",
    "scatter of two operands": """
      t = f32[8,4] parameter(0), sharding={devices=[4,1]<=[4]}
      k = f32[8,4] parameter(1)
      i = s32[2,2,1] constant({{{1},{2}},{{5},{7}}})
      u = f32[2,2,4] parameter(2), sharding={devices=[2,1,2]<=[4]}
      w = f32[2,2,4] parameter(3), sharding={devices=[1,2,2]<=[4]}
      ROOT s = (f32[8,4], f32[8,4]) scatter(t, k, i, u, w), update_window_dims={2}, inserted_window_dims={0},
        scatter_dims_to_operand_dims={0}, index_vector_dim=2, to_apply=add_two""",
    "convolution": """
      a = f32[2,9,9,3] parameter(0), sharding={devices=[1,4,1,1]<=[4]}
      k = f32[3,3,3,4] parameter(1), sharding={replicated}
      ROOT c = f32[2,9,9,4] convolution(a, k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f,
        sharding={devices=[1,4,1,1]<=[4]}""",
    "reduce-window": """
      a = f32[10,4] parameter(0), sharding={devices=[4,1]<=[4]}
      m = f32[] constant(-inf)
      ROOT w = f32[4,4] reduce-window(a, m), window={size=3x1 stride=3x1 pad=1_1x0_0}, to_apply=max,
        sharding={devices=[2,2]<=[4]}""",
    "reduce-window of a dilated value, padded by less than nothing": """
      a = f32[8,6] parameter(0), sharding={devices=[1,2,2]<=[4] last_tile_dim_replicate}
      z = f32[] constant(0)
      ROOT w = f32[3,6] reduce-window(a, z), window={size=3x1 stride=3x2 pad=0_3x-1_1 lhs_dilate=1x2}, to_apply=add""",
    "sort": f"""
      a = f32[6,8] parameter(0), sharding={BOTH}
      ROOT s = f32[6,8] sort(a), dimensions={{1}}, to_apply=less, sharding={BOTH}""",
    "loop": f"""
      a = f32[6,8] parameter(0), sharding={BOTH}
      z = s32[] constant(0)
      t = (s32[], f32[6,8]) tuple(z, a)
      l = (s32[], f32[6,8]) while(t), condition=cond, body=body
      ROOT r = f32[6,8] get-tuple-element(l), index=1""",
    "manual region": f"""
      a = f32[8,4] parameter(0), sharding={BOTH}
      s = f32[4,2] custom-call(a), custom_call_target="SPMDFullToShardShape", sharding={{manual}}
      n = f32[4,2] negate(s), sharding={{manual}}
      ROOT w = f32[8,4] custom-call(n), custom_call_target="SPMDShardToFullShape", sharding={BOTH}""",
}
OTHERS = f"""{ADD}
{MAX}
add_two {{ a = f32[] parameter(0) b = f32[] parameter(1) c = f32[] parameter(2) d = f32[] parameter(3)
  x = f32[] add(a, c) y = f32[] add(b, d) ROOT t = (f32[], f32[]) tuple(x, y) }}
less {{ x = f32[] parameter(0) y = f32[] parameter(1) ROOT r = pred[] compare(x, y), direction=LT }}
cond {{ p = (s32[], f32[6,8]) parameter(0) i = s32[] get-tuple-element(p), index=0 n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT }}
body {{ p = (s32[], f32[6,8]) parameter(0) i = s32[] get-tuple-element(p), index=0 o = s32[] constant(1) j = s32[] add(i, o)
  v = f32[6,8] get-tuple-element(p), index=1 w = f32[6,8] cosine(v) ROOT t = (s32[], f32[6,8]) tuple(j, w) }}"""


@pytest.mark.parametrize("name", CASES)
def test_a_divided_module_has_the_values_of_the_whole_one(name: str) -> None:
    check_values(f"HloModule m, num_partitions=4\n{OTHERS}\n{GREATER}\nENTRY e {{{CASES[name]}\n}}")
