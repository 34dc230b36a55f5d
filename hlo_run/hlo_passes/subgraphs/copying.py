"""Copy the instructions of a computation into one that a builder makes."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.graph import HloComputation, HloInstruction


def copy_into(builder: HloBuilder, source: HloComputation, arguments: Sequence[HloValue]) -> HloValue:
    """Add copies of the instructions of `source`, with `arguments` for its parameters; return the root's copy.

    Called computations are shared, not copied.
    """
    copies: dict[HloInstruction, HloValue] = {}
    for old in source.post_order():
        if old.opcode == "parameter":
            copies[old] = arguments[old.parameter_number]
        else:
            copies[old] = builder.copy_of(old, [copies[operand] for operand in old.operands])
    return copies[source.root]
