"""Lifted evaluation: apply a computation of scalars to whole arrays, with an array in place of each scalar."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.opcodes.traits import MOVES_ELEMENTS
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.evaluate.device import Device, Frame
from hlo_run.reference.evaluate.loop_limit import check_limit
from hlo_run.reference.evaluate.plan import callees_first
from hlo_run.reference.values import Array, Value, as_array

# Between scalars these do nothing; on an array of scalars their own rule would see wrong dimensions.
SCALAR_IDENTITIES = MOVES_ELEMENTS - opcode_set("copy")
# Besides the elementwise ops, what means the same applied to one scalar and to each element of an array.
_SAME = opcode_set("""constant tuple get-tuple-element convert bitcast-convert reduce-precision stochastic-convert copy
    opt-barrier parameter fusion call while conditional""")


def find_liftable(computations: Sequence[HloComputation], elementwise: frozenset[Opcode]) -> set[HloComputation]:
    """Return the computations that may be applied to arrays in place of scalars; `elementwise` are opcodes."""
    liftable: set[HloComputation] = set()
    for computation in callees_first(computations):
        if all(_is_liftable(instruction, elementwise, liftable) for instruction in computation.instructions):
            liftable.add(computation)
    return liftable


def _is_liftable(instruction: HloInstruction, elementwise: frozenset[Opcode], liftable: set[HloComputation]) -> bool:
    opcode = instruction.opcode
    if opcode not in elementwise and opcode not in _SAME and opcode not in SCALAR_IDENTITIES:
        return False
    if any(leaf.rank or not leaf.is_array for _, leaf in instruction.shape.leaves()):
        return False
    if opcode == "bitcast" and instruction.operands[0].shape.element_type != instruction.shape.element_type:
        return False
    return all(called in liftable for called in instruction.called_computations)


def identity(_instruction: HloInstruction, operands: Sequence[Value], _calls: object) -> Value:
    """Return the operand: a broadcast, reshape, .. from a scalar to a scalar."""
    return operands[0]


def lifted_call(instruction: HloInstruction, operands: list[Value], device: Device) -> Frame:
    """Evaluate a fusion or call on arrays in place of scalars."""
    return (yield device.frame(instruction.called_computations[0], operands, lifted=True))


def lifted_conditional(instruction: HloInstruction, operands: list[Value], device: Device) -> Frame:
    """Run each branch on the elements that select it."""
    branches = instruction.called_computations
    selector = as_array(operands[0])
    last = len(branches) - 1
    is_pred = selector.dtype == np.bool_
    number = np.where(selector, 0, 1) if is_pred else np.where((selector < 0) | (selector > last), last, selector)
    dims = _dims(operands)
    number = np.broadcast_to(number, dims).reshape(-1)
    result = _empty(instruction.shape, number.size)
    for k, branch in enumerate(branches):
        chosen = np.flatnonzero(number == k)
        if chosen.size:
            argument = _leaves(lambda leaf, at=chosen: _spread(leaf, dims)[at], operands[1 + k])
            _put(result, chosen, (yield device.frame(branch, [argument], lifted=True)))
    return _leaves(lambda leaf: leaf.reshape(dims), result)


def lifted_while(instruction: HloInstruction, operands: list[Value], device: Device) -> Frame:
    """Run each element for its own number of iterations; elements that are done leave the loop."""
    (condition,), (body,) = instruction.called["condition"], instruction.called["body"]
    dims = _dims(operands)
    state = _leaves(lambda leaf: _spread(leaf, dims), operands[0])
    result = _leaves(np.copy, state)
    active = np.arange(int(np.prod(dims, dtype=np.int64)))
    while active.size:
        check_limit(instruction.name)
        goes_on = as_array((yield device.frame(condition, [state], lifted=True)))
        goes_on = np.broadcast_to(goes_on, active.shape)
        if not goes_on.all():
            _put(result, active[~goes_on], _leaves(lambda leaf, at=~goes_on: _spread(leaf, at.shape)[at], state))
            state = _leaves(lambda leaf, at=goes_on: _spread(leaf, at.shape)[at], state)
            active = active[goes_on]
        if active.size:
            state = yield device.frame(body, [state], lifted=True)
    return _leaves(lambda leaf: leaf.reshape(dims), result)


def _leaves(function: Callable[[Array], Array], value: Value) -> Value:
    if isinstance(value, tuple):
        return tuple(_leaves(function, part) for part in value)
    return function(value)


def _spread(leaf: Array, dims: tuple[int, ...]) -> Array:
    return np.broadcast_to(leaf, dims).reshape(-1)


def _dims(operands: Sequence[Value]) -> tuple[int, ...]:
    shapes: list[tuple[int, ...]] = []
    for operand in operands:
        _leaves(lambda leaf: shapes.append(leaf.shape) or leaf, operand)
    return np.broadcast_shapes(*shapes)


def _empty(shape: Shape, count: int) -> Value:
    if shape.is_tuple:
        return tuple(_empty(element, count) for element in shape.tuple_shapes)
    return np.empty(count, shape.dtype.numpy)


def _put(target: Value, at: Array, source: Value) -> None:
    """Write the elements of `source` into the arrays of `target`, in place, at the indices `at`."""
    if isinstance(target, tuple):
        assert isinstance(source, tuple), "a computation's value has its root's shape"
        for inner, part in zip(target, source, strict=True):
            _put(inner, at, part)
        return
    target[at] = source
