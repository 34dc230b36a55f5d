"""Write the times of matrix products by a table of measured speeds into their backend_configs.

    d = f32[128,256] custom-call(a, b), custom_call_target="__cublas$lt$matmul", ..
        =>   d = .., backend_config={.. "reification_cost":[{.. "exec_time_us":252.525 ..}] ..}

The table is that of `--xla_gpu_experimental_matmul_perf_table_path`. XLA's `MatmulPerfTableStatsCollection`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.computation_order import computation_post_order
from hlo_run.analysis.latency.collective_times import network_of
from hlo_run.analysis.latency.estimator import TShirtSizes
from hlo_run.analysis.latency.measured_tables import read_table_of
from hlo_run.analysis.latency.speed_of_light import SpeedOfLight
from hlo_run.analysis.latency.speed_tables import name_in_tables
from hlo_run.analysis.latency.speeds import Speeds
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.costs.reification_cost import add_reification_cost
from hlo_run.pass_support.hlo_pass import PassContext

# XLA does not call this model by the name of the pass.
_MODEL = "perf-table-model"


class MatmulPerfTableStatsCollection(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "matmul-perf-table-stats-collection"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit backend_configs in place. Raises UsageError for a file that is no table or has nothing for the GPU."""
        options, target = ctx.options, ctx.target
        network = network_of(target, options.xla_gpu_analytical_latency_estimator_options)
        key, path = name_in_tables(target), options.xla_gpu_experimental_matmul_perf_table_path
        table = read_table_of(path, key, target.clock_rate_ghz, network.devices_per_host)
        if not table.products:
            return
        estimator = SpeedOfLight(target, network, TShirtSizes(), Speeds(key, products=table))
        for computation in computation_post_order(module):
            for instruction in computation.instructions:
                time = estimator.product(instruction)
                if time is not None:
                    add_reification_cost(instruction, _MODEL, time)
