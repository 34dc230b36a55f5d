"""Judges each kernel of a run alone: the numpy reference evaluates its instruction on the operands in the run's memory.

Where these hide what the kernel computes, it runs once more, on random operands of its own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from hlo_run.artifact import Executable, Thunk
from hlo_run.backends.literals import Literal
from hlo_run.backends.run_watch import Read
from hlo_run.backends.transfer import literal_of
from hlo_run.errors import DeviceError, Unsupported
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.isolate import isolate_instruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.kernel_checks.outcomes import HIDDEN, LARGE, Outcome
from hlo_run.kernel_checks.scratch import alone
from hlo_run.kernel_checks.units import Unit, cost_elements, equal_units, find_units
from hlo_run.kernel_checks.verdicts import Verdicts
from hlo_run.kernel_checks.written_arrays import part_at, spec_at
from hlo_run.reference.arguments.fake_arguments import Draw, make_fake_arguments
from hlo_run.reference.compare.compare import Comparison
from hlo_run.reference.compare.hidden import hides
from hlo_run.reference.evaluate.walk import Walk
from hlo_run.reference.numerics.blas import one_blas_thread
from hlo_run.reference.random import RandomEngine
from hlo_run.reference.values import Value, quiet

OFF, ALL = "off", "all"
# What a sample may cost the reference, in elements; some 0.1 s.
_SAMPLE_ELEMENTS = 1 << 24
# Executions of a loop that are judged besides the first and the last.
_SOME = 2
# How a kernel's own operands are drawn: the second ones where the first give only NaN, such as logarithms.
_DRAWS = (Draw(floats=(-1.0, 2.0), integers=(-4, 8)), Draw(floats=(0.5, 2.0), integers=(0, 3)))


class _Running(Struct, frozen=True):
    """The execution that is judged: the operands, copied where the thunks overwrite them."""

    unit: Unit
    operands: tuple[Literal, ...]
    place: str


class KernelChecks:
    """Judges the kernels of one run of `executable`, whose optimised module is `module`, while it watches the run.

    `run_aside` runs another executable in the middle of the run.
    """

    def __init__(
        self,
        module: HloModule,
        executable: Executable,
        verdicts: Verdicts,
        run_aside: Callable[[Executable, Sequence[Literal]], Literal],
        checks_all: bool = False,
    ) -> None:
        self._executable, self._verdicts, self._run_aside, self._all = executable, verdicts, run_aside, checks_all
        self._walk = Walk(module, verdicts.seed)
        units = find_units(module, executable)
        self.outcomes = {unit: Outcome(unit) for unit in units}
        """By unit, in the order of the thunks."""
        self.seconds = 0.0
        """The time that the checks have taken."""
        self._equal = {unit: unit for unit in units} if checks_all else equal_units(units, executable)
        self._judged: set[Unit] = set()  # the units that stand for their equals
        self._counts = dict.fromkeys(units, 0)
        self._begins = {id(unit.thunks[0]): unit for unit in units}
        self._ends = {id(unit.thunks[-1]): unit for unit in units}
        self._running: _Running | None = None
        self._modules: dict[Unit, HloModule] = {}
        self._chosen = {unit: _Choice(unit.trips, verdicts.seed + number) for number, unit in enumerate(units)}
        if not checks_all:
            self._leave_large(units)

    def _leave_large(self, units: Sequence[Unit]) -> None:
        """Leave out the most expensive units, so that the others cost no more than a sample may."""
        left = _SAMPLE_ELEMENTS
        costs = {unit: cost_elements(unit) * self._chosen[unit].most for unit in units if self._equal[unit] is unit}
        for unit in sorted(costs, key=lambda unit: costs[unit]):
            left -= costs[unit]
            if left < 0:
                self.outcomes[unit].unchecked = LARGE
        for unit in units:
            self.outcomes[unit].unchecked = self.outcomes[self._equal[unit]].unchecked

    # ---- watching the run ---------------------------------------------------------------------------------------

    def before(self, thunk: Thunk, read: Read) -> None:
        """Take the operands of the unit that begins with `thunk`, if this execution is judged."""
        unit = self._begins.get(id(thunk))
        if unit is None:
            return
        begin = time.perf_counter()
        number = self._counts[unit]
        self._counts[unit] += 1
        outcome, stands_for = self.outcomes[unit], self._equal[unit]
        if outcome.unchecked == LARGE:
            return
        if stands_for is not unit and stands_for in self._judged:
            outcome.equal, outcome.unchecked = stands_for.name, ""
            outcome.comparison = self.outcomes[stands_for].comparison
            return
        if self._all or self._chosen[unit].takes(number):
            place = "" if unit.trips == 1 else f"execution {number}"
            self._running = _Running(unit, tuple(self._operand(unit, n, read) for n in range(len(unit.operands))), place)
        self.seconds += time.perf_counter() - begin

    @staticmethod
    def _operand(unit: Unit, number: int, read: Read) -> Literal:
        if number in unit.in_place:
            return literal_of(unit.operands[number], lambda piece: read(piece).copy())
        return literal_of(unit.operands[number], read)

    def after(self, thunk: Thunk, read: Read) -> None:
        """Judge the result of the unit that ends with `thunk`."""
        running = self._running
        if running is None or self._ends.get(id(thunk)) is not running.unit:
            return
        begin = time.perf_counter()
        self._running = None
        with quiet(), one_blas_thread():
            self._judge(running, read)
        self.seconds += time.perf_counter() - begin

    # ---- verdicts -----------------------------------------------------------------------------------------------

    def _judge(self, running: _Running, read: Read) -> None:
        unit, outcome = running.unit, self.outcomes[running.unit]
        try:
            expected = self._expected(unit, running.operands)
        except (Unsupported, DeviceError) as error:
            outcome.unchecked = error.message
            return
        actual = tuple(literal_of(spec_at(unit.result, path), read) for path, _ in unit.leaves)
        outcome.add(self._compared(unit, running.operands, expected, actual), running.place, running.operands)
        if self._is_hidden(running, expected) and not outcome.own_operands and not outcome.differs:
            self._judge_aside(running, self._hides(unit, expected))
        if not outcome.unchecked:
            self._judged.add(unit)

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
    def _hides(unit: Unit, expected: Value) -> bool:
        """True if an array that the unit writes shows little of what it does."""
        return any(hides(part_at(expected, path), leaf) for path, leaf in unit.leaves)

    def _is_hidden(self, running: _Running, expected: Value) -> bool:
        """True if the result shows little of the kernel, or an operand's values say little about what it does with them."""
        pairs = zip(running.operands, running.unit.instruction.operands, strict=True)
        return self._hides(running.unit, expected) or any(
            _varies(operand) and hides(value, operand.shape) for value, operand in pairs
        )

    def _judge_aside(self, running: _Running, is_needed: bool) -> None:
        """Run the unit on operands of its own. If `is_needed`, it counts as not checked where that shows nothing either."""
        unit, outcome = running.unit, self.outcomes[running.unit]
        executable = alone(self._executable, unit) if unit.shows_alone else None
        instructions = list(dict.fromkeys(unit.instruction.operands))
        given = dict(zip(unit.instruction.operands, running.operands, strict=True))
        module = self._module_of(unit)
        shown = not instructions  # it always computes the same
        for number, draw in enumerate(_DRAWS if executable is not None else ()):
            assert executable is not None, "without one, nothing is drawn"
            try:
                drawn = make_fake_arguments(module, RandomEngine(self._verdicts.seed + number), draw=draw)
                values = [_own(given[i], own, i) for i, own in zip(instructions, drawn, strict=True)]
                own_values = dict(zip(instructions, values, strict=True))
                operands = [own_values[i] for i in unit.instruction.operands]
                expected = self._expected(unit, operands)
                result = self._run_aside(executable, values)
            except (Unsupported, MemoryError):
                break
            assert isinstance(result, tuple), "one part for each array that is written"
            outcome.own_operands = str(draw)
            outcome.add(self._compared(unit, operands, expected, result), f"on operands of its own, {draw}", operands)
            shown = not self._hides(unit, expected)
            if shown or outcome.differs:
                break
        if is_needed and not shown and not outcome.own_operands:
            outcome.unchecked = HIDDEN


