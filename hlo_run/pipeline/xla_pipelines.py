"""The passes of XLA:GPU that run with given flags, for the names of dumps. `xla_pipelines.txt` lists them all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hlo_run.hlo.graph import HloModule
from hlo_run.options import CompileOptions
from hlo_run.options.compile import RowSelection
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.observers.xla_order import Pipeline, XlaOrder, read_pipelines
from hlo_run.pipeline.table import PIPELINE, HloRow
from hlo_run.pipeline.table_rows import selects, spelling
from hlo_run.records import replace
from hlo_run.sharding.analysis.shardy_attributes import has_shardy_attributes
from hlo_run.sharding.analysis.whole import is_for_partitioner

# The pipeline of XLA's hlo-opt for the passes that it is asked to run.
PASSES_ALONE = "transforms_pipeline"
_LIST = Path(__file__).with_suffix(".txt")
# The first pipeline of a module that comes with a schedule, and the one that such a module does without.
_FIRST_SCHEDULED = "pre-scheduling-passes"
# What XLA adds to a pipeline if a flag asks for the unrolling of loops.
_UNROLLING_PIPELINE = "post-fusion optimization"
_UNROLLING = ("simplify-while-loops", "loop-double-buffer-transformer", "tuple-simplifier", "dce", "scalar-constant-sinker")
# Rows that XLA runs only if a flag says so.
_ON_BY_FLAG = frozenset(("collective-permute-cse", "recognize-reduce-window", "scatter_determinism_expander"))
# Without Triton these two are disabled by name, so that they are in their pipelines and do not run.
_OF_TRITON = ("triton-softmax-rewriter", "fusion-block-level-rewriter")
# Passes that count their calls in the process, and the calls that compile a module.
_CALL = re.compile(r"(?<=^apply-xla-transforms-)\d+$")
_CALLS_OF_A_MODULE = 2
_SCHEDULER = "latency-hiding-scheduler"
# The pipelines that divide a module, and the one in their place for a module that is not divided.
_PARTITIONER = ("spmd-partitioner", "spmd-simplify")
_SHARDING_REMOVAL = "sharding-removal"
# What one of the two propagations of shardings needs, and the other does not.
_SHARDY = "shardy-xla"
_GSPMD = ("hlo-constant-splitter", "sharding-propagation", "dce")


def xla_pipelines() -> tuple[Pipeline, ...]:
    """Return all pipelines of XLA:GPU in their order."""
    return read_pipelines(_LIST.read_text(encoding="utf-8"))


def order_of_passes(names: Sequence[str]) -> XlaOrder:
    """Return the order of passes that hlo-opt runs alone, in the pipeline that XLA's tool puts them in."""
    return XlaOrder((Pipeline(PASSES_ALONE, tuple(names)),))


def xla_order(ctx: PassContext, module: HloModule, number: int = 0) -> XlaOrder:
    """Return the order of XLA's passes for a compilation, without passes that its flags, its target or a schedule leave out.

    Passes that flags disable by name are there and do not run. `number` is the place of the module among those of the command,
    which passes that count their calls have in their names.
    """
    usual = replace(ctx, options=CompileOptions())

    def off_by_flag(row: HloRow) -> bool:
        return not row.when(ctx) and (row.when(usual) or row.name in _ON_BY_FLAG)

    left_out = RowSelection(disabled=ctx.options.rows_off, required_only=ctx.rows.required_only)
    exists: dict[tuple[str, str], bool] = {}
    runs: dict[tuple[str, str], bool] = {}
    for group in PIPELINE:
        for names, row in group.all_rows():
            key = _key(names[-1], row.pass_name)
            is_there = not off_by_flag(row) and selects(left_out, row.name, names)
            exists[key] = exists.get(key, False) or is_there
            runs[key] = runs.get(key, False) or (is_there and selects(ctx.rows, row.name, names))

    is_divided = is_for_partitioner(module)
    by_shardy = ctx.options.use_shardy_partitioner and has_shardy_attributes(module)

    def is_off(pipeline: str, name: str) -> bool:
        if (by_shardy and pipeline in _PARTITIONER and name in _GSPMD) or (not by_shardy and name == _SHARDY):
            return True
        key = _key(pipeline, name)
        return not exists[key] if key in exists else not selects(left_out, name, (pipeline,))

    def is_skipped(pipeline: str, name: str) -> bool:
        if not pipeline:  # XLA's pipelines do not run inside of another one
            return False
        key = _key(pipeline, name)
        without_triton = name in _OF_TRITON and not ctx.options.block_level_fusions
        return without_triton or (not runs[key] if key in runs else not selects(ctx.rows, name, (pipeline,)))

    found = tuple(p for p in xla_pipelines() if p.name != (_SHARDING_REMOVAL if is_divided else _PARTITIONER[0]))
    if ctx.options.loop_unrolling:
        longer = (replace(p, items=(*p.items, *_UNROLLING)) if p.name == _UNROLLING_PIPELINE else p for p in found)
        found = tuple(longer)
    if module.schedule is not None:
        names = [pipeline.name for pipeline in found]
        found = tuple(pipeline for pipeline in found[names.index(_FIRST_SCHEDULED) :] if pipeline.name != _SCHEDULER)
    return XlaOrder(tuple(_counted(pipeline.without(is_off), number) for pipeline in found), is_skipped)


def _counted(pipeline: Pipeline, number: int) -> Pipeline:
    """Return a pipeline of the module of this number, with the numbers of calls since the first module."""
    count = _CALLS_OF_A_MODULE * number
    items = tuple(
        _counted(item, number) if isinstance(item, Pipeline) else _CALL.sub(lambda found: str(int(found[0]) + count), item)
        for item in pipeline.items
    )
    return replace(pipeline, items=items)


def _key(pipeline: str, name: str) -> tuple[str, str]:
    return spelling(pipeline).replace(" ", "-"), spelling(name)
