"""Write the time that the latency-hiding scheduler expects into the backend_configs of fusions, products and collectives.

    d = f32[8] all-reduce-start(p), ..
        =>   d = .., backend_config={.. "reification_cost":[{..,"exec_time_us":23.64,..,"name":"sol"}] ..}

A collective inside an async-start gets the estimate itself. XLA's `SolGpuCostModelStatsCollection`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.computation_order import computation_post_order
from hlo_run.analysis.latency.async_kinds import async_kind, is_collective_start
from hlo_run.analysis.latency.collective_times import in_ticks, network_of
from hlo_run.analysis.latency.estimator import LatencyEstimator, TShirtSizes
from hlo_run.analysis.latency.speed_of_light import PRODUCT_CALLS, SpeedOfLight
from hlo_run.analysis.latency.speeds import speeds_of
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.costs.reification_cost import add_reification_cost
from hlo_run.pass_support.hlo_pass import PassContext


class SolGpuCostModelStatsCollection(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "sol-gpu-cost-model-stats-collection"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit backend_configs in place. Does nothing on a GPU whose speeds were not measured, where XLA ends with an error."""
        network = network_of(ctx.target, ctx.options.xla_gpu_analytical_latency_estimator_options)
        speeds = speeds_of(ctx.target, ctx.options, network.devices_per_host)
        if speeds is None:
            return
        estimator = SpeedOfLight(ctx.target, network, TShirtSizes(), speeds)
        for computation in computation_post_order(module):
            for instruction in computation.instructions:
                if _is_estimated(instruction):
                    add_reification_cost(_holder(instruction), "sol", in_ticks(_microseconds(instruction, estimator)))


def _is_estimated(instruction: HloInstruction) -> bool:
    if instruction.opcode == "custom-call":
        return instruction.custom_call_target in PRODUCT_CALLS
    return instruction.opcode == "fusion" or is_collective_start(instruction)


def _microseconds(instruction: HloInstruction, estimator: LatencyEstimator) -> float:
    """Return the latency of a collective until its only user, which ends it; else the time of the instruction."""
    if len(instruction.users) == 1:
        one, other = async_kind(instruction), async_kind(instruction.users[0])
        if (one.phase, other.phase) == ("start", "done") and one.inner == other.inner:
            return estimator.latency(instruction, instruction.users[0])
    return estimator.cost(instruction)


def _holder(instruction: HloInstruction) -> HloInstruction:
    return instruction.called_computations[0].root if instruction.opcode == "async-start" else instruction
