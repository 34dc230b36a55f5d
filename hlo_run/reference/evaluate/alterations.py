"""Changes the values of chosen instructions while a module is evaluated, wherever they are: in loops in every iteration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from hlo_run.errors import HloRunError
from hlo_run.hlo.graph import HloInstruction
from hlo_run.reference.evaluate.device import Device, Frame, ProgramEvaluator
from hlo_run.reference.values import Calls, Evaluator, Value

# A changed value may make a loop run so many times as often, and some times more.
_MOST_TIMES, _MORE_RUNS = 2, 8


class TooManyRuns(HloRunError):
    """An instruction was evaluated far more often than usual: a changed value keeps a loop running."""


class EvaluatorChange(Protocol):
    """A plan's change of the evaluators of instructions."""

    def choose(
        self, instruction: HloInstruction, evaluate: Evaluator | None, program: ProgramEvaluator | None
    ) -> tuple[Evaluator | None, ProgramEvaluator | None]:
        """Return the evaluators to use in place of these."""
        ...


class Alterations:
    """Counts the evaluations of `instructions`, and hands the values of those in `active` to `change`.

    `usual` says how often they are evaluated without a change. With `last_only`, only the last of these evaluations is changed.
    """

    def __init__(self, instructions: Collection[HloInstruction], change: Callable[[HloInstruction, Value], Value]) -> None:
        self._instructions, self._change = frozenset(instructions), change
        self.active: Collection[HloInstruction] = ()
        self.runs: Counter[HloInstruction] = Counter()
        self.usual: dict[HloInstruction, int] = {}
        self.last_only = False
        self.last: dict[HloInstruction, Value] = {}
        """The last value of each instruction in the evaluation before any change."""

    def choose(
        self, instruction: HloInstruction, evaluate: Evaluator | None, program: ProgramEvaluator | None
    ) -> tuple[Evaluator | None, ProgramEvaluator | None]:
        """Return the evaluators of an instruction with the change around them; see `EvaluatorChange`."""
        if instruction not in self._instructions:
            return evaluate, program

        def evaluated(instruction: HloInstruction, operands: Sequence[Value], calls: Calls) -> Value:
            assert evaluate is not None, "only an op with an evaluator is evaluated"
            return self._changed(instruction, evaluate(instruction, operands, calls))

        def run(instruction: HloInstruction, operands: list[Value], device: Device) -> Frame:
            assert program is not None, "only an op with a program is run"
            value = yield program(instruction, operands, device)
            return self._changed(instruction, value)

        return evaluated if evaluate is not None else None, run if program is not None else None

    def _changed(self, instruction: HloInstruction, value: Value) -> Value:
        self.runs[instruction] += 1
        runs, usual = self.runs[instruction], self.usual.get(instruction)
        if usual is not None and runs > _MOST_TIMES * usual + _MORE_RUNS:
            raise TooManyRuns(f"%{instruction.name} runs more than {runs - 1} times", instruction.where)
        if usual is None:
            self.last[instruction] = value
        is_changed = instruction in self.active and (not self.last_only or runs == usual)
        return self._change(instruction, value) if is_changed else value
