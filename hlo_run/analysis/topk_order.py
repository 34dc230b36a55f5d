"""Decides whether a custom call `TopK` picks the largest or the smallest elements."""

from __future__ import annotations

from hlo_run.hlo.graph import HloInstruction
from hlo_run.walks import walk


def picks_largest(call: HloInstruction) -> bool | None:
    """Return True for the largest (also without a comparator), False for the smallest.

    None if the comparator does not compare the two elements directly; only a sort can run such a comparator. `__gpu$TopK`
    always uses the total order, so its comparator may also compare the elements' bits, as `comparison-expander` makes it.
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
    return {i.parameter_number for i in walk([value], lambda i: i.operands) if i.opcode == "parameter"}
