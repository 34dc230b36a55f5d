"""Bounds the integers of an instruction by their origins: constants, iotas, and arithmetic of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.opcodes.traits import MOVES_ELEMENTS
from hlo_run.hlo.values.literal import Literal
from hlo_run.reference.arguments.value_flow import branches
from hlo_run.reference.values import as_array, as_tuple

# A closed interval.
Interval: TypeAlias = tuple[int, int]

_SAME_VALUES = MOVES_ELEMENTS | opcode_set("""broadcast bitcast copy opt-barrier slice dynamic-slice gather reverse
    reduce-precision all-gather""")
# Longer chains are left alone: each step costs time, and none of the programs that people compile needs more.
_MOST_STEPS = 60


class ValueRanges:
    """The intervals of the integers of a module, each found once."""

    def __init__(self) -> None:
        self._known: dict[tuple[HloInstruction, tuple[int, ...]], Interval | None] = {}

    def of(self, instruction: HloInstruction, path: tuple[int, ...] = (), steps: int = _MOST_STEPS) -> Interval | None:
        """Return the interval that holds every integer of the array at `path` of a value, or None if nothing bounds them.

        Sums and products are taken not to overflow.
        """
        place = instruction, path
        if place not in self._known:
            self._known[place] = None  # also what a loop finds that leads back here
            self._known[place] = self._found(instruction, path, steps - 1) if steps else None
        return self._known[place]

    def _found(self, instruction: HloInstruction, path: tuple[int, ...], steps: int) -> Interval | None:
        operands = instruction.operands
        match instruction.opcode:
            case "constant":
                return _of_literal(instruction.literal, path)
            case "iota":
                return 0, instruction.shape.dims[instruction.iota_dimension] - 1
            case "tuple" if path:
                return self.of(operands[path[0]], path[1:], steps)
            case "get-tuple-element":
                return self.of(operands[0], (instruction.tuple_index, *path), steps)
            case "call" | "fusion":
                return self.of(instruction.called_computations[0].root, path, steps)
            case "conditional":
                return union([self.of(branch.root, path, steps) for branch in branches(instruction)])
            case "parameter":
                return self._of_parameter(instruction, path, steps)
            case "sort" | "reduce" | "reduce-window":
                return self._of_chosen(instruction, path, steps)
            case "topk" if path == (1,):
                return 0, operands[0].shape.dims[-1] - 1
            case "custom-call" if path == (1,) and "TopK" in instruction.custom_call_target:
                return 0, operands[0].shape.dims[-1] - 1
            case "convert" if not operands[0].shape.dtype.is_float:
                return (0, 1) if operands[0].shape.dtype.kind == "pred" else self.of(operands[0], (), steps)
            case "select":
                return union([self.of(operands[1], (), steps), self.of(operands[2], (), steps)])
            case "concatenate":
                return union([self.of(operand, (), steps) for operand in operands])
            case "dynamic-update-slice" | "pad":
                return union([self.of(operand, (), steps) for operand in operands[:2]])
            case opcode if opcode in _SAME_VALUES:
                return self.of(operands[0], (), steps)
            case opcode if opcode in _ARITHMETIC:
                return _ARITHMETIC[opcode]([self.of(operand, (), steps) for operand in operands])
            case _:
                return None

    def _of_parameter(self, parameter: HloInstruction, path: tuple[int, ...], steps: int) -> Interval | None:
        computation = parameter.parent
        if computation is None or computation.is_entry or not computation.callers:
            return None
        return union([self._given(caller, computation, parameter, path, steps) for caller in computation.callers])

    def _given(
        self, caller: HloInstruction, computation: HloComputation, parameter: HloInstruction, path: tuple[int, ...], steps: int
    ) -> Interval | None:
        """Return the interval of what a caller gives to a parameter; of a loop, only if the body keeps it."""
        match caller.opcode:
            case "call" | "fusion":
                return self.of(caller.operands[parameter.parameter_number], path, steps)
            case "while" if _is_kept(caller.while_body, path):
                return self.of(caller.operands[0], path, steps)
            case "conditional":
                return self.of(caller.operands[1 + branches(caller).index(computation)], path, steps)
            case _:
                return None

    def _of_chosen(self, instruction: HloInstruction, path: tuple[int, ...], steps: int) -> Interval | None:
        """Return the interval of a sort's result, or of a reduction that chooses elements: argmax, argmin, max, min."""
        number = path[0] if path else 0
        if instruction.opcode != "sort" and not _chooses(instruction.to_apply, number):
            return None
        count = len(instruction.operands) if instruction.opcode == "sort" else len(instruction.operands) // 2
        return self.of(instruction.operands[number], (), steps) if number < count else None


