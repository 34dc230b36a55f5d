"""Find what HLO leaves open in a module: there, two correct implementations may return different values.

The rules are those of XLA's operation semantics. A reduction may apply its init value any number of times, in any order, so its
computation must be associative and commutative and the init value its identity. The same holds for scatters without the init
value. Results of an unstable sort, of conversions of floats that the integers do not have, of integer divisions by zero and
of random numbers are open too.
"""

from __future__ import annotations

import numpy as np

from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.opcodes.traits import ASSOCIATIVE

_OPEN = opcode_set("""rng rng-get-and-update-state cholesky triangular-solve custom-call infeed recv topk stochastic-convert
    ragged-dot set-dimension-size dynamic-reshape""")
_DIVISIONS: frozenset[Opcode] = frozenset(("divide", "remainder", "power"))
_ORDERS = frozenset(("LT", "GT"))


def open_part(module: HloModule, in_range: bool) -> str:
    """Return the first instruction whose value HLO leaves open, with the reason; "" if there is none.

    With `in_range`, operands of conversions, divisions and convolutions are known to be in their ranges.
    """
    return next((f"{i.name}: {reason}" for i in module.instructions if (reason := _reason(i, in_range))), "")


def _reason(instruction: HloInstruction, in_range: bool) -> str:
    opcode, shape = instruction.opcode, instruction.shape
    if opcode in _OPEN:
        return f"the values of {opcode} are open"
    match opcode:
        case "reduce" | "reduce-window":
            return _of_reduction(instruction)
        case "scatter" | "all-reduce" | "reduce-scatter" | "all-reduce-start":
            return "" if _monoids(instruction.to_apply) else "the order of its updates is open"
        case "select-and-scatter":
            return "" if _monoids(instruction.called["scatter"][0]) else "the order of its updates is open"
        case "scan":
            return _of_scan(instruction)
        case "sort":
            return _of_sort(instruction)
        case "rng-bit-generator":
            return "the default algorithm is open" if instruction.attrs.get("algorithm") == "rng_default" else ""
        case _:
            pass
    if in_range or not shape.is_array:
        return ""
    is_float = shape.dtype.is_float or shape.dtype.is_complex
    if opcode == "convert" and not is_float and instruction.operands[0].shape.dtype.is_float and shape.element_type != "pred":
        return "a conversion of a number that the integers do not have"
    if opcode in _DIVISIONS and not is_float:
        return "an integer division by zero"
    return "an integer convolution may overflow" if opcode == "convolution" and not is_float else ""


def _of_reduction(instruction: HloInstruction) -> str:
    monoids = _monoids(instruction.to_apply)
    if not monoids:
        return "the order of the reduction is open"
    for monoid, start in zip(monoids, instruction.operands[len(monoids) :], strict=True):
        while start.opcode in ("convert", "broadcast", "reshape", "copy"):
            start = start.operands[0]
        if start.opcode != "constant" or not _is_identity(monoid, start):
            return "the init value is not the identity"
    return ""


def _of_scan(instruction: HloInstruction) -> str:
    """A scan runs in order unless it says that its computation is associative."""
    if not instruction.attrs.get("is_associative", False):
        return ""
    results, parameters = set(instruction.to_apply.root.operands), set(instruction.to_apply.parameters)
    is_monoid = len(results) == 1 and all(_is_monoid(result, parameters) for result in results)
    return "" if is_monoid else "the order of the scan is open"


def _monoids(computation: HloComputation) -> tuple[str, ...]:
    """Return the opcodes of a computation of one op per result, on its two parameters; () if one is not associative."""
    root, parameters = computation.root, computation.parameters
    results = root.operands if root.opcode == "tuple" else (root,)
    count = len(results)
    if len(parameters) != 2 * count:
        return ()
    pairs = [{parameters[number], parameters[count + number]} for number in range(count)]
    fits = all(_is_monoid(result, pair) for result, pair in zip(results, pairs, strict=True))
    return tuple(result.opcode for result in results) if fits else ()


def _is_monoid(result: HloInstruction, operands: set[HloInstruction]) -> bool:
    """True for an associative and commutative op on these two operands."""
    return result.opcode in ASSOCIATIVE and len(operands) == 2 and set(result.operands) == operands


def _is_identity(monoid: str, start: HloInstruction) -> bool:
    dtype = start.shape.dtype
    value = np.asarray(start.attrs["literal"]).reshape(-1)[0]
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


def _of_sort(instruction: HloInstruction) -> str:
    root = instruction.to_apply.root
    parameters = instruction.to_apply.parameters
    is_order = root.opcode == "compare" and root.attrs.get("direction") in _ORDERS and set(root.operands) <= set(parameters)
    if not is_order or len(set(root.operands)) < 2:
        return "the comparison is not an order"
    numbers = sorted(parameters.index(o) for o in root.operands)
    if numbers[0] % 2 or numbers[1] != numbers[0] + 1:
        return "the comparison is not an order"
    if len(instruction.operands) > 1 and not instruction.attrs.get("is_stable", False):
        return "the order of equal keys is open"
    return ""
