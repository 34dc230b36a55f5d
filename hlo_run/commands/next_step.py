"""The last line about a file that failed: the command that finds the cause."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from dataclasses import replace

from hlo_run.containment.board import PLUGIN_PLACE
from hlo_run.errors import DeviceError, HloRunError, InternalError, KernelMismatch, Mismatch, OutOfTime
from hlo_run.execution.signatures import signature_of
from hlo_run.formats.gpu_modules import is_gpu_module
from hlo_run.options import Options
from hlo_run.options.command_line import AROUND_A_RUN, REPLACING_FILES, acting, flag_words, hlo_run_command, without
from hlo_run.options.effects import NOT_REPLAYED

# A smaller module has other parameters.
_OF_OTHER_PARAMETERS = frozenset(("inputs", "input_literals_file", "infeed", "expected_output"))
# Where a process may die or take too long without a pass that bisect could find.
_NAMED_PLACES = ("in the reading of the file", f"in {PLUGIN_PLACE}")


def next_step(error: HloRunError, options: Options, file: str) -> str:
    """Return what to run after an error of a run; empty where no command finds more than the message says.

    That is so for errors of the input and of plugins, which name their place, and for modes that find no cause.
    """
    if options.golden_dir or options.xla_diff or options.explain or options.isolate_instructions or file == "-":
        return ""
    if file.endswith(".hlox") or signature_of(error).stage == "read" or any(place in error.message for place in _NAMED_PLACES):
        return ""  # a compiled module has no passes, and one that cannot be read none to bisect or to reduce
    if is_gpu_module(file, options.input_format):
        verbose = _command(replace(without(options, AROUND_A_RUN), v=5), file)
        return f"{verbose} prints the kernels after each row" if isinstance(error, Mismatch | InternalError) else ""
    name = shlex.quote(file)
    bisect = f"hlo-tool bisect {name} --run={_run(options)}"
    reduced = _reduced(options, name)
    match error:
        case Mismatch() if options.check_each_pass or options.localize:
            return _after_search(" ".join((error.message, *error.notes)), options, file, bisect, reduced)
        case KernelMismatch():
            own = replace(without(options, AROUND_A_RUN | NOT_REPLAYED), platform="Host", localize=True)
            return f"{_command(own, file)} names the row of the kernel, and writes files to run"
        case Mismatch():
            checked = _command(replace(without(options, AROUND_A_RUN), check_each_pass=True), file)
            if "--check_each_pass" not in checked:
                return reduced
            return f"{checked} names the HLO row or the kernel and its row, and writes files to run"
        case OutOfTime() if "in the run on Interpreter" in error.message:
            return reduced  # the reference takes too long, whatever the passes do
        case OutOfTime():
            return f"{bisect} names the row, the file or the pass that takes too long; {reduced}"
        case DeviceError() if error.message.startswith("custom call "):
            return ""
        case DeviceError() if error.hint and not error.hint.startswith("--host_check"):
            return ""
        case DeviceError() if (
            options.check_each_pass or options.localize or max(options.num_replicas, options.num_partitions) > 1
        ):
            return reduced
        case DeviceError():
            own = replace(without(options, AROUND_A_RUN | NOT_REPLAYED), platform="Host", localize=True)
            return f"{_command(own, file)} names the first kernel that fails, and writes files to run"
        case InternalError():
            return f"{bisect} names the row and its rewrite; {reduced}"
        case _:
            return ""


def _after_search(found: str, options: Options, file: str, bisect: str, reduced: str) -> str:
    """Return what to run after a search has named a row, a kernel or the buffers."""
    if "look at the buffers" in found:
        verified = _command(replace(without(options, AROUND_A_RUN), verify="every"), file)
        return f"{verified} names values that overlap in one buffer; {reduced}"
    if "which replaces it" in found:
        plain = _command(without(options, AROUND_A_RUN | set(REPLACING_FILES)), file)
        return f"{plain} runs without the replaced kernels"
    if options.localize and "an HLO pass is to blame" in found and "look at HLO row" not in found:
        checked = _command(replace(without(options, AROUND_A_RUN), check_each_pass=True), file)
        return f"{checked} names the HLO row"
    is_row = "look at HLO row" in found or "look at kernel row" in found
    return f"{bisect} names the rewrite in the row; {reduced}" if is_row else reduced


def _command(options: Options, file: str) -> str:
    return hlo_run_command(acting(options, [file]), file)


def _run(options: Options, left_out: Collection[str] = ()) -> str:
    """Return `hlo-run` with the flags that matter, for --run."""
    words = ["hlo-run", *flag_words(acting(without(options, AROUND_A_RUN | set(left_out)), ["m.hlo"]))]
    return shlex.quote(shlex.join(words))


def _reduced(options: Options, name: str) -> str:
    """Return the command that shrinks the module."""
    given = [flag for flag in sorted(_OF_OTHER_PARAMETERS) if getattr(options, flag)]
    command = f"hlo-tool reduce {name} --run={_run(options, _OF_OTHER_PARAMETERS)} shrinks the module"
    return command + (f", if it fails without --{' and --'.join(given)}" if given else "")
