"""Tells which reductions HLO leaves open, so that two correct implementations may return different values.

A reduction may apply its init value any number of times, in any order, so its computation must be associative and commutative,
and the init value its identity. The same holds for scatters and sums over devices, which have no init value.
"""

from __future__ import annotations

import numpy as np

from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.traits import ASSOCIATIVE

_SPREADS = frozenset(("convert", "broadcast", "reshape", "copy"))


def reason_of_reduction(instruction: HloInstruction) -> str:
    """Return why the value of a reduction, or what updates elements as one, is open; "" if it is not, or for other opcodes."""
    match instruction.opcode:
        case "reduce" | "reduce-window":
            return _of_init(instruction)
        case "scatter" | "all-reduce" | "reduce-scatter" | "all-reduce-start":
            return "" if _monoids(instruction.to_apply) else "the order of its updates is open"
        case "select-and-scatter":
            return "" if _monoids(instruction.called["scatter"][0]) else "the order of its updates is open"
        case _:
            return ""


def is_monoid(result: HloInstruction, operands: set[HloInstruction]) -> bool:
    """True for an associative and commutative op on these two operands."""
    return result.opcode in ASSOCIATIVE and len(operands) == 2 and set(result.operands) == operands


def _of_init(instruction: HloInstruction) -> str:
    monoids = _monoids(instruction.to_apply)
    if not monoids:
        return "the order of the reduction is open"
    for monoid, start in zip(monoids, instruction.operands[len(monoids) :], strict=True):
        while start.opcode in _SPREADS:
            start = start.operands[0]
        if start.opcode != "constant" or not _is_identity(monoid, start):
            return "the init value is not the identity"
    return ""


def _monoids(computation: HloComputation) -> tuple[str, ...]:
    """Return the opcodes of a computation of one op per result, on its two parameters; () if one is not associative."""
    root, parameters = computation.root, computation.parameters
    results = root.operands if root.opcode == "tuple" else (root,)
    count = len(results)
    if len(parameters) != 2 * count:
        return ()
    pairs = [{parameters[number], parameters[count + number]} for number in range(count)]
    fits = all(is_monoid(result, pair) for result, pair in zip(results, pairs, strict=True))
    return tuple(result.opcode for result in results) if fits else ()


def _is_identity(monoid: str, start: HloInstruction) -> bool:
    dtype = start.shape.dtype
    value = start.constant_array.reshape(-1)[0]
    number = complex(value) if dtype.is_complex else float(value)
    match monoid:
        case "add" | "or" | "xor":
            return number == 0
        case "multiply":
            return number == 1
        case "and":
            return bool(value) if dtype.kind == "pred" else int(value) in (-1, (1 << dtype.bits) - 1)
        case _:
            pass
    is_max = monoid == "maximum"
    if dtype.kind == "pred":
        return bool(value) != is_max
    if dtype.is_float:
        return number == (-np.inf if is_max else np.inf)
    if dtype.is_complex:
        return False
    lowest, highest = (
        (0, (1 << dtype.bits) - 1) if dtype.kind == "unsigned" else (-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1)
    )
    return int(value) == (lowest if is_max else highest)
