"""The compilation that the modes share: chooses the target and the observers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from hlo_run import target as targets
from hlo_run.commands.target_choice import choose_target
from hlo_run.commands.task import Task
from hlo_run.errors import UsageError
from hlo_run.hlo.graph import HloModule
from hlo_run.options import RunOptions
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pass_support.observer import Observer, StopAtStage


def set_device_counts(options: RunOptions, module: HloModule) -> None:
    """Write the flags' numbers of devices into the module's header, where passes read them."""
    for header, count in (("replica_count", options.num_replicas), ("num_partitions", options.num_partitions)):
        if count > 0:
            module.attrs[header] = count


@contextmanager
def compiling(
    task: Task,
    module: HloModule,
    device: targets.TargetSpec | None = None,
    watching: Sequence[Callable[[HloModule], Observer]] = (),
) -> Generator[tuple[PassContext, HloModule]]:
    """Yield the context of a compilation and the copy of `module` to compile, with the flags' numbers of devices.

    The target is that of the flags, else `device` (the GPU that runs the module), else the default. `watching` are functions
    from the copy to an observer, in addition to the observers that flags ask for.
    """
    options = task.options
    set_device_counts(options, module)
    if options.target or options.xla_gpu_target_config_filename or device is None:
        device = choose_target(options)
    if options.check_each_pass:
        from hlo_run.commands.check_each_pass import pass_checker  # imports the reference

        watching = (pass_checker(task, module), *watching)
    if options.report_html:
        from hlo_run.pipeline.observers.record import CompilationRecord, RecordObserver

        record = task.result.compilation = CompilationRecord(device.name)
        spec = device
        watching = (*watching, lambda working: RecordObserver(working, spec, record))
    if not options.print_sharding:
        with task.observers.compiling(options, module, device, watching) as compilation:
            yield compilation
        return
    drawn: list[str] = []
    watching = (*watching, _sharding_drawer(task, module, drawn))
    stopped: StopAtStage | None = None
    try:
        with task.observers.compiling(options, module, device, watching) as compilation:
            yield compilation
    except StopAtStage as stop:
        stopped = stop
    if not drawn:
        task.console.err("note: --print_sharding draws before the row spmd-partitioning, which did not run")
    if stopped is not None:
        raise stopped


def _sharding_drawer(task: Task, module: HloModule, drawn: list[str]) -> Callable[[HloModule], Observer]:
    """Return the function that makes the observer of `--print_sharding`, which adds what it draws to `drawn`.

    Raises UsageError if the module has one partition.
    """
    from hlo_run.pipeline.observers.shardings import ShardingObserver  # few command lines draw

    _check_partitions(module)
    options = task.options

    def write(text: str) -> None:
        drawn.append(text)
        (task.console.err if options.stage else task.console.out)(text)

    return lambda working: ShardingObserver(working, options.print_sharding == "all", options.stage, write)


def draw_input(task: Task, module: HloModule) -> None:
    """Draw the shardings of the module as read, for the flags' numbers of devices. Raises UsageError if it has one partition."""
    from hlo_run.pipeline.observers.shardings import drawings  # few command lines draw

    set_device_counts(task.options, module)
    _check_partitions(module)
    task.console.err(drawings(module, task.options.print_sharding == "all", is_final=False))


def _check_partitions(module: HloModule) -> None:
    from hlo_run.sharding.analysis.partition_count import needed_partitions  # few command lines draw

    if module.num_partitions == 1:
        needed = needed_partitions(module)
        hint = f"--num_partitions={needed}" if needed > 1 else "--num_partitions=N sets their number"
        raise UsageError(f"--print_sharding: '{module.name}' has one partition, which holds every array", hint=hint)
