"""The pass tables: XLA's order, unique names, and the constraints written beside the tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast

import pytest

from hlo_run import parse
from hlo_run.errors import InternalError, UsageError
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.module_attributes import HeaderAttributes, HeaderValue
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import HloPass, PassContext
from hlo_run.pass_support.observer import Observer, Step
from hlo_run.pipeline.kernel_table import KERNEL_PIPELINE, KernelContext
from hlo_run.pipeline.row_names import check_row_names
from hlo_run.pipeline.runner import run_hlo_groups
from hlo_run.pipeline.table import BACKEND_PIPELINE, ORDER, PIPELINE, HloGroup, HloRow
from hlo_run.pipeline.table_rows import base_name, numbered
from hlo_run.records import IS_COMPILED
from hlo_run.target import DEFAULT_TARGET, PRESETS, preset

DATA = Path(__file__).resolve().parent.parent / "data" / "xla_pipelines.txt"
# Rows whose work XLA does within another pass or where no pass runs; that came to XLA after the recording; that XLA runs where it
# has a device; that XLA runs in place of another, `sharding-propagation`; for modules that XLA refuses.
OURS = {
    "general-reduction-decomposer",
    *("schedule", "lu_expander"),
    *("nested-fusion-inliner", "buffer-remover", "estimate-cub-sort-scratch-size", "shardy-xla"),
}


def test_rows_keep_the_order_of_xla() -> None:
    recorded = [tuple(line.split("\t")) for line in DATA.read_text(encoding="utf-8").splitlines()]
    before_scheduling = PIPELINE[: len(PIPELINE) - len(BACKEND_PIPELINE)]
    usual = [PassContext(target, Options()) for target in PRESETS.values()]
    # XLA's dumps lack the rows that only a flag switches on.
    on = [(names, row) for group in before_scheduling for names, row in group.all_rows() if any(map(row.when, usual))]
    rows = [(names[-1], row.pass_name) for names, row in on]
    place = 0
    for row in (row for row in rows if row[1] not in OURS):
        assert row in recorded[place:], f"{row} is not in XLA's pipelines after {recorded[max(place - 1, 0)]}"
        place = recorded.index(row, place) + 1


def test_names_are_unique_and_order_holds() -> None:
    hlo = [row.name for group in PIPELINE for _, row in group.all_rows()]
    kernel = [row.name for row in KERNEL_PIPELINE]
    for names in (hlo, kernel):
        assert len(set(names)) == len(names), "row names are unique in a table"
    names = [*hlo, *kernel]
    assert not [(first, later, why) for first, later, why in ORDER if names.index(first) >= names.index(later)]


class _Empty(HeaderAttributes):
    """A stub of a module without instructions. Records the opcodes that it is asked for."""

    version = 0

    def __init__(self) -> None:
        self.attrs: dict[str, HeaderValue] = {}
        self.asked: set[str] = set()

    def instructions_of(self, *opcodes: str) -> list[HloInstruction]:
        self.asked.update(opcodes)
        return []

    in_post_order = instructions_of


@pytest.mark.skipif(IS_COMPILED, reason="compiled code takes no stub for a module")
def test_rows_for_opcodes_look_at_these_instructions_only() -> None:
    context = PassContext(preset(DEFAULT_TARGET), Options())
    rows = [row for group in PIPELINE for _, row in group.all_rows() if row.for_opcodes]
    assert len(rows) > 80
    for row in rows:
        empty = _Empty()
        row.make(context).apply(context, cast("HloModule", empty))
        assert empty.asked == set(row.for_opcodes), row.name


def test_every_pass_is_found_by_its_module() -> None:
    context = KernelContext(preset(DEFAULT_TARGET), Options())
    hlo = [row.make(context).name for group in PIPELINE for _, row in group.all_rows()]
    kernel = {row.name: row.make(context).name for row in KERNEL_PIPELINE}
    assert len(hlo) > 150
    assert {base_name(name) for name in kernel} == set(kernel.values())


def test_a_pass_without_its_opcodes_is_not_made() -> None:
    def refuse(context: PassContext) -> HloPass:
        raise AssertionError("nothing to do")

    rows = (HloRow("no-dots", refuse, for_opcodes=("dot",)), HloRow("dots", refuse, for_opcodes=("dot", "add")))
    names = _Names()
    context = PassContext(preset(DEFAULT_TARGET), Options(), observers=(names,))
    module = parse("HloModule m\nENTRY e { p = f32[2] parameter(0)\n ROOT a = f32[2] add(p, p) }")
    run_hlo_groups((HloGroup("g", rows[:1]),), context, module)
    assert names.seen == ["g: pipeline-start before no-dots", "g: no-dots before pipeline-end"]
    with pytest.raises(InternalError, match="row 'dots'"):
        run_hlo_groups((HloGroup("g", rows),), context, module)


class _Names(Observer):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def after(self, step: Step) -> None:
        self.seen.append(f"{step.pipeline}: {step.row} before {step.next_row}{' *' if step.changed else ''}")


@dataclass(frozen=True)
class _Shorten:
    """Takes one off a list; an edit as long as there is one."""

    name: ClassVar[str] = "shorten"

    left: list[int]

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        del ctx
        if self.left:
            self.left.pop()
            module.version += 1


def test_groups_within_groups_repeat_until_nothing_changes() -> None:
    left = [1, 1]
    row = HloRow("shorten", lambda c: _Shorten(left))
    groups = numbered((HloGroup("outer", (row, HloGroup("inner-2", (row,), repeat=5), HloGroup("empty", ()))),))
    names = _Names()
    module = parse("HloModule m ENTRY e { ROOT p = f32[2] parameter(0) }")
    run_hlo_groups(groups, PassContext(preset(DEFAULT_TARGET), Options(), (names,)), module)
    assert names.seen == [
        "outer: pipeline-start before shorten",
        "outer: shorten before inner-2 *",
        "inner-2: pipeline-start before shorten",
        "inner-2: shorten-2 before pipeline-end *",
        "inner-2: pipeline-start before shorten",
        "inner-2: shorten-2 before pipeline-end",
        "outer: inner-2 before pipeline-end *",
    ]


def test_a_pipeline_before_a_name_chooses_the_table() -> None:
    row = HloRow("cse-2", lambda c: _Shorten([]), number=2)
    for disabled, runs in (
        ("cse", (False, False)),
        ("simplification/cse", (True, False)),
        ("fusion/cse-2", (False, True)),
        ("simplification", (True, False)),
    ):
        ctx = PassContext(preset(DEFAULT_TARGET), Options(xla_disable_hlo_passes=disabled))
        assert (row.runs(ctx, ("fusion",)), row.runs(ctx, ("simplification",))) == runs
    assert check_row_names(Options(xla_disable_hlo_passes="simplification/dce")) == ()
    assert check_row_names(Options(disable_kernel_passes="kernel/cse,kernel")) == ()
    (warning,) = check_row_names(Options(xla_disable_hlo_passes="fusion/inliner,cse"))
    assert warning.startswith("--xla_disable_hlo_passes: no HLO row is called 'fusion/inliner'; did you mean")
    (warning,) = check_row_names(Options(xla_enable_hlo_passes_only="rematerialization"))
    assert warning.startswith("--xla_enable_hlo_passes_only: no HLO row is called 'rematerialization'")
    with pytest.raises(UsageError, match="is required"):
        check_row_names(Options(disable_kernel_passes="kernel/lower-tensors"))
