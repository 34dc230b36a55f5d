"""Recognises reducers of one operation and symmetric reducers, and the identity values of operations."""

from __future__ import annotations

import numpy as np

from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import ASSOCIATIVE, COMMUTATIVE
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.literal import float_info


def simple_reducer(computation: HloComputation) -> Opcode | None:
    """Return the opcode of a reducer that combines its two parameters by one commutative instruction, else None."""
    root = computation.root
    if root.opcode not in ASSOCIATIVE or len(computation.parameters) != 2:
        return None
    return root.opcode if set(root.operands) == set(computation.parameters) else None


def is_identity(value: HloInstruction, opcode: Opcode) -> bool:
    """True if a constant scalar is the identity of reducers of that opcode. For sums of floats, -0 counts as well."""
    if value.opcode != "constant" or value.shape.dims or not value.shape.is_array:
        return False
    number, dtype = value.constant_array[()], value.shape.dtype
    match opcode:
        case "add" | "or" | "xor":
            return bool(number == np.zeros((), dtype.numpy))
        case "multiply":
            return bool(number == np.ones((), dtype.numpy))
        case "and":
            return bool(number == (np.ones((), bool) if dtype.name == "pred" else ~np.zeros((), dtype.numpy)))
        case _:
            return not dtype.is_complex and float(number) == _limit(dtype.name, opcode == "maximum")


def identity_of(opcode: Opcode, element_type: str) -> float:
    """Return the identity of add, multiply, minimum, maximum, and, or (the last two of preds) for a type."""
    if opcode in ("and", "or"):
        return float(opcode == "and")
    return _limit(element_type, opcode == "maximum") if opcode in ("minimum", "maximum") else float(opcode == "multiply")


def _limit(element_type: str, lowest: bool) -> float:
    """Return the smallest or largest value of a type."""
    dtype = DTYPES[element_type]
    if dtype.is_float:
        has_infinity = not np.isfinite(np.asarray(np.inf).astype(dtype.numpy))
        limit = float("inf") if has_infinity else float(float_info(dtype).max)
        return -limit if lowest else limit
    if dtype.name == "pred":
        return float(not lowest)
    if dtype.is_signed:
        return float(-(1 << (dtype.bits - 1)) if lowest else (1 << (dtype.bits - 1)) - 1)
    return 0.0 if lowest else float((1 << dtype.bits) - 1)


def is_symmetric(computation: HloComputation) -> bool:
    """Return True if a reducer of two scalars is known to have the same result for (a, b) and (b, a).

    Operands of commutative instructions have no order. `a - b` is the same as `b - a` below `abs`, and where it is compared with
    itself, which only finds NaNs. Both occur in the sum of logarithms.
    """
    if len(computation.parameters) != 2 or any(instruction.called for instruction in computation.instructions):
        return False
    numbers: dict[tuple[object, ...], int] = {}
    return _number(computation, (0, 1), numbers) == _number(computation, (1, 0), numbers)


def _number(computation: HloComputation, order: tuple[int, int], numbers: dict[tuple[object, ...], int]) -> int:
    """Return the number of the root's value if the parameters have the numbers of `order`; `numbers` gets all values' numbers."""
    found: dict[HloInstruction, int] = {}

    def without_sign(value: HloInstruction) -> int:
        if value.opcode != "subtract":
            return found[value]
        return numbers.setdefault(("difference", *sorted(found[operand] for operand in value.operands)), len(numbers))

    for instruction in computation.post_order():
        opcode, operands = instruction.opcode, instruction.operands
        if opcode == "parameter":
            key: tuple[object, ...] = (opcode, order[instruction.parameter_number])
        elif not operands:
            key = (opcode, id(instruction))
        else:
            finds_nans = opcode == "compare" and operands[0] is operands[1]
            values = [without_sign(value) if opcode == "abs" or finds_nans else found[value] for value in operands]
            kept = sorted((name, repr(value)) for name, value in instruction.attrs.items() if name != "metadata")
            key = (opcode, str(instruction.shape), *kept, *(sorted(values) if opcode in COMMUTATIVE else values))
        found[instruction] = numbers.setdefault(key, len(numbers))
    return found[computation.root]
