"""Judges each kernel of a run alone: the numpy reference evaluates its instruction on the operands in the run's memory.

Where these hide what the kernel computes, it runs once more, on random operands of its own. A cheap kernel does so in any case:
the run may never come to one of its branches, and stale memory may be right where a kernel writes nothing.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from hlo_run.artifact import BufferSlice, Executable, Thunk, WhileThunk
from hlo_run.backends.literals import Literal
from hlo_run.backends.run_watch import Read, RunWatch
from hlo_run.backends.transfer import literal_of
from hlo_run.errors import DeviceError, Unsupported
from hlo_run.hlo.edit import has_side_effect
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.isolate import isolate_instruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.kernel_checks.draws import own_draws
from hlo_run.kernel_checks.outcomes import LARGE, UNREACHED, Hidden, Outcome
from hlo_run.kernel_checks.scratch import alone
from hlo_run.kernel_checks.units import Unit, cost_elements, equal_units, find_units
from hlo_run.kernel_checks.verdicts import Verdicts
from hlo_run.kernel_checks.written_arrays import part_at, spec_at
from hlo_run.reference.arguments.choices import Choices
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments
from hlo_run.reference.compare.compare import Comparison
from hlo_run.reference.compare.hidden import common_number, hides
from hlo_run.reference.evaluate.evaluate import evaluate
from hlo_run.reference.evaluate.fewer_elements import SAMPLED_ELEMENTS, chosen_elements, of_elements, on_fewer_elements
from hlo_run.reference.evaluate.walk import Walk
from hlo_run.reference.numerics.blas import one_blas_thread
from hlo_run.reference.random import RandomEngine
from hlo_run.reference.values import Value, as_array, quiet

OFF, ALL = "off", "all"
# What a sample may cost the reference, in elements; some 0.2 s.
_SAMPLE_ELEMENTS = 1 << 25
# The same for kernels on operands of their own.
_ASIDE_ELEMENTS = 1 << 22
# A relative error that only cancellation allows.
_NOISE = 2.0**-4
# Executions of a loop that are judged besides the first and the last.
_SOME = 2
# Where a loop's number of iterations is unknown, one iteration between each two numbers is judged.
_EARLY = (1, 8, 64, 512)
_NEVER = 1 << 62
# The results of kernels that are kept until the reference has run.
_MOST_KEPT_BYTES = 1 << 28


class _Running(Struct, frozen=True):
    """The execution that is judged: the operands, copied where the thunks overwrite them."""

    unit: Unit
    operands: tuple[Literal, ...]
    place: str


class KernelChecks:
    """Judges the kernels of one run of `executable`, whose optimised module is `module`, while it watches the run.

    `run_aside` runs another executable in the middle of the run. With `keeps_results`, the outcomes have what each kernel wrote
    last.
    """

    def __init__(
        self,
        module: HloModule,
        executable: Executable,
        verdicts: Verdicts,
        run_aside: Callable[[Executable, Sequence[Literal]], Literal],
        checks_all: bool = False,
        keeps_results: bool = False,
    ) -> None:
        self._executable, self._verdicts, self._run_aside, self._all = executable, verdicts, run_aside, checks_all
        self._walk = Walk(module, verdicts.seed)
        units = find_units(module, executable)
        self._bytes_to_keep = _MOST_KEPT_BYTES if keeps_results else 0
        self.outcomes = {unit: Outcome(unit) for unit in units}
        """By unit, in the order of the thunks."""
        self.seconds = 0.0
        """The time that the checks have taken."""
        self._equal = {unit: unit for unit in units} if checks_all else equal_units(units, executable)
        self._judged: set[Unit] = set()  # the units that stand for their equals
        self._begins = {id(unit.thunks[0]): unit for unit in units}
        self._ends = {id(unit.thunks[-1]): unit for unit in units}
        self._running: dict[Unit, _Running] = {}
        self._modules: dict[Unit, HloModule] = {}
        self._aside: set[Unit] = set()  # units that are judged on operands of their own in any case
        self._fewer: dict[Unit, HloModule] = {}  # of units of which a sample of elements is judged
        self._random = random.Random(verdicts.seed)
        self._iterations: dict[int, tuple[int, ...]] = {}  # by the loop's thunk
        self._counts: dict[int, int] = {}  # of loops without a known number of iterations, by the loop's thunk
        self._is_last = False
        if not checks_all:
            self._leave_large(units)
        self._choose_aside(units)

    def _leave_large(self, units: Sequence[Unit]) -> None:
        """Leave out the most expensive units, so that the others cost no more than a sample may."""
        left = _SAMPLE_ELEMENTS
        costs = {unit: cost_elements(unit) * self._executions(unit) for unit in units if self._equal[unit] is unit}
        for unit in sorted(costs, key=lambda unit: costs[unit]):
            left -= costs[unit]
            if left >= 0:
                continue
            fewer = on_fewer_elements(unit.instruction) if unit.leaves[0][1].element_count > SAMPLED_ELEMENTS else None
            if fewer is not None:
                self._fewer[unit] = fewer
            else:
                self.outcomes[unit].unchecked = LARGE
        for unit in units:
            self.outcomes[unit].unchecked = self.outcomes[self._equal[unit]].unchecked

    def _choose_aside(self, units: Sequence[Unit]) -> None:
        """Let the cheapest units run on operands of their own."""
        left = _ASIDE_ELEMENTS
        costs = {unit: cost_elements(unit) for unit in units if self._equal[unit] is unit}
        for unit in sorted(costs, key=lambda unit: costs[unit]):
            left -= costs[unit]
            if left < 0 and not self._all:
                break
            self._aside.add(unit)

    # ---- watching the run ---------------------------------------------------------------------------------------

    def on_device(self, device: int, count: int) -> RunWatch:
        """Return the watch of one of `count` devices. A unit is judged on one of them, chosen by the seed, or on all."""
        return _DeviceWatch(self, device, count)

    def is_judged_on(self, thunk: Thunk, device: int, count: int) -> bool:
        """True if the unit that begins or ends with `thunk` is judged on a device. Equal units are judged on the same one."""
        unit = self._begins.get(id(thunk)) or self._ends.get(id(thunk))
        if unit is None or self._all:
            return unit is not None
        choice = random.Random(f"{self._verdicts.seed} {self._equal[unit].name}")
        return choice.randrange(count) == device

    def next_watched(self, loop: WhileThunk, iteration: int) -> int:
        """Return the first iteration of a loop, from `iteration` on, whose kernels are judged."""
        if self._all:
            return iteration
        return next((number for number in self._chosen(loop) if number >= iteration), _NEVER)

    def _chosen(self, loop: WhileThunk) -> tuple[int, ...]:
        if id(loop) not in self._iterations:
            self._iterations[id(loop)] = _chosen_iterations(loop.trip_count, self._random)
        return self._iterations[id(loop)]

    def loop_ended(self, loop: WhileThunk, count: int) -> None:
        """Take note of the number of iterations, so that the next run can judge the last one."""
        self._counts[id(loop)] = count

    def begin_last(self) -> bool:
        """Watch the last iterations of loops, whose number is known now, in the next run. False if that would show no more."""
        module = self._walk.module
        loops = {id(loop): loop for unit in self.outcomes if self._may_judge_last(unit) for loop in unit.loops}
        last = {number: self._counts[number] - 1 for number in loops if number in self._counts}
        self._is_last = any(number > 0 and number not in self._iterations.get(key, ()) for key, number in last.items())
        if not self._is_last or self._all or any(map(has_side_effect, module.instructions)):
            return False
        self._iterations = {
            key: (last[key] if loop.trip_count is None else loop.trip_count - 1,)
            for key, loop in loops.items()
            if key in last or loop.trip_count is not None
        }
        return True

    def _may_judge_last(self, unit: Unit) -> bool:
        outcome = self.outcomes[unit]
        is_judged = self._equal[unit] is unit and outcome.unchecked != LARGE and not outcome.differs
        return is_judged and any(loop.trip_count is None for loop in unit.loops)

    def _executions(self, unit: Unit) -> int:
        """Return how many executions of a unit are judged at most."""
        return math.prod(len(self._chosen(loop)) for loop in unit.loops)

    def before(self, thunk: Thunk, read: Read, iterations: Sequence[int], device: str = "") -> Sequence[BufferSlice]:
        """Take the operands of the unit that begins with `thunk`, if it is judged. Return where its results will be.

        `device` names the device if there are several.
        """
        unit = self._begins.get(id(thunk))
        if unit is None or (self._is_last and not self._may_judge_last(unit)):
            return ()
        begin = time.perf_counter()
        if self.outcomes[unit].unchecked == LARGE:
            return ()
        if self._shares_verdict(unit):
            return ()
        place = ", ".join(filter(None, (device, *(f"iteration {number}" for number in iterations))))
        self._running[unit] = _Running(unit, tuple(self._operand(unit, n, read) for n in range(len(unit.operands))), place)
        self.seconds += time.perf_counter() - begin
        return unit.overwritten

    def _shares_verdict(self, unit: Unit) -> bool:
        """Give a unit the verdict of its equal that is judged in its place, once there is one."""
        outcome, stands_for = self.outcomes[unit], self._equal[unit]
        if stands_for is unit or stands_for not in self._judged:
            return False
        outcome.equal, outcome.unchecked = stands_for.name, ""
        outcome.comparison, outcome.unseen = self.outcomes[stands_for].comparison, self.outcomes[stands_for].unseen
        return True

    @staticmethod
    def _operand(unit: Unit, number: int, read: Read) -> Literal:
        if number in unit.in_place:
            return literal_of(unit.operands[number], lambda piece: read(piece).copy())
        return literal_of(unit.operands[number], read)

    def after(self, thunk: Thunk, read: Read) -> None:
        """Judge the result of the unit that ends with `thunk`."""
        unit = self._ends.get(id(thunk))
        if unit is not None and self._bytes_to_keep:
            self._keep(unit, read)
        running = self._running.pop(unit, None) if unit is not None else None
        if running is None:
            return
        begin = time.perf_counter()
        with quiet(), one_blas_thread():
            self._judge(running, read)
        self.seconds += time.perf_counter() - begin

    def _keep(self, unit: Unit, read: Read) -> None:
        """Keep what a unit wrote, if the last execution will be kept too."""
        outcome = self.outcomes[unit]
        size = 0 if outcome.result else sum(leaf.size_bytes for _, leaf in unit.leaves)
        is_last = self._is_last or all(loop.trip_count is not None for loop in unit.loops)
        if is_last and size <= self._bytes_to_keep:
            self._bytes_to_keep -= size
            results = (literal_of(spec_at(unit.result, path), lambda piece: read(piece).copy()) for path, _ in unit.leaves)
            outcome.result = tuple(results)

    def finish(self) -> None:
        """Judge the units that the run has not reached, on made operands."""
        begin = time.perf_counter()
        with quiet(), one_blas_thread():
            for unit, outcome in self.outcomes.items():
                if outcome.unchecked == UNREACHED and not self._shares_verdict(unit) and self._equal[unit] in self._aside:
                    constants = {i: self._walk.evaluate(i, ()) for i in unit.instruction.operands if i.opcode == "constant"}
                    self._judge_aside(unit, constants)
                    if not outcome.unchecked:
                        self._judged.add(unit)
        self.seconds += time.perf_counter() - begin

    # ---- verdicts -----------------------------------------------------------------------------------------------

    def _judge(self, running: _Running, read: Read) -> None:
        unit, outcome = running.unit, self.outcomes[running.unit]
        actual = tuple(literal_of(spec_at(unit.result, path), read) for path, _ in unit.leaves)
        try:
            if unit in self._fewer and self._agrees_on_fewer(running, actual):
                self._judged.add(unit)
                return
            expected = self._expected(unit, running.operands)
        except (Unsupported, DeviceError) as error:
            outcome.unchecked = error.message
            return
        outcome.sampled = 0
        comparison = self._compared(unit, running.operands, expected, actual)
        hidden = self._hidden(unit, expected)
        outcome.add(comparison, running.place, running.operands, hidden)
        says_little = unit in self._aside or hidden or self._hides_an_operand(running) or _is_noise(comparison)
        if not outcome.own_operands and not outcome.differs and says_little:
            given = dict(zip(unit.instruction.operands, running.operands, strict=True))
            self._judge_aside(unit, given)
        if not outcome.unchecked:
            self._judged.add(unit)

    def _agrees_on_fewer(self, running: _Running, actual: tuple[Literal, ...]) -> bool:
        """Judge a sample of the elements. False if one is wrong: then all are judged, so that the report is about all."""
        unit, outcome = running.unit, self.outcomes[running.unit]
        module = self._fewer[unit]
        places = chosen_elements(unit.leaves[0][1].element_count, self._verdicts.seed)
        given = dict(zip(unit.instruction.operands, running.operands, strict=True)).values()
        values = [of_elements(value, places) for value in given]
        result = evaluate(module, values)
        expected = _as_tuple(result)
        shape = Shape.make_tuple(tuple(leaf for _, leaf in module.entry.root.shape.leaves()))
        found = of_elements(actual, places)
        comparison = self._verdicts.of_module(module, values, expected, found, shape=shape, part=_as_tuple)
        if not comparison.ok:
            return False
        outcome.sampled = SAMPLED_ELEMENTS
        outcome.add(comparison, running.place, running.operands, self._hidden(unit, result))
        return True

    def _expected(self, unit: Unit, operands: Sequence[Literal]) -> Value:
        pairs = zip(operands, unit.instruction.operands, strict=True)
        inside = [self._walk.inside(value, operand) for value, operand in pairs]
        return self._walk.outside(self._walk.evaluate(unit.instruction, inside))

    def _compared(self, unit: Unit, operands: Sequence[Literal], expected: Value, actual: tuple[Literal, ...]) -> Comparison:
        """Compare the arrays that the thunks write with the reference's value of the whole result."""
        is_whole = len(unit.leaves) == 1
        shape = unit.leaves[0][1] if is_whole else Shape.make_tuple(tuple(leaf for _, leaf in unit.leaves))

        def part(value: Value) -> Value:
            parts = tuple(part_at(value, path) for path, _ in unit.leaves)
            return parts[0] if is_whole else parts

        return self._verdicts.of_module(
            self._module_of(unit),
            list(dict(zip(unit.instruction.operands, operands, strict=True)).values()),
            part(expected),
            actual[0] if is_whole else actual,
            shape=shape,
            part=part,
        )

    def _module_of(self, unit: Unit) -> HloModule:
        if unit not in self._modules:
            self._modules[unit] = isolate_instruction(unit.instruction)
        return self._modules[unit]

    # ---- operands of their own ----------------------------------------------------------------------------------

    @staticmethod
    def _hidden(unit: Unit, expected: Value) -> Hidden:
        """Return the arrays that say little of what the unit computes of its operands."""
        hidden = [(path, leaf) for path, leaf in unit.leaves if hides(part_at(expected, path), leaf)]
        return {
            path: common_number(as_array(part_at(expected, path)), leaf)
            for path, leaf in hidden
            if unit.depends_on_operands(path)
        }

    @staticmethod
    def _hides_an_operand(running: _Running) -> bool:
        """True if the values of an operand say little about what the unit does with them."""
        pairs = zip(running.operands, running.unit.instruction.operands, strict=True)
        return any(_varies(operand) and hides(value, operand.shape) for value, operand in pairs)

    def _judge_aside(self, unit: Unit, given: Mapping[HloInstruction, Value]) -> None:
        """Run the unit on separate operands; `given` are the run's operands, or constants."""
        outcome = self.outcomes[unit]
        executable = alone(self._executable, unit) if unit.shows_alone else None
        instructions = list(dict.fromkeys(unit.instruction.operands))
        module = self._module_of(unit)
        choices = Choices(module)
        draws = own_draws(module, cost_elements(unit)) if executable is not None else ()
        for number, own in enumerate(draws):
            assert executable is not None, "without one, nothing is drawn"
            try:
                drawn = make_fake_arguments(module, RandomEngine(self._verdicts.seed + number), draw=own.draw, choices=choices)
                pairs = zip(instructions, drawn, strict=True)
                values = [_own(given.get(i, value), value, i, own.keeps_integers) for i, value in pairs]
                own_values = dict(zip(instructions, values, strict=True))
                operands = [own_values[i] for i in unit.instruction.operands]
                expected = self._expected(unit, operands)
                result = self._run_aside(executable, values)
            except (Unsupported, MemoryError):
                break
            assert isinstance(result, tuple), "one part for each array that is written"
            outcome.own_operands = str(own.draw)
            comparison, hidden = self._compared(unit, operands, expected, result), self._hidden(unit, expected)
            outcome.add(comparison, f"on operands of its own, {own.draw}", operands, hidden)
            if (own.is_enough and not hidden) or outcome.differs:
                break


