"""Fold instructions whose operands are constants into constants.

    c = f32[] constant(2);  r = f32[] sqrt(c)   =>   constant(1.41421354)

At least one operand must be a constant (with `aggressive`: none); the others may also be broadcasts of constants or iotas. Not
folded: instructions that only enlarge a constant (broadcast, iota, pad of a broadcast), loops, random numbers, effects, and
instructions whose result, or operands together, have more than 45 million elements. To take an element of a tuple is to have all
its elements as operands. A parameter to which all calls of a computation pass the same constant becomes that constant, unless all
parameters do. XLA's `HloConstantFolding`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from msgspec import Struct

from hlo_run.analysis.computation_order import computation_post_order
from hlo_run.errors import HloRunError
from hlo_run.hlo.edit import Editor, Leftovers, copy_instruction, has_side_effect
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.isolate import isolate_instruction
from hlo_run.hlo.opcodes.traits import ASYNC, COLLECTIVE, CONTROL_FLOW, DEVICE_ID, NO_CODE, SIDE_EFFECT
from hlo_run.hlo_passes.hlo_pass import PassContext

_MOST_ELEMENTS = 45_000_000
# Never folded: known already, must run at run time, cheap to recompute, or too expensive to fold.
_NEVER = (
    NO_CODE
    | (CONTROL_FLOW - {"call"})
    | COLLECTIVE
    | SIDE_EFFECT
    | DEVICE_ID
    | {*ASYNC, *"broadcast iota fft fusion custom-call rng-bit-generator sort topk".split()}
)


class ConstantFolding(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "constant_folding"

    aggressive: bool = False

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit all computations except fusion bodies in place, callers first, operands before their users."""
        for computation in reversed(computation_post_order(module)):
            if not computation.is_fusion:
                _take_constant_arguments(module, computation)
            if computation.is_fusion or not any(self._may_fold(i) for i in computation.instructions):
                continue
            ordered = {p for i in computation.instructions for p in i.control_predecessors}
            folded = Leftovers()
            for instruction in computation.post_order():
                is_dead = not instruction.users and not instruction.is_root
                if is_dead or instruction in ordered or not self._may_fold(instruction):
                    continue
                if (value := _value(instruction)) is not None and ctx.fuel.take("constant-folding"):
                    shape = instruction.shape
                    module.replace_uses(instruction, Editor(instruction).add("constant", shape, literal=value))
                    folded.add(instruction)
            folded.remove()

    def _may_fold(self, i: HloInstruction) -> bool:
        element = _element(i)
        operands = element.operands[0].operands if element is not None else i.operands
        if not operands or i.control_predecessors or not all(map(_is_known, operands)):
            return False
        if element is None and not _is_foldable(i):
            return False
        if not i.shape.is_array or i.shape.dynamic_dims:
            return False
        if not self.aggressive and not any(operand.opcode == "constant" for operand in operands):
            return False
        if i.opcode == "pad" and i.operands[0].opcode == "broadcast":
            return False
        return max(i.shape.element_count, sum(operand.shape.element_count for operand in operands)) <= _MOST_ELEMENTS


def _element(i: HloInstruction) -> HloInstruction | None:
    """Return the instruction if it takes an element of a `tuple` instruction."""
    return i if i.opcode == "get-tuple-element" and i.operands[0].opcode == "tuple" else None


def _is_foldable(i: HloInstruction) -> bool:
    if i.opcode in _NEVER or has_side_effect(i):
        return False
    inner = (each for computation in i.called_computations for each in computation.instructions) if i.opcode == "call" else ()
    return all(each.opcode in ("constant", "parameter", "tuple", "get-tuple-element") or _is_foldable(each) for each in inner)


def _take_constant_arguments(module: HloModule, computation: HloComputation) -> None:
    """Replace the parameters to which every call passes the same constant, unless the calls themselves can be folded."""
    callers = list(computation.callers)
    if not callers or any(caller.opcode != "call" for caller in callers):
        return
    same = [_is_one_constant([caller.operands[number] for caller in callers]) for number in range(len(computation.parameters))]
    if all(same):
        return
    for parameter, is_same in zip(computation.parameters, same, strict=True):
        if is_same and parameter.users:
            constant = callers[0].operands[parameter.parameter_number]
            module.replace_uses(parameter, computation.add(copy_instruction(constant, ())))


def _is_one_constant(values: list[HloInstruction]) -> bool:
    if any(value.opcode != "constant" or not value.shape.is_array for value in values):
        return False
    first = values[0]
    return all(v.shape == first.shape and v.constant_array.tobytes() == first.constant_array.tobytes() for v in values)


def _is_known(value: HloInstruction) -> bool:
    if not value.shape.is_array or value.shape.dynamic_dims:
        return False
    return value.opcode in ("constant", "iota") or (value.opcode == "broadcast" and value.operands[0].opcode == "constant")


def _value(i: HloInstruction) -> Any:
    """Return the value of an instruction with known operands; None if it cannot be evaluated."""
    from hlo_run.reference.evaluate.evaluate import evaluate  # many modules have nothing to fold

    if _element(i) is not None:
        return np.ascontiguousarray(_literal(i.operands[0].operands[i.tuple_index])).reshape(i.shape.dims)
    try:
        arguments = [_literal(operand) for operand in dict.fromkeys(i.operands)]
        value = evaluate(isolate_instruction(i), arguments)
    except HloRunError:
        return None
    return np.ascontiguousarray(np.asarray(value)).reshape(i.shape.dims)


def _literal(value: HloInstruction) -> Any:
    shape = value.shape
    if value.opcode == "constant":
        return value.constant_array
    if value.opcode == "iota":
        dim = value.iota_dimension
        counted = np.arange(shape.dims[dim]).astype(shape.dtype.numpy)
        return np.broadcast_to(counted.reshape([-1 if d == dim else 1 for d in range(shape.rank)]), shape.dims)
    literal, dims = value.operands[0].constant_array, value.dimensions
    order = sorted(range(len(dims)), key=lambda d: dims[d])
    spread = [shape.dims[d] if d in dims else 1 for d in range(shape.rank)]
    return np.broadcast_to(np.transpose(literal, order).reshape(spread), shape.dims)
