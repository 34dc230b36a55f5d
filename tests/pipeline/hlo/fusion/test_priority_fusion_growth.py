"""What a step of priority fusion costs must not grow with the fusion: nothing walks through it where there is nothing to find."""

from __future__ import annotations

import pytest

import hlo_run
from hlo_run.analysis import fusion_launch
from hlo_run.hlo.graph import HloModule
from hlo_run.pipeline.fuel import Fuel
from hlo_run.pipeline.hlo.fusion.priority_fusion import priority_fusion_steps
from hlo_run.target import preset


def _chain(last: str) -> HloModule:
    lines = [f"  x{i} = f32[64,64] {('sine', 'negate')[i % 2]}(x{i - 1})" for i in range(1, 30)]
    sum_ = "sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }"
    body = "\n".join(["ENTRY e {", "  x0 = f32[64,64] parameter(0)", "  z = f32[] constant(0)", *lines, f"  {last}", "}"])
    return hlo_run.parse(f"HloModule m\n{sum_}\n{body}")


def _searches(module: HloModule, monkeypatch: pytest.MonkeyPatch) -> int:
    """Fuse, and return how often a hero was looked for."""
    found = 0
    original = fusion_launch.find_hero

    def find_hero(*arguments: object) -> object:
        nonlocal found
        found += 1
        return original(*arguments)  # pyright: ignore[reportArgumentType, reportUnknownVariableType]

    monkeypatch.setattr(fusion_launch, "find_hero", find_hero)
    priority_fusion_steps(module, preset("h100"), Fuel())
    return found


def test_elementwise_chains_have_no_hero_to_look_for(monkeypatch: pytest.MonkeyPatch) -> None:
    module = _chain("ROOT last = f32[64,64] tanh(x29)")
    assert _searches(module, monkeypatch) == 0
    (fusion,) = module.instructions_of("fusion")
    assert fusion.attrs["kind"] == "kLoop"
    assert sum(i.opcode != "parameter" for i in fusion.fused_computation.instructions) == 30


def test_a_reduce_is_still_found(monkeypatch: pytest.MonkeyPatch) -> None:
    module = _chain("ROOT last = f32[64] reduce(x29, z), dimensions={1}, to_apply=sum")
    assert _searches(module, monkeypatch) > 0
    kinds = {fusion.fused_computation.root.opcode: fusion.attrs["kind"] for fusion in module.instructions_of("fusion")}
    assert kinds["reduce"] == "kInput"
