"""The times by tables of measured speeds in backend_configs. The numbers are those of released XLA for an H100."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlo_run.errors import UsageError
from hlo_run.hlo.values.backend_config import config_of
from hlo_run.hlo_passes.costs.collective_perf_table_stats_collection import CollectivePerfTableStatsCollection
from hlo_run.hlo_passes.costs.matmul_perf_table_stats_collection import MatmulPerfTableStatsCollection
from hlo_run.ops.parse import parse
from hlo_run.options import CompileOptions
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.target import preset

_DEVICES = "iota_collective_device_list { num_replica_groups: 1 num_devices_per_group: 8 }"
_F32 = "element_type: F32 dimensions:"
_NUMBERS = "dot_dimension_numbers { lhs_contracting_dimensions: 1 rhs_contracting_dimensions: 0 }"
_TABLE = f"""
entries {{ instruction {{ opcode: "all-reduce" shape {{ {_F32} 1024 }} {_DEVICES} }}
  network_throughput_bytes_per_sec: 100000000 }}
entries {{ instruction {{ opcode: "reduce-scatter" shape {{ {_F32} 1024 }} {_DEVICES} }}
  network_throughput_bytes_per_sec: 150000000 }}
entries {{ instruction {{ opcode: "dot" shape {{ {_F32} 128 dimensions: 256 }} {_NUMBERS} }} clock_cycles: 500000
  operands {{ shape {{ {_F32} 128 dimensions: 512 }} }} operands {{ shape {{ {_F32} 512 dimensions: 256 }} }} }}"""
_MODULE = """HloModule m, replica_count=8
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
inner { v = f32[2048] parameter(0)
  ROOT s = f32[256] reduce-scatter(v), channel_id=4, replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true,
    dimensions={0}, to_apply=add }
ENTRY e {
  x = f32[2048] parameter(0)
  y = f32[128,512] parameter(1)
  z = f32[512,256] parameter(2)
  r = f32[2048] all-reduce-start(x), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true, to_apply=add
  q = ((f32[2048]), f32[256]) async-start(x), calls=inner
  g = (f32[2048], f32[16384]) all-gather-start(x), channel_id=2, replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}
  d = f32[128,256] dot(y, z), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  rd = f32[2048] all-reduce-done(r)
  gd = f32[16384] all-gather-done(g)
  qd = f32[256] async-done(q)
  ROOT o = (f32[2048], f32[16384], f32[256], f32[128,256]) tuple(rd, gd, qd, d)
}"""


def _context(folder: Path, key: str = "sm_90") -> PassContext:
    file = folder / "table.txtpb"
    file.write_text(f'entries {{ key: "{key}" value {{ {_TABLE} }} }}\n')
    options = CompileOptions(
        xla_gpu_experimental_collective_perf_table_path=str(file), xla_gpu_experimental_matmul_perf_table_path=str(file)
    )
    return PassContext(preset("h100"), options)


def test_times_are_those_of_the_table(tmp_path: Path) -> None:
    module = parse(_MODULE)
    for stats in (CollectivePerfTableStatsCollection(), MatmulPerfTableStatsCollection()):
        stats.apply(_context(tmp_path), module)
    found = {i.opcode: config_of(i.backend_config).get("reification_cost") for i in module.instructions}
    times = {opcode: (costs[0]["exec_time_us"], costs[0]["name"]) for opcode, costs in found.items() if costs}
    assert times == {
        "all-reduce-start": (81.92, "collective-perf-table-stats-collection"),
        "reduce-scatter": (54.61325, "collective-perf-table-stats-collection"),
        "dot": (252.525, "perf-table-model"),
    }


@pytest.mark.parametrize("stats", [CollectivePerfTableStatsCollection(), MatmulPerfTableStatsCollection()])
def test_a_table_for_another_gpu_is_an_error(
    stats: CollectivePerfTableStatsCollection | MatmulPerfTableStatsCollection, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="no speeds of sm_90"):
        stats.apply(_context(tmp_path, key="sm_80"), parse(_MODULE))