class _DeviceWatch(Struct, frozen=True):
    """Lets the checks see the units that they judge on one of several devices."""

    checks: KernelChecks
    device: int
    count: int

    def on_device(self, device: int, count: int) -> RunWatch:
        return _DeviceWatch(self.checks, device, count)

    def next_watched(self, loop: WhileThunk, iteration: int) -> int:
        return self.checks.next_watched(loop, iteration)

    def loop_ended(self, loop: WhileThunk, count: int) -> None:
        self.checks.loop_ended(loop, count)

    def before(self, thunk: Thunk, read: Read, iterations: Sequence[int]) -> Sequence[BufferSlice]:
        is_judged = self.checks.is_judged_on(thunk, self.device, self.count)
        return self.checks.before(thunk, read, iterations, f"device {self.device}") if is_judged else ()

    def after(self, thunk: Thunk, read: Read) -> None:
        if self.checks.is_judged_on(thunk, self.device, self.count):
            self.checks.after(thunk, read)


def _is_noise(comparison: Comparison) -> bool:
    """True if rounding explains a large part of a number, as of a sum that cancels: zero might pass as well."""
    return any(leaf.worst_rel is not None and leaf.worst_rel.error > _NOISE for leaf in comparison.leaves)


def _as_tuple(value: Value) -> Value:
    return value if isinstance(value, tuple) else (value,)


def _varies(operand: HloInstruction) -> bool:
    """True for an operand whose values depend on the run."""
    return operand.opcode not in ("constant", "iota") and any(
        leaf.is_array and (leaf.dtype.is_float or leaf.dtype.is_complex) and leaf.element_count > 1
        for _, leaf in operand.shape.leaves()
    )


def _own(given: Value, drawn: Value, operand: HloInstruction, keeps: bool) -> Value:
    """Return an operand of a kernel on its own: constants, whole numbers that show something if it `keeps` them, else random."""
    if operand.opcode == "constant" or not operand.shape.is_array:
        return given if operand.opcode == "constant" else drawn
    is_number = operand.shape.dtype.is_float or operand.shape.dtype.is_complex
    return drawn if is_number or not keeps or hides(given, operand.shape) else given


def _chosen_iterations(count: int | None, generator: random.Random) -> tuple[int, ...]:
    """Return the iterations of a loop that are judged: the first, the last and some others; early ones if `count` is None."""
    if count is None:
        return (0, *(generator.randrange(low, high) for low, high in pairwise(_EARLY)))
    some = generator.sample(range(count), min(_SOME, count))
    return tuple(sorted({0, max(0, count - 1), *some}))
