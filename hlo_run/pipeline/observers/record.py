"""Records a compilation for the page of `--report_html`: passes with their changes, graphs, kernels, memory."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, field

from hlo_run.analysis.buffers.buffer_life import MemoryUse
from hlo_run.analysis.cost.device_work import device_work
from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.analysis.tiling.analyze_fusion import analyze
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import CONTROL_FLOW, NO_CODE
from hlo_run.hlo.printer import SHORT_PARSABLE, computation_to_string, instruction_order, instruction_to_string, module_to_string
from hlo_run.pass_support.observer import (
    EMIT_KERNELS,
    LLVM,
    OPTIMIZED_HLO,
    PIPELINE_START,
    Level,
    Observer,
    Step,
)
from hlo_run.pipeline.observers.line_diff import ChangeInContext, changed_blocks, in_context
from hlo_run.records import replace
from hlo_run.target import TargetSpec
from hlo_run.walks import walk

# The pipeline that makes fusions: the graph "before" is that at its start.
_FUSION = "fusion"
_PRINT = replace(SHORT_PARSABLE, large_constants=False)


class PassRun(Struct, frozen=True):
    """One run of a row of the HLO table. `changes` are its changed lines; empty if it changed nothing that the text shows."""

    pipeline: str
    row: str
    seconds: float
    changed: bool
    instructions: int
    changes: list[ChangeInContext]


class NodeRecord(Struct, frozen=True):
    """An instruction of a graph. `operands` are the numbers of nodes of the same graph; `label` describes a fusion or a call."""

    name: str
    opcode: Opcode
    shape: str
    label: str
    operands: tuple[int, ...]
    emitter: str = ""
    bytes_accessed: int = 0


class GraphRecord(Struct, frozen=True):
    """The instructions of a computation that is executed, operands before users."""

    computation: str
    nodes: tuple[NodeRecord, ...]


class KernelRecord(Struct):
    """The texts of a kernel; a text is empty if the compilation did not reach it."""

    kernel_ir: str = ""
    llvm: str = ""
    ptx: str = ""
    notes: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])


class CompilationRecord(Struct):
    """A compilation, as far as it came. `rows` sums the seconds and runs of kernel rows and lowering steps by (level, row).

    `sources` has the HLO text of each instruction that may be a kernel, with the computations that it calls, by its name.
    A sort inside a fusion names the fusion's kernels; `carriers` maps its name to that of the fusion.
    """

    target: str
    passes: list[PassRun] = field(default_factory=list[PassRun])
    failed_row: str = ""
    rows: dict[tuple[str, str], tuple[float, int]] = field(default_factory=dict[tuple[str, str], tuple[float, int]])
    before_fusion: list[GraphRecord] = field(default_factory=list[GraphRecord])
    optimized: list[GraphRecord] = field(default_factory=list[GraphRecord])
    carriers: dict[str, str] = field(default_factory=dict[str, str])
    sources: dict[str, str] = field(default_factory=dict[str, str])
    kernels: dict[str, KernelRecord] = field(default_factory=dict[str, KernelRecord])
    memory: MemoryUse | None = None


class RecordObserver(Observer):
    """Fills `record` while `module` is compiled for `target`."""

    def __init__(self, module: HloModule, target: TargetSpec, record: CompilationRecord) -> None:
        self._module, self._target, self._record = module, target, record
        self._lines = self._text()
        self._in_row = False

    def watches(self, level: Level) -> bool:
        """Return True for HLO."""
        return level is Level.HLO

    def before(self, step: Step) -> None:
        """Note that a row begins; the steps of groups have no beginning."""
        self._in_row = step.level is Level.HLO

    def after(self, step: Step) -> None:
        """Record a row, the graphs before and after fusion, or a text of a kernel."""
        match step.level:
            case Level.HLO:
                self._hlo(step)
            case Level.KERNEL:
                self._count(step)
                if step.row == EMIT_KERNELS:
                    self._kernel(step.kernel).kernel_ir = step.text()
            case Level.LLVM:
                self._count(step)
                if step.row == LLVM:
                    self._kernel(step.kernel).llvm = step.text()
            case Level.PTX:
                self._count(step)
                self._kernel(step.kernel).ptx = step.text()

    def failed(self, step: Step, error: Exception) -> None:
        """Record the name of the row that failed."""
        del error
        self._record.failed_row = step.row + (f" of {step.kernel}" if step.kernel else "")

    def assigned(self, memory: Callable[[], MemoryUse]) -> None:
        """Record the values in memory."""
        self._record.memory = memory()

    def note(self, kernel: str, title: str, text: Callable[[], str]) -> None:
        """Record the notes about a kernel: its fusion's analysis, and what the assembler says."""
        if kernel:
            self._kernel(kernel).notes.append((title, text()))

    def _kernel(self, name: str) -> KernelRecord:
        return self._record.kernels.setdefault(name, KernelRecord())

    def _count(self, step: Step) -> None:
        seconds, runs = self._record.rows.get((step.level.value, step.row), (0.0, 0))
        self._record.rows[step.level.value, step.row] = seconds + step.seconds, runs + 1

    def _hlo(self, step: Step) -> None:
        if step.row == OPTIMIZED_HLO:
            self._optimized()
            return
        if step.row == PIPELINE_START:
            if step.pipeline == _FUSION:
                self._record.before_fusion = [_graph(c) for c in executed_computations(self._module)]
            return
        if not self._in_row:
            return  # a group inside another, whose rows are recorded
        self._in_row = False
        changes: list[ChangeInContext] = []
        if step.changed:
            lines = self._text()
            changes = in_context(changed_blocks(self._lines, lines), self._lines)
            self._lines = lines
        run = PassRun(step.pipeline, step.row, step.seconds, bool(step.changed), step.op_count(), changes)
        self._record.passes.append(run)

    def _optimized(self) -> None:
        bytes_of = {work.name: work.bytes_accessed for work in device_work(self._module)}
        for computation in executed_computations(self._module):
            graph = _graph(computation)
            fusions = [i for i in computation.instructions if i.opcode == "fusion"]
            emitters = {fusion.name: analyze(fusion, self._target).kind for fusion in fusions}
            nodes = [
                replace(node, emitter=emitters.get(node.name, ""), bytes_accessed=bytes_of.get(node.name, 0))
                for node in graph.nodes
            ]
            self._record.optimized.append(replace(graph, nodes=tuple(nodes)))
            working = (i for i in computation.instructions if i.opcode not in CONTROL_FLOW and i.opcode not in NO_CODE)
            self._record.sources |= {i.name: _source_text(i) for i in working}
            sorts = (
                (i.name, fusion.name) for fusion in fusions for i in fusion.fused_computation.instructions if i.opcode == "sort"
            )
            self._record.carriers |= dict(sorts)

    def _text(self) -> list[str]:
        return module_to_string(self._module, _PRINT).splitlines()


def _graph(computation: HloComputation) -> GraphRecord:
    order = instruction_order(computation)
    numbers = {instruction: number for number, instruction in enumerate(order)}
    nodes = (
        NodeRecord(i.name, i.opcode, i.shape.to_string(), _label(i), tuple(numbers[o] for o in dict.fromkeys(i.operands)))
        for i in order
    )
    return GraphRecord(computation.name, tuple(nodes))


def _label(instruction: HloInstruction) -> str:
    if instruction.opcode == "fusion":
        return instruction.fusion_kind
    if instruction.opcode == "custom-call":
        return instruction.custom_call_target
    return ""


def _source_text(instruction: HloInstruction) -> str:
    """Return an instruction with the computations that it calls, directly or not."""
    called = walk(instruction.called_computations, lambda c: [inner for i in c.instructions for inner in i.called_computations])
    texts = [instruction_to_string(instruction, _PRINT), *(computation_to_string(c, _PRINT) for c in called)]
    return "\n\n".join(texts)