def _chooses(reducer: HloComputation, number: int) -> bool:
    """True if a reducer returns one of its two numbers: a maximum, a minimum, or a choice by other numbers."""
    root = reducer.root
    chosen = root.operands[number] if root.opcode == "tuple" else root
    if chosen.opcode in ("select", "get-tuple-element", "call"):
        return root.opcode == "tuple" or root.shape.is_tuple
    return chosen.opcode in ("maximum", "minimum")


def _is_kept(body: HloComputation, path: tuple[int, ...]) -> bool:
    """True if the body of a loop returns the element at `path` of its state as it got it."""
    if not path or body.root.opcode != "tuple":
        return False
    kept = body.root.operands[path[0]]
    return kept.opcode == "get-tuple-element" and kept.tuple_index == path[0] and kept.operands[0].opcode == "parameter"


def _of_literal(literal: Literal, path: tuple[int, ...]) -> Interval | None:
    for number in path:
        literal = as_tuple(literal)[number]
    array = as_array(literal)
    if array.dtype.kind not in "biu" and array.dtype.name not in ("int4", "uint4", "int2", "uint2"):
        return None
    return (int(array.min()), int(array.max())) if array.size else None


def union(found: Sequence[Interval | None]) -> Interval | None:
    """Return the smallest interval that holds all of them; None if one is unknown."""
    known = [interval for interval in found if interval is not None]
    if not known or len(known) < len(found):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def _pairs(function: Callable[[int, int], int]) -> Callable[[Sequence[Interval | None]], Interval | None]:
    """Return a function of intervals from one of numbers that is monotonous in each of two numbers."""

    def of_intervals(operands: Sequence[Interval | None]) -> Interval | None:
        left, right = operands
        if left is None or right is None:
            return None
        ends = [function(a, b) for a in left for b in right]
        return min(ends), max(ends)

    return of_intervals


def _least(operands: Sequence[Interval | None]) -> Interval | None:
    """Return the interval of a minimum that is not negative: known if one operand is."""
    left, right = operands
    if left is None or right is None:
        return None
    return min(left[0], right[0]), min(left[1], right[1])


def _most(operands: Sequence[Interval | None]) -> Interval | None:
    left, right = operands
    if left is None or right is None:
        return None
    return max(left[0], right[0]), max(left[1], right[1])


def _clamp(operands: Sequence[Interval | None]) -> Interval | None:
    low, _, high = operands
    return None if low is None or high is None else (low[0], max(low[0], high[1]))


def _remainder(operands: Sequence[Interval | None]) -> Interval | None:
    left, right = operands
    if right is None or right[0] <= 0:
        return None
    return (0 if left is not None and left[0] >= 0 else 1 - right[1]), right[1] - 1


def _divide(operands: Sequence[Interval | None]) -> Interval | None:
    left, right = operands
    if left is None or right is None or right[0] <= 0 or left[0] < 0:
        return None
    return left[0] // right[1], left[1] // right[0]


def _and(operands: Sequence[Interval | None]) -> Interval | None:
    masks = [high for low, high in (found for found in operands if found is not None) if low >= 0]
    return (0, min(masks)) if masks else None


_ARITHMETIC: dict[Opcode, Callable[[Sequence[Interval | None]], Interval | None]] = {
    "add": _pairs(lambda a, b: a + b),
    "subtract": _pairs(lambda a, b: a - b),
    "multiply": _pairs(lambda a, b: a * b),
    "minimum": _least,
    "maximum": _most,
    "clamp": _clamp,
    "remainder": _remainder,
    "divide": _divide,
    "and": _and,
}
