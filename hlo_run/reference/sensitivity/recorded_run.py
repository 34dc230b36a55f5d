"""One evaluation of a module on one device that keeps the values of the entry, and evaluates parts of it with other values."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct, field

from hlo_run.hlo.feeds import NO_FEEDS, Feeds
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.reference.compare.rounding import rounding
from hlo_run.reference.evaluate.alterations import Alterations
from hlo_run.reference.evaluate.device import Device, Step, World, drive
from hlo_run.reference.evaluate.evaluate import Reference
from hlo_run.reference.numerics import dynamic
from hlo_run.reference.numerics.blas import one_blas_thread
from hlo_run.reference.random import RandomEngine
from hlo_run.reference.sensitivity.altered_values import RELATIVE, altered, parts_read
from hlo_run.reference.sensitivity.frames import Frame, State, record
from hlo_run.reference.sensitivity.work import runs_of, work_of_comparison, work_of_steps
from hlo_run.reference.values import Array, Value, as_array, narrow, quiet, unsupported, widen


class Exit(Struct, frozen=True):
    """A compared part of the result: its shape index, and the entry's instruction that computes it."""

    path: tuple[int, ...]
    instruction: HloInstruction


class Trace(Struct):
    """The fate of altered values: the steps with another result, the steps that kept theirs, and the exits that changed.

    `shows` is true if the comparison would notice. `work` is the work of all evaluations, in nanoseconds of a usual machine.
    """

    changed: list[int] = field(default_factory=list[int])
    unchanged: list[int] = field(default_factory=list[int])
    exits: list[Exit] = field(default_factory=list[Exit])
    shows: bool = False
    work: float = 0.0


# Elements of a large array that are altered, and by how many roundings of their type at least.
_SAMPLED = 4096
_SAMPLED_ROUNDINGS = 32


class Notices(Protocol):
    """The differences that the comparison notices."""

    def __call__(self, place: Exit, expected: Value, actual: Value) -> bool:
        """Return whether it notices the second value in the place of the first at an exit."""
        ...

    def count(self, place: Exit, expected: Array, actual: Array) -> int:
        """Return how many of some elements of the array at an exit the comparison refuses by its bounds."""
        ...


