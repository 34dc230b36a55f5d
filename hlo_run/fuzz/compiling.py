"""Compile the module of a case with our pipeline."""

from __future__ import annotations

from hlo_run.artifact import Executable
from hlo_run.fuzz.case import Case
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.target import preset

# ptxas takes as long as everything else together.
_ASSEMBLED = 10


def compiled(case: Case, options: Options) -> Executable:
    """Return the executable, which is made once. ptxas assembles the kernels of every tenth seed.

    Raises errors of the HloRunError family.
    """
    if options not in case.executables:
        context = PassContext(preset(options.target), options, assembles=case.subject.seed % _ASSEMBLED == 0)
        case.executables[options] = compile_module(context, case.module.clone())
    return case.executables[options]
