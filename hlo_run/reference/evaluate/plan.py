"""Plan a computation: a list of steps over numbered slots, made once and run at every call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TypeAlias

import numpy as np

from hlo_run.arrays import NumpyType
from hlo_run.custom_calls import is_registered
from hlo_run.errors import HloRunError
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.evaluate.device import Plan, ProgramEvaluator, Step
from hlo_run.reference.values import Evaluator, Kernel, Prepared, Value, unsupported
from hlo_run.walks import post_order_of_all, walk

# What can be made of constants alone without taking memory.
_VIEWS_OF_CONSTANTS: frozenset[Opcode] = frozenset(("constant", "broadcast", "iota"))
# Ops that are run even if the root does not need them.
_EFFECTS: frozenset[Opcode] = frozenset(
    ("send", "send-done", "recv", "recv-done", "infeed", "outfeed", "rng-get-and-update-state")
)


# Returns how an instruction is evaluated: by the first, by the second, or (both None) not at all.
Chooser: TypeAlias = Callable[[HloInstruction], "tuple[Evaluator | None, ProgramEvaluator | None]"]


def make_plan(computation: HloComputation, choose: Chooser, effects: Mapping[HloComputation, bool], check: bool) -> Plan:
    """Return the plan of a computation: the instructions that the root needs or that have effects, operands first.

    `effects` is the result of `find_effects`. With `check`, the value of every step is checked against its shape.
    """
    order = _needed(computation, effects)
    slots = {instruction: number for number, instruction in enumerate(order)}
    last_reader = {operand: instruction for instruction in order for operand in instruction.operands}
    known: dict[HloInstruction, Value] = {}
    steps: list[Step] = []
    for instruction in order:
        if instruction.opcode == "parameter":
            continue
        evaluate, program = choose(instruction)
        value = _known_value(instruction, evaluate, known)
        if value is not None:
            known[instruction] = value
            continue
        kernel = _kernel(instruction, evaluate)
        if evaluate is None and program is None:
            evaluate = _refuse
        operands = [operand for operand in dict.fromkeys(instruction.operands) if operand not in known]
        dead = tuple(slots[o] for o in operands if last_reader[o] is instruction and o is not computation.root)
        dims, dtype = _expected(instruction.shape) if check else (None, None)
        places = _picker([slots[operand] for operand in instruction.operands])
        steps.append(
            Step(instruction, kernel, None if kernel else evaluate, program, places, slots[instruction], dead, dims, dtype)
        )
    parameters = tuple((slots[i], i.parameter_number) for i in order if i.opcode == "parameter")
    return Plan(tuple(steps), parameters, tuple(known.get(instruction) for instruction in order), slots[computation.root])


def _picker(slots: Sequence[int]) -> Callable[[list[Value | None]], Sequence[Value]]:
    """Return a function that picks these slots, without a Python loop."""
    if len(slots) > 1:
        return itemgetter(*slots)
    return itemgetter(slice(slots[0], slots[0] + 1) if slots else slice(0, 0))


def _kernel(instruction: HloInstruction, evaluate: Evaluator | None) -> Kernel | None:
    """Return the kernel of an instruction, or None; the error of an unsupported one is raised only if it is reached."""
    if not isinstance(evaluate, Prepared):
        return None
    try:
        return evaluate.prepare(instruction)
    except HloRunError:
        return None


def _known_value(instruction: HloInstruction, evaluate: Evaluator | None, known: Mapping[HloInstruction, Value]) -> Value | None:
    """Return the value of a constant or of a view of constants; None if it must be evaluated in each run."""
    if instruction.opcode not in _VIEWS_OF_CONSTANTS or not all(operand in known for operand in instruction.operands):
        return None
    kernel = _kernel(instruction, evaluate)
    if kernel is not None:
        return np.asarray(kernel(*(known[operand] for operand in instruction.operands)))
    if instruction.opcode != "constant" or any(any(leaf.dynamic_dims) for _, leaf in instruction.shape.leaves()):
        return None
    literal: Value = instruction.literal
    return literal if isinstance(literal, tuple) else np.asarray(literal)


def _refuse(instruction: HloInstruction, _operands: Sequence[Value], _calls: object) -> Value:
    raise unsupported(instruction, f"'{instruction.opcode}'")


def _needed(computation: HloComputation, effects: Mapping[HloComputation, bool]) -> list[HloInstruction]:
    stack = [computation.root]
    if effects[computation]:
        stack += [i for i in computation.instructions if has_effect(i, effects)]
    needed = set(walk(stack, lambda i: i.operands))
    return [instruction for instruction in computation.post_order() if instruction in needed]


def has_effect(instruction: HloInstruction, effects: Mapping[HloComputation, bool]) -> bool:
    """True if evaluating the instruction does more than compute its value."""
    if instruction.opcode == "custom-call" and instruction.has_side_effect:
        # A call without a registered function has no effect here; it is an error only if its value is needed.
        return is_registered(instruction.custom_call_target.strip('"'), "Interpreter")
    return instruction.opcode in _EFFECTS or any(effects[c] for c in instruction.called_computations)


def find_effects(computations: Iterable[HloComputation]) -> dict[HloComputation, bool]:
    """Return whether running each computation has effects, directly or in a computation that it calls."""
    effects: dict[HloComputation, bool] = {}
    for computation in callees_first(computations):
        effects[computation] = any(has_effect(i, effects) for i in computation.instructions)
    return effects


def callees_first(computations: Iterable[HloComputation]) -> list[HloComputation]:
    """Return the computations and all that they call, callees before callers, the last callee first."""
    return post_order_of_all(
        computations, lambda caller: [c for i in reversed(caller.instructions) for c in reversed(i.called_computations)]
    )


def _expected(shape: Shape) -> tuple[tuple[int, ...] | None, NumpyType | None]:
    if not shape.is_array:
        return None, None
    return shape.dims, shape.dtype.numpy