class RecordedRun:
    """The values of an evaluation. Raises Unsupported as `Reference.run` does.

    `kernels` are instructions of the entry or of computations that it calls; they can be altered.
    """

    def __init__(
        self,
        module: HloModule,
        kernels: Collection[HloInstruction],
        arguments: Sequence[Value],
        seed: int = 42,
        feeds: Feeds = NO_FEEDS,
    ) -> None:
        self._sign, self._seeds = 1, {kernel: number for number, kernel in enumerate(kernels)}
        self._alterations = Alterations(kernels, self.altered)
        self._reference = Reference(module, change=self._alterations)
        self._device = Device(World(seed=seed), 0, self._reference, feeds(0))
        self.entry = module.entry
        pairs = zip(arguments, module.entry.parameters, strict=True)
        values = [dynamic.enter(argument, parameter.shape) for argument, parameter in pairs]
        plan = self._reference.plan(module.entry, lifted=False)
        with quiet(), one_blas_thread():
            self.frame = record(plan, values, self._device, self._evaluate)
        """The recorded execution of the entry."""
        self.steps, self.number_of, self.users = self.frame.steps, self.frame.number_of, self.frame.users
        self._iterations: dict[tuple[int, int, int], Frame] = {}
        self._inner: dict[HloComputation, frozenset[HloInstruction]] = {}
        self.runs = dict(self._alterations.runs)
        self._alterations.usual = self.runs
        self.last_values: dict[HloInstruction, Value] = self._alterations.last
        """The last value of each kernel that ran."""
        self.carriers = self._carriers(kernels)
        self.exits = self._exits()
        self.work = work_of_steps(self.steps, self.runs)

    def _carriers(self, kernels: Collection[HloInstruction]) -> dict[HloInstruction, list[int]]:
        """Return the steps of the entry that compute each kernel: itself, or the loops and branches around it."""
        found: dict[HloInstruction, list[int]] = {kernel: [] for kernel in kernels}
        for number, step in enumerate(self.steps):
            if step.instruction in found:
                found[step.instruction].append(number)
            elif step.instruction.called_computations:
                for inner in _called_by([step.instruction]):
                    if inner in found:
                        found[inner].append(number)
        return found

    def _exits(self) -> dict[int, list[Exit]]:
        root = self.entry.root
        is_tuple = root.opcode == "tuple"
        parts = [((k,), operand) for k, operand in enumerate(root.operands)] if is_tuple else [((), root)]
        exits: dict[int, list[Exit]] = {}
        for path, part in parts:
            number = self.number_of.get(part)
            if number is not None:
                exits.setdefault(number, []).append(Exit(path, part))
        return exits

    def _evaluate(self, step: Step, values: list[Value | None]) -> Value:
        operands = step.operands(values)
        if step.kernel is not None:
            return np.asarray(step.kernel(*operands))
        if step.evaluate is not None:
            return step.evaluate(step.instruction, operands, self._device)
        assert step.program is not None, "a step has one way to its value"
        value, wait = drive([step.program(step.instruction, list(operands), self._device)])
        if wait is not None:
            raise unsupported(step.instruction, f"'{step.instruction.opcode}' that waits for another device")
        return value

    def evaluate(self, frame: Frame, number: int) -> Value:
        """Evaluate a step of a frame again, on the values that the frame holds now."""
        self._alterations.runs.clear()
        self._device.counters = dict(frame.counters[number])
        with one_blas_thread():
            return self._evaluate(frame.steps[number], frame.values)

    def iteration(self, frame: Frame, loop: int, state: State) -> tuple[Frame, bool]:
        """Return the iteration of a loop of a frame that begins with a state, and whether it was recorded just now."""
        key = id(frame), loop, id(state)
        found = self._iterations.get(key)
        if found is not None:
            return found, False
        plan = self._reference.plan(frame.steps[loop].instruction.while_body, lifted=False)
        self._alterations.runs.clear()
        self._device.counters = dict(state.counters)
        with quiet(), one_blas_thread():
            found = self._iterations[key] = record(plan, [state.value], self._device, self._evaluate)
        return found, True

    def is_kernel(self, instruction: HloInstruction) -> bool:
        """True if an instruction is one of the kernels."""
        return instruction in self._seeds

    def holds(self, computation: HloComputation, kernel: HloInstruction) -> bool:
        """True if a kernel is in a computation or in what it calls."""
        inner = self._inner.get(computation)
        if inner is None:
            inner = self._inner[computation] = frozenset((*computation.instructions, *_called_by(computation.instructions)))
        return kernel in inner

    def altered(self, kernel: HloInstruction, value: Value) -> Value:
        """Return a value of a kernel as a faulty kernel might make it."""
        return altered(value, kernel, self._seeds[kernel], self._sign)

    def _last_iteration(self, number: int) -> Value:
        state = self.frame.loops[number].last
        self._device.counters = dict(state.counters)
        return self._device.call(self.steps[number].instruction.while_body, [state.value])

    def is_loop(self, kernel: HloInstruction) -> bool:
        """True if a kernel is in loops of the entry alone, which ran."""
        carriers = self.carriers[kernel]
        return kernel not in self.number_of and all(number in self.frame.loops for number in carriers)

    def base(self, number: int) -> Value:
        """Return the recorded value of a step."""
        return self.frame.base(number)

    def follow(
        self,
        kernels: Collection[HloInstruction],
        notices: Notices,
        within: int | None = None,
        sign: int = 1,
        in_last_iteration: bool = False,
        last_only: bool = False,
    ) -> Trace:
        """Alter the results of `kernels` and evaluate their dependents, until the comparison notices something.

        `within` is a bit mask of the steps to evaluate (None: all). Results in loops are altered in every iteration. With
        `in_last_iteration`, only the last iteration is evaluated again. With `last_only`, all are, and the last result of each
        kernel is altered. Raises TooManyRuns if a loop does not end.
        """
        self._sign, self._alterations.active, self._alterations.last_only = sign, frozenset(kernels), last_only
        self._alterations.runs.clear()
        trace, values = Trace(), list(self.frame.values)
        waiting = sorted({number for kernel in kernels for number in self.carriers[kernel]})
        known = set(waiting)
        own = {self.number_of[kernel] for kernel in kernels if kernel in self.number_of}
        dirty: set[int] = set()
        try:
            with quiet(), one_blas_thread():
                while waiting:
                    number = heapq.heappop(waiting)
                    step, old = self.steps[number], self.base(number)
                    if number in own and number not in dirty:
                        new = self.altered(step.instruction, old)
                    elif in_last_iteration and number in self.frame.loops and number not in dirty:
                        new = self._last_iteration(number)
                        trace.work += self.last_work(number)
                    else:
                        self._device.counters = dict(self.frame.counters[number])
                        new = self._evaluate(step, values)
                        trace.work += self.work[number]
                    if is_same_as_read(step.instruction, old, new):
                        trace.unchanged.append(number)
                        continue
                    values[step.slot] = new
                    trace.changed.append(number)
                    for place in self.exits.get(number, ()):
                        trace.exits.append(place)
                        trace.work += work_of_comparison(place.instruction.shape)
                        if notices(place, old, new):
                            trace.shows = True
                            return trace
                    for user in self.users[number]:
                        dirty.add(user)
                        if user not in known and (within is None or within >> user & 1) and not self._ends(user):
                            known.add(user)
                            heapq.heappush(waiting, user)
        finally:
            self._alterations.active = ()
        return trace

    def shows_in_sample(self, kernel: HloInstruction, notices: Notices) -> bool:
        """Alter some elements of a kernel's result, a compared array; True if the comparison notices half of them.

        Rounding is not asked, so narrow floats change by more roundings than a few ops have. False for floats below 16 bits.
        """
        shape, number = kernel.shape, self.number_of[kernel]
        if not shape.is_array or shape.dtype.kind != "float" or shape.dtype.bits < 16:
            return False
        flat = np.ascontiguousarray(dynamic.leave(as_array(self.base(number)))).reshape(-1)
        size = min(flat.size, _SAMPLED)
        with quiet():
            old = flat[RandomEngine(self._seeds[kernel]).words(size) % np.uint64(flat.size)]
            change = 1 + max(RELATIVE, _SAMPLED_ROUNDINGS * rounding(shape.dtype))
            new = narrow(widen(old, shape.dtype) * change, shape.dtype)
        return any(notices.count(place, old, new) >= size / 2 for place in self.exits[number])

    def last_work(self, number: int) -> float:
        """Return the work of one iteration of a loop."""
        body = self.steps[number].instruction.while_body
        return self.work[number] / max(1, runs_of(body, self.runs))

    def _ends(self, number: int) -> bool:
        """True for the root tuple, whose operands are the exits."""
        return self.steps[number].instruction is self.entry.root and self.entry.root.opcode == "tuple"


