"""Tells whether a fusion around a product gains by an instruction: whether it then moves fewer bytes, or hardly more.

XLA's `triton_fusion::IsInputWorthFusing` and `IsOutputWorthFusing`.
"""

from __future__ import annotations

from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import opcode_set

_TOLERANCE_BYTES = 1024
_INPUTS = opcode_set("constant parameter")
_VIEWS = opcode_set("bitcast reshape transpose")


def is_input_worth_fusing(value: HloInstruction, multiplies: bool = False) -> bool:
    """True if a product gains by computing the operand `value`; with `multiplies`, also a product of values read once."""
    added = _added_bytes(value)
    if added is None:
        return False
    if added <= _TOLERANCE_BYTES:
        return True
    if len(value.users) > 1:
        return False
    if value.opcode == "slice" and (value.operands[0].opcode in _INPUTS or _is_cheap_part(value)):
        return True
    if value.opcode == "multiply":
        return multiplies and all(is_input_worth_fusing(operand, multiplies) for operand in value.operands)
    return all(operand.opcode in _INPUTS and len(operand.users) <= 1 for operand in value.operands)


def is_output_worth_fusing(user: HloInstruction) -> bool:
    """True if a product gains by computing `user`, which uses its result."""
    added = _added_bytes(user)
    return added is not None and (_is_result(user) or added >= -_TOLERANCE_BYTES)


def binds_broadcast_input(value: HloInstruction) -> bool:
    """True for an elementwise operation of two operands, one of which is a broadcast of a parameter or of a constant."""
    return (
        len(value.operands) == 2
        and is_elementwise(value)
        and any(operand.opcode == "broadcast" and operand.operands[0].opcode in _INPUTS for operand in value.operands)
    )


def _added_bytes(value: HloInstruction) -> int | None:
    """Return by how many bytes the operands are larger than the result; None if one is a tuple."""
    shapes = [operand.shape for operand in value.operands]
    if any(shape.is_tuple for shape in shapes):
        return None
    return sum(shape.size_bytes for shape in shapes) - value.shape.size_bytes


def _is_result(value: HloInstruction) -> bool:
    """True if no later instruction could take the value into its fusion."""
    if value.is_root:
        return True
    return len(value.users) == 1 and value.users[0].is_root and value.users[0].opcode == "tuple"


def _is_cheap_part(part: HloInstruction) -> bool:
    """True for a slice of a value with other users, if computing the value once more for the slice costs little."""
    source = part.operands[0]
    while source.opcode in _VIEWS and len(source.users) == 1:
        source = source.operands[0]
    slices = [user for user in source.users if user.opcode == "slice"]
    is_sliced = len(slices) == len(source.users)
    if len(source.users) < 2 or (is_sliced and all(user.shape.dims == part.shape.dims for user in slices)):
        return False
    return source.opcode in _INPUTS or is_elementwise(source) or is_sliced
