"""Copies of parts of computations, and calls of them in place of a call of the whole."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from hlo_run.hlo.edit import InstructionMaker, copy_instruction
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape


def copy_part(
    module: HloModule,
    source: HloComputation,
    suffix: str,
    kept: Container[HloInstruction],
    parameters: Mapping[HloInstruction, int],
    outputs: Sequence[HloInstruction] | None,
    parameter_name: str = "",
) -> HloComputation:
    """Add a copy of the kept instructions named `SOURCE.SUFFIX`, and return it.

    The keys of `parameters` become parameters of these numbers, with their own names or with `parameter_name` and the number.
    The copy returns a tuple of the copies of `outputs`, or what the source returns if that is None. Operands of kept instructions
    must be kept or parameters.
    """
    copy = HloComputation(f"{source.name}.{suffix}", source.where)
    copy.execution_thread = source.execution_thread
    made: dict[HloInstruction, HloInstruction] = {}
    for old in source.instructions:
        if old in parameters:
            number = parameters[old]
            name = f"{parameter_name}_{number}" if parameter_name else old.name
            made[old] = InstructionMaker(copy, old.where).parameter(number, old.shape, name)
        elif old in kept:
            made[old] = copy.add(copy_instruction(old, ()))
    for old, new in made.items():
        if old not in parameters:
            new.operands = tuple([made[operand] for operand in old.operands])
        new.control_predecessors = [made[p] for p in old.control_predecessors if p in made]
    if outputs is None:
        copy.root = made[source.root]
    else:
        results = [made[output] for output in outputs]
        shape = Shape.make_tuple(tuple(result.shape for result in results))
        copy.root = InstructionMaker(copy, source.root.where).add("tuple", shape, results)
    return module.add_computation(copy)


def call_instead(call: HloInstruction, computation: HloComputation, operands: Sequence[HloInstruction]) -> HloInstruction:
    """Add a call of another computation beside a call, with its attributes, and return it."""
    shape = computation.root.shape
    made = copy_instruction(call, operands, shape)
    made.called = {"to_apply": (computation,)}
    if shape != call.shape:
        made.attrs.pop("sharding", None)
    assert call.parent is not None, "the call is in a computation"
    return call.parent.add(made)


def is_ordered(call: HloInstruction) -> bool:
    """True if a control dependency begins or ends at the call, or its result shares a buffer with an operand."""
    assert call.parent is not None, "the call is in a computation"
    if call.control_predecessors or "output_to_operand_aliasing" in call.attrs:
        return True
    return any(call in other.control_predecessors for other in call.parent.instructions)
