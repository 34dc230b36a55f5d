"""Evaluates a module one instruction at a time in schedule order, so that a caller sees every value of every iteration."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.hlo.feeds import NO_FEEDS, Feeds
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.reference.evaluate.device import Device, World, drive
from hlo_run.reference.evaluate.evaluate import Reference, choose, finished
from hlo_run.reference.numerics import dynamic
from hlo_run.reference.numerics.blas import one_blas_thread
from hlo_run.reference.values import Value, as_array, quiet, unsupported

FORWARDS: frozenset[Opcode] = frozenset(
    ("parameter", "get-tuple-element", "tuple", "bitcast", "constant", "after-all", "add-dependency")
)
CONTROL_FLOW: frozenset[Opcode] = frozenset(("while", "conditional", "call"))


class Walk:
    """A walk through the executed computations of a module, on one device.

    A subclass overrides `leaf`, which returns the value of an instruction that calls no executed computation, and is told of
    control flow by `enter`, `leave` and `turn`. Values inside a walk have buffers of the bounds of dynamic dimensions;
    `outside` converts them.
    """

    def __init__(self, module: HloModule, seed: int = 42, feeds: Feeds = NO_FEEDS) -> None:
        self.module = module
        self._reference = Reference(module)
        self._device = Device(World(seed=seed), 0, self._reference, feeds(0))
        self.iterations: list[int] = []
        """The numbers of the iterations, from 0, of the loops that the walk is in; the innermost one last."""

    def walk(self, arguments: Sequence[Value]) -> Value:
        """Return the value of the entry's root for one argument per entry parameter. Raises as `Reference.run` does."""
        entry = self.module.entry
        with quiet(), one_blas_thread():
            values = [self.inside(value, p) for value, p in zip(arguments, entry.parameters, strict=True)]
            return self.outside(self._computation(entry, values))

    def evaluate(self, instruction: HloInstruction, operands: Sequence[Value]) -> Value:
        """Return the value of one instruction. Raises Unsupported for an instruction without an evaluator."""
        evaluator, program = choose(instruction)
        if program is not None:
            value, wait = drive([program(instruction, list(operands), self._device)])
            if wait is not None:
                raise unsupported(instruction, f"'{instruction.opcode}' that waits for another device")
            return value
        if evaluator is None:
            raise unsupported(instruction, f"'{instruction.opcode}'")
        return evaluator(instruction, operands, self._device)

    @staticmethod
    def outside(value: Value) -> Value:
        """Return a value with dynamic dimensions cut to their run-time sizes."""
        return finished(value)

    @staticmethod
    def inside(value: Value, instruction: HloInstruction) -> Value:
        """Return a value of `instruction` with buffers of the bounds of dynamic dimensions."""
        return dynamic.enter(value, instruction.shape)

    # ---- what a subclass sees -----------------------------------------------------------------------------------

    def leaf(self, instruction: HloInstruction, operands: Sequence[Value]) -> Value:
        """Return the value of an instruction other than a loop, conditional or call."""
        return self.evaluate(instruction, operands)

    def enter(self, caller: HloInstruction, part: int, text: str) -> None:
        """Begin the computation number `part` that `caller` calls. `text` names the visit, such as `iteration 3`."""

    def leave(self) -> None:
        """End the computation that was entered last."""

    def turn(self, loop: HloInstruction, goes_on: bool, iteration: int) -> None:
        """Learn whether the reference runs the body again; called after the condition, before iteration `iteration` (from 0)."""

    def branch(self, conditional: HloInstruction, taken: int) -> None:
        """Learn which branch the reference takes."""

    # ---- control flow -------------------------------------------------------------------------------------------

    def _computation(self, computation: HloComputation, arguments: Sequence[Value]) -> Value:
        schedule = self.module.schedule
        order = schedule[computation] if schedule is not None else computation.post_order()
        last = {operand: instruction for instruction in order for operand in instruction.operands}
        values: dict[HloInstruction, Value] = {}
        for instruction in order:
            if instruction.opcode == "parameter":
                values[instruction] = arguments[instruction.parameter_number]
                continue
            operands = [values[operand] for operand in instruction.operands]
            for operand in dict.fromkeys(instruction.operands):
                if last[operand] is instruction and operand is not computation.root:
                    del values[operand]
            values[instruction] = self._value(instruction, operands)
        return values[computation.root]

    def _value(self, instruction: HloInstruction, operands: list[Value]) -> Value:
        match instruction.opcode:
            case "while":
                return self._loop(instruction, operands[0])
            case "conditional":
                return self._conditional(instruction, operands)
            case "call":
                return self._inner(instruction, 0, "", instruction.called_computations[0], operands)
            case opcode if opcode in FORWARDS:
                return self.evaluate(instruction, operands)
            case _:
                return self.leaf(instruction, operands)

    def _inner(
        self, caller: HloInstruction, part: int, text: str, computation: HloComputation, arguments: Sequence[Value]
    ) -> Value:
        self.enter(caller, part, text)
        try:
            return self._computation(computation, arguments)
        finally:
            self.leave()

    def _loop(self, loop: HloInstruction, state: Value) -> Value:
        self.iterations.append(0)
        try:
            while True:
                iteration = self.iterations[-1]
                text = f"before iteration {iteration}"
                goes_on = bool(as_array(self._inner(loop, 0, text, loop.while_condition, [state])).item())
                self.turn(loop, goes_on, iteration)
                if not goes_on:
                    return state
                state = self._inner(loop, 1, f"iteration {iteration}", loop.while_body, [state])
                self.iterations[-1] += 1
        finally:
            self.iterations.pop()

    def _conditional(self, conditional: HloInstruction, operands: Sequence[Value]) -> Value:
        branches = conditional.called_computations
        selector = as_array(operands[0]).item()
        if isinstance(selector, bool):
            number = 0 if selector else 1
        else:
            number = selector if 0 <= selector < len(branches) else len(branches) - 1
        self.branch(conditional, number)
        return self._inner(conditional, number, f"branch {number}", branches[number], [operands[1 + number]])
