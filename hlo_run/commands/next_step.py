"""The last line about a file that failed: the command that finds the cause."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from dataclasses import fields

from hlo_run.errors import DeviceError, HloRunError, InternalError, Mismatch
from hlo_run.formats.gpu_modules import is_gpu_module
from hlo_run.options import Options, ShowOptions
from hlo_run.options.effects import NOT_REPLAYED

# Flags of the failing command that the next one does without: what is shown and reported, modes, and processes.
_LEFT_OUT = frozenset(
    """report_json report_jsonl report_junit report_html save_inputs save_outputs print_literals profile localize localize_dir
    check_each_pass jobs one_process compile_processes cache crash_dir debug_options_file
    num_nodes task_id address secret_file gpu_client_initialization_timeout_sec""".split()
)
# A smaller module has other parameters.
_OF_ARGUMENTS = frozenset(("inputs", "infeed", "expected_output"))


def next_step(error: HloRunError, options: Options, file: str) -> str:
    """Return what to run after an error of a run; empty for errors of the input, and for modes that find no cause."""
    if options.golden_dir or options.xla_diff or options.explain or options.isolate_instructions or file == "-":
        return ""
    if is_gpu_module(file, options.input_format):
        return f"{_command(options)} --v=5 {shlex.quote(file)} prints the kernels after each row" if _is_result(error) else ""
    name = shlex.quote(file)
    run = shlex.quote(_command(options))
    bisect = f"hlo-tool bisect {name} --run={run}"
    reduced = f"hlo-tool reduce {name} --run={shlex.quote(_command(options, _OF_ARGUMENTS))} shrinks the module"
    match error:
        case Mismatch() if options.check_each_pass or options.localize:
            notes = " ".join(error.notes)
            if "look at the buffers" in notes:
                verified = f"{_command(options, {'verify'})} --verify=every {name}"
                return f"{verified} names values that overlap in one buffer; {reduced}"
            is_row = "look at HLO row" in notes or "look at kernel row" in notes
            return f"{bisect} names the rewrite in the row; {reduced}" if is_row else reduced
        case Mismatch():
            checked = f"{_command(options)} --check_each_pass {name}"
            return f"{checked} names the HLO row or the kernel and its row, and writes files to run"
        case DeviceError() if "longer than" in error.message:
            return f"{bisect} names the row that takes too long; {reduced}"
        case DeviceError() if error.hint and not error.hint.startswith("--host_check"):
            return ""
        case DeviceError() if options.check_each_pass or options.localize:
            return reduced
        case DeviceError():
            localized = f"{_command(options, {'platform', *NOT_REPLAYED})} --platform=Host --localize {name}"
            return f"{localized} names the first kernel that fails, and writes files to run"
        case InternalError():
            return f"{bisect} names the row and its rewrite; {reduced}"
        case _:
            return ""


def _is_result(error: HloRunError) -> bool:
    return isinstance(error, Mismatch | InternalError)


def _command(options: Options, without: Collection[str] = ()) -> str:
    """Return `hlo-run` with the flags that differ from their defaults, except those that only choose what is shown."""
    left_out = {*_LEFT_OUT, *without, *(field.name for field in fields(ShowOptions))}
    words = ["hlo-run"]
    for field in fields(Options):
        value = getattr(options, field.name)
        if field.name not in left_out and value != field.default:
            words.append(
                f"--{field.name}" if value is True else f"--{field.name}={str(value).lower() if value is False else value}"
            )
    return shlex.join(words)
