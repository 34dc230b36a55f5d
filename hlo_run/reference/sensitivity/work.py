"""Estimates how long the reference takes for instructions, from shapes alone, so that equal modules are measured alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.evaluate.device import Step
from hlo_run.reference.evaluate.perturbed import term_count
from hlo_run.reference.sensitivity.altered_values import parts_read

# Nanoseconds of an instruction, of an element that it reads or makes, and of one term of an element that is a sum.
_PER_STEP, _PER_ELEMENT, _PER_TERM = 10000.0, 2.0, 0.1
# Nanoseconds of a comparison, and of an element of it.
_PER_COMPARISON, _PER_COMPARED = 500000.0, 10.0
# Nanoseconds per element of ops that sort, or that move elements one by one.
_SLOW = {"sort": 100.0, "scatter": 50.0, "gather": 10.0, "select-and-scatter": 50.0, "scan": 50.0}
_TO_APPLY: frozenset[Opcode] = frozenset(
    ("reduce", "reduce-window", "scatter", "select-and-scatter", "sort", "map", "scan", "all-reduce")
)


def work_of_steps(steps: Sequence[Step], runs: Mapping[HloInstruction, int]) -> list[float]:
    """Return the nanoseconds of each step. `runs` has the counts of some instructions inside loops."""
    return [_work(step.instruction, runs) for step in steps]


def _work(instruction: HloInstruction, runs: Mapping[HloInstruction, int]) -> float:
    """Return the work of an instruction with all that it calls; a body counts as often as its kernels ran."""
    total, waiting = _own(instruction), [(instruction, 1)]
    while waiting:
        caller, times = waiting.pop()
        if caller.opcode in _TO_APPLY:
            continue
        for computation in caller.called_computations:
            inner_times = max(times, runs_of(computation, runs))
            for inner in computation.instructions:
                total += inner_times * _own(inner)
                if inner.called_computations:
                    waiting.append((inner, inner_times))
    return total


def runs_of(computation: HloComputation, runs: Mapping[HloInstruction, int]) -> int:
    """Return how often a computation ran, if an instruction of it was counted; else 0."""
    return max((runs.get(instruction, 0) for instruction in computation.instructions), default=0)


def _own(instruction: HloInstruction) -> float:
    if instruction.opcode in ("parameter", "get-tuple-element", "tuple", "constant"):
        return _PER_STEP / 10
    made = _elements_read(instruction)
    read = [operand.shape.element_count for operand in instruction.operands if operand.shape.is_array]
    terms = float(term_count(instruction))
    if instruction.opcode == "custom-call" and len(read) > 1:
        # Mostly a product: of m x k and k x n elements to m x n, or a convolution.
        terms = math.sqrt(read[0] * read[1] / max(1, made))
    moved = _SLOW.get(instruction.opcode, _PER_ELEMENT) * (made + sum(read))
    return _PER_STEP + moved + _PER_TERM * made * (terms - 1)


def _elements_read(instruction: HloInstruction) -> int:
    """Return the number of elements of a result that others read."""
    shape = instruction.shape
    if not shape.is_tuple:
        return _elements(shape)
    # The last part of a library call may be its workspace. A fusion around the call returns it, though none reads it.
    last = shape.tuple_shapes[-1] if shape.tuple_shapes else shape
    is_workspace = instruction.opcode == "custom-call" and last.is_array and last.element_type == "s8" and last.rank == 1
    read = set(parts_read(instruction)) - ({len(shape.tuple_shapes) - 1} if is_workspace else set())
    return sum(_elements(shape.tuple_shapes[number]) for number in read)


def work_of_comparison(shape: Shape) -> float:
    """Return the nanoseconds of a comparison of two values."""
    return _PER_COMPARISON + _PER_COMPARED * _elements(shape)


def _elements(shape: Shape) -> int:
    return sum(leaf.element_count for _, leaf in shape.leaves() if leaf.is_array)
