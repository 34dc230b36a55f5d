"""`--check_each_pass`: evaluates the module after every HLO row that changed it, and each region that the row rewrote alone.

Reports the row that changed the module's result, or that rewrote a region into one that computes something else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from msgspec import Struct

from hlo_run.backends.interpreter import InterpreterBackend
from hlo_run.commands.isolate_fusion import write_isolated
from hlo_run.commands.task import Task
from hlo_run.errors import DeviceError, HloRunError, Mismatch, Unsupported
from hlo_run.execution.arguments import MODULE_SEED, Arguments
from hlo_run.execution.error_bounds import error_spec, has_fixed_bounds
from hlo_run.hlo.edit import InstructionMaker
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.isolate import isolate_between, needed_for
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.values.shape import Shape
from hlo_run.kernel_checks.verdicts import Verdicts
from hlo_run.pass_support.observer import Level, Observer, Step
from hlo_run.reference.compare.compare import Comparison, ErrorSpec, compare
from hlo_run.reference.evaluate.devices import DeviceGrid
from hlo_run.reference.evaluate.evaluate import evaluate
from hlo_run.reference.evaluate.loop_limit import EndlessLoop, loops_end_within
from hlo_run.region_checks.detectability import is_seen
from hlo_run.region_checks.row import NotJudged, RowJudge, RowReport, Snapshot

# The text of a module below this number of lines is part of the message. A longer one is only in the file.
_SHOWN_LINES = 60
# A module may take this many times as long as before the rows, and at least so many seconds.
_PATIENCE, _LEAST_SECONDS = 20.0, 10.0
# Of so many regions that are not judged alone, a row's check asks whether the result depends on them.
_MOST_ASKED = 4
_SHOWN_NAMES = 3


class Candidate(Struct, frozen=True):
    """A module that may show what a row did when it is compiled, its arguments, and the path of its files, if it has any."""

    module: HloModule
    values: list[Literal]
    path: str = ""


class RowMismatch(Mismatch):
    """An HLO row changed the result of the module. `candidates` for its reproducer are in order, the smallest first."""

    candidates: tuple[Candidate, ...] = ()
    name: str = ""


def pass_checker(task: Task, module: HloModule) -> Callable[[HloModule], Observer]:
    """Return a function from the module that is compiled to its PassChecker, on the first iteration's arguments."""
    options = task.options
    source = Arguments(replace(options, save_inputs=""), module, task.given, task.place, task.given_from)
    values, _ = source.next(1)
    interpreter = InterpreterBackend(source.grid)
    alone = values if source.grid.size == 1 else []
    fixed = has_fixed_bounds(options) or source.grid.size > 1
    verdicts = Verdicts(error_spec(options), fixed, MODULE_SEED)
    return lambda working: PassChecker(
        working,
        lambda state: interpreter.run_module(state, values, MODULE_SEED),
        source.grid,
        alone,
        verdicts,
        task.folder,
        task.console.err,
    )


class _State(Struct, frozen=True):
    """A module at some point of the pipeline. `result` is None where the reference cannot evaluate it, `endless` says which loop
    does not end."""

    snapshot: Snapshot
    result: Literal | None
    endless: str = ""

    @property
    def module(self) -> HloModule:
        """The copy of the module."""
        return self.snapshot.module


