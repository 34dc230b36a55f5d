"""The reference evaluator: one walk over each computation, one table row per opcode, arrays freed after their last use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hlo_run.errors import InternalError
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.shape import Shape
from hlo_run.reference import control, convert, dot, elementwise, indexed, reduce, shaping, sort, windows
from hlo_run.reference.values import Array, Evaluator, Value, as_array, merge, out_of_memory, quiet, unsupported

EVALUATE: dict[str, Evaluator] = merge(
    (
        control.EVALUATE,
        convert.EVALUATE,
        dot.EVALUATE,
        elementwise.EVALUATE,
        indexed.EVALUATE,
        reduce.EVALUATE,
        shaping.EVALUATE,
        sort.EVALUATE,
        windows.EVALUATE,
    )
)

# Opcodes that mean the same applied to one scalar and applied to each element of an array.
_PER_ELEMENT = frozenset(elementwise.EVALUATE) | frozenset(
    (
        "constant",
        "tuple",
        "get-tuple-element",
        "fusion",
        "call",
        "convert",
        "bitcast-convert",
        "reduce-precision",
        "copy",
        "opt-barrier",
    )
)
# Between scalars these do nothing; on an array of scalars their own rule would see wrong dimensions.
_SCALAR_IDENTITIES = frozenset(("broadcast", "reshape", "transpose", "slice", "reverse"))


def evaluate(module: HloModule, arguments: Sequence[Value]) -> Value:
    """Return the value of the entry's root, every op rounded to its type, for one argument per entry parameter.

    Arrays are in logical order with the numpy type of `DTYPES`; the result's arrays are contiguous and may be an
    argument itself. Raises `Unsupported` for an instruction without evaluation (only if the root needs it), DeviceError
    where memory runs out.
    """
    with quiet():
        return _contiguous(_Evaluation().call(module.entry, arguments))


def _contiguous(value: Value) -> Value:
    if isinstance(value, tuple):
        return tuple(_contiguous(element) for element in value)
    return np.ascontiguousarray(value).reshape(value.shape)


@dataclass(frozen=True, slots=True)
class _Step:
    """One instruction of a plan; `dead` are the instructions whose value nobody reads after it."""

    instruction: HloInstruction
    dead: tuple[HloInstruction, ...]


class _Evaluation:
    """One run: remembers the plan of each computation, since loop bodies are called many times."""

    def __init__(self) -> None:
        self._plans: dict[HloComputation, tuple[_Step, ...]] = {}
        self._per_element: dict[HloComputation, bool] = {}

    def call(self, computation: HloComputation, arguments: Sequence[Value]) -> Value:
        """Return the root's value; see `Calls`."""
        values: dict[HloInstruction, Value] = {}
        for step in self._plan(computation):
            instruction = step.instruction
            value = self._value(instruction, values, arguments)
            _check(instruction, value, instruction.shape)
            values[instruction] = value
            for dead in step.dead:
                del values[dead]
        return values[computation.root]

    def _value(self, instruction: HloInstruction, values: dict[HloInstruction, Value], arguments: Sequence[Value]) -> Value:
        if instruction.opcode == "parameter":
            number: int = instruction.attrs["parameter_number"]
            return arguments[number]
        evaluator = EVALUATE.get(instruction.opcode)
        if evaluator is None:
            raise unsupported(instruction, f"'{instruction.opcode}'")
        try:
            return evaluator(instruction, [values[operand] for operand in instruction.operands], self)
        except MemoryError:
            raise out_of_memory(instruction) from None

    def call_on_elements(self, computation: HloComputation, arguments: Sequence[Array]) -> tuple[Array, ...]:
        """Apply a computation of scalars to every element; see `Calls`."""
        dims = np.broadcast_shapes(*(argument.shape for argument in arguments))
        if self._is_per_element(computation):
            results = _results(self._lifted(computation, arguments))
            return tuple(np.broadcast_to(result, dims) for result in results)
        spread = [np.broadcast_to(argument, dims) for argument in arguments]
        outs = [np.empty(dims, shape.dtype.numpy) for _, shape in computation.root.shape.leaves()]
        for index in np.ndindex(*dims):
            results = _results(self.call(computation, [np.asarray(argument[index]) for argument in spread]))
            for out, result in zip(outs, results, strict=True):
                out[index] = result
        return tuple(outs)

    def _lifted(self, computation: HloComputation, arguments: Sequence[Value]) -> Value:
        """Evaluate a computation of scalars with arrays in their place."""
        values: dict[HloInstruction, Value] = {}
        for step in self._plan(computation):
            instruction = step.instruction
            operands = [values[operand] for operand in instruction.operands]
            if instruction.opcode in _SCALAR_IDENTITIES:
                value = operands[0]
            elif instruction.opcode in ("fusion", "call"):
                value = self._lifted(instruction.called_computations[0], operands)
            else:
                value = self._value(instruction, values, arguments)
            values[instruction] = value
            for dead in step.dead:
                del values[dead]
        return values[computation.root]

    def _is_per_element(self, computation: HloComputation) -> bool:
        known = self._per_element.get(computation)
        if known is None:
            known = all(self._instruction_is_per_element(step.instruction) for step in self._plan(computation))
            self._per_element[computation] = known
        return known

    def _instruction_is_per_element(self, instruction: HloInstruction) -> bool:
        if any(leaf.rank for _, leaf in instruction.shape.leaves()):
            return False
        if instruction.opcode in ("fusion", "call"):
            return self._is_per_element(instruction.called_computations[0])
        return instruction.opcode in _PER_ELEMENT or instruction.opcode in _SCALAR_IDENTITIES or instruction.opcode == "parameter"

    def _plan(self, computation: HloComputation) -> tuple[_Step, ...]:
        plan = self._plans.get(computation)
        if plan is None:
            plan = self._plans[computation] = tuple(_make_plan(computation))
        return plan


def _make_plan(computation: HloComputation) -> Iterable[_Step]:
    """Yield what the root needs, operands first, and after each step the values that were read for the last time."""
    needed: set[HloInstruction] = set()
    stack = [computation.root]
    while stack:
        instruction = stack.pop()
        if instruction not in needed:
            needed.add(instruction)
            stack.extend(instruction.operands)
    order = [instruction for instruction in computation.post_order() if instruction in needed]
    last_reader = {operand: instruction for instruction in order for operand in instruction.operands}
    for instruction in order:
        operands = dict.fromkeys(instruction.operands)
        yield _Step(instruction, tuple(o for o in operands if last_reader[o] is instruction and o is not computation.root))


def _results(value: Value) -> tuple[Array, ...]:
    return tuple(as_array(part) for part in value) if isinstance(value, tuple) else (value,)


def _check(instruction: HloInstruction, value: Value, shape: Shape) -> None:
    """Hold every evaluator to the shape that inference promised: a wrong oracle must not go unseen."""
    if not shape.is_array:
        return
    array = as_array(value)
    if array.shape != shape.dims or array.dtype != shape.dtype.numpy:
        found = f"{array.dtype}{list(array.shape)}"
        raise InternalError(f"the reference made {found} of %{instruction.name}, a {shape}", instruction.where)
