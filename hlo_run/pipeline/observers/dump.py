"""`--xla_dump_to`: writes modules, kernel IR, LLVM IR and PTX under XLA's file names."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from hlo_run.errors import HloRunError, UsageError
from hlo_run.hlo_passes.observer import (
    BUFFER_TEXTS,
    LLVM_BEFORE_OPTIMIZATIONS,
    OPTIMIZED_HLO,
    PIPELINE_START,
    PRIORITY_FUSION_DUMP,
    THUNK_METADATA,
    THUNKS,
    THUNKS_AFTER_PASSES,
    Level,
    Observer,
    Step,
)
from hlo_run.hlo_passes.replacements import file_name, header
from hlo_run.options import ShowOptions
from hlo_run.target import TargetSpec
from hlo_run.whole_files import write_problem, write_whole

_FILE_NAME_LIMIT = 255
_THUNK_FILES = {
    THUNKS: "thunk_sequence.txt",
    THUNKS_AFTER_PASSES: "thunk_sequence_after_thunk_passes.txt",
    THUNK_METADATA: "thunk_metadata.txt",
}


class DumpObserver(Observer):
    """Writes the dumps of one module. `number` is the place of its file on the command line, from 0.

    Writes the HLO between two rows if `--xla_dump_hlo_pass_re` matches one of them. `.*` writes it only at the start of a
    pipeline and after rows that changed it. Writes kernels in the forms `mlir-fusion`, `llvm` and `ptx` whose name
    `--xla_dump_emitter_re` matches. A file is written whole or not at all. `xla_dump_to=-` prints through `write_stdout`.
    """

    def __init__(
        self, options: ShowOptions, module_name: str, number: int, target: TargetSpec, write_stdout: Callable[[str], None]
    ) -> None:
        everything = options.v >= 5 or options.xla_dump_hlo_pass_re == ".*"
        emitters = options.xla_dump_emitter_re or (".*" if everything else "")
        self._pass_pattern = options.xla_dump_hlo_pass_re
        self._pass_re = compile_pattern("xla_dump_hlo_pass_re", options.xla_dump_hlo_pass_re)
        self._emitter_re = compile_pattern("xla_dump_emitter_re", emitters)
        self._directory = options.xla_dump_to
        self._prefix = f"module_{number:04d}.{file_name(module_name)}"
        self._short_prefix = f"module_{number:04d}"
        self._target = target
        self._write_stdout = write_stdout
        self._hlo_dumps = 0
        self._kernel_rows: dict[str, int] = {}
        self._logs: dict[str, list[str]] = {}

    def watches(self, level: Level) -> bool:
        """Return True for HLO, and for kernels if their IR is dumped."""
        return level is Level.HLO or self._wants("mlir-fusion")

    def module(self, suffix: str, text: str) -> None:
        """Write the module's text under `suffix` (`before_optimizations`)."""
        self._write(f"{suffix}.txt", text)

    def after(self, step: Step) -> None:
        """Write the dump of a row or lowering step if its flag asks for it. Raises UsageError if the file cannot be written."""
        match step.level:
            case Level.HLO:
                self._hlo(step)
            case Level.KERNEL:
                if self._wants("mlir-fusion"):
                    self._kernel(step)
            case Level.LLVM:
                if self._wants("llvm"):
                    name = "ir-no-opt" if step.row == LLVM_BEFORE_OPTIMIZATIONS else "ir-with-opt"
                    self._write(f"{step.kernel}.{name}.ll", step.text())
            case Level.PTX:
                if self._wants("ptx"):
                    self._write(f"{step.kernel}.ptx", step.text())

    def before(self, step: Step) -> None:
        """Add the kernel IR before a row to the kernel's log."""
        if step.level is Level.KERNEL and self._wants("mlir-fusion"):
            log = self._logs.setdefault(step.kernel, [])
            log.append(f"// -----// IR Dump Before {step.row} ({step.kernel}) //----- //\n{step.text().rstrip()}\n")

    def failed(self, step: Step, error: HloRunError) -> None:
        """Write the log of the kernel whose row failed."""
        if step.level is Level.KERNEL and self._wants("mlir-fusion"):
            self._flush_log(step.kernel)

    def kernel_done(self, kernel: str) -> None:
        """Write the log of a finished kernel."""
        self._flush_log(kernel)

    def note(self, kernel: str, title: str, text: Callable[[], str]) -> None:
        """Write the texts about buffers and thunks, and the dump of priority fusion. Other notes are not dumped."""
        if title in BUFFER_TEXTS and self._directory:
            self._write(f"{self._target.xla_name}_gpu_after_optimizations-{title}.txt", text())
        if title == PRIORITY_FUSION_DUMP and self._pass_re is not None and self._pass_re.search("priority-fusion"):
            self._write("priority_fusion_dump.txt", text())
        if title in _THUNK_FILES and self._directory:
            self._write(_THUNK_FILES[title], text())

    def _wants(self, emitter: str) -> bool:
        return self._emitter_re is not None and bool(self._directory) and self._emitter_re.search(emitter) is not None

    def _hlo(self, step: Step) -> None:
        if step.row == OPTIMIZED_HLO:
            self._write(f"{self._target.xla_name}_gpu_after_optimizations.txt", step.text())
            return
        if self._pass_re is None:
            return
        before, following = step.pass_name or step.row, step.next_row
        matches = self._pass_re.search(before) or self._pass_re.search(following)
        only_changes = self._pass_pattern == ".*"
        if matches and (step.changed or before == PIPELINE_START or not only_changes):
            name = f"{self._hlo_dumps:04d}.{file_name(step.pipeline)}.after_{before}.before_{following}.txt"
            self._hlo_dumps += 1
            self._write(name, step.text())

    def _kernel(self, step: Step) -> None:
        number = self._kernel_rows.get(step.kernel, 0)
        self._kernel_rows[step.kernel] = number + 1
        if step.changed is not False:
            first = header(step.row, step.kernel, step.launch, step.unroll_factor, self._target.name, self._prefix)
            self._write(f"{step.kernel}.{number:03d}.after_{step.row}.mlir", f"{first}\n{step.text()}")

    def _flush_log(self, kernel: str) -> None:
        log = self._logs.pop(kernel, None)
        if log is not None:
            self._write(f"{kernel}.mlir-passes.log", "\n".join(log))

    def _write(self, suffix: str, text: str) -> None:
        if not self._directory:
            return
        name = f"{self._prefix}.{suffix}"
        if len(name) > _FILE_NAME_LIMIT:
            name = f"{self._short_prefix}.{suffix}"
        text = text if text.endswith("\n") else text + "\n"
        if self._directory == "-":
            self._write_stdout(f"*** Begin {name} ***\n{text}*** End {name} ***")
            return
        path = Path(self._directory) / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            problem = "it is not a directory" if path.parent.exists() else write_problem(error)
            raise UsageError(f"--xla_dump_to={self._directory}: {problem}") from None
        try:
            write_whole(str(path), text.encode())
        except OSError as error:
            raise UsageError(f"--xla_dump_to: '{path}' cannot be written: {write_problem(error)}") from None


def compile_pattern(flag: str, pattern: str) -> re.Pattern[str] | None:
    """Return the regular expression of `--flag`; None if it is empty. Raises UsageError for an invalid one."""
    try:
        return re.compile(pattern) if pattern else None
    except re.error as error:
        raise UsageError(f"--{flag}='{pattern}' is not a regular expression: {error}") from None