class PassChecker(Observer):
    """Evaluates `working` by `run` on a grid after every row that changed it. raises Mismatch at the first row that changed its
    result, or rewrote a region wrongly.

    Writes the smallest computation that differs, before and after the row, with its arguments into `folder`. `arguments` are
    those of the module on one device; without them nothing is written. Where the reference cannot evaluate the module, the
    row is not checked and `say` gets a message, also about changes that neither the result nor their region tells of.
    """

    def __init__(
        self,
        working: HloModule,
        run: Callable[[HloModule], Literal],
        grid: DeviceGrid,
        arguments: Sequence[Literal],
        verdicts: Verdicts,
        folder: str,
        say: Callable[[str], None],
    ) -> None:
        self._working, self._run, self._arguments, self._verdicts = working, run, arguments, verdicts
        self._grid = grid
        self._folder, self._say = folder, say
        self._version = working.version
        self._limit_seconds = math.inf
        begin = time.monotonic()
        self._judge = RowJudge(grid)
        self._last = self._state(Snapshot.of(working), "parsing")
        self._limit_seconds = max(_LEAST_SECONDS, _PATIENCE * (time.monotonic() - begin))

    def after(self, step: Step) -> None:
        """Evaluate the module if an HLO row changed it. Raises Mismatch if the result differs from the result before the row."""
        if step.level is not Level.HLO or self._working.version == self._version:
            return
        self._version = self._working.version
        snapshot, last = Snapshot.of(self._working), self._last
        report = self._judge.report(last.snapshot, snapshot)
        if report.is_proven and self._grid.size == 1 and not last.endless:
            # The same values: shardings, which change those of several devices, do not matter.
            self._last = _State(snapshot, last.result)
            return
        now = self._last = self._state(snapshot, f"row '{step.row}'")
        if last.result is not None and now.endless:
            raise _row_mismatch(step, last.module.name, [f"after it: {now.endless}"])
        self._compare(step, last, now)
        if report.wrong:
            raise self._wrong_region(step, last.module.name, report)
        if missing := self._unseen(report, now):
            shown = ", ".join(f"%{i.name} ({reason})" for i, reason in list(missing.items())[:_SHOWN_NAMES])
            more = ", .." if len(missing) > _SHOWN_NAMES else ""
            self._say(f"row '{step.row}': {len(missing)} of {report.changed} changed instructions not judged: {shown}{more}")

    def _compare(self, step: Step, last: _State, now: _State) -> None:
        """Compare the results before and after a row. Raises Mismatch."""
        if last.result is None or now.result is None:
            return
        shape = self._grid.result_shape(last.module)
        if _dims(shape) != _dims(self._grid.result_shape(now.module)):
            self._say(f"row '{step.row}' is not checked: the result has another shape")
            return
        comparison = self._verdicts.of_module(last.module, self._arguments, last.result, now.result, shape=shape)
        if not comparison.ok:
            raise self._mismatch(step, last.module, now.module, comparison)

    def _unseen(self, report: RowReport, now: _State) -> dict[HloInstruction, str]:
        """Return the changed instructions of regions that were not judged and on which the result does not depend."""
        unseen: dict[HloInstruction, str] = {}
        for number, region in enumerate(report.not_judged):
            if number >= _MOST_ASKED or now.result is None or not self._sees(region, now, now.result):
                unseen.update(region.reasons)
        return unseen

    def _sees(self, region: NotJudged, now: _State, result: Literal) -> bool:
        try:
            with loops_end_within(self._limit_seconds):
                return is_seen(now.module, region.region.new.outputs, result, self._run) is True
        except (HloRunError, MemoryError):
            return False

    def _state(self, snapshot: Snapshot, what: str) -> _State:
        try:
            with loops_end_within(self._limit_seconds):
                return _State(snapshot, self._run(snapshot.module))
        except EndlessLoop as error:
            return _State(snapshot, None, error.message)
        except (Unsupported, DeviceError, MemoryError) as error:
            self._say(f"the reference cannot evaluate the module after {what}: {error}")
            return _State(snapshot, None)

    def _wrong_region(self, step: Step, name: str, report: RowReport) -> RowMismatch:
        """Return the error of a row that rewrote a region wrongly, which the result does not show."""
        wrong = report.wrong[0]
        first = wrong.verdict.first
        assert first is not None, "a region that differs has a first element that differs"
        output = wrong.region.claims_at(first.outputs)[0]
        index = "{" + ",".join(map(str, first.index)) + "}" if first.index else ""
        notes = [
            f"%{output.old.name} => %{output.new.name}: {first.count} of {first.elements} elements differ on random operands;"
            f" the first{index and ' is at ' + index}: {first.old} before, {first.new} after"
        ]
        if len(report.wrong) > 1:
            notes.append(f"the first of {len(report.wrong)} wrong regions")
        modules, paths = wrong.region.modules(output.new.name), list[str]()
        for when, module in zip(("before", "after"), modules, strict=True):
            paths.append(write_isolated(self._folder, f"{name}.{step.row}.{when}", module, wrong.values))
            notes += _shown(when, module, paths[-1])
        message = f"row '{step.row}' of pipeline '{step.pipeline}' rewrote a part of {name} wrongly"
        notes.append(f"look at HLO row '{step.row}': the result of the module does not depend on that part with these arguments")
        error = RowMismatch(message, notes=tuple(notes))
        error.candidates = (Candidate(modules[0], wrong.values, paths[0]),)
        error.name = f"{name}.{step.row}.reproducer"
        return error

    def _mismatch(self, step: Step, before: HloModule, after: HloModule, comparison: Comparison) -> RowMismatch:
        notes = [f"after it: {comparison.summary()}"]
        found = None
        candidates: list[Candidate] = []
        if self._arguments or not before.entry.parameters:
            try:
                found = smallest_difference(before, after, self._arguments, self._verdicts.spec)
            except HloRunError as error:
                notes.append(f"the difference cannot be cut out: {error.message}")
        if found is not None:
            shown, path = self._show(step, before.name, found)
            notes += shown
            candidates += [Candidate(found.before, found.values, path), found.whole]
        if self._arguments or not before.entry.parameters:
            candidates.append(Candidate(before, [*self._arguments]))
        error = _row_mismatch(step, before.name, notes)
        error.candidates, error.name = tuple(candidates), f"{before.name}.{step.row}.reproducer"
        return error

    def _show(self, step: Step, name: str, found: Difference) -> tuple[list[str], str]:
        """Write the two modules with their arguments; return the notes of the message and the path of the first."""
        paths: list[str] = []
        notes = [f"smallest computation that shows it: %{found.name}, {found.comparison.summary()}"]
        for when, module in (("before", found.before), ("after", found.after)):
            path = write_isolated(self._folder, f"{name}.{step.row}.{when}", module, found.values)
            paths.append(path)
            notes += _shown(when, module, path)
        return notes, paths[0]


