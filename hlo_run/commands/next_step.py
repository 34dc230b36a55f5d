"""The last line about a file that failed: the command that finds the cause."""

from __future__ import annotations

from hlo_run.errors import DeviceError, HloRunError, InternalError, Mismatch
from hlo_run.options import Options

_FLAGS = "--run='hlo-run FLAGS'"


def next_step(error: HloRunError, options: Options, file: str) -> str:
    """Return what to run after an error of a run; empty for errors of the input, and for modes that find no cause.

    FLAGS in the line are those of the failing command.
    """
    if options.golden_dir or options.xla_diff or options.explain or options.isolate_instructions or file == "-":
        return ""
    reduced = f"hlo-tool reduce {file} {_FLAGS} shrinks the module"
    match error:
        case Mismatch() if options.check_each_pass or options.localize:
            is_row = any(note.startswith("look at HLO row") for note in error.notes)
            return f"hlo-tool bisect {file} {_FLAGS} names the rewrite in the row; {reduced}" if is_row else reduced
        case Mismatch():
            return "the same command with --check_each_pass names the HLO row or the kernel and its row, and writes files to run"
        case DeviceError() if "longer than" in error.message:
            return f"hlo-tool bisect {file} {_FLAGS} names the row that takes too long; {reduced}"
        case DeviceError() if not error.hint:
            return "the same command with --platform=Host --localize names the first kernel that fails, and writes files to run"
        case InternalError():
            return f"hlo-tool bisect {file} {_FLAGS} names the row and its rewrite; {reduced}"
        case _:
            return ""
