"""`--isolate_instructions`: runs every instruction of the module alone on the reference's operands; one verdict on each."""

from __future__ import annotations

from collections.abc import Container, Sequence

from msgspec import Struct

from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.artifact import accesses
from hlo_run.columns import aligned
from hlo_run.commands.compilation import compiling
from hlo_run.commands.localize import first_arguments, replace_checks
from hlo_run.commands.task import Task
from hlo_run.containment.board import busy
from hlo_run.errors import HloRunError, Mismatch, Unsupported
from hlo_run.execution.arguments import MODULE_SEED
from hlo_run.hlo.feeds import Feeds
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.isolate import isolate_instruction
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.opcodes.traits import ASYNC_DONE, ASYNC_START
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.values.shape import Shape
from hlo_run.kernel_checks.written_arrays import part_at, written_leaves
from hlo_run.localize.found import open_host, verdicts_of
from hlo_run.localize.report import worst_error
from hlo_run.pass_support.replacements import Replacements
from hlo_run.pipeline.compile import compile_module
from hlo_run.records import replace
from hlo_run.reference.compare.compare import Comparison
from hlo_run.reference.evaluate.evaluate import evaluate
from hlo_run.reference.evaluate.walk import CONTROL_FLOW, FORWARDS, Walk
from hlo_run.reference.values import Value

# They depend on more than their operands, or only make sense in pairs.
_NOT_ALONE = (
    ASYNC_START
    | ASYNC_DONE
    | opcode_set("async-update infeed outfeed rng rng-get-and-update-state replica-id partition-id")
    | opcode_set("opt-barrier domain")
)
_HEADINGS = ("instruction", "in", "opcode", "shape", "worst abs error", "verdict")
_NUMBERS = range(4, 5)


class Verdict(Struct, frozen=True):
    """The verdict on one instruction: the comparison, the error of one that fails, or the reason why it did not run."""

    instruction: HloInstruction
    comparison: Comparison | None = None
    not_run: str = ""
    failure: str = ""

    @property
    def is_wrong(self) -> bool:
        """True if the instruction differs or fails."""
        return bool(self.failure) or (self.comparison is not None and not self.comparison.ok)

    @property
    def text(self) -> str:
        """Return `agrees`, `differs` with the first wrong element, `fails` with the error, or `not run` with the reason."""
        if self.failure:
            return f"fails: {self.failure}"
        if self.comparison is None:
            return f"not run: {self.not_run}"
        return "agrees" if self.comparison.ok else f"differs: {self.comparison.summary()}"


class _Operands(Walk):
    """Keeps the operands of every instruction at its first execution."""

    def __init__(self, module: HloModule, seed: int, feeds: Feeds) -> None:
        super().__init__(module, seed, feeds)
        self.found: dict[HloInstruction, list[Literal]] = {}

    def leaf(self, instruction: HloInstruction, operands: Sequence[Value]) -> Value:
        """Keep the operands and return the value."""
        if instruction not in self.found:
            self.found[instruction] = [self.outside(operand) for operand in operands]
        return self.evaluate(instruction, operands)


def isolate_instructions(task: Task, module: HloModule) -> None:
    """Print the table. Raises Mismatch if an instruction differs, else the first error of one that fails."""
    open_host(task.options)
    values, source, feeds = first_arguments(task, module)
    walk = _Operands(module, MODULE_SEED, feeds)
    task.console.err(f"Running every instruction of {module.name} alone, with {source}...")
    with busy("evaluating the module"):
        walk.walk(values)
    verdicts = [_verdict(task, instruction, operands) for instruction, operands in walk.found.items()]
    verdicts += _unreached(module, walk.found)
    task.console.out("\n".join(aligned([_HEADINGS, *map(_row, verdicts)], _NUMBERS)))
    wrong = [verdict for verdict in verdicts if verdict.is_wrong]
    skipped = sum(bool(verdict.not_run) for verdict in verdicts)
    ran = len(verdicts) - skipped
    task.console.err(f"{len(wrong)} of {ran} instructions differ or fail; {skipped} did not run.")
    if wrong:
        first = wrong[0].instruction
        names = ", ".join(f"%{verdict.instruction.name}" for verdict in wrong[:10])
        message = f"{len(wrong)} of {ran} instructions are wrong alone: {names}{', ..' if len(wrong) > 10 else ''}"
        note = f"%{first.name} {wrong[0].text}"
        raise Mismatch(message, first.where, "--localize replays the whole run, kernel by kernel", (note,))


def _unreached(module: HloModule, found: Container[HloInstruction]) -> list[Verdict]:
    """Return verdicts on the instructions of executed computations that the walk did not reach, such as a branch not taken."""
    return [
        Verdict(instruction, not_run="the run does not reach it")
        for computation in executed_computations(module)
        for instruction in computation.instructions
        if instruction not in found and instruction.opcode not in FORWARDS | CONTROL_FLOW
    ]


def _verdict(task: Task, instruction: HloInstruction, operands: Sequence[Literal]) -> Verdict:
    """Compile and run one instruction on its operands, and compare with the reference."""
    if instruction.opcode in _NOT_ALONE:
        return Verdict(instruction, not_run=f"'{instruction.opcode}' has no meaning alone")
    alone = isolate_instruction(instruction)
    given = list(dict(zip(instruction.operands, operands, strict=True)).values())
    try:
        expected = evaluate(alone, given, seed=MODULE_SEED)
        with compiling(replace_checks(task), alone) as (ctx, working):
            # A replacement is for a kernel of the whole module.
            executable = compile_module(replace(ctx, replacements=Replacements()), working)
        actual = open_host(task.options).run(executable, given, MODULE_SEED)
    except Unsupported as error:
        return Verdict(instruction, not_run=error.message)
    except HloRunError as error:
        return Verdict(instruction, failure=f"{error.kind}: {error.message}")
    written = [piece for thunk in executable.thunks for piece in accesses(thunk).writes]
    leaves = written_leaves(instruction.shape, executable.result, written)
    if not leaves:
        return Verdict(instruction, not_run="nothing computes it")
    if len(leaves) == 1 and not leaves[0][0]:
        return Verdict(instruction, verdicts_of(task.options).of_module(alone, given, expected, actual))

    def part(value: Value) -> Value:
        return tuple(part_at(value, path) for path, _ in leaves)

    shape = Shape.make_tuple(tuple(leaf for _, leaf in leaves))
    rules = verdicts_of(task.options)
    return Verdict(instruction, rules.of_module(alone, given, part(expected), part(actual), shape=shape, part=part))


def _row(verdict: Verdict) -> tuple[str, ...]:
    instruction = verdict.instruction
    computation = instruction.parent
    where = "entry" if computation is None or computation.is_entry else f"%{computation.name}"
    error = "-" if verdict.comparison is None else f"{worst_error(verdict.comparison):.3g}"
    shape = instruction.shape.to_string(layout=False)
    return (f"%{instruction.name}", where, instruction.opcode, shape, error, verdict.text)
