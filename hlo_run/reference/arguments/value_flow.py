"""Follow an unchanged value through tuples, calls, loops, branches and async pairs to the ops that use it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.opcodes.traits import FORWARDING
from hlo_run.walks import walk

# An instruction and the index of a leaf in its (tuple) value.
Position: TypeAlias = tuple[HloInstruction, tuple[int, ...]]
Use: TypeAlias = tuple[HloInstruction, int]

# Ops whose value is their first operand's, tuples as they are.
_FORWARDING = FORWARDING | opcode_set("async-update")
# The computations that get an op's operands as their parameters.
_CALLING: frozenset[Opcode] = frozenset(("call", "async-start"))


def uses_of(origin: HloInstruction, path: tuple[int, ...] = ()) -> Iterator[Use]:
    """Yield (user, operand number) of every op that has the array at `path` of `origin` as an operand.

    The value is followed to every place where it may be, as in XLA's dataflow analysis without SSA form: a loop's state
    may hold its initial value in every iteration. A fusion is a use; the caller looks inside.
    """
    for instruction, place in walk([(origin, path)], _uses_that_forward):
        if not place:
            yield from _direct_uses(instruction)


def _direct_uses(instruction: HloInstruction) -> Iterator[Use]:
    for user in instruction.users:
        for number, operand in enumerate(user.operands):
            if operand is instruction:
                yield user, number


def _uses_that_forward(position: Position) -> Iterator[Position]:
    """Yield the positions to which the users of a value, or its computation, forward it."""
    instruction, place = position
    for user, number in _direct_uses(instruction):
        yield from moved_by(user, number, place)
    yield from moved_out(instruction, place)


def moved_by(user: HloInstruction, number: int, path: tuple[int, ...]) -> Iterator[Position]:
    """Yield the positions to which `user` forwards the value at `path` of operand `number`."""
    match user.opcode:
        case "tuple":
            yield user, (number, *path)
        case "get-tuple-element" if path and path[0] == user.tuple_index:
            yield user, path[1:]
        case "while":
            yield user, path
            for computation in user.called_computations:
                yield computation.parameters[0], path
        case "conditional" if number:
            yield branches(user)[number - 1].parameters[0], path
        case "async-done" if path and path[0] == 1:
            yield user, path[1:]
        case opcode if opcode in _CALLING:
            yield user.called_computations[0].parameters[number], path
        case opcode if opcode in _FORWARDING and not number:
            yield user, path
        case _:
            return


def branches(conditional: HloInstruction) -> tuple[HloComputation, ...]:
    """Return the computations of a conditional in the order of its operands."""
    called = conditional.called
    if "branch_computations" in called:
        return called["branch_computations"]
    return (*called["true_computation"], *called["false_computation"])


def moved_out(instruction: HloInstruction, path: tuple[int, ...]) -> Iterator[Position]:
    """Yield the positions in the callers to which a root's value is returned."""
    if not instruction.is_root or instruction.parent is None:
        return
    for caller in instruction.parent.callers:
        match caller.opcode:
            case "call" | "conditional":
                yield caller, path
            case "while" if caller.while_body is instruction.parent:
                yield caller, path
                for computation in caller.called_computations:
                    yield computation.parameters[0], path
            case "async-start":
                yield caller, (1, *path)
            case _:
                pass


def came_from(instruction: HloInstruction, path: tuple[int, ...]) -> Iterator[Position]:
    """Yield the positions that the array at `path` of a value is taken from as it is; none if the instruction computes it."""
    operands = instruction.operands
    match instruction.opcode:
        case "tuple" if path:
            yield operands[path[0]], path[1:]
        case "get-tuple-element":
            yield operands[0], (instruction.tuple_index, *path)
        case "parameter":
            yield from _given(instruction, path)
        case "while":
            yield operands[0], path
            yield instruction.while_body.root, path
        case "conditional":
            yield from ((branch.root, path) for branch in branches(instruction))
        case "call" | "fusion":
            yield instruction.called_computations[0].root, path
        case opcode if opcode in _FORWARDING:
            yield operands[0], path
        case _:
            return


def _given(parameter: HloInstruction, path: tuple[int, ...]) -> Iterator[Position]:
    """Yield the positions in the callers of a computation that are given to its parameter."""
    computation = parameter.parent
    for caller in () if computation is None else computation.callers:
        match caller.opcode:
            case "call" | "fusion" | "async-start":
                yield caller.operands[parameter.parameter_number], path
            case "while":
                yield caller.operands[0], path
                yield caller.while_body.root, path
            case "conditional" if computation in branches(caller):
                yield caller.operands[1 + branches(caller).index(computation)], path
            case _:
                pass
