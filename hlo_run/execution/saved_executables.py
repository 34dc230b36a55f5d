"""Reads and writes executables as files (.hlox)."""

from __future__ import annotations

from hlo_run.artifact import Executable
from hlo_run.artifact.file import load, save
from hlo_run.backends.memory import check_memory
from hlo_run.errors import UsageError
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.printer import FULL, module_to_string
from hlo_run.options.text_files import read_bytes
from hlo_run.records import replace
from hlo_run.whole_files import write_problem, write_whole


def read_executable(path: str) -> Executable:
    """Return the executable in a file; raises UsageError if it cannot be read or is not an executable."""
    return load(read_bytes(path, f"'{path}'"), path)


def write_executable(
    path: str, executable: Executable, source: HloModule, optimized: HloModule, with_machine_code: bool = False
) -> None:
    """Write an executable with the text of its module as read (`source`) and of its optimised module.

    Writes the whole file or none. `with_machine_code` adds machine code of the kernels for this processor. Raises UsageError if
    the file cannot be written.
    """
    if with_machine_code:
        # Host's engines are slow to import.
        from hlo_run.backends.host.backend import HostBackend

        check_memory(executable)
        executable = replace(executable, machine_code=HostBackend().machine_code(executable))
    texts = {"source_text": module_to_string(source, FULL), "module_text": module_to_string(optimized, FULL)}
    try:
        write_whole(path, save(replace(executable, **texts)))
    except OSError as error:
        raise UsageError(f"--output={path} cannot be written: {write_problem(error)}") from None
