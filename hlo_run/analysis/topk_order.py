"""Does a custom call `TopK` ask for the largest elements, or for the smallest?"""

from __future__ import annotations

from hlo_run.hlo.graph import HloInstruction


def picks_largest(call: HloInstruction) -> bool | None:
    """Return True for the largest, which a call without a comparator asks for, False for the smallest.

    None if the comparator is another one than a comparison of the two elements: only a sort does what it says. Of
    `__gpu$TopK`, which always stands for the total order, the comparator may be the comparison of the elements' bits that
    `comparison-expander` makes.
    """
    if not call.called_computations:
        return True
    root = call.called_computations[0].root
    if root.opcode != "compare" or root.comparison_direction not in ("GT", "LT"):
        return None
    is_own = call.custom_call_target == "__gpu$TopK"
    sides = [_parameters(operand) if is_own or operand.opcode == "parameter" else set[int]() for operand in root.operands]
    if sides not in ([{0}, {1}], [{1}, {0}]):
        return None
    return (root.comparison_direction == "GT") == (sides[0] == {0})


def _parameters(value: HloInstruction) -> set[int]:
    """Return the numbers of the parameters that a value depends on."""
    seen, waiting = {value}, [value]
    while waiting:
        operands = set(waiting.pop().operands) - seen
        seen |= operands
        waiting += operands
    return {i.parameter_number for i in seen if i.opcode == "parameter"}
