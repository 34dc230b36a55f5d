"""Records the decisions of the fusion passes in order, and prints priority fusion's as XLA's `FusionProcessDumpProto`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hlo_run.hlo.values.escape import escape
from hlo_run.target import TargetSpec


@dataclass(frozen=True, slots=True)
class Fused:
    """`producer` was fused into `consumer`. The result is called `fusion` while the pass runs."""

    fusion: str
    producer: str
    consumer: str


@dataclass(frozen=True, slots=True)
class Refused:
    """`producer` cannot be fused into all its users, the `consumers`, for a `reason`. `refusing` is the user that refused."""

    producer: str
    reason: str
    consumers: tuple[str, ...] = ()
    refusing: str = ""


@dataclass(frozen=True, slots=True)
class Weighed:
    """The estimate for fusing `producer` into all its users, in microseconds. `savings` are those of each user's kernel."""

    producer: str
    consumers: tuple[str, ...]
    fused: float
    unfused: float
    savings: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Joined:
    """From now on the kernel of `kept`, called `fusion`, also computes and returns `other`, because both read `source`.

    Without a source, `kept` reads `other`, and the times in microseconds are the reason.
    """

    fusion: str
    kept: str
    other: str
    source: str = ""
    fused: float = 0.0
    unfused: float = 0.0


@dataclass(frozen=True, slots=True)
class KeptApart:
    """`one` and `other` do not share a kernel, for a `reason`. `source` is the value that both read, as in `Joined`."""

    one: str
    other: str
    reason: str
    source: str = ""


FusionStep: TypeAlias = Fused | Refused | Weighed
AnyFusionStep: TypeAlias = FusionStep | Joined | KeptApart


def process_text(steps: Sequence[FusionStep], target: TargetSpec, before: str) -> str:
    """Return the record as a text proto; `before` is the module as HLO text."""
    lines: list[str] = []
    for step in steps:
        lines += ["fusion_steps {", *(f"  {line}" for line in _step_lines(step)), "}"]
    major, minor = target.compute_capability
    lines += [
        "gpu_device_info {",
        f"  threads_per_block_limit: {target.threads_per_block_limit}",
        f"  threads_per_warp: {target.threads_per_warp}",
        f"  shared_memory_per_block: {target.shared_memory_per_block_bytes}",
        f"  threads_per_core_limit: {target.threads_per_core_limit}",
        f"  core_count: {target.core_count}",
        f"  fpus_per_core: {target.fpus_per_core}",
        f"  memory_bandwidth: {target.memory_bandwidth}",
        f"  l2_cache_size: {target.l2_cache_size_bytes}",
        f"  clock_rate_ghz: {target.clock_rate_ghz:g}",
        "  cuda_compute_capability {",
        f"    major: {major}",
        *([f"    minor: {minor}"] if minor else []),
        "  }",
        "}",
        f'hlo_module_before_fusion: "{escape(before)}"',
    ]
    return "\n".join(lines) + "\n"


def _step_lines(step: FusionStep) -> list[str]:
    match step:
        case Fused():
            return [
                "fusion {",
                f'  fusion_name: "{step.fusion}"',
                f'  producer_name: "{step.producer}"',
                f'  consumer_name: "{step.consumer}"',
                "}",
            ]
        case Refused():
            return ["producer_ineligible {", f'  producer_name: "{step.producer}"', f'  reason: "{escape(step.reason)}"', "}"]
        case Weighed():
            consumers = [f'  consumer_names: "{name}"' for name in step.consumers]
            times = [f"  us_fused: {step.fused:.6g}", f"  us_unfused: {step.unfused:.6g}"]
            return ["update_priority {", f'  producer_name: "{step.producer}"', *consumers, *times, "}"]
