"""The interface between the runner and its observers: dumps, verbosity, stages, times. Passes speak through `PassContext`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from hlo_run.errors import HloRunError

if TYPE_CHECKING:
    from hlo_run.analysis.buffers.buffer_life import MemoryUse
    from hlo_run.analysis.fusion.fusion_process import AnyFusionStep

# The row name of the first step of every pipeline, and the `next_row` of its last row (XLA's dump names).
PIPELINE_START = "pipeline-start"
PIPELINE_END = "pipeline-end"
# Stages between the rows, with names that `--stage` takes: the module as parsed and as executed, and the lowering steps.
HLO_INPUT = "hlo-input"
OPTIMIZED_HLO = "hlo"
# The module before the pipeline that follows the partitioner; XLA's file has this name.
AFTER_PARTITIONER = "after_spmd_partitioner"
FIRST_AFTER_PARTITIONER = "optimization"
# The pipeline that runs inside `spmd-partitioning`.
SPMD_CLEANUP = "spmd-cleanup"
# Told by a pass that changed only what XLA's pass does not report as a change.
UNREPORTED = "unreported"
EMIT_KERNELS = "emit-kernels"
LLVM_BEFORE_OPTIMIZATIONS = "llvm-before-optimizations"
LLVM = "llvm"
PTX = "ptx"
# The table of all fusions: a note of the module, not a step.
FUSION_ANALYSIS = "fusion-analysis"
# The texts about buffers, also notes; XLA's files end with these names.
BUFFER_TEXTS = ("buffer-assignment", "buffer-assignment-values", "live-range", "memory-usage-report")
# The proto in place of the last of them, as text in Latin-1.
MEMORY_USAGE_PROTO = "memory-usage-report.pb"
# The texts about thunks.
THUNKS = "thunks"
THUNK_METADATA = "thunk-metadata"
THUNK_METADATA_PROTO = "thunk_metadata.pb"  # in Latin-1, too
THUNKS_AFTER_PASSES = "thunks-after-passes"
# The LLVM module of constants: LLVM IR, optimised LLVM IR, and PTX.
CONSTANTS = ("constants", "constants-with-opt", "constants-ptx")
# The steps that a fusion pass tried, in order: a note of the module.
PRIORITY_FUSION_DUMP = "priority-fusion-dump"
# The frames of the fusion passes, as JSON (`analysis.fusion.fusion_frames`).
FUSION_FRAMES = "fusion-frames"
# The orders of the latency-hiding scheduler with their times, as JSON (`analysis.latency.schedule_trace`).
LATENCY_SCHEDULE = "latency-schedule"
THUNK_TEXTS = (THUNKS, THUNKS_AFTER_PASSES, THUNK_METADATA)
# The launches as IR, with their kernels.
GPU_DIALECT = "gpu-dialect"
_KERNEL_STAGES = (EMIT_KERNELS, LLVM_BEFORE_OPTIMIZATIONS, LLVM, PTX)
STAGES = (AFTER_PARTITIONER, OPTIMIZED_HLO, FUSION_ANALYSIS, *BUFFER_TEXTS, *THUNK_TEXTS, *_KERNEL_STAGES, GPU_DIALECT)


class Level(Enum):
    """The IR that a step works on."""

    HLO = "hlo"
    KERNEL = "kernel"
    LLVM = "llvm"
    PTX = "ptx"


class Step(Struct, frozen=True):
    """One row that ran, or one lowering step (`emit-kernel`, `llvm-before-optimizations`, `llvm`, `ptx`).

    - `pipeline`: the name of the group.
    - `pass_name`: the row's name without the number that makes it unique; empty if `row` has no number.
    - `next_row`: the name of the next row of the pipeline.
    - `kernel`, `launch`, `unroll_factor`: the kernel's name, its grid and block, and the maximum unroll factor of its loops.
      `kernel` is empty for HLO.
    - `text`: prints the current state of the subject. Call it only inside the callback.
    - `changed`: None if no observer asked for it (see `Observer.watches`).
    - `op_count`: counts instructions or ops.
    - `seconds`: the time of this row only.
    """

    level: Level
    pipeline: str
    row: str
    text: Callable[[], str]
    kernel: str = ""
    launch: str = ""
    unroll_factor: int = 0
    pass_name: str = ""
    next_row: str = PIPELINE_END
    changed: bool | None = None
    op_count: Callable[[], int] = lambda: 0
    seconds: float = 0.0


class Observer:
    """Base of observers: every callback does nothing. `watches` returns True for a level whose `Step.changed` must be known.

    To know whether a kernel row changed anything, the runner prints the kernel after each row; it does so only if an observer
    watches kernels. An observer with `only_times` uses only the names and seconds of steps: kernels may then be compiled in
    other processes, and the decisions of priority fusion are not recorded.
    """

    only_times: ClassVar[bool] = False

    def watches(self, level: Level) -> bool:
        """Return True if `Step.changed` must be known for steps of `level`. The base returns False."""
        del level
        return False

    def wants_note(self, title: str) -> bool:
        """Return True if a note that costs work during the compilation must be made. The base returns False."""
        del title
        return False

    def before(self, step: Step) -> None:
        """Observe that a row begins (HLO and kernel rows only)."""

    def after(self, step: Step) -> None:
        """Observe that a row or a lowering step has ended."""

    def failed(self, step: Step, error: HloRunError) -> None:
        """Observe that a row raised; `error` is the error that the runner raises."""

    def kernel_done(self, kernel: str) -> None:
        """Observe that the last row of `kernel` has ended."""

    def decided(self, row: str, steps: Sequence[AnyFusionStep]) -> None:
        """Observe the steps that a fusion pass tried, in order, before the row's `after`."""

    def assigned(self, memory: Callable[[], MemoryUse]) -> None:
        """Observe the buffer assignment; `memory` lists the values in memory."""

    def note(self, kernel: str, title: str, text: Callable[[], str]) -> None:
        """Observe a text that is not a step, rendered on demand: fusion analysis, assembler report."""


class StopAtStage(Exception):
    """Raised by the stage printer after it printed the requested stage; commands catch it."""
