"""Finds the arrays that an instruction's result may be, through tuples, calls, branches and loops.

Unlike in `analysis/buffers/dataflow.py`, computations may be shared and a result may be one of several values: no value is made
where control flow meets. The tables of tuples are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from hlo_run.analysis.buffers.dataflow_values import HloPosition, HloUse
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import SYNC_CONTROL_FLOW
from hlo_run.hlo.values.shape import Shape, ShapeIndex

_FORWARDS: tuple[Opcode, ...] = ("bitcast", "opt-barrier", "domain", "add-dependency", "async-update")
_CONTROL = (*SYNC_CONTROL_FLOW, "async-start")


def leaf_at(shape: Shape, index: ShapeIndex) -> Shape:
    """Return the shape at a shape index."""
    for number in index:
        shape = shape.tuple_shapes[number]
    return shape


class ValueSets:
    """The values of each array of a module, named by the instruction and index that make them, and their uses."""

    def __init__(self, module: HloModule) -> None:
        self._sets: dict[HloPosition, frozenset[HloPosition]] = {}
        self._uses: dict[HloPosition, list[HloUse]] = {}
        sources: dict[HloPosition, list[HloPosition]] = {}
        instructions = [value for computation in module.computations for value in computation.post_order()]
        for instruction in instructions:
            for index, leaf in instruction.shape.leaves():
                if leaf.is_array:
                    place = HloPosition(instruction, index)
                    sources[place] = _sources(instruction, index)
                    self._sets[place] = frozenset() if sources[place] else frozenset((place,))
        self._spread(sources)
        for user in instructions:
            for use in _uses_by(user):
                for value in self.at(use.instruction.operands[use.operand_number], use.operand_index):
                    self._uses.setdefault(value, []).append(use)

    def _spread(self, sources: dict[HloPosition, list[HloPosition]]) -> None:
        targets: dict[HloPosition, list[HloPosition]] = {}
        for place, froms in sources.items():
            for source in froms:
                targets.setdefault(source, []).append(place)
        waiting = [place for place, values in self._sets.items() if values]
        while waiting:
            source = waiting.pop()
            for target in targets.get(source, ()):
                if not self._sets[source] <= self._sets[target]:
                    self._sets[target] |= self._sets[source]
                    waiting.append(target)

    def at(self, instruction: HloInstruction, index: ShapeIndex) -> frozenset[HloPosition]:
        """Return the values that an array of a result may be; empty for other results."""
        return self._sets.get(HloPosition(instruction, index), frozenset())

    def uses(self, value: HloPosition) -> list[HloUse]:
        """Return the uses of a value, without those that put it into a tuple or read it from one."""
        return self._uses.get(value, [])


def _uses_by(user: HloInstruction) -> Iterator[HloUse]:
    if user.opcode in ("tuple", "domain"):
        return
    for number, operand in enumerate(user.operands):
        for index, leaf in operand.shape.leaves():
            if leaf.is_array and (not index or user.opcode not in ("get-tuple-element", "copy")):
                yield HloUse(user, number, index)


def _sources(instruction: HloInstruction, index: ShapeIndex) -> list[HloPosition]:
    """Return where an array comes from; nowhere if the instruction makes it."""
    operands = instruction.operands
    match instruction.opcode:
        case "tuple":
            return [HloPosition(operands[index[0]], index[1:])]
        case "get-tuple-element":
            return [HloPosition(operands[0], (instruction.tuple_index, *index))]
        case "copy":
            return [HloPosition(operands[0], index)] if index else []
        case "call" | "conditional":
            return [HloPosition(branch.root, index) for branch in instruction.called_computations]
        case "while":
            return [HloPosition(operands[0], index), HloPosition(instruction.while_body.root, index)]
        case "async-start":
            if index[0] == 0:
                return [HloPosition(operands[index[1]], index[2:])]
            return [HloPosition(instruction.called_computations[0].root, index[1:])] if index[0] == 1 else []
        case "async-done":
            return [HloPosition(operands[0], (1, *index))]
        case "parameter":
            return list(_arguments(instruction, index))
        case opcode:
            return [HloPosition(operands[0], index)] if opcode in _FORWARDS else []


def _arguments(parameter: HloInstruction, index: ShapeIndex) -> Iterator[HloPosition]:
    computation = parameter.parent
    assert computation is not None, "the parameter is in a computation"
    for caller in computation.callers:
        if caller.opcode not in _CONTROL:
            continue
        if caller.opcode == "while":
            yield HloPosition(caller.operands[0], index)
            yield HloPosition(caller.while_body.root, index)
        elif caller.opcode == "conditional":
            for branch, argument in zip(caller.called_computations, caller.operands[1:], strict=True):
                if branch is computation:
                    yield HloPosition(argument, index)
        else:
            yield HloPosition(caller.operands[parameter.parameter_number], index)
