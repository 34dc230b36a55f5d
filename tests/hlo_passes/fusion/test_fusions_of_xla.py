"""The fusion passes make the same fusions as XLA:GPU, and predict the same times."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import hlo_run
from hlo_run.analysis.fusion.fusion_contents import fusion_contents
from hlo_run.analysis.fusion.fusion_process import Fused, FusionStep, Refused, Weighed
from hlo_run.hlo_passes.fusion.multi_output_fusion import MultiOutputFusion
from hlo_run.hlo_passes.fusion.priority_fusion import PriorityFusion, priority_fusion_steps
from hlo_run.options import Options
from hlo_run.pass_support.fuel import Fuel
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.target import preset

RECORDS = sorted(Path(__file__, "../../../data/xla_fusions").resolve().glob("*.json"))
# Microseconds that XLA prints to six digits; a quarter of a nanosecond is its unit.
_PRECISION = 0.0003


def _record(file: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return record


def _context() -> PassContext:
    return PassContext(preset("h100"), Options())


@pytest.mark.parametrize("file", RECORDS, ids=lambda file: file.stem)
def test_priority_fusion_fuses_what_xla_fuses(file: Path) -> None:
    record = _record(file)["priority-fusion"]
    module = hlo_run.parse(record["before"])
    PriorityFusion().apply(_context(), module)
    assert fusion_contents(module) == Counter(record["fusions"])


@pytest.mark.parametrize("file", RECORDS, ids=lambda file: file.stem)
def test_multi_output_fusion_fuses_what_xla_fuses(file: Path) -> None:
    record = _record(file)["multi_output_fusion"]
    module = hlo_run.parse(record["before"])
    MultiOutputFusion().apply(_context(), module)
    assert fusion_contents(module) == Counter(record["fusions"])


def test_a_fusion_that_takes_a_producer_keeps_its_body_and_its_place() -> None:
    module = hlo_run.parse("""
        one { q = f32[64] parameter(0) ROOT n = f32[64] negate(q) }
        two { q = f32[64] parameter(0) ROOT n = f32[64] abs(q) }
        ENTRY e {
          p = f32[64] parameter(0)
          f = f32[64] fusion(p), kind=kLoop, calls=one
          g = f32[64] fusion(f), kind=kLoop, calls=two
          ROOT t = (f32[64], f32[64]) tuple(f, g)
        }""")
    bodies = list(module.computations)
    places = [module.call_order.place(body) for body in bodies]
    MultiOutputFusion().apply(_context(), module)
    left = [(body, module.call_order.place(body)) for body in module.computations]
    assert len(left) == 2
    assert set(left) < set(zip(bodies, places, strict=True))


@pytest.mark.parametrize("file", RECORDS, ids=lambda file: file.stem)
def test_producers_are_weighed_as_in_xla(file: Path) -> None:
    record = _record(file)
    module = hlo_run.parse(record["priority-fusion"]["before"])
    found = _first_steps(priority_fusion_steps(module, preset("h100"), Fuel()))
    for producer, (fused, unfused) in record["weighed"].items():
        step = found[producer]
        assert isinstance(step, Weighed), f"{producer}: {step}"
        assert (step.fused, step.unfused) == pytest.approx((fused, unfused), abs=_PRECISION, rel=1e-5), producer
    for producer, reason in record["refused"].items():
        step = found.get(producer)
        # Producers that can never be fused are not judged.
        assert isinstance(step, Refused) or (step is None and reason == "the producer is not fusible"), f"{producer}: {step}"
        assert step is None or step.reason == reason, producer


def _first_steps(steps: list[FusionStep]) -> dict[str, FusionStep]:
    found: dict[str, FusionStep] = {}
    for step in steps:
        if not isinstance(step, Fused):
            found.setdefault(step.producer, step)
    return found
