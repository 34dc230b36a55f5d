"""`--xla_dump_to`: writes modules, kernel IR, LLVM IR, PTX and texts about a compilation under XLA's file names."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterable, Sequence

from hlo_run.analysis.fusion.fusion_frames import Frame, frames_from_json
from hlo_run.analysis.fusion.fusion_process import AnyFusionStep, Fused
from hlo_run.analysis.latency.schedule_trace import traces_from_json
from hlo_run.errors import HloRunError, UsageError
from hlo_run.formats.wire import delimited
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.printer import module_to_string
from hlo_run.options import Options
from hlo_run.pass_support.observer import (
    AFTER_PARTITIONER,
    BUFFER_TEXTS,
    CONSTANTS,
    FIRST_AFTER_PARTITIONER,
    FUSION_FRAMES,
    LATENCY_SCHEDULE,
    LLVM_BEFORE_OPTIMIZATIONS,
    MEMORY_USAGE_PROTO,
    OPTIMIZED_HLO,
    PIPELINE_START,
    PRIORITY_FUSION_DUMP,
    SPMD_CLEANUP,
    THUNK_METADATA,
    THUNK_METADATA_PROTO,
    THUNKS,
    THUNKS_AFTER_PASSES,
    UNREPORTED,
    Level,
    Observer,
    Step,
)
from hlo_run.pass_support.print_options import dump_options
from hlo_run.pass_support.replacements import file_name, header
from hlo_run.pipeline.observers.config_texts import config_text, debug_options_text, given_flags
from hlo_run.pipeline.observers.dump_files import DumpFiles
from hlo_run.pipeline.observers.fusion_page import page, program
from hlo_run.pipeline.observers.hlo_graph import dot_text, html_text
from hlo_run.pipeline.observers.pass_metadata import PassMetadata
from hlo_run.pipeline.observers.schedule_protos import schedule_to_bytes, schedule_to_text
from hlo_run.pipeline.observers.xla_order import SILENT, TELLING, PassDump, XlaOrder
from hlo_run.records import replace
from hlo_run.target import TargetSpec, to_text_proto

_THUNK_FILES = {
    THUNKS: "thunk_sequence.txt",
    THUNKS_AFTER_PASSES: "thunk_sequence_after_thunk_passes.txt",
    THUNK_METADATA: "thunk_metadata.txt",
}
# Texts about thunks that are made from the executable, not from the module.
_AHEAD_OF_TIME = (THUNKS_AFTER_PASSES, THUNK_METADATA, THUNK_METADATA_PROTO)
# Pipelines before which XLA dumps the module, with the name of the file.
_DUMPED_BEFORE = {FIRST_AFTER_PARTITIONER: AFTER_PARTITIONER, "config-assigner": "before_config_assignment"}
# What XLA matches --xla_dump_emitter_re with before it writes the log of a kernel, LLVM IR and PTX.
_LOG, _LLVM_IR, _PTX = "mlir-fusion", "llvm", "ptx"
# XLA's formats of the texts about buffers that a flag can leave out.
_ANALYSIS_TEXTS = ("buffer-assignment-values", "live-range")
# What released XLA writes in place of an address.
_NO_URL = "Error rendering graph: UNAVAILABLE: Can't render as URL; no URL renderer was registered."
_TO_SYNCHRONOUS = "gpu-convert-async-collectives-to-sync"
_LATENCY_ROW = "latency-hiding-scheduler"
# XLA's results of autotuning without any.
_NO_AUTOTUNING = "version: 3\n"


class DumpObserver(Observer):
    """Writes the dumps of one module. `number` is the place of its file on the command line, from 0.

    Writes the HLO between two passes if `--xla_dump_hlo_pass_re` matches one of them, with the numbers of XLA's `order` of
    passes. `.*` writes it only at the start of a pipeline and after passes that changed it. Writes the log of a kernel, LLVM
    IR and PTX if `--xla_dump_emitter_re` matches `mlir-fusion`, `llvm` and `ptx`. `xla_dump_to=-` prints texts through
    `write_stdout`. With `of_passes`, hlo-opt runs single passes, and the files have the names that XLA's hlo-opt gives them.
    """

    def __init__(
        self,
        options: Options,
        module: HloModule,
        number: int,
        target: TargetSpec,
        write_stdout: Callable[[str], None],
        order: XlaOrder,
        write_proto: Callable[[HloModule], bytes],
        of_passes: bool = False,
    ) -> None:
        emitters = options.xla_dump_emitter_re or (".*" if options.v >= 5 else "")
        self._options = options
        self._module = module
        self._target = target
        self._order = order
        self._order.reports = self._reports_change
        self._text = ""
        self._texts: dict[str, str] = {}
        self._thunks = ""
        self._write_proto = write_proto
        self._pass_re = compile_pattern("xla_dump_hlo_pass_re", options.xla_dump_hlo_pass_re)
        self._pipeline_re = compile_pattern("xla_dump_hlo_pipeline_re", options.xla_dump_hlo_pipeline_re)
        self._emitter_re = compile_pattern("xla_dump_emitter_re", emitters)
        self._files = DumpFiles(options, module.name, number, write_stdout)
        module_re = compile_pattern("xla_dump_hlo_module_re", options.xla_dump_hlo_module_re)
        self._dumps_hlo = _matches(module_re, module.name, empty=True) and not options.xla_dump_hlo_unoptimized_snapshots
        self._metadata = PassMetadata(number) if options.xla_dump_module_metadata else None
        self._hlo_dumps = 0
        self._llvm_files = 0
        self._kernel_rows: dict[str, int] = {}
        self._logs: dict[str, list[str]] = {}
        self._has_unused_bodies = False
        self._has_synchronous = False
        self._is_unreported = False  # what the row that runs changes
        self._unscheduled = b""  # the module before the latency-hiding scheduler, as a proto
        self._frames: dict[str, list[Frame]] = {}
        self._is_scheduled = module.schedule is not None
        self._of_passes = of_passes

    def watches(self, level: Level) -> bool:
        """Return True for HLO, and for kernels if their IR is dumped."""
        return level is Level.HLO or self._dumps_rows or self._dumps_logs

    def wants_note(self, title: str) -> bool:
        """Return True for steps inside a pass, frames of fusion passes and times of a schedule, if flags ask for them."""
        if title == LATENCY_SCHEDULE:
            return self._options.xla_dump_latency_hiding_schedule
        if title in (SPMD_CLEANUP, UNREPORTED):
            return self._pass_re is not None or self._metadata is not None
        return title == FUSION_FRAMES and self._dumps_hlo and self._options.xla_dump_fusion_visualization

    @property
    def _dumps_logs(self) -> bool:
        return self._dumps_emitter(_LOG)

    def _dumps_emitter(self, name: str) -> bool:
        """Return True if the flags ask for what emitters of this name write."""
        return self._dumps_hlo and _matches(self._emitter_re, name)

    @property
    def _dumps_rows(self) -> bool:
        return self._dumps_hlo and self._options.dump_kernel_rows

    def start(self) -> None:
        """Write the module as read, and the configuration of the compilation."""
        options = self._options
        if options.xla_dump_full_hlo_config and not self._is_scheduled and not self._of_passes:
            self._files.file("config.pbtxt", config_text(self._module, given_flags(options)))
        if self._pass_re is not None or self._metadata is not None:
            self._text = self._module_text()
        if self._dumps_hlo:
            self._dump_module("before_optimization" if self._of_passes else "before_optimizations")
            self._files.file("debug_options", debug_options_text(given_flags(options)))

    def before(self, step: Step) -> None:
        """Dump the HLO before a row, or add the kernel's IR to its log."""
        if step.level is Level.HLO:
            self._pass_dumps(self._order.before_row(step))
            if step.row == _LATENCY_ROW and self.wants_note(LATENCY_SCHEDULE):
                self._unscheduled = self._write_proto(self._module)
        elif step.level is Level.KERNEL and self._dumps_logs:
            log = self._logs.setdefault(step.kernel, [])
            log.append(f"// -----// IR Dump Before {step.row} ({step.kernel}) //----- //\n{step.text().rstrip()}\n")

    def after(self, step: Step) -> None:
        """Write the dump of a row or lowering step if its flag asks for it. Raises UsageError if the file cannot be written."""
        match step.level:
            case Level.HLO:
                self._hlo(step)
            case Level.KERNEL:
                if self._dumps_rows:
                    self._kernel(step)
            case Level.LLVM:
                self._llvm(step)
            case Level.PTX:
                if self._dumps_emitter(_PTX):
                    self._files.text(f"{self._llvm_files - 1}.ptx", step.text())

    def decided(self, row: str, steps: Sequence[AnyFusionStep]) -> None:
        """Record whether fusions were merged: XLA leaves the bodies of the producers to dce."""
        made: set[str] = {i.name for c in self._module.computations for i in c.instructions if i.opcode == "fusion"}
        for step in steps:
            if isinstance(step, Fused):
                self._has_unused_bodies |= row == "priority-fusion" and step.producer in made
                made.add(step.fusion)

    def failed(self, step: Step, error: HloRunError) -> None:
        """Write the log of the kernel whose row failed."""
        if step.level is Level.KERNEL:
            self._flush_log(step.kernel)

    def kernel_done(self, kernel: str) -> None:
        """Write the log of a finished kernel."""
        self._flush_log(kernel)

    def note(self, kernel: str, title: str, text: Callable[[], str]) -> None:
        """Write the texts about buffers, thunks and constants, and of some passes. Other notes are not dumped."""
        if title == LATENCY_SCHEDULE:
            self._schedule(text())
        elif title == UNREPORTED:
            self._is_unreported = True
        if not self._dumps_hlo:
            return
        if title in BUFFER_TEXTS and self._options.dumps_text:
            if title not in _ANALYSIS_TEXTS or self._options.xla_dump_buffer_assignment_analysis:
                self._files.text(f"{self._optimized_name}-{title}.txt", text(), timed=True)
        elif title == MEMORY_USAGE_PROTO and self._options.xla_dump_hlo_as_proto:
            self._proto(f"{self._optimized_name}-{title}", text().encode("latin-1"))
        elif title in _AHEAD_OF_TIME and not self._options.xla_gpu_experimental_aot_compiled_thunks:
            pass
        elif title == THUNK_METADATA_PROTO and not self._options.dumps_text:
            self._files.file(title, text().encode("latin-1"), timed=True)
        elif title == PRIORITY_FUSION_DUMP and _matches(self._pass_re, "priority-fusion"):
            if self._options.dumps_text:
                self._files.file("priority_fusion_dump.txt", text())
        elif title == FUSION_FRAMES:
            for computation, frames in frames_from_json(text()).items():
                self._frames.setdefault(computation, []).extend(frames)
        elif title in _THUNK_FILES and (title != THUNK_METADATA or self._options.dumps_text):
            before, self._thunks = self._thunks, text()
            if title != THUNKS_AFTER_PASSES or self._thunks != before:
                self._files.text(_THUNK_FILES[title], self._thunks, timed=title == THUNK_METADATA)
        elif title in CONSTANTS:
            self._constants(title, text)
        if title == THUNKS:
            self._finish()

    def passes_done(self) -> None:
        """Write the module after the last of single passes."""
        self._pass_dumps(self._order.finish())
        if self._dumps_hlo:
            self._dump_module("after_optimization")

    def _constants(self, title: str, text: Callable[[], str]) -> None:
        """Write a form of the LLVM module of constants, as a form of one more kernel."""
        if title == CONSTANTS[2]:
            if self._dumps_emitter(_PTX):
                self._files.text(f"{self._llvm_files - 1}.ptx", text())
            return
        if self._dumps_emitter(_LLVM_IR):
            self._files.text(f"{self._llvm_files}.{'ir-no-opt' if title == CONSTANTS[0] else 'ir-with-opt'}.ll", text())
        self._llvm_files += 1

    def _finish(self) -> None:
        """Write what XLA writes when all is compiled."""
        if self._options.xla_gpu_experimental_aot_compiled_thunks:
            self._files.file("gpu_target_config.pbtxt", to_text_proto(self._target))
        if not self._is_scheduled:
            self._files.text("autotune_results.pbtxt", _NO_AUTOTUNING)
        if self._metadata is not None:
            self._files.module_file("metadata.textproto", self._metadata.text())

    @property
    def _optimized_name(self) -> str:
        return f"{self._target.xla_name}_gpu_after_optimizations"

    def _hlo(self, step: Step) -> None:
        if step.row == PIPELINE_START:
            if step.changed:  # by the pass that runs the pipeline
                self._text = self._module_text()
            self._texts.setdefault(step.pipeline, self._text)
        elif step.changed is not None:
            changes_text = self._changes_text(step) and step.row not in SILENT and not self._is_unreported
            self._is_unreported = False
            self._has_synchronous |= changes_text and step.row == _TO_SYNCHRONOUS
            step = replace(step, changed=changes_text or (bool(step.changed) and step.row in TELLING))
        if step.row == OPTIMIZED_HLO:
            self._pass_dumps(self._order.finish())
            if self._dumps_hlo:
                self._dump_module(self._optimized_name)
                self._dump_fusions()
            return
        self._pass_dumps(self._order.after_step(step))

    def _changes_text(self, step: Step) -> bool:
        """Return True if the module's text differs from the text before the step. Edits may undo each other."""
        if self._pass_re is None and self._metadata is None:
            return False
        # A step of a pipeline inside another has no time.
        is_pipeline = step.row in self._texts and step.row != step.pipeline
        before = self._texts.pop(step.row) if is_pipeline else self._text
        if step.changed:
            self._text = self._module_text()
        return before != self._text

    def _reports_change(self, name: str) -> bool:
        """Return True if XLA's pass reports a change in the unchanged module: it gives instructions new names."""
        opcodes = {i.opcode for computation in self._module.computations for i in computation.instructions}
        match name:
            case "sanitize-constant-names":
                return "constant" in opcodes
            case "dce":
                return self._has_unused_bodies
            case "rematerialization" | "remat-pipeline":  # drops the bodies of collectives that are not asynchronous any more
                return self._has_synchronous
            case "reduction-layout-normalizer":  # replaces every reduction of several arrays
                return any(len(i.operands) > 2 for i in self._module.instructions_of("reduce"))
            case "computation-deduplicator":  # also computations that it leaves, because no fusion calls them
                from hlo_run.hlo_passes.control_flow.computation_deduplicator import alike  # few dumps need it

                return bool(alike(self._module))
            case _:
                return False

    def _pass_dumps(self, dumps: Iterable[PassDump]) -> None:
        """Write the module at places between passes, if the flags ask for them."""
        for dump in dumps:
            if dump.is_skipped:
                if self._metadata is not None:
                    self._metadata.add(dump, [])
                continue
            self._has_unused_bodies &= dump.after != "dce"
            if dump.after == PIPELINE_START and dump.pipeline in _DUMPED_BEFORE and self._dumps_hlo:
                self._dump_module(_DUMPED_BEFORE[dump.pipeline])
                if dump.pipeline == self._options.early_exit[1]:  # nothing is compiled
                    self._files.text("autotune_results.pbtxt", _NO_AUTOTUNING)
            paths: list[str] = []
            is_due = dump.changed or dump.after == PIPELINE_START or self._options.xla_dump_hlo_pass_re != ".*"
            if dump.before:
                named = _matches(self._pass_re, dump.after) or _matches(self._pass_re, dump.before)
                matches = named and is_due and _matches(self._pipeline_re, dump.pipeline, empty=True)
            else:  # while a pass runs
                matches = _matches(self._pass_re, dump.pipeline)
            if matches and self._dumps_hlo:
                place = f".before_{dump.before}" if dump.before else ""
                paths = self._dump_module(f"{self._hlo_dumps:04d}.{file_name(dump.pipeline)}.after_{dump.after}{place}")
                self._hlo_dumps += 1
            if self._metadata is not None and dump.before:
                self._metadata.add(dump, paths)

    def _dump_module(self, name: str) -> list[str]:
        """Write the module in every format that the flags ask for, and return the paths of the files."""
        options, files, module = self._options, self._files, self._module
        paths: list[str] = []
        if options.dumps_text:
            paths.append(files.text(f"{name}.txt", self._module_text(), timed=True))
        if options.xla_dump_hlo_as_proto:
            paths.append(self._proto(f"{name}.hlo.pb", delimited(1, self._write_proto(module))))
        if options.xla_gpu_experimental_dump_fdo_profiles:
            paths.append(files.file(f"{name}.fdo_profile", "", timed=True))
        if options.xla_dump_hlo_as_url:
            paths.append(files.file(f"{name}.url", _NO_URL))
        if options.xla_dump_hlo_as_dot:
            paths.append(files.file(f"{name}.dot", dot_text(module, name), timed=True))
        if options.xla_dump_hlo_as_html:
            paths.append(files.file(f"{name}.html", html_text(module, name), timed=True))
            if name == self._optimized_name:
                paths.append(files.file(f"{name}.top_level.html", html_text(module, name, with_fusions=False), timed=True))
        return [path for path in paths if path]

    def _schedule(self, traces: str) -> None:
        """Write the times of the latency-hiding scheduler, as XLA's file that has no number."""
        found, name = traces_from_json(traces), f"{self._module.name}.schedule"
        if self._options.dumps_text:
            self._files.named_file(f"{name}.txt", schedule_to_text(self._unscheduled, found).encode())
        else:
            self._files.named_file(f"{name}.pb", schedule_to_bytes(self._unscheduled, found))

    def _dump_fusions(self) -> None:
        """Write a page for each computation in which fusions were tried; like XLA not if its root reads only parameters."""
        for computation in self._module.computations:
            frames, root = self._frames.get(computation.name, []), computation.root
            if frames and (root.opcode == "fusion" or any(operand.opcode != "parameter" for operand in root.operands)):
                text = page(f"Fusion Explorer: {self._module.name}_{computation.name}", frames)
                self._files.named_file(f"{computation.name}.{self._files.prefix}._fusion.pyz", program(text))

    def _proto(self, name: str, data: bytes) -> str:
        """Write a proto, compressed if the flag asks for it, and return its path."""
        if not self._options.xla_dump_compress_protos:
            return self._files.file(name, data, timed=True)
        return self._files.file(f"{name}.gz", gzip.compress(data, mtime=0), timed=True)

    def _module_text(self) -> str:
        return module_to_string(self._module, dump_options(self._options))

    def _kernel(self, step: Step) -> None:
        number = self._kernel_rows.get(step.kernel, 0)
        self._kernel_rows[step.kernel] = number + 1
        if step.changed is not False:
            first = header(step.row, step.kernel, step.launch, step.unroll_factor, self._target.name, self._files.prefix)
            self._files.text(f"{step.kernel}.{number:03d}.after_{step.row}.mlir", f"{first}\n{step.text()}")

    def _llvm(self, step: Step) -> None:
        """Write LLVM IR. As in XLA, the IR of kernel k is file 2k before LLVM's passes and 2k + 1 after them."""
        ending = "ir-no-opt" if step.row == LLVM_BEFORE_OPTIMIZATIONS else "ir-with-opt"
        if self._dumps_emitter(_LLVM_IR):
            self._files.text(f"{self._llvm_files}.{ending}.ll", step.text())
        self._llvm_files += 1

    def _flush_log(self, kernel: str) -> None:
        log = self._logs.pop(kernel, None)
        # XLA makes sorts without MLIR.
        sorts = {i.name.replace(".", "_") for c in self._module.computations for i in c.instructions if i.opcode == "sort"}
        if log is not None and kernel not in sorts:
            self._files.text(f"{kernel}.mlir-passes.log", "\n".join(log))


def _matches(pattern: re.Pattern[str] | None, name: str, empty: bool = False) -> bool:
    """Return True if a pattern occurs in a name; `empty` without a pattern."""
    return empty if pattern is None else pattern.search(name) is not None


def compile_pattern(flag: str, pattern: str) -> re.Pattern[str] | None:
    """Return the regular expression of `--flag`; None if it is empty. Raises UsageError for an invalid one."""
    try:
        return re.compile(pattern) if pattern else None
    except re.error as error:
        raise UsageError(f"--{flag}='{pattern}' is not a regular expression: {error}") from None
