"""Reads the modules that tools work on."""

from __future__ import annotations

from hlo_run.execution.output_files import is_executable_file
from hlo_run.execution.saved_executables import read_executable
from hlo_run.formats.read import read_module
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.wrap import wrap_bare_module
from hlo_run.ops.parse import parse
from hlo_run.options.module_parts import split_name


def read(path: str, *, verify: bool = True) -> HloModule:
    """Return the module of a file in any format that hlo-run reads: HLO text, protos, StableHLO, `.hlox` (- is stdin).

    A `.hlox` file gives the module from which it was compiled. Raises errors of the HloRunError family.
    """
    text = read_executable(path).source_text if is_executable_file(path) else read_module(path).text
    return wrap_bare_module(parse(text, split_name(path)[0], verify))
