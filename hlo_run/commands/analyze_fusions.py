"""`--stage=fusion-analysis`: prints the table of fusions for each target of `--target`."""

from __future__ import annotations

from dataclasses import replace

from hlo_run.commands.stage import print_stage
from hlo_run.commands.task import Task
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.observer import StopAtStage


def analyze_fusions(task: Task, module: HloModule) -> None:
    """Print the table for every target of `--target`; raises errors of the HloRunError family."""
    for name in task.options.target.split(","):
        task.options = replace(task.options, target=name.strip())
        try:
            print_stage(task, module)
        except StopAtStage:
            continue
