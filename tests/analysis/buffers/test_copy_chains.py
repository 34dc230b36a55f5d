"""Copies that can go: by the order that dependencies imply, and by the order of a schedule."""

from __future__ import annotations

import pytest

import hlo_run
from hlo_run.analysis.buffers.copy_chains import CopyChains
from hlo_run.analysis.buffers.dataflow import analyze_dataflow
from hlo_run.analysis.buffers.execution_order import ExecutionOrder, Order
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.records import IS_COMPILED

_UPDATED = """
HloModule updated
ENTRY e {
  p = f32[8] parameter(0)
  u = f32[2] parameter(1)
  i = s32[] parameter(2)
  c = f32[8] copy(p)
  d = f32[8] dynamic-update-slice(c, u, i)
  n = f32[8] negate(SOURCE)
  ROOT t = (f32[8], f32[8]) tuple(d, n)
}
"""
_BRANCHES = """
HloModule branches
one { a = f32[4] parameter(0)  n = f32[4] negate(a)  ROOT c = f32[4] copy(n) }
two { ROOT b = f32[4] parameter(0) }
ENTRY e {
  s = pred[] parameter(0)
  p = f32[4] parameter(1)
  x = f32[4] negate(p)
  k = f32[4] copy(x)
  r = f32[4] conditional(s, k, k), true_computation=one, false_computation=two
  ROOT d = f32[4] add(r, OTHER)
}
"""


def _removable(module: HloModule, names: str = "") -> list[str]:
    entry = module.entry
    named = {instruction.name: instruction for instruction in entry.instructions}
    if names:
        module.schedule = {entry: [named[name] for name in names.split()]}
    return [copy.name for copy in CopyChains(analyze_dataflow(module)).removable_copies()]


def test_a_copy_goes_if_every_reader_comes_before_the_update() -> None:
    module = hlo_run.parse(_UPDATED.replace("SOURCE", "d"))
    assert _removable(module) == ["c"]


def test_a_copy_stays_if_a_reader_has_no_order() -> None:
    assert not _removable(hlo_run.parse(_UPDATED.replace("SOURCE", "p")))


def test_a_schedule_may_give_the_order() -> None:
    assert _removable(hlo_run.parse(_UPDATED.replace("SOURCE", "p")), "p u i c n d t") == ["c"]
    assert not _removable(hlo_run.parse(_UPDATED.replace("SOURCE", "p")), "p u i c d n t")


def test_a_branch_may_overwrite_an_operand_that_is_not_read_later() -> None:
    assert _removable(hlo_run.parse(_BRANCHES.replace("OTHER", "r"))) == ["c", "k"]
    assert _removable(hlo_run.parse(_BRANCHES.replace("OTHER", "x"))) == ["c"]


def _switch(count: int) -> str:
    branches = "".join(
        f"b{n} {{ x = f32[4] parameter(0)  m = f32[4] add(x, x)  i{n} = f32[4] negate(m)  ROOT c{n} = f32[4] copy(i{n}) }}\n"
        for n in range(count)
    )
    operands, names = ", ".join(["x"] * count), ", ".join(f"b{n}" for n in range(count))
    return (
        f"HloModule switch\n{branches}ENTRY e {{\n  s = s32[] parameter(0)\n  x = f32[4] parameter(1)\n"
        f"  ROOT r = f32[4] conditional(s, {operands}), branch_computations={{{names}}}\n}}"
    )


@pytest.mark.skipif(IS_COMPILED, reason="compiled code calls the function that the test counts without looking it up")
def test_values_of_other_branches_are_not_compared_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    compare, compared = ExecutionOrder.compare, [0]

    def counting(order: ExecutionOrder, one: HloInstruction, two: HloInstruction) -> Order:
        compared[0] += 1
        return compare(order, one, two)

    monkeypatch.setattr(ExecutionOrder, "compare", counting)
    counts: list[int] = []
    for count in (16, 64):
        compared[0] = 0
        assert _removable(hlo_run.parse(_switch(count))) == [f"c{n}" for n in range(count)]
        counts.append(compared[0])
    assert counts[1] < 8 * counts[0], "four times the branches, and a sort"
