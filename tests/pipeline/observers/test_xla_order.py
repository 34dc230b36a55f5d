"""The places of our rows among XLA's passes, for the names of dumps."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hlo_run.ops.parse import parse
from hlo_run.options import CompileOptions
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pass_support.observer import PIPELINE_START, Level, Step
from hlo_run.pipeline.observers.xla_order import PassDump, XlaOrder, read_pipelines
from hlo_run.pipeline.table import PIPELINE
from hlo_run.pipeline.xla_pipelines import xla_order, xla_pipelines
from hlo_run.target import preset

TEXT = """# a comment
first:
  theirs
  ours
inner and outer:
  one
  inner:
    a
    b
  two
empty:
last:
  z
"""
MODULE = parse("HloModule m\nENTRY e { ROOT p = f32[] parameter(0) }")


def _step(pipeline: str, row: str, changed: bool = False) -> Step:
    return Step(Level.HLO, pipeline, row, text=str, changed=changed)


def _start(order: XlaOrder, pipeline: str) -> list[str]:
    return _names(order.after_step(_step(pipeline, PIPELINE_START)))


def _row(order: XlaOrder, pipeline: str, row: str, changed: bool = False) -> tuple[list[str], list[str]]:
    step = _step(pipeline, row, changed)
    return _names(order.before_row(step)), _names(order.after_step(step))


def _names(dumps: Iterable[PassDump]) -> list[str]:
    places = ((dump, f"{dump.pipeline}: {dump.after} > {dump.before}") for dump in dumps)
    return [f"{place}{' skipped' * dump.is_skipped}{' *' * dump.changed}" for dump, place in places]


def test_passes_that_only_xla_has_are_passed_by() -> None:
    order = XlaOrder(read_pipelines(TEXT))
    assert _start(order, "first") == ["first: pipeline-start > theirs"]
    before, after = _row(order, "first", "ours", changed=True)
    assert before == ["first: theirs > ours"]
    assert after == ["first: ours > pipeline-end *"]
    assert _start(order, "last") == [
        "inner and outer: pipeline-start > one",
        "inner and outer: one > inner",
        "inner: pipeline-start > a",
        "inner: a > b",
        "inner: b > pipeline-end",
        "inner and outer: inner > two",
        "inner and outer: two > pipeline-end",
        "empty: pipeline-start > pipeline-end",
        "last: pipeline-start > z",
    ]
    assert _names(order.finish()) == ["last: z > pipeline-end"]


def test_a_repeated_pipeline_starts_again() -> None:
    order = XlaOrder(read_pipelines(TEXT))
    _start(order, "inner_and_outer")
    assert _start(order, "inner") == ["inner and outer: one > inner", "inner: pipeline-start > a"]
    assert _row(order, "inner", "a", changed=True)[1] == ["inner: a > b *"]
    assert _start(order, "inner") == ["inner: b > pipeline-end", "inner: pipeline-start > a"]
    group = _step("inner_and_outer", "inner", changed=True)
    assert _names(order.after_step(group)) == [
        "inner: a > b",
        "inner: b > pipeline-end",
        "inner and outer: inner > two *",
    ]
    assert _start(order, "last")[0] == "inner and outer: two > pipeline-end"


def test_a_pass_runs_a_pipeline() -> None:
    order = XlaOrder(read_pipelines("outer:\n  one\n  two/inside:\n    a\n  three\n"))
    assert _start(order, "outer") == ["outer: pipeline-start > one"]
    assert _names(order.before_row(_step("outer", "two"))) == ["outer: one > two"]
    assert _start(order, "inside") == ["inside: pipeline-start > a"]
    assert _names(order.after_step(_step("inside", "a", changed=True))) == ["inside: a > pipeline-end *"]
    assert _names(order.after_step(_step("outer", "two", changed=True))) == ["outer: two > three *"]


def _of_partitions(text: str, shardy: bool = True) -> list[str]:
    module = parse(f"HloModule m, num_partitions=2\nENTRY e {{ {text} }}")
    return _names(xla_order(PassContext(preset("h100"), CompileOptions(use_shardy_partitioner=shardy)), module).finish())


def test_a_module_of_partitions_is_divided_once() -> None:
    divided = _of_partitions("ROOT p = f32[] parameter(0)")
    assert "spmd-partitioner: sharding-propagation > spmd-partitioning" in divided
    assert not [name for name in divided if name.startswith("sharding-removal") or "shardy-xla" in name]
    again = _of_partitions("ROOT p = u32[] partition-id()")
    assert "sharding-removal: pipeline-start > sharding-remover" in again
    assert not [name for name in again if name.startswith("spmd")]
    shardy = _of_partitions('ROOT p = f32[] parameter(0), frontend_attributes={xla.sdy.sharding="x"}')
    assert "spmd-partitioner: spmd-simplify > shardy-xla" in shardy
    assert "spmd-partitioner: shardy-xla > spmd-partitioning" in shardy


def test_rows_that_xla_lacks_are_dumped_if_they_change_something() -> None:
    order = XlaOrder(read_pipelines(TEXT))
    _start(order, "first")
    assert _row(order, "first", "mine") == ([], [])
    assert _row(order, "first", "mine", changed=True) == ([], ["first: mine > theirs *"])


def test_the_list_has_every_pipeline_of_the_table() -> None:
    known: set[str] = set()
    pending = list(xla_pipelines())
    while pending:
        pipeline = pending.pop()
        known.add(pipeline.name.replace("_", " "))
        pending += [item for item in pipeline.items if not isinstance(item, str)]
    ours = {group.replace("_", " ") for outer in PIPELINE for names, _ in outer.all_rows() for group in names}
    assert ours - known == {"p2p-schedule-preparation"}, "runs for several devices only"


def _all(options: CompileOptions) -> list[str]:
    return _names(xla_order(PassContext(preset("h100"), options), MODULE).finish())


def test_flags_leave_out_passes() -> None:
    plain = _all(CompileOptions())
    assert "optimization: rng-expander > rng-bit-generator-expander" in plain
    without = _all(CompileOptions(xla_disable_hlo_passes="rng-bit-generator-expander"))
    # A disabled pass keeps its place, and is not run.
    assert "optimization: rng-expander > rng-bit-generator-expander" in without
    assert "optimization: rng-bit-generator-expander > permutation_sort_simplifier skipped" in without
    assert "hlo normalization: triton-softmax-rewriter > reduction-dimension-grouper skipped" in plain
    blocks = _all(CompileOptions(block_level_fusions=True))
    assert "hlo normalization: triton-softmax-rewriter > reduction-dimension-grouper" in blocks
    exact = _all(CompileOptions(xla_allow_excess_precision=False))
    assert len([name for name in plain if ": simplify-fp-conversions" in name]) == 3
    assert not [name for name in exact if ": simplify-fp-conversions" in name]
    nothing = _all(CompileOptions(xla_disable_all_hlo_passes=True))
    assert nothing[0] == "annotate-host-compute: pipeline-start > pipeline-end"
    assert all(name.endswith("pipeline-start > pipeline-end") for name in nothing)


def test_a_module_with_a_schedule_skips_the_pipelines_before_it() -> None:
    scheduled = parse("HloModule m, is_scheduled=true\nENTRY e { ROOT p = f32[] parameter(0) }")
    names = _names(xla_order(PassContext(preset("h100"), CompileOptions()), scheduled).finish())
    assert names[0] == "pre-scheduling-passes: pipeline-start > fusion-wrapper"
    assert not [name for name in names if name.startswith("latency-hiding-scheduler")]


def test_passes_that_count_their_calls() -> None:
    ctx = PassContext(preset("h100"), CompileOptions())
    names = [_names(xla_order(ctx, MODULE, number).finish()) for number in (0, 1)]
    counts = [[int(found) for name in part for found in re.findall(r": apply-xla-transforms-(\d+)", name)] for part in names]
    assert counts == [[0, 1], [2, 3]]
