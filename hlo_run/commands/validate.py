"""Checks a command line once, before it reads a file: the values of flags, their combination, and the names in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from hlo_run.errors import UsageError
from hlo_run.execution.output_files import RESULT_FLAGS, check_writable, is_executable_file
from hlo_run.execution.profile_csv import csv_file
from hlo_run.options import Options
from hlo_run.options.effects import without_effect
from hlo_run.options.modes import chosen_modes
from hlo_run.pass_support.observer import HLO_INPUT, OPTIMIZED_HLO
from hlo_run.platforms import INTERPRETER, platform_name, reference_platform
from hlo_run.processes.launcher import Launch, launch_of_flags

_BOUNDS = (Options().abs_error_bound, Options().rel_error_bound)
_ROWS = (
    ("xla_enable_hlo_passes_only", "xla_disable_hlo_passes"),
    ("enable_kernel_passes_only", "disable_kernel_passes"),
)
# The values of flags of files that print instead.
_PRINTED = (("profile", "-"), ("report_jsonl", "-"))
# The flags that need an HLO module.
_OF_HLO_MODULES = (
    *("output", "xla_diff", "explain", "golden_dir", "localize", "isolate_instructions", "isolate_fusion", "check_each_pass"),
    *("compile_as_stablehlo", "is_spmd_partitioned_module", "print_sharding", "insert_passes", "report_html"),
    *("num_replicas", "num_partitions"),
)


def validate(options: Options, files: Sequence[str]) -> tuple[str, ...]:
    """Return the warnings about the command line of hlo-run.

    Raises UsageError for a value out of its range, for flags that exclude each other, that have no effect or that hlo-run
    refuses, for names that nothing has, and for files that cannot be written. Only the checks that depend on the kind of an input
    file come later, below.
    """
    _check_values(options)
    _check_effects(options, files)
    if options.list_passes:
        return ()
    if not files:
        raise UsageError("no input file", hint="hlo-run FILE..., or - for stdin")
    launch = launch_of_flags(options)
    _check_shared(options, launch)
    warnings = row_warnings(options)
    _check_refused(options)
    _check_modes(options, files)
    _check_platforms(options)
    _check_bounds(options)
    if not launch.number:
        _check_literals(options, files)
    _check_written(options, "output", *(RESULT_FLAGS if not launch.number else ()))
    if not options.golden_dir:
        return warnings
    from hlo_run.commands.golden import check_golden_flags  # few command lines need it

    return (*warnings, *check_golden_flags(options, files))


def row_warnings(options: Options) -> tuple[str, ...]:
    """Return warnings about unknown rows in flags. Imports the tables of passes only if a flag names a row.

    Raises UsageError for two flags that select rows of the same table, an unknown stage, and a required row that is disabled.
    """
    for only, disable in _ROWS:
        if getattr(options, only) and getattr(options, disable):
            raise UsageError(f"--{only} and --{disable} cannot be used together")
    if not options.names_passes and options.stage in ("", HLO_INPUT):
        return ()
    from hlo_run.pipeline.row_names import check_row_names

    return check_row_names(options)


def _check_values(options: Options) -> None:
    """Check that numbers are not below the least ones of their flags, nor NaN."""
    for field in fields(options):
        least: float | None = field.metadata["least"]
        value: Any = getattr(options, field.name)
        if least is not None and not value >= least:
            raise UsageError(f"--{field.name} must be >= {least:g}, got {value:g}", hint=field.metadata["help"])


def _check_effects(options: Options, files: Sequence[str]) -> None:
    """Check that every flag that differs from its default has an effect beside the other flags and the files."""
    if options.input_literals_file and (options.force_fake_data or options.inputs):
        other = "inputs" if options.inputs else "force_fake_data"
        raise UsageError(f"--input_literals_file and --{other} cannot be used together", hint=f"leave out --{other}")
    for name, reason in without_effect(options, files):
        raise UsageError(f"--{name} has no effect {reason}", hint=f"leave out --{name}")
    if options.list_passes and files:
        raise UsageError(f"'{files[0]}' is not read with --list_passes", hint="leave out the file")


def _check_shared(options: Options, launch: Launch) -> None:
    """Check the flags of several processes that share a run."""
    if launch.count == 1:
        return
    if options.jobs != 1:
        raise UsageError(f"--jobs={options.jobs}: {launch.count} processes share each file, one after the other")
    if options.check_each_pass:
        raise UsageError("--check_each_pass runs in one process", hint="--num_nodes=1")


def _check_refused(options: Options) -> None:
    """Refuse what XLA's tools do and hlo-run does not."""
    if options.enable_mock_nccl or options.run_single_shard_id >= 0:
        flag = "enable_mock_nccl" if options.enable_mock_nccl else "run_single_shard_id"
        reason = "mock NCCL returns whatever the memory holds; hlo-run simulates all devices and their collectives"
        raise UsageError(f"--{flag}: {reason}", hint="--num_replicas=N and --num_partitions=N set the devices")
    if not 0 < options.gpu_client_mem_fraction < 1:
        raise UsageError(f"--gpu_client_mem_fraction={options.gpu_client_mem_fraction} must be between 0 and 1")
    if options.force_auto_layout:
        reason = "arguments and results have the layouts of entry_computation_layout"
        raise UsageError(f"--force_auto_layout: {reason}", hint="change them in the module's header")
    if options.execution_options_path:
        hint = "--num_replicas, --num_partitions, --seed and --debug_options_file set the same"
        raise UsageError("--execution_options_path: hlo-run does not read an ExecutionOptions message", hint=hint)


