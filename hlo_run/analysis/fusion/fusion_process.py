"""Records the decisions of the fusion passes in order, and prints priority fusion's as XLA's `FusionProcessDumpProto`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from msgspec import Struct

from hlo_run.hlo.values.escape import escape
from hlo_run.target import TargetSpec, to_text_proto


class Fused(Struct, frozen=True):
    """The event that `producer` was fused into `consumer`. The result is called `fusion` while the pass runs.

    XLA's text omits a constant that became part of the code at the end (`is_constant`).
    """

    fusion: str
    producer: str
    consumer: str
    is_constant: bool = False


class Refused(Struct, frozen=True):
    """The event that `producer` cannot be fused into all its users, the `consumers`, for a `reason`.

    `refusing` is one that refused.
    """

    producer: str
    reason: str
    consumers: tuple[str, ...] = ()
    refusing: str = ""


class Weighed(Struct, frozen=True):
    """The estimate for fusing `producer` into all its users, in microseconds. `savings` has the saving of each user's kernel.

    `dumped` are the fused and unfused times that XLA records, for the users `all_consumers`: if only some users changed, the
    times with these, less those with the users that they replace.
    """

    producer: str
    consumers: tuple[str, ...]
    fused: float
    unfused: float
    savings: tuple[float, ...] = ()
    all_consumers: tuple[str, ...] = ()
    dumped: tuple[float, float] | None = None


class Joined(Struct, frozen=True):
    """The event that the kernel of `kept`, called `fusion`, also computes and returns `other`, because both read `source`.

    Without a source, `kept` reads `other`, and the times in microseconds are the reason.
    """

    fusion: str
    kept: str
    other: str
    source: str = ""
    fused: float = 0.0
    unfused: float = 0.0


class KeptApart(Struct, frozen=True):
    """The event that `one` and `other` do not share a kernel, for a `reason`.

    `source` is the value that both read, as in `Joined`.
    """

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
        if isinstance(step, Fused) and step.is_constant:
            continue
        lines += ["fusion_steps {", *(f"  {line}" for line in _step_lines(step)), "}"]
    device, _, _ = to_text_proto(target).partition("\n}\n")
    lines += [
        *device.split("\n"),
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
            consumers = [f'  consumer_names: "{name}"' for name in step.all_consumers or step.consumers]
            fused, unfused = step.dumped or (step.fused, step.unfused)
            times = [f"  us_fused: {_float_text(fused)}", f"  us_unfused: {_float_text(unfused)}"]
            return ["update_priority {", f'  producer_name: "{step.producer}"', *consumers, *times, "}"]


def _float_text(value: float) -> str:
    """Return an f32 as a text proto has it: 6 digits if these suffice, else 9."""
    single = np.float32(value)
    short = f"{single:.6g}"
    return short if np.float32(short) == single else f"{single:.9g}"
