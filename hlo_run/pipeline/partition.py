"""Divides a module between its partitions, by the rows for this and no others."""

from __future__ import annotations

from hlo_run.hlo.graph import HloModule
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.hlo_rows import BEFORE_OPTIMIZATION
from hlo_run.pipeline.runner import run_hlo_groups

_GROUPS = tuple(group for group in BEFORE_OPTIMIZATION if group.name in ("pre-spmd-partitioner", "spmd-partitioner"))


def partition(ctx: PassContext, module: HloModule) -> None:
    """Run the rows up to `spmd-partitioning` and the rows that belong to it, in place; raises errors of the rows.

    Afterwards `divided` of the module says how whole values are divided. It stays None if no sharding divides anything.
    """
    # A later row settles layouts.
    run_hlo_groups(_GROUPS, ctx, module, keeps_layouts=False)