def _shown(when: str, module: HloModule, path: str) -> list[str]:
    """Return the notes on the files of a module, and its text if it is short."""
    text = module.to_string().rstrip()
    return [f"{when}: {path}.hlo, with the arguments in {path}.npz", *[text][: text.count("\n") < _SHOWN_LINES]]


def _row_mismatch(step: Step, name: str, notes: Sequence[str]) -> RowMismatch:
    message = f"row '{step.row}' of pipeline '{step.pipeline}' changed the meaning of {name}"
    where = f"look at HLO row '{step.row}': the rows before it keep the meaning, those after it were not checked"
    return RowMismatch(message, notes=(*notes, where))


def _dims(shape: Shape) -> object:
    if shape.is_tuple:
        return tuple(_dims(element) for element in shape.tuple_shapes)
    return shape.element_type, shape.dims


class Difference(Struct, frozen=True):
    """Two modules with the same parameters that compute the value `name` differently, their arguments, and the comparison.

    `whole` computes the value as `before` does, from the parameters of the whole module.
    """

    name: str
    before: HloModule
    after: HloModule
    values: list[Literal]
    comparison: Comparison
    whole: Candidate


def smallest_difference(before: HloModule, after: HloModule, arguments: Sequence[Literal], spec: ErrorSpec) -> Difference | None:
    """Return the first difference between the entries of two modules, in the order of `after`.

    Compares the values of instructions with equal names, types and dimensions, and the results. The parameters of the two
    cut-out modules are values that agree. None if both modules agree, or if the cut-out modules agree.
    """
    pairs = _pairs(before, after)
    values = [_values(module, instructions, arguments) for module, instructions in zip((before, after), pairs, strict=True)]
    agreed: list[int] = []
    for number, (one, two) in enumerate(zip(*pairs, strict=True)):
        comparison = compare(values[0][number], values[1][number], one.shape, spec)
        if comparison.ok:
            agreed.append(number)
            continue
        inputs = [[instructions[i] for i in agreed] for instructions in pairs]
        needed = _inputs_of(one, inputs[0]) | _inputs_of(two, inputs[1])
        kept = [place for place in range(len(agreed)) if place in needed]
        cut = [
            isolate_between(root, [given[place] for place in kept], f"{two.name}_{when}")
            for when, root, given in (("before", one, inputs[0]), ("after", two, inputs[1]))
        ]
        given = [values[0][agreed[place]] for place in kept]
        shown = compare(evaluate(cut[0], given), evaluate(cut[1], given), one.shape, spec)
        if not shown.ok:
            return Difference(two.name, cut[0], cut[1], given, shown, _from_parameters(before, one, arguments))
    return None


def _from_parameters(module: HloModule, root: HloInstruction, arguments: Sequence[Literal]) -> Candidate:
    """Return a module that computes one value of the entry from its parameters."""
    parameters = module.entry.parameters
    needed = sorted(_inputs_of(root, parameters))
    alone = isolate_between(root, [parameters[place] for place in needed], root.name)
    return Candidate(alone, [arguments[place] for place in needed])


def _inputs_of(root: HloInstruction, inputs: Sequence[HloInstruction]) -> set[int]:
    """Return the indices of the inputs that `root` depends on; constants are never inputs."""
    places = {instruction: place for place, instruction in enumerate(inputs)}
    needed = needed_for(root, places)
    return {places[operand] for instruction in needed for operand in instruction.operands if operand in places}


def _pairs(before: HloModule, after: HloModule) -> tuple[list[HloInstruction], list[HloInstruction]]:
    """Return pairs of instructions that represent the same value in both entries, operands before users in `after`."""
    named = {instruction.name: instruction for instruction in before.entry.instructions}
    parameters = before.entry.parameters
    places = {parameter: number for number, parameter in enumerate(after.entry.parameters)}
    ones: list[HloInstruction] = []
    twos: list[HloInstruction] = []
    for two in after.entry.post_order():
        one = parameters[places[two]] if two in places else named.get(two.name)
        if one is None or "constant" in (one.opcode, two.opcode) or not two.shape.is_array or two is after.entry.root:
            continue
        if _dims(one.shape) == _dims(two.shape):
            ones.append(one)
            twos.append(two)
    return [*ones, before.entry.root], [*twos, after.entry.root]


def _values(module: HloModule, instructions: Sequence[HloInstruction], arguments: Sequence[Literal]) -> list[Literal]:
    """Return the values of instructions of the entry. Changes the module's root for the evaluation, and restores it."""
    entry, root = module.entry, module.entry.root
    shape = Shape.make_tuple(tuple(instruction.shape for instruction in instructions))
    everything = entry.root = InstructionMaker(entry).add("tuple", shape, instructions, name="everything")
    try:
        result = evaluate(module, arguments)
    finally:
        entry.root = root
        entry.remove(everything)
    assert isinstance(result, tuple)
    return list(result)
