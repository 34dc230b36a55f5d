"""Write the estimated time of every fusion into its backend_config.

    f = f32[8] fusion(p), kind=kLoop, calls=c
        =>   f = .., backend_config={.. "reification_cost":[{"end_to_end_cycles":1.98,"exec_time_us":0.001,..,"name":""}] ..}

The estimate is that of the fusion passes. XLA's `GpuCostModelStatsCollection`.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct

from hlo_run.analysis.computation_order import computation_post_order
from hlo_run.analysis.cost.run_time_model import TICKS_PER_MICROSECOND
from hlo_run.analysis.latency.kernel_times import KernelTimes
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.costs.reification_cost import add_reification_cost
from hlo_run.pass_support.hlo_pass import PassContext

_TICKS_PER_NANOSECOND = TICKS_PER_MICROSECOND // 1000


class GpuCostModelStatsCollection(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "gpu_cost_model_stats_collection"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit the backend_configs of fusions in place."""
        kernels = KernelTimes(ctx.target)
        clock = float(np.float32(ctx.target.clock_rate_ghz))
        for computation in computation_post_order(module):
            for instruction in computation.instructions:
                if instruction.opcode != "fusion":
                    continue
                time = kernels.estimate(instruction)
                add_reification_cost(
                    instruction,
                    "",
                    time.execution / TICKS_PER_MICROSECOND,
                    cycles=time.execution / _TICKS_PER_NANOSECOND * clock,
                    compute=time.compute / TICKS_PER_MICROSECOND,
                    memory=time.memory / TICKS_PER_MICROSECOND,
                )
