"""Evaluate ops that forward values or call computations: tuples, calls, loops, branches, barriers, tokens."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import numpy as np

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.reference.evaluate.device import Device, Frame, ProgramEvaluator
from hlo_run.reference.evaluate.loop_limit import check_limit
from hlo_run.reference.values import TOKEN, Calls, Kernel, Row, Value, as_array, as_tuple, prepared_row, table


def _constant(instruction: HloInstruction, _operands: Sequence[Value], _calls: Calls) -> Value:
    literal: Value = instruction.literal
    return literal if isinstance(literal, tuple) else np.asarray(literal)


def _tuple(_instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    return tuple(operands)


def _prepare_get_tuple_element(instruction: HloInstruction) -> Kernel | None:
    """Return a kernel for an array without dynamic dimensions."""
    shape = instruction.shape
    return itemgetter(instruction.tuple_index) if shape.is_array and not any(shape.dynamic_dims) else None


def _get_tuple_element(instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    return as_tuple(operands[0])[instruction.tuple_index]


def _identity(_instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    return operands[0]


def _token(_instruction: HloInstruction, _operands: Sequence[Value], _calls: Calls) -> Value:
    return TOKEN


def _call(instruction: HloInstruction, operands: list[Value], device: Device) -> Frame:
    return (yield device.frame(instruction.called_computations[0], operands))


def _while(instruction: HloInstruction, operands: list[Value], device: Device) -> Frame:
    (condition,), (body,) = instruction.called["condition"], instruction.called["body"]
    # Only this list holds the state, and the body's frame empties it: its parts are freed while the body runs.
    state = operands
    while as_array((yield device.frame(condition, list(state)))).item():
        check_limit(instruction.name)
        state = [(yield device.frame(body, state))]
    return state[0]


def _conditional(instruction: HloInstruction, operands: list[Value], device: Device) -> Frame:
    """Run one branch: a true pred selects branch 0; an index out of range, negative or too large, selects the last one."""
    branches = instruction.called_computations
    selector = as_array(operands[0]).item()
    if isinstance(selector, bool):
        number = 0 if selector else 1
    else:
        number = selector if 0 <= selector < len(branches) else len(branches) - 1
    argument = [operands[1 + number]]
    operands.clear()
    return (yield device.frame(branches[number], argument))


def _replica_id(_instruction: HloInstruction, _operands: list[Value], device: Device) -> Frame:
    yield from ()
    return np.asarray(device.replica, np.uint32)


def _partition_id(_instruction: HloInstruction, _operands: list[Value], device: Device) -> Frame:
    yield from ()
    return np.asarray(device.partition, np.uint32)


def _same(opcode: Opcode) -> Row:
    return opcode, _identity


EVALUATE = table(
    ("constant", _constant),
    ("tuple", _tuple),
    prepared_row("get-tuple-element", _prepare_get_tuple_element, _get_tuple_element),
    _same("opt-barrier"),
    _same("add-dependency"),
    _same("domain"),
    ("after-all", _token),
)

PROGRAM: dict[Opcode, ProgramEvaluator] = {
    "fusion": _call,
    "call": _call,
    "while": _while,
    "conditional": _conditional,
    "replica-id": _replica_id,
    "partition-id": _partition_id,
}
