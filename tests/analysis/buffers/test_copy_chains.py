"""Which copies can go: by the order that dependencies imply, and by that of a schedule."""

from __future__ import annotations

import hlo_run
from hlo_run.analysis.buffers.copy_chains import by_dependencies, by_schedule, removable_copies, value_groups
from hlo_run.analysis.buffers.dataflow import analyze_dataflow
from hlo_run.hlo.graph import HloModule

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


def _removable(module: HloModule, names: str = "") -> list[str]:
    entry = module.entry
    named = {instruction.name: instruction for instruction in entry.instructions}
    order = by_schedule([named[name] for name in names.split()]) if names else by_dependencies(entry)
    return [copy.name for copy in removable_copies(analyze_dataflow(module), entry, order)]


def test_a_copy_goes_if_every_reader_comes_before_the_update() -> None:
    module = hlo_run.parse(_UPDATED.replace("SOURCE", "d"))
    assert _removable(module) == ["c"]


def test_a_copy_stays_if_a_reader_has_no_order() -> None:
    assert not _removable(hlo_run.parse(_UPDATED.replace("SOURCE", "p")))


def test_a_schedule_may_give_the_order() -> None:
    module = hlo_run.parse(_UPDATED.replace("SOURCE", "p"))
    assert _removable(module, "p u i c n d t") == ["c"]
    assert not _removable(module, "p u i c d n t")


def test_kept_copies_stay() -> None:
    module = hlo_run.parse(_UPDATED.replace("SOURCE", "d"))
    copies = {i for i in module.entry.instructions if i.opcode == "copy"}
    assert not list(removable_copies(analyze_dataflow(module), module.entry, by_dependencies(module.entry), copies))


def test_groups_join_an_operand_with_its_update_and_a_parameter_with_its_result() -> None:
    donated = "HloModule updated, input_output_alias={ {0}: (0, {}, may-alias) }"
    module = hlo_run.parse(_UPDATED.replace("SOURCE", "d").replace("HloModule updated", donated))
    groups = value_groups(analyze_dataflow(module), module.entry)
    shared = [[value.instruction.name for value in group] for group in groups if len(group) > 1]
    assert shared == [["p", "c", "d"]]
