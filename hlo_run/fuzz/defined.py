"""Finds the values that HLO leaves open in a module, so that two correct implementations may differ.

The rules are those of XLA's operation semantics. Reductions whose order or init value matters are open. Results of an unstable
sort, of conversions of floats that the integers do not have, of integer divisions by zero and of random numbers are open too.
"""

from __future__ import annotations

from hlo_run.analysis.open_reduction import is_monoid, reason_of_reduction
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode, opcode_set

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
    if reason := reason_of_reduction(instruction):
        return reason
    match opcode:
        case "scan":
            return _of_scan(instruction)
        case "sort":
            return _of_sort(instruction)
        case "rng-bit-generator":
            return "the default algorithm is open" if instruction.algorithm == "rng_default" else ""
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


def _of_scan(instruction: HloInstruction) -> str:
    """A scan runs in order unless it says that its computation is associative."""
    if not instruction.is_associative:
        return ""
    results, parameters = set(instruction.to_apply.root.operands), set(instruction.to_apply.parameters)
    is_one = len(results) == 1 and all(is_monoid(result, parameters) for result in results)
    return "" if is_one else "the order of the scan is open"


def _of_sort(instruction: HloInstruction) -> str:
    root = instruction.to_apply.root
    parameters = instruction.to_apply.parameters
    is_order = root.opcode == "compare" and root.comparison_direction in _ORDERS and set(root.operands) <= set(parameters)
    if not is_order or len(set(root.operands)) < 2:
        return "the comparison is not an order"
    numbers = sorted(parameters.index(o) for o in root.operands)
    if numbers[0] % 2 or numbers[1] != numbers[0] + 1:
        return "the comparison is not an order"
    if len(instruction.operands) > 1 and not instruction.is_stable:
        return "the order of equal keys is open"
    return ""
