"""Decides when the latency-hiding scheduler runs, and its estimator, as XLA's `IsLHSEnabled` and `GetLatencyEstimator`."""

from __future__ import annotations

from hlo_run.analysis.latency.collective_times import network_of
from hlo_run.analysis.latency.estimator import LatencyEstimator, TShirtSizes
from hlo_run.analysis.latency.profile import Profile, ProfileGuided, read_profile
from hlo_run.analysis.latency.ring_times import RingTimes
from hlo_run.analysis.latency.speed_of_light import SpeedOfLight, asks_for_speeds, knows_collectives
from hlo_run.analysis.latency.speeds import speeds_of
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloModule
from hlo_run.options import CompileOptions
from hlo_run.target import TargetSpec


def hides_latency(options: CompileOptions, target: TargetSpec, module: HloModule) -> bool:
    """Return True if the scheduler runs: on Hopper and Blackwell, or if a flag says so."""
    if options.xla_gpu_enable_latency_hiding_scheduler or _asks_for_speeds(options, target, module):
        return True
    return profile_of(options, module) is not None


def latency_estimator(options: CompileOptions, target: TargetSpec, module: HloModule) -> LatencyEstimator:
    """Return the estimator: a profile if the user gives one, else measured speeds if they are known, else sizes of work."""
    partitions = module.num_partitions
    sizes = TShirtSizes(options.xla_gpu_enable_approx_costly_collectives, partitions)
    network = network_of(target, options.xla_gpu_analytical_latency_estimator_options)
    profile = profile_of(options, module)
    if options.xla_gpu_enable_analytical_latency_estimator and profile is None:
        return RingTimes(target, sizes)
    measured = speeds_of(target, options, network.devices_per_host) if _asks_for_speeds(options, target, module) else None
    speeds = SpeedOfLight(target, network, sizes, measured) if measured is not None else sizes
    return speeds if profile is None else ProfileGuided(profile, speeds)


def profile_of(options: CompileOptions, module: HloModule) -> Profile | None:
    """Return the profile that a flag gives for a module; None without one. Raises UsageError if it cannot be read."""
    path = options.xla_gpu_pgle_profile_file_or_directory_path
    if not path:
        return None
    return read_profile(path, frontend_attribute(module, "fingerprint_before_lhs") or "")


def _asks_for_speeds(options: CompileOptions, target: TargetSpec, module: HloModule) -> bool:
    is_on = options.xla_gpu_enable_analytical_sol_latency_estimator
    return is_on and asks_for_speeds(target) and knows_collectives(module)
