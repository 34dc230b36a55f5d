"""What the runner tells those who watch: dumps, verbosity, stage printing, timing are observers; passes know of none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from hlo_run.errors import HloRunError

if TYPE_CHECKING:
    from hlo_run.analysis.fusion.fusion_process import AnyFusionStep

# The row name of the step that every pipeline begins with, and the `next_row` of its last row (XLA's dump names).
PIPELINE_START = "pipeline-start"
PIPELINE_END = "pipeline-end"
# Stages between the rows, which `--stage` knows by name as it knows rows: the module as read and as executed, and the crossings.
HLO_INPUT = "hlo-input"
OPTIMIZED_HLO = "hlo"
EMIT_KERNELS = "emit-kernels"
LLVM_BEFORE_OPTIMIZATIONS = "llvm-before-optimizations"
LLVM = "llvm"
PTX = "ptx"
# A table of all fusions: a note of the module, not a step.
FUSION_ANALYSIS = "fusion-analysis"
# The texts about buffers, likewise notes; their names end those of XLA's files.
BUFFER_TEXTS = ("buffer-assignment", "buffer-assignment-values", "live-range", "memory-usage-report")
# The texts about thunks.
THUNKS = "thunks"
THUNK_METADATA = "thunk-metadata"
THUNKS_AFTER_PASSES = "thunks-after-passes"
# What a fusion pass tried, in order: a note of the module.
PRIORITY_FUSION_DUMP = "priority-fusion-dump"
THUNK_TEXTS = (THUNKS, THUNKS_AFTER_PASSES, THUNK_METADATA)
# The launch side as IR, with the kernels in it.
GPU_DIALECT = "gpu-dialect"
_KERNEL_STAGES = (EMIT_KERNELS, LLVM_BEFORE_OPTIMIZATIONS, LLVM, PTX)
STAGES = (OPTIMIZED_HLO, FUSION_ANALYSIS, *BUFFER_TEXTS, *THUNK_TEXTS, *_KERNEL_STAGES, GPU_DIALECT)


class Level(Enum):
    """What a step works on."""

    HLO = "hlo"
    KERNEL = "kernel"
    LLVM = "llvm"
    PTX = "ptx"


@dataclass(frozen=True)
class Step:
    """One row that ran, or one crossing (`emit-kernel`, `llvm-before-optimizations`, `llvm`, `ptx`).

    `pipeline` is the group's name, `pass_name` the row's name without the number that makes it unique (empty: the same),
    `next_row` that of the row that follows in it, `kernel` the kernel's (empty for HLO), `launch`
    its grid and block, `unroll_factor` the bound on unrolling its loops. `text` renders the subject as it stands now: call
    it inside the callback or not at all. `changed` is None where nobody asked (see `Observer.watches`). `op_count` counts
    instructions or ops, `seconds` is the row's own.
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
    """Base of observers: every callback does nothing. `watches` says whether changes of that level must be known.

    Knowing whether a kernel row changed anything costs a printing per row, so it is done only when somebody watches.
    An observer with `only_times` looks at names and seconds of steps alone: kernels may then be compiled in other processes,
    and what priority fusion decides need not be kept.
    """

    only_times: ClassVar[bool] = False

    def watches(self, level: Level) -> bool:
        del level
        return False

    def before(self, step: Step) -> None:
        """A row is about to run (HLO and kernel rows only)."""

    def after(self, step: Step) -> None:
        """A row or a crossing ended."""

    def failed(self, step: Step, error: HloRunError) -> None:
        """A row raised; `error` is what leaves the runner."""

    def kernel_done(self, kernel: str) -> None:
        """The last row of `kernel` ran."""

    def decided(self, row: str, steps: Sequence[AnyFusionStep]) -> None:
        """A fusion pass tried these in this order; told before the row's `after`."""

    def note(self, kernel: str, title: str, text: Callable[[], str]) -> None:
        """A text beside the passes, rendered on demand: fusion analysis, assembler report."""


class StopAtStage(Exception):
    """Raised by the stage printer when the stage asked for has been printed; commands catch it."""