def is_same_as_read(instruction: HloInstruction, one: Value, two: Value) -> bool:
    """Return `is_same` of what others read of a value: not of workspaces, which may be large."""
    if not isinstance(one, tuple) or not isinstance(two, tuple) or not instruction.shape.is_tuple:
        return is_same(one, two)
    return all(is_same(one[number], two[number]) for number in parts_read(instruction))


def is_same(one: Value, two: Value) -> bool:
    """True if two values have the same sizes and bits."""
    if isinstance(one, tuple) or isinstance(two, tuple):
        assert isinstance(one, tuple), "values of an instruction have one structure"
        assert isinstance(two, tuple), "values of an instruction have one structure"
        return all(is_same(first, second) for first, second in zip(one, two, strict=True))
    if one is two:
        return True
    first, second = dynamic.leave(one), dynamic.leave(two)
    return first.shape == second.shape and np.array_equal(_bytes(first), _bytes(second))


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _called_by(instructions: Sequence[HloInstruction]) -> Iterator[HloInstruction]:
    """Yield the instructions of all computations that instructions call, directly or not."""
    waiting: list[HloComputation] = [called for instruction in instructions for called in instruction.called_computations]
    seen = set(waiting)
    for computation in waiting:  # grows while we walk
        for inner in computation.instructions:
            yield inner
            fresh = [called for called in inner.called_computations if called not in seen]
            seen.update(fresh)
            waiting += fresh
