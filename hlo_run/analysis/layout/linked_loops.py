"""Finds the arrays that a loop carries: in its initial state, in its body and condition, in what the body returns, in its result.

All of them have one layout in the end. `LayoutPropagation` passes a layout of one to the others when nothing else is left to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from msgspec import Struct

from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.values.shape import ShapeIndex

Value: TypeAlias = "tuple[HloInstruction, ShapeIndex]"

# Their elements are other values under another name.
NAMES: frozenset[Opcode] = opcode_set("tuple get-tuple-element opt-barrier add-dependency")


def value_behind(instruction: HloInstruction, index: ShapeIndex) -> Value:
    """Return the value at `index`. A bitcast defines a new value here, since it may change the layout."""
    while instruction.opcode in NAMES:
        if instruction.opcode == "tuple":
            instruction, index = instruction.operands[index[0]], index[1:]
        elif instruction.opcode == "get-tuple-element":
            instruction, index = instruction.operands[0], (instruction.tuple_index, *index)
        else:
            instruction = instruction.operands[0]
    return instruction, index


def is_linked(loop: HloInstruction) -> bool:
    """True for a loop whose body and condition are its own."""
    return loop.opcode == "while" and all(len(computation.callers) == 1 for computation in loop.called_computations)


class CarriedArray(Struct, frozen=True):
    """One array that a loop carries, by its names: as XLA visits them, the result last."""

    initial: Value
    parameter: Value
    in_condition: Value
    returned: Value
    result: Value

    @property
    def values(self) -> tuple[Value, ...]:
        """All names of the array."""
        return self.initial, self.parameter, self.in_condition, self.returned, self.result


def carried_arrays(loop: HloInstruction) -> list[CarriedArray]:
    """Return the arrays that a loop carries, in the order of its state."""
    body, condition = loop.while_body, loop.while_condition
    return [
        CarriedArray(
            value_behind(loop.operands[0], index),
            (body.parameters[0], index),
            (condition.parameters[0], index),
            value_behind(body.root, index),
            (loop, index),
        )
        for index, leaf in loop.shape.leaves()
        if leaf.is_array
    ]


def linked_loops(computations: Sequence[HloComputation]) -> Iterator[HloInstruction]:
    """Yield the loops whose body and condition are their own; loops of the last computation come first."""
    for computation in reversed(computations):
        yield from (instruction for instruction in computation.post_order() if is_linked(instruction))


def units(computations: Iterable[HloComputation]) -> list[list[HloComputation]]:
    """Return groups of computations whose layouts are settled together: one with the bodies and conditions of its loops.

    The computations come callees first; so do the groups and the computations of each, whose last one is not that of a loop.
    """
    order = list(computations)
    groups: dict[HloComputation, list[HloComputation]] = {}
    for computation in order:
        groups.setdefault(_owner(computation), []).append(computation)
    return [groups[computation] for computation in order if computation in groups]


def _owner(computation: HloComputation) -> HloComputation:
    """Return the computation that holds the outermost loop around `computation`."""
    while not computation.is_entry and computation.callers and is_linked(computation.callers[0]):
        parent = computation.callers[0].parent
        assert parent is not None, "the loop is in a computation"
        computation = parent
    return computation
