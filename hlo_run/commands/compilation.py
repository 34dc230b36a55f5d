"""How the modes compile: for which target, and watched by whom."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from hlo_run import target as targets
from hlo_run.commands.target_choice import choose_target
from hlo_run.commands.task import Task
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.hlo_passes.observer import Observer
from hlo_run.options import RunOptions


def set_device_counts(options: RunOptions, module: HloModule) -> None:
    """Write the flags' numbers of devices into the header, which passes ask."""
    for header, count in (("replica_count", options.num_replicas), ("num_partitions", options.num_partitions)):
        if count:
            module.attrs[header] = count


@contextmanager
def compiling(
    task: Task,
    module: HloModule,
    device: targets.TargetSpec | None = None,
    watching: Sequence[Callable[[HloModule], Observer]] = (),
) -> Generator[tuple[PassContext, HloModule]]:
    """Give what to compile with, and the copy of `module` to work on, for as many devices as the flags say.

    The target is that of the flags, else `device`, which will run it, else the default. `watching` make observers of the copy,
    beside those that the flags ask for.
    """
    options = task.options
    set_device_counts(options, module)
    if options.target or options.xla_gpu_target_config_filename or device is None:
        device = choose_target(options)
    if options.check_each_pass:
        from hlo_run.commands.check_each_pass import pass_checker  # imports the reference

        watching = (pass_checker(task, module), *watching)
    with task.watch.compiling(options, module, device, watching) as compilation:
        yield compilation
