"""The cost of a step of priority fusion does not grow with the size of the fusion."""

from __future__ import annotations

from typing import Any

import pytest

import hlo_run
from hlo_run.analysis.cost import node_cost
from hlo_run.analysis.cost.run_time_model import RunTimeModel
from hlo_run.analysis.tiling import node_heroes
from hlo_run.analysis.tiling.fusion_launch import KernelPlanner, PlannedKernel
from hlo_run.analysis.tiling.node_heroes import NodeHeroes
from hlo_run.hlo.fusion_graph import Node
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.fusion.priority_fusion import priority_fusion_steps
from hlo_run.pass_support.fuel import Fuel
from hlo_run.records import IS_COMPILED
from hlo_run.target import preset

pytestmark = pytest.mark.skipif(IS_COMPILED, reason="compiled code calls the functions that the tests count directly")


def _chain(last: str) -> HloModule:
    lines = [f"  x{i} = f32[64,64] {('sine', 'negate')[i % 2]}(x{i - 1})" for i in range(1, 30)]
    sum_ = "sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }"
    body = "\n".join(["ENTRY e {", "  x0 = f32[64,64] parameter(0)", "  z = f32[] constant(0)", *lines, f"  {last}", "}"])
    return hlo_run.parse(f"HloModule m\n{sum_}\n{body}")


def _searches(module: HloModule, monkeypatch: pytest.MonkeyPatch) -> int:
    """Fuse, and return how often a hero was looked for."""
    return _calls(module, monkeypatch, NodeHeroes, "find")


def _calls(module: HloModule, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> int:
    """Fuse, and return how often a function was called."""
    found = 0
    original = getattr(owner, name)

    def counted(*arguments: object, **named: object) -> object:
        nonlocal found
        found += 1
        return original(*arguments, **named)

    monkeypatch.setattr(owner, name, counted)
    priority_fusion_steps(module, preset("h100"), Fuel())
    monkeypatch.undo()
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


def _sums(size: int) -> HloModule:
    """Sums of ever more of the `size` arrays, of which one kernel is made in the end; a concatenate is in it."""
    lines = [f"  p{i} = f32[64,64] parameter({i})" for i in range(size)]
    lines += [
        f"  t{i} = f32[64,64] tanh(p{i})\n  sum{i} = f32[64,64] add({f'sum{i - 1}' if i else 'p0'}, t{i})" for i in range(size)
    ]
    lines += ["  c = f32[64,128] concatenate(sum0, p0), dimensions={1}", "  h = f32[64,64] slice(c), slice={[0:64], [64:128]}"]
    lines += [f"  ROOT r = f32[64,64] multiply(h, sum{size - 1})"]
    return hlo_run.parse("\n".join(["HloModule m", "ENTRY e {", *lines, "}"]))


@pytest.mark.parametrize(("owner", "name"), [(node_heroes, "is_intermediate"), (node_cost, "_total")])
def test_a_question_about_a_pair_does_not_walk_through_both(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
    steps = [_calls(_sums(size), monkeypatch, owner, name) for size in (20, 80)]
    questions = [_calls(_sums(size), monkeypatch, RunTimeModel, "together") for size in (20, 80)]
    assert 0 < steps[1] / questions[1] < 1.5 * steps[0] / questions[0]


def test_producers_of_a_fusion_of_many_operands_do_not_each_look_at_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 40
    parameters = [f"  q{i} = f32[64,64] parameter({i})" for i in range(size)]
    sums = [f"  a{i} = f32[64,64] add({f'a{i - 1}' if i > 1 else 'q0'}, q{i})" for i in range(1, size)]
    body = "\n".join(["body {", *parameters, *sums[:-1], sums[-1].replace("  a", "  ROOT a", 1), "}"])
    dots = [f"  d{i} = f32[64,64] dot(p, p), lhs_contracting_dims={{{i % 2}}}, rhs_contracting_dims={{0}}" for i in range(size)]
    tanhs = [f"  t{i} = f32[64,64] tanh(d{i})" for i in range(size)]
    root = f"  ROOT r = f32[64,64] fusion({', '.join(f't{i}' for i in range(size))}), kind=kLoop, calls=body"
    module = hlo_run.parse(
        "\n".join(["HloModule m", body, "ENTRY e {", "  p = f32[64,64] parameter(0)", *dots, *tanhs, root, "}"])
    )
    questions = _calls(module.clone(), monkeypatch, RunTimeModel, "together")
    assert _calls(module, monkeypatch, RunTimeModel, "_read") < 10 * questions


def test_what_is_kept_of_a_pair_is_what_a_fresh_look_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, hosted = 0, 0
    read_more, plan = RunTimeModel._read_more, KernelPlanner.plan  # pyright: ignore[reportPrivateUsage]

    def checked_read(self: RunTimeModel, *question: Any) -> int:
        nonlocal kept
        producer, consumer, kernel, is_coalesced, _, _ = question
        answer = read_more(self, *question)
        fresh = self._guest_ticks(producer, consumer, kernel.blocks, is_coalesced)  # pyright: ignore[reportPrivateUsage]
        assert answer == fresh
        kept += 1
        return answer

    def checked_plan(self: KernelPlanner, producer: Node | None, consumer: Node) -> PlannedKernel:
        nonlocal hosted
        answer = plan(self, producer, consumer)
        fresh = KernelPlanner(self._facts, self._target)  # pyright: ignore[reportPrivateUsage]
        monkeypatch.setattr(fresh, "_kernels_as_host", _no_kernels)
        found = plan(fresh, producer, consumer)
        assert (answer.kind, answer.launch) == (found.kind, found.launch)
        hosted += producer is not None
        return answer

    monkeypatch.setattr(RunTimeModel, "_read_more", checked_read)
    monkeypatch.setattr(KernelPlanner, "plan", checked_plan)
    for module in (_sums(12), _chain("ROOT last = f32[64] reduce(x29, z), dimensions={1}, to_apply=sum"), _updates(12)):
        priority_fusion_steps(module, preset("h100"), Fuel())
    assert kept > 300
    assert hosted > 300


def _no_kernels(consumer: Node) -> tuple[None, None]:
    del consumer
    return None, None


def _updates(size: int) -> HloModule:
    """Updates of an array, with indices that are running sums: both kernels of a pair read many of them."""
    lines = ["  p = f32[16,64] parameter(0)", "  j = s32[] parameter(1)", "  z = s32[] constant(0)"]
    value, index = "p", "j"
    for number in range(size):
        lines.append(f"  i{number} = s32[] add(j, {index})")
        lines.append(f"  row{number} = f32[1,64] dynamic-slice({value}, i{number}, z), dynamic_slice_sizes={{1,64}}")
        lines.append(f"  d{number} = f32[16,64] dynamic-update-slice({value}, row{number}, z, z)")
        value, index = f"d{number}", f"i{number}"
    lines.append(f"  ROOT r = f32[16,64] negate({value})")
    return hlo_run.parse("\n".join(["HloModule m", "ENTRY e {", *lines, "}"]))
