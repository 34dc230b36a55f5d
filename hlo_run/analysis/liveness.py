"""Finds the parts of results that may influence the module's result or its side effects.

    tuple(a, b) of which a user reads element 0   =>   a is live, b is not

Unlike dead-code elimination it looks into the states of loops. Mirrors XLA's `HloLivenessAnalysis`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from hlo_run.hlo.edit import has_side_effect
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import CONTROL_FLOW
from hlo_run.hlo.values.shape import Shape, ShapeIndex


def every_index(shape: Shape) -> Iterator[ShapeIndex]:
    """Yield the indices of a shape, the indices of tuples included."""
    yield ()
    for number, part in enumerate(shape.tuple_shapes if shape.is_tuple else ()):
        for inner in every_index(part):
            yield (number, *inner)


class Liveness:
    """The live indices of each instruction of a module."""

    def __init__(self, module: HloModule) -> None:
        self._live: dict[HloInstruction, set[ShapeIndex]] = {}
        self._waiting: deque[HloInstruction] = deque()
        self._mark_all(module.entry.root)
        for value in module.instructions:
            has_own_effect = value.opcode not in CONTROL_FLOW and has_side_effect(value)
            if has_own_effect or stays_whole(value):
                self._mark_all(value)
        while self._waiting:
            value = self._waiting.popleft()
            self._spread(value)
            self._spread_to_callers(value)

    def is_live(self, value: HloInstruction, index: ShapeIndex) -> bool:
        """True if the part of a result at an index may matter."""
        return index in self._live.get(value, ())

    def _mark(self, value: HloInstruction, index: ShapeIndex) -> None:
        live = self._live.setdefault(value, set())
        if index not in live:
            live.add(index)
            self._waiting.append(value)

    def _mark_all(self, value: HloInstruction) -> None:
        for index in every_index(value.shape):
            self._mark(value, index)

    def _spread(self, value: HloInstruction) -> None:
        indices = list(self._live[value])
        match value.opcode:
            case "tuple":
                for index in indices:
                    if index:
                        self._mark(value.operands[index[0]], ())
                        self._mark(value.operands[index[0]], index[1:])
            case "get-tuple-element":
                self._mark(value.operands[0], ())
                for index in indices:
                    self._mark(value.operands[0], (value.tuple_index, *index))
            case "while":
                for index in indices:
                    self._mark(value.while_body.root, index)
                    self._mark(value.operands[0], index)
                self._mark(value.while_condition.root, ())
            case "call":
                for index in indices:
                    self._mark(value.to_apply.root, index)
            case "parameter":
                self._spread_from_parameter(value, indices)
            case _:
                for called in value.called_computations:
                    self._mark_all(called.root)
                for operand in value.operands:
                    self._mark_all(operand)

    def _spread_from_parameter(self, parameter: HloInstruction, indices: list[ShapeIndex]) -> None:
        assert parameter.parent is not None, "the parameter is in a computation"
        for caller in parameter.parent.callers:
            for index in indices if caller.opcode in ("while", "call") else ():
                if caller.opcode == "while":
                    self._mark(caller, index)
                    self._mark(caller.while_body.root, index)
                    self._mark(caller.operands[0], index)
                else:
                    self._mark(caller.operands[parameter.parameter_number], index)

    def _spread_to_callers(self, value: HloInstruction) -> None:
        """Let what decides whether a live instruction runs be live, too."""
        assert value.parent is not None, "the instruction is in a computation"
        for caller in value.parent.callers:
            if caller.opcode == "while":
                self._mark(caller.while_condition.root, ())
            elif caller.opcode == "conditional":
                self._mark(caller.operands[0], ())
                self._mark(caller, ())
                for branch, argument in zip(caller.called_computations, caller.operands[1:], strict=True):
                    if branch is value.parent:
                        for index in ((), *(self._live[value] if value.opcode == "parameter" else ())):
                            self._mark(argument, index)


def stays_whole(value: HloInstruction) -> bool:
    """True for a loop whose elements a frontend wants to keep."""
    return frontend_attribute(value, "xla_disable_while_loop_dce") == "true"