def _check_modes(options: Options, files: Sequence[str]) -> None:
    """Check the flags of modes and of their output against each other and against the number of files."""
    if options.output_format != "hlo" and options.stage not in (HLO_INPUT, OPTIMIZED_HLO):
        hint = f"add --stage={OPTIMIZED_HLO} for the optimised module or --stage={HLO_INPUT} for the module as read"
        raise UsageError(f"--output_format={options.output_format} needs a stage that is an HLO module", hint=hint)
    if options.output_file and not options.stage:
        raise UsageError("--output_file needs --stage, which chooses what to write")
    if options.output and (options.stage or len(files) > 1 or not is_executable_file(options.output)):
        raise UsageError("--output=FILE.hlox needs exactly one input file, a name that ends in .hlox, and no --stage")
    flag, _ = options.early_exit
    if flag and not (options.stage or options.compile_only):
        hint = "--compile_only with --xla_dump_to, or --stage=NAME"
        raise UsageError(f"--{flag}: the compilation stops before it has made what could run", hint=hint)
    modes = chosen_modes(options)
    if len(modes) > 1:
        raise UsageError(f"{' and '.join(f'--{flag}' for flag in modes)} cannot be used together")
    if options.explain:
        from hlo_run.commands.explain_fusion import asked_names  # few command lines need it

        asked_names(options.explain)
    if options.output_file and len(files) > 1:
        raise UsageError("--output_file needs exactly one input file")


def _check_platforms(options: Options) -> None:
    """Check the names of the platforms of a run. Modes that do not run take any, since scripts pass them to every command."""
    if chosen_modes(options):
        return
    reference_platform(options)
    if options.platform:
        platform_name(options.platform)


def _check_bounds(options: Options) -> None:
    if (options.abs_error_bound, options.rel_error_bound) != _BOUNDS or options.low_precision_fp_error_spec:
        from hlo_run.execution.error_bounds import error_spec  # imports the reference

        error_spec(options)
    if not 0 < options.input_scale < float("inf"):
        raise UsageError(f"--input_scale must be > 0 and finite, got {options.input_scale:g}")


def _check_literals(options: Options, files: Sequence[str]) -> None:
    if not options.dump_output_literal_to:
        return
    if len(files) > 1:
        raise UsageError("--dump_output_literal_to needs exactly one input file")
    if not options.dump_output_literal_to.endswith(".txt"):
        raise UsageError(f"--dump_output_literal_to={options.dump_output_literal_to} must end in .txt: it is written as text")


def _check_written(options: Options, *flags: str) -> None:
    """Check before a long run that the files of flags can be written."""
    for flag in flags:
        path: str = getattr(options, flag)
        if flag == "append_profile_to_csv_file" and path:
            path = csv_file(path)
        if path and (flag, path) not in _PRINTED:
            check_writable(path, flag)


def check_flags_of_executable(options: Options, file: str) -> None:
    """Raise UsageError for flags that come too late for a saved executable."""
    if options.stage or options.output or options.golden_dir or options.compile_only:
        raise UsageError(
            f"'{file}' is an executable, which is already compiled",
            hint="--stage, --output, --golden_dir and --compile_only need a module",
        )
    if options.while_execution_count > 0 or options.remove_infeed_outfeed:
        raise UsageError(f"the control flow of '{file}' is compiled already", hint="give the HLO file")
    if options.compile_as_stablehlo or options.is_spmd_partitioned_module:
        flag = "compile_as_stablehlo" if options.compile_as_stablehlo else "is_spmd_partitioned_module"
        raise UsageError(f"'{file}' is compiled already: --{flag} comes too late", hint="give the HLO file")


def check_flags_of_gpu_module(options: Options, file: str) -> None:
    """Raise UsageError for flags that need an HLO module, if the file is a module of the gpu dialect."""
    for flag in _OF_HLO_MODULES:
        if getattr(options, flag):
            raise UsageError(f"--{flag} needs an HLO module, and '{file}' is a module of the gpu dialect")
    reference = "" if chosen_modes(options) else reference_platform(options)
    if reference not in ("", INTERPRETER) and not options.expected_output:
        raise UsageError(f"--reference_platform={reference}: a module of the gpu dialect is compared with its interpretation")
