"""Write the times of collectives by a table of measured speeds into their backend_configs.

    d = f32[2048] all-reduce-start(p), ..
        =>   d = .., backend_config={.. "reification_cost":[{.. "exec_time_us":81.92 ..}] ..}

The table is that of `--xla_gpu_experimental_collective_perf_table_path`; collectives that it lacks get nothing. XLA's
`CollectivePerfTableStatsCollection`, which ends with an abort at a collective-permute.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.computation_order import computation_post_order
from hlo_run.analysis.latency.collective_times import measured_microseconds, network_of
from hlo_run.analysis.latency.measured_tables import read_table_of
from hlo_run.analysis.latency.speed_tables import name_in_tables
from hlo_run.analysis.latency.speeds import Speeds
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.opcodes.traits import COLLECTIVE
from hlo_run.hlo_passes.costs.reification_cost import add_reification_cost
from hlo_run.pass_support.hlo_pass import PassContext


class CollectivePerfTableStatsCollection(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "collective-perf-table-stats-collection"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit backend_configs in place. Raises UsageError for a file that is no table or has nothing for the GPU."""
        options, target = ctx.options, ctx.target
        network = network_of(target, options.xla_gpu_analytical_latency_estimator_options)
        key, path = name_in_tables(target), options.xla_gpu_experimental_collective_perf_table_path
        speeds = Speeds(key, read_table_of(path, key, target.clock_rate_ghz, network.devices_per_host))
        for computation in computation_post_order(module):
            for instruction in computation.instructions:
                time = measured_microseconds(instruction, speeds) if instruction.opcode in COLLECTIVE else None
                if time is not None:
                    add_reification_cost(instruction, self.name, time)
