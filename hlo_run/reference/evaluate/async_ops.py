"""Evaluate asynchronous pairs. The start computes the result, as in XLA's evaluator, and the done returns it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.evaluate.device import Device, Frame, ProgramEvaluator
from hlo_run.reference.values import TOKEN, Calls, Value, as_tuple, table


def contexts(shape: Shape, first: int = 2) -> tuple[Value, ...]:
    """Return zeros for the elements of a start's shape from `first` on: the contexts, which hold no values here."""
    return tuple(zeros(element) for element in shape.tuple_shapes[first:])


def zeros(shape: Shape) -> Value:
    """Return a value of `shape` with every element zero and dynamic dimensions as long as their bounds."""
    if shape.is_tuple:
        return tuple(zeros(element) for element in shape.tuple_shapes)
    return np.zeros(shape.dims, shape.dtype.numpy) if shape.is_array else TOKEN


def _async_start(instruction: HloInstruction, operands: list[Value], device: Device) -> Frame:
    """The value is ((operands..), result, contexts..)."""
    kept = tuple(operands)
    result = yield device.frame(instruction.called_computations[0], operands)
    return (kept, result, *contexts(instruction.shape))


def _async_update(_instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    return operands[0]


def _second(_instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    """Return the result from the operand ((operands..), result, ..)."""
    return as_tuple(operands[0])[1]


def _copy_start(instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    """The value is (destination, source, context)."""
    return (operands[0], operands[0], *contexts(instruction.shape))


def _first(_instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    return as_tuple(operands[0])[0]


EVALUATE = table(
    ("async-update", _async_update),
    ("async-done", _second),
    ("copy-start", _copy_start),
    ("copy-done", _first),
)
PROGRAM: dict[Opcode, ProgramEvaluator] = {"async-start": _async_start}
