"""Edits of a computation during a walk: replaced instructions leave the use lists at once, and are removed at the end."""

from __future__ import annotations

from msgspec import Struct, field

from hlo_run.hlo.edit import is_removable
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule


class Edits(Struct):
    """The edits of one computation.

    Rules count the users of a value, so a replaced instruction loses its operands at once. `finish` removes all dropped
    instructions from the computation, in one walk. `smallest_product` is the number of elements from which on a product calls
    the library.
    """

    module: HloModule
    computation: HloComputation
    smallest_product: int
    _gone: set[HloInstruction] = field(default_factory=set[HloInstruction])
    _ordered: set[HloInstruction] = field(default_factory=set[HloInstruction])

    def __post_init__(self) -> None:
        self._ordered = {p for i in self.computation.instructions for p in i.control_predecessors}

    def is_gone(self, instruction: HloInstruction) -> bool:
        """Return True if the instruction was dropped."""
        return instruction in self._gone

    def replace(self, old: HloInstruction, new: HloInstruction) -> None:
        """Replace the uses of `old` by `new`, and drop `old`."""
        self.module.replace(old, new)
        self.drop(old)

    def replace_by_changed(self, old: HloInstruction, new: HloInstruction) -> None:
        """Replace `old` by its operand `new`, which was changed in place: `new` gets the users in the order that `old` had."""
        operands = dict.fromkeys(old.operands)
        old.operands = ()
        self.replace(old, new)
        for operand in operands:
            if operand is not new:
                self.drop(operand)

    def drop(self, instruction: HloInstruction) -> None:
        """Drop an instruction if it has no users and is removable, and then its operands in the same way."""
        waiting = [instruction]
        while waiting:
            one = waiting.pop()
            if one in self._gone or one.users or one in self._ordered or not is_removable(one):
                continue
            self._gone.add(one)
            operands = dict.fromkeys(one.operands)
            one.operands = ()
            waiting += operands

    def finish(self) -> None:
        """Remove the dropped instructions from the computation."""
        if self._gone:
            self.computation.remove_all(self._gone)
