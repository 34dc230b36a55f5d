"""Show the values of an evaluation to an observer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.opcodes.traits import MOVES_ELEMENTS
from hlo_run.reference.evaluate.device import Device, Frame, ProgramEvaluator
from hlo_run.reference.values import Array, Calls, Evaluator, Kernel, Prepared, Value

# Is called with an instruction, its operands and its value, each time that it was evaluated.
Observer: TypeAlias = Callable[[HloInstruction, Sequence[Value], Value], None]
# Their values say nothing new.
_SAME_VALUES = MOVES_ELEMENTS | opcode_set("""constant iota broadcast parameter tuple get-tuple-element bitcast copy
    opt-barrier add-dependency after-all""")


def observed(
    observe: Observer, instruction: HloInstruction, evaluate: Evaluator | None, program: ProgramEvaluator | None
) -> tuple[Evaluator | None, ProgramEvaluator | None]:
    """Return the evaluators of an instruction; the first shows its values to `observe`.

    What calls computations or meets other devices is not shown, nor what only moves elements. Custom calls are.
    """
    if program is not None and instruction.opcode == "custom-call":
        return evaluate, _shown_program(observe, program)
    if evaluate is None or instruction.opcode in _SAME_VALUES or not instruction.shape.is_array:
        return evaluate, program

    def evaluated(instruction: HloInstruction, operands: Sequence[Value], calls: Calls) -> Value:
        value = evaluate(instruction, operands, calls)
        observe(instruction, operands, value)
        return value

    if not isinstance(evaluate, Prepared):
        return evaluated, program
    prepared = evaluate

    def prepare(instruction: HloInstruction) -> Kernel | None:
        kernel = prepared.prepare(instruction)
        if kernel is None:
            return None

        def shown(*operands: Value) -> Array:
            value = np.asarray(kernel(*operands))
            observe(instruction, operands, value)
            return value

        return shown

    return Prepared(prepare, evaluated), program


def _shown_program(observe: Observer, program: ProgramEvaluator) -> ProgramEvaluator:
    def run(instruction: HloInstruction, operands: list[Value], device: Device) -> Frame:
        given = tuple(operands)
        value: Value = yield program(instruction, operands, device)
        observe(instruction, given, value)
        return value

    return run
