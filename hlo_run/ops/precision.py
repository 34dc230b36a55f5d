"""The check for mixed precision: operands with different float widths, which XLA refuses for most opcodes."""

from __future__ import annotations

from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.opcodes.traits import ASYNC_DONE, CONTROL_FLOW
from hlo_run.hlo.verify.module import instruction_error
from hlo_run.ops.rule import brief

# Opcodes that pass on buffers, and opcodes that support operands of different widths.
_MIXED = (
    CONTROL_FLOW
    | ASYNC_DONE
    | opcode_set("""async-update constant convolution custom-call domain dot fusion get-tuple-element infeed opt-barrier
    outfeed parameter ragged-dot recv reduce-precision scaled-dot send sort tuple all-gather all-gather-start all-reduce
    all-reduce-start all-to-all collective-permute collective-permute-start""")
)

# The shape rules of these take the element type from the written shape.
_KEEP_TYPE = opcode_set("broadcast reshape dynamic-reshape")
# The operands of these have the types of the parameters of the computation that they apply.
_TYPED_BY_COMPUTATION: frozenset[Opcode] = frozenset(("map", "reduce", "reduce-window"))


def check_precision(module: HloModule) -> None:
    """Raise ParseError for operands with different float widths, unless the opcode supports them."""
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.opcode in _KEEP_TYPE:
                _check_type(instruction)
            elif len(instruction.operands) > 1 and instruction.opcode not in _MIXED:
                _check(instruction)
            if instruction.opcode in _TYPED_BY_COMPUTATION:
                _check_parameters(instruction)


def _check_type(instruction: HloInstruction) -> None:
    expected, found = instruction.operands[0].shape, instruction.shape
    if expected.element_type != found.element_type:
        raise instruction_error(instruction, f"expected elements of type {expected.element_type}, found {brief(found)}")


def _check(instruction: HloInstruction) -> None:
    first = ""
    for operand in instruction.operands:
        for _, leaf in operand.shape.leaves():
            if not leaf.is_array or not leaf.dtype.is_float:
                continue
            first = first or leaf.element_type
            if leaf.element_type != first:
                shapes = ", ".join(brief(o.shape) for o in instruction.operands)
                raise instruction_error(instruction, f"takes floats of one width, but its operands are {shapes}")


def _check_parameters(instruction: HloInstruction) -> None:
    applied = instruction.to_apply
    for number, (operand, parameter) in enumerate(zip(instruction.operands, applied.parameters, strict=True)):
        if operand.shape.element_type != parameter.shape.element_type:
            found = f"operand {number} has the type {operand.shape.element_type}"
            raise instruction_error(instruction, f"{found}, but '{applied.name}' takes {parameter.shape.element_type}")