def _varies(operand: HloInstruction) -> bool:
    """True for an operand whose values depend on the run."""
    return operand.opcode not in ("constant", "iota") and any(
        leaf.is_array and (leaf.dtype.is_float or leaf.dtype.is_complex) and leaf.element_count > 1
        for _, leaf in operand.shape.leaves()
    )


def _own(given: Literal, drawn: Value, operand: HloInstruction) -> Literal:
    """Return an operand of a kernel on its own: constants and whole numbers of the run where they show something, else random."""
    if operand.opcode == "constant" or not operand.shape.is_array:
        return given if operand.opcode == "constant" else drawn
    is_number = operand.shape.dtype.is_float or operand.shape.dtype.is_complex
    return drawn if is_number or hides(given, operand.shape) else given


class _Choice:
    """The executions of a unit that are judged: the first, the last and some others, chosen by seed.

    Without a known number of executions, one of each power of two is judged.
    """

    def __init__(self, trips: int | None, seed: int) -> None:
        self._random = random.Random(seed)
        self._next = 0
        self._known: frozenset[int] | None = None
        if trips is not None:
            others = self._random.sample(range(trips), min(_SOME, trips))
            self._known = frozenset((0, max(0, trips - 1), *others))
        self.most = len(self._known) if self._known is not None else 2 + _SOME

    def takes(self, number: int) -> bool:
        """True if the execution `number`, counted from 0, is judged. Called with every number in turn."""
        if self._known is not None:
            return number in self._known
        if number < self._next:
            return False
        self._next = number + 1 + self._random.randrange(number + 1)
        return True
