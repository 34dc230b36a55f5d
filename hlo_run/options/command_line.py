"""Writes options as a command line that gives them again. Every command that a message names comes from here."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from typing import Any

from hlo_run.options import Options, ShowOptions
from hlo_run.options.effects import without_effect
from hlo_run.options.parsing import read_flags

# What these files say is in the other options.
_READ_ALREADY = frozenset(("debug_options_file", "flagfile"))
# What is shown, reported and written, how many processes work, and the modes: none of them changes what fails.
AROUND_A_RUN = frozenset(
    """report_json report_jsonl report_junit report_html save_inputs save_outputs print_literals log_output profile
    profile_execution append_profile_to_csv_file output_literals_file dump_output_literal_to localize localize_dir
    isolate_instructions check_each_pass xla_diff explain golden_dir golden_stages golden_tolerance update_goldens
    jobs one_process compile_processes cache crash_dir
    num_nodes task_id address secret_file gpu_client_initialization_timeout_sec""".split()
) | {field.name for field in fields(ShowOptions)}
# Where the arguments and the expected result come from.
OF_ARGUMENTS = frozenset(
    """inputs input_literals_file infeed expected_output force_fake_data seed hlo_argument_mode random_init_input_literals
    input_scale use_large_float_range iterations num_repeats different_random_seeds""".split()
)
# What is done to the module after it is read, and has been done to one that a mode writes.
OF_READING = frozenset(
    "input_format while_execution_count remove_infeed_outfeed compile_as_stablehlo isolate_fusion kernel_ir_before".split()
)
REPLACING_FILES = ("kernel_ir_file", "xla_gpu_llvm_ir_file", "xla_gpu_ptx_file")
"""The flags whose files replace kernels."""
# The module that a mode writes is for one device.
_OF_DEVICES = frozenset(("num_replicas", "num_partitions", "use_spmd_partitioning", "output_mode"))
_NO_PATHS = frozenset(("", "-", "off"))


def without(options: Options, names: Collection[str]) -> Options:
    """Return the options with the defaults of some flags."""
    return replace(options, **{field.name: field.default for field in fields(Options) if field.name in names})


def acting(options: Options, files: Sequence[str]) -> Options:
    """Return the options with the defaults of flags that would be refused, since the other flags leave them no effect."""
    while names := {name for name, _ in without_effect(options, files)}:
        options = without(options, names)
    return options


def options_alone(options: Options, path: str, left_out: Collection[str] = ()) -> Options:
    """Return the options with which the module in `path`.hlo runs on the arguments in `path`.npz as it did in the whole run.

    Every flag stays that changes how the module is compiled, run and compared, but those `left_out`.
    """
    names = AROUND_A_RUN | OF_ARGUMENTS | OF_READING | _OF_DEVICES | set(left_out)
    return acting(replace(without(options, names), inputs=f"{path}.npz"), [f"{path}.hlo"])


def flag_words(options: Options, folder: str = "") -> list[str]:
    """Return the flags, as `--name=value`, that give these options whatever XLA_FLAGS says.

    If the command is for another working directory (`folder`), the files have absolute paths.
    """
    environment = read_flags((), os.environ).defaults
    words: list[str] = []
    for field in fields(Options):
        value: Any = getattr(options, field.name)
        if field.metadata["hidden"] or field.name in _READ_ALREADY:
            continue
        if value != field.default or field.name in environment:
            if folder and _names_files(field.metadata["metavar"]):
                value = ",".join(part if part in _NO_PATHS else os.path.abspath(part) for part in value.split(","))
            words.append(
                f"--{field.name}" if value is True else f"--{field.name}={str(value).lower() if value is False else value}"
            )
    if options.dumped_target and not (options.target or options.xla_gpu_target_config_filename):
        # The GPU lies beside the input file, and other files may be elsewhere.
        words.append(f"--xla_gpu_target_config_filename={os.path.abspath(options.dumped_target)}")
    return [*words, *(f"--{name}={text}" for name, text in options.other_xla_flags)]


def _names_files(metavar: str) -> bool:
    return metavar.startswith(("FILE", "PATH")) or "DIR" in metavar.split("|")


def hlo_run_command(options: Options, *files: str, folder: str = "") -> str:
    """Return the command line that runs files with these options; see `flag_words`."""
    return shlex.join(["hlo-run", *flag_words(options, folder), *files])
