"""The values of all steps of a computation in one execution, and of some iterations of the loops in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from hlo_run.hlo.async_ops import async_start
from hlo_run.hlo.graph import HloInstruction
from hlo_run.reference.evaluate.device import Device, Plan, Step
from hlo_run.reference.evaluate.loop_limit import check_limit
from hlo_run.reference.values import Value, as_array

Evaluate = Callable[[Step, "list[Value | None]"], Value]


class State(Struct, frozen=True):
    """The state at the beginning of an iteration: the loop's values, and the state of random numbers."""

    value: Value
    counters: dict[HloInstruction, int]

    @property
    def parts(self) -> tuple[Value, ...]:
        """The parts of a loop's tuple."""
        return parts_of(self.value)


class Iterations(Struct, frozen=True):
    """The states before some iterations of a loop that ran; `before_last` is None if it ran once."""

    first: State
    before_last: State | None
    last: State


class Frame(Struct):
    """The recorded execution of a computation: `values` by slot after all steps, and random numbers' state before each."""

    steps: tuple[Step, ...]
    values: list[Value | None]
    counters: list[dict[HloInstruction, int]]
    number_of: dict[HloInstruction, int]
    users: list[list[int]]
    parameters: tuple[tuple[int, int], ...]
    readers: list[int]
    """The steps that read a parameter."""
    loops: dict[int, Iterations]
    root: int
    """The slot of the root."""

    def base(self, number: int) -> Value:
        """Return the recorded value of a step."""
        value = self.values[self.steps[number].slot]
        assert value is not None, "every value was recorded"
        return value

    @property
    def result(self) -> Value:
        """The recorded value of the root."""
        value = self.values[self.root]
        assert value is not None, "every value was recorded"
        return value

    def updated_operand(self, kernel: HloInstruction) -> Value | None:
        """Return the array that a kernel updates in place, if its root is a dynamic-update-slice; else None."""
        update = updating_root(kernel)
        if update is None or async_start(kernel) is not None:
            return None
        array = update.operands[0]
        while array.opcode in ("bitcast", "copy"):
            array = array.operands[0]
        if kernel.opcode == "fusion":
            if array.opcode != "parameter":
                return None
            array = kernel.operands[array.parameter_number]
        number = self.number_of.get(array)
        return self.values[self.steps[number].slot] if number is not None else None


def updating_root(kernel: HloInstruction) -> HloInstruction | None:
    """Return the dynamic-update-slice that makes a kernel's result, or None; of an asynchronous kernel too."""
    start = async_start(kernel)
    root = kernel if start is None else start.called_computations[0].root
    root = root.fused_computation.root if root.opcode == "fusion" else root
    return root if root.opcode == "dynamic-update-slice" else None


def parts_of(value: Value) -> tuple[Value, ...]:
    """Return the parts of a tuple, or the value as the only part."""
    return value if isinstance(value, tuple) else (value,)


def invariant_parts(loop: HloInstruction) -> frozenset[int]:
    """Return the parts of a loop's state that the body hands on as they are."""
    root = loop.while_body.root
    if root.opcode != "tuple":
        return frozenset()
    parts = enumerate(root.operands)
    return frozenset(number for number, part in parts if part.opcode == "get-tuple-element" and _hands_on(part, number))


def _hands_on(element: HloInstruction, number: int) -> bool:
    return element.operands[0].opcode == "parameter" and element.tuple_index == number


def record(plan: Plan, arguments: Sequence[Value], device: Device, evaluate: Evaluate) -> Frame:
    """Run the steps of a plan, and keep all values."""
    values = list(plan.slots)
    for slot, number in plan.parameters:
        values[slot] = arguments[number]
    counters: list[dict[HloInstruction, int]] = []
    loops: dict[int, Iterations] = {}
    for number, step in enumerate(plan.steps):
        counters.append(dict(device.counters))
        if step.instruction.opcode == "while":
            values[step.slot], iterations = _run_loop(step, values, device)
            if iterations is not None:
                loops[number] = iterations
        else:
            values[step.slot] = evaluate(step, values)
    number_of = {step.instruction: number for number, step in enumerate(plan.steps)}
    users: list[list[int]] = [[] for _ in plan.steps]
    readers: list[int] = []
    for number, step in enumerate(plan.steps):
        for operand in dict.fromkeys(step.instruction.operands):
            if (source := number_of.get(operand)) is not None:
                users[source].append(number)
            elif operand.opcode == "parameter":
                readers.append(number)
    return Frame(plan.steps, values, counters, number_of, users, plan.parameters, readers, loops, plan.root)


def _run_loop(step: Step, values: list[Value | None], device: Device) -> tuple[Value, Iterations | None]:
    """Return the result of a loop, and the states before its first and its last iterations."""
    loop, state = step.instruction, step.operands(values)[0]
    first: State | None = None
    before_last: State | None = None
    last: State | None = None
    while bool(as_array(device.call(loop.while_condition, [state])).item()):
        check_limit(loop.name)
        before_last, last = last, State(state, dict(device.counters))
        first = first or last
        state = device.call(loop.while_body, [state])
    return state, Iterations(first, before_last, last) if first is not None and last is not None else None
