"""When the latency-hiding scheduler runs, and what it estimates with. XLA's `IsLHSEnabled` and `GetLatencyEstimator`."""

from __future__ import annotations

from hlo_run.analysis.latency.collective_times import network_of
from hlo_run.analysis.latency.estimator import LatencyEstimator, TShirtSizes
from hlo_run.analysis.latency.speed_of_light import SpeedOfLight, is_measured, knows_collectives
from hlo_run.hlo.graph import HloModule
from hlo_run.options import CompileOptions
from hlo_run.target import TargetSpec


def hides_latency(options: CompileOptions, target: TargetSpec, module: HloModule) -> bool:
    """Return True if the scheduler runs: where it has measured speeds, or if a flag says so."""
    return options.xla_gpu_enable_latency_hiding_scheduler or _has_speeds(options, target, module)


def latency_estimator(options: CompileOptions, target: TargetSpec, module: HloModule) -> LatencyEstimator:
    """Return the estimator: measured speeds on Hopper and Blackwell, sizes of work elsewhere."""
    partitions = int(module.attrs.get("num_partitions", 1))
    sizes = TShirtSizes(options.xla_gpu_enable_approx_costly_collectives, partitions)
    return SpeedOfLight(target, network_of(target), sizes) if _has_speeds(options, target, module) else sizes


def _has_speeds(options: CompileOptions, target: TargetSpec, module: HloModule) -> bool:
    is_on = options.xla_gpu_enable_analytical_sol_latency_estimator
    return is_on and is_measured(target) and knows_collectives(module)
