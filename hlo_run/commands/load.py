"""Reads an input file: HLO text, a format that converts to it, a saved executable, or a dump of kernel IR."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from hlo_run import target as targets
from hlo_run.commands.target_choice import choose_target, with_dumped_target
from hlo_run.commands.task import Task
from hlo_run.commands.validate import check_flags_of_executable
from hlo_run.errors import UsageError
from hlo_run.execution.output_files import is_executable_file
from hlo_run.formats.read import read_module
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.text.dumped_release import release_note
from hlo_run.hlo.values.sharding import SingleSharding, for_leaves
from hlo_run.hlo.wrap import wrap_bare_module
from hlo_run.ops.parse import parse
from hlo_run.options import Options
from hlo_run.options.module_parts import split_name
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pass_support.observer import HLO_INPUT, StopAtStage
from hlo_run.pass_support.replacements import KernelIr, is_kernel_dump, read_kernel_dump
from hlo_run.pass_support.xla_kernel_dumps import optimized_module
from hlo_run.pipeline.observers.stage import StageObserver
from hlo_run.records import replace


def load(task: Task) -> HloModule:
    """Return the module of the task's file; raises errors of the HloRunError family.

    Raises StopAtStage for `--stage=hlo-input` and for a stage of a kernel's dump, after it is printed.
    """
    task.options = with_dumped_target(task.options, task.file)
    if is_kernel_dump(task.file):
        options = task.options
        _resume(task, read_kernel_dump(task.file, options.kernel_ir_before, options.kernel_launch))
    options = task.options
    if is_executable_file(task.file):
        check_flags_of_executable(options, task.file)
        return _load_executable(task)
    source = read_module(task.file, options.input_format)
    if note := release_note(task.file, source.text):
        task.console.err(f"note: {note}")
    # Errors name the file, whichever of its modules is read.
    module = parse(source.text, split_name(task.file)[0], options.verify != "off")
    if options.stage == HLO_INPUT:
        task.stage_output.show_module(module)
        if options.print_sharding:
            from hlo_run.commands.compilation import draw_input

            draw_input(task, module)
        raise StopAtStage
    if source.arguments is not None and not options.force_fake_data:
        from hlo_run.hlo.arguments import fit_arguments  # only snapshots have arguments

        task.given = fit_arguments(module, source.arguments, f"'{task.file}'")
    module = wrap_bare_module(module)
    if options.compile_as_stablehlo:
        module = _through_stablehlo(module, task.file)
    if options.is_spmd_partitioned_module:
        _mark_as_partitioned(module)
    return _flattened(options, module)


def _through_stablehlo(module: HloModule, file: str) -> HloModule:
    """Return the module as StableHLO describes it. Raises Unsupported if XLA cannot convert it, or loses a part of it."""
    from hlo_run.execution.survival import check_survival  # needs jaxlib
    from hlo_run.formats import xla
    from hlo_run.formats.write import module_to_bytes

    data = module_to_bytes(module, "stablehlo")
    check_survival(module, data, "stablehlo")
    return parse(xla.mlir_to_text(data, file), file)


def _mark_as_partitioned(module: HloModule) -> None:
    """Let parameters and result without a sharding be sharded manually, as in a module that a partitioner made."""
    for instruction in (*module.entry.parameters, module.entry.root):
        if "sharding" not in instruction.attrs:
            leaves = sum(1 for _ in instruction.shape.leaves())
            manual = SingleSharding("manual")
            instruction.attrs["sharding"] = for_leaves(manual, leaves) if instruction.shape.is_tuple else manual


def _flattened(options: Options, module: HloModule) -> HloModule:
    """Return the module with the control flow that flags ask for."""
    if options.while_execution_count > 0 or options.remove_infeed_outfeed:
        from hlo_run.hlo_passes.control_flow.control_flow_flattening import ControlFlowFlattening

        ControlFlowFlattening(max(options.while_execution_count, 0), options.remove_infeed_outfeed).apply(None, module)
    return module


def _load_executable(task: Task) -> HloModule:
    """Read the executable of a .hlox file into the task, and return its module as it was before compilation."""
    from hlo_run.backends.library.executable_check import check_arrays, check_signature
    from hlo_run.execution.saved_executables import read_executable

    executable = read_executable(task.file)
    check_arrays(executable, task.file)
    if executable.machine_code is not None and not task.options.trust_machine_code:
        executable = replace(executable, machine_code=None)
        task.console.err(
            f"note: the machine code in {task.file} does not run without --trust_machine_code; its PTX is compiled instead"
        )
    module = parse(executable.source_text, task.file, task.options.verify != "off")
    check_signature(executable, module.entry, task.file)
    task.executable = executable
    return module


def _resume(task: Task, dump: KernelIr) -> None:
    """Change the task to the module beside a kernel's dump, with the dump as that kernel.

    With a stage, compile only the kernel and raise StopAtStage. Raises UsageError if the module's file does not exist.
    """
    options = task.options
    known = dump.target in targets.PRESETS and not options.xla_gpu_target_config_filename
    target = options.target or (dump.target if known else "")
    files = ",".join(filter(None, (options.kernel_ir_file, dump.file)))
    task.options = options = dataclasses.replace(options, target=target, kernel_ir_file=files)
    if options.stage:
        from hlo_run.pipeline.kernels import compile_kernel_ir  # imports xDSL and llvmlite

        watching = task.observers.create(options)
        watching.append(StageObserver(options.stage, task.stage_output.show))
        try:
            ctx = PassContext(choose_target(options), options.compile, tuple(watching), show=options.show)
            compile_kernel_ir(replace(ctx, locates=options.print_locations or bool(options.host_check)), dump)
        finally:
            task.observers.show_times(options)
        task.console.err(f"nothing to print: '{options.stage}' does not come after row '{dump.row}'")
        raise StopAtStage
    module = Path(dump.file).parent / f"{dump.module}.before_optimizations.txt"
    if (optimized := None if dump.target else optimized_module(dump.file, dump.module)) is not None:
        # XLA's own module: our passes could form other fusions.
        module = optimized
        task.options = options = dataclasses.replace(options, xla_disable_all_hlo_passes=True)
    if not module.exists():
        hint = f"give the HLO file with --kernel_ir_file={dump.file}, or compile only the kernel with --stage=ptx"
        raise UsageError(f"'{dump.file}' is kernel IR, and the file of its module, '{module}', does not exist", hint=hint)
    task.file = str(module)
    task.options = dataclasses.replace(options, input_format="hlo")
