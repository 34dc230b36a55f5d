"""Prepares the checks of each kernel alone for the run of an executable."""

from __future__ import annotations

from hlo_run.artifact import Executable
from hlo_run.backends import Backend
from hlo_run.errors import HloRunError
from hlo_run.execution.arguments import MODULE_SEED
from hlo_run.execution.error_bounds import error_spec, has_fixed_bounds
from hlo_run.hlo.graph import HloModule
from hlo_run.kernel_checks.checks import ALL, OFF, KernelChecks
from hlo_run.kernel_checks.verdicts import Verdicts
from hlo_run.ops.parse import parse
from hlo_run.options import Options
from hlo_run.platforms import CUDA


def shows_kernels(options: Options) -> bool:
    """True if a report has the table of kernels."""
    return bool(options.report_json or options.report_jsonl or options.report_html)


def checks_of_run(options: Options, backend: Backend, executable: Executable, optimised: HloModule | None) -> KernelChecks | None:
    """Let the next run of `executable` be watched. `optimised` is its module if it was compiled now.

    None if the flags turn the checks off, or if the executable does not say what its kernels compute.
    """
    if options.check_kernels == OFF or (optimised is None and not executable.module_text):
        return None
    try:
        module = optimised or parse(executable.module_text)
    except HloRunError:
        return None  # the text of a saved executable that another program has written
    verdicts = Verdicts(error_spec(options), has_fixed_bounds(options), MODULE_SEED, in_tf32=backend.name == CUDA)
    checks = KernelChecks(module, executable, verdicts, backend.run_aside, options.check_kernels == ALL, shows_kernels(options))
    backend.watch_next_run(checks)
    return checks
