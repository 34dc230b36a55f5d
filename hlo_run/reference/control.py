"""Ops that pass values on or call computations: tuples, calls, loops, barriers, tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hlo_run.hlo.graph import HloInstruction
from hlo_run.reference.values import TOKEN, Calls, Row, Value, as_array, as_tuple, table


def _constant(instruction: HloInstruction, _operands: Sequence[Value], _calls: Calls) -> Value:
    literal: Value = instruction.attrs["literal"]
    return literal if isinstance(literal, tuple) else np.asarray(literal)


def _tuple(_instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    return tuple(operands)


def _get_tuple_element(instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    return as_tuple(operands[0])[instruction.attrs["index"]]


def _identity(_instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    return operands[0]


def _token(_instruction: HloInstruction, _operands: Sequence[Value], _calls: Calls) -> Value:
    return TOKEN


def _device_zero(_instruction: HloInstruction, _operands: Sequence[Value], _calls: Calls) -> Value:
    """The only device is number 0."""
    return np.zeros((), np.uint32)


def _call(instruction: HloInstruction, operands: Sequence[Value], calls: Calls) -> Value:
    return calls.call(instruction.called_computations[0], operands)


def _while(instruction: HloInstruction, operands: Sequence[Value], calls: Calls) -> Value:
    (condition,), (body,) = instruction.called["condition"], instruction.called["body"]
    state = operands[0]
    while as_array(calls.call(condition, [state])).item():
        state = calls.call(body, [state])
    return state


def _conditional(instruction: HloInstruction, operands: Sequence[Value], calls: Calls) -> Value:
    """A pred selects branch 0 when true; a number outside the branches, also a negative one, selects the last."""
    branches = instruction.called_computations
    selector = as_array(operands[0]).item()
    if isinstance(selector, bool):
        number = 0 if selector else 1
    else:
        number = selector if 0 <= selector < len(branches) else len(branches) - 1
    return calls.call(branches[number], [operands[1 + number]])


def _same(opcode: str) -> Row:
    return opcode, _identity


EVALUATE = table(
    ("constant", _constant),
    ("tuple", _tuple),
    ("get-tuple-element", _get_tuple_element),
    ("fusion", _call),
    ("call", _call),
    ("while", _while),
    ("conditional", _conditional),
    _same("opt-barrier"),
    _same("optimization-barrier"),
    _same("add-dependency"),
    _same("domain"),
    ("after-all", _token),
    ("partition-id", _device_zero),
    ("replica-id", _device_zero),
)
