"""`--stage=NAME`: prints one stage of a compilation and stops there."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from hlo_run.analysis.cost.side_by_side import make_side
from hlo_run.artifact import Executable, every_thunk
from hlo_run.commands.compilation import compiling
from hlo_run.commands.task import Task
from hlo_run.hlo.graph import HloModule
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pass_support.observer import FUSION_ANALYSIS, Observer, StopAtStage
from hlo_run.pipeline.observers.stage import StageObserver
from hlo_run.pipeline.stage_cache import StageTexts
from hlo_run.records import replace


def print_stage(task: Task, module: HloModule) -> None:
    """Print the stage of the flags. Raises StopAtStage once it is printed, and errors of the HloRunError family.

    The table of fusions is printed for every target of `--target`.
    """
    if task.options.stage != FUSION_ANALYSIS:
        _print_for_target(task, module)
        return
    for name in task.options.target.split(","):
        task.options = dataclasses.replace(task.options, target=name.strip())
        with suppress(StopAtStage):
            _print_for_target(task, module)


def _print_for_target(task: Task, module: HloModule) -> None:
    with compiling(task, module) as (ctx, working):
        texts = StageTexts.open(ctx, working) if task.options.output_format == "hlo" else None
        known = texts.get() if texts is not None else None
        if known is not None:
            for text in known:
                task.stage_output.show(text)
            raise StopAtStage
        executable = _compile(ctx, working, task, texts)
    task.console.err(f"nothing to print: {_reason(executable, module.name, task.options.stage)}")


def _reason(executable: Executable, name: str, stage: str) -> str:
    """Return why a whole compilation has not come to a stage."""
    if executable.kernels:
        return f"'{stage}' did not run for {name}"
    kinds = Counter(thunk.kind for thunk in every_thunk(executable.thunks))
    side = make_side(kinds.elements(), 0, ())
    work = " and ".join(what for what, count in (("library calls", side.library_calls), ("copies", side.copies)) if count)
    thunks = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    return f"{name} has no kernel" + (f"; all of it is {work or 'control'}: {thunks}" if thunks else "; nothing is computed")


def _compile(ctx: PassContext, working: HloModule, task: Task, texts: StageTexts | None) -> Executable:
    """Compile until the stage has been printed, and keep its text in the cache. Returns if the stage does not come."""
    from hlo_run.pipeline.compile import compile_module  # imports the passes

    printed: list[str] = []
    watched = replace(ctx, observers=(*ctx.observers, _observer(task, working, printed.append)))
    try:
        return compile_module(watched, working)
    except StopAtStage:
        flag, _ = task.options.early_exit
        if not printed and flag:
            task.console.err(f"nothing to print: --{flag} stops {working.name} before {task.options.stage}")
        if texts is not None:
            texts.put(printed)
        raise


def _observer(task: Task, working: HloModule, keep: Callable[[str], None]) -> Observer:
    """Return the observer that prints the stage of `working` and passes each text to `keep`."""

    def write(text: str) -> None:
        keep(text)
        task.stage_output.show(text)

    is_text = task.options.output_format == "hlo"
    return StageObserver(task.options.stage, write if is_text else lambda _: task.stage_output.show_module(working))
