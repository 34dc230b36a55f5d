"""`--output=FILE.hlox`: compiles a module and saves the executable. `--compile_only`: compiles it."""

from __future__ import annotations

from hlo_run.commands.compilation import compiling
from hlo_run.commands.task import Task
from hlo_run.execution.saved_executables import write_executable
from hlo_run.hlo.graph import HloModule
from hlo_run.pipeline.executable_cache import compile_or_load
from hlo_run.sharding.analysis.partition_count import verify_partitions


def save_executable(task: Task, module: HloModule) -> None:
    """Compile `module` and write the file of `--output`; raises errors of the HloRunError family."""
    options = task.options
    with compiling(task, module) as (ctx, working):
        verify_partitions(working, working.num_partitions)
        executable = compile_or_load(ctx, working)
        write_executable(options.output, executable, module, working, options.output_machine_code)
        task.console.err(f"{options.output}: {module.name} for {executable.target}")


def compile_only(task: Task, module: HloModule) -> None:
    """Compile `module`, for its errors and dumps; raises errors of the HloRunError family."""
    with compiling(task, module) as (ctx, working):
        verify_partitions(working, working.num_partitions)
        executable = compile_or_load(ctx, working)
        task.console.err(f"{module.name} compiles for {executable.target}")
