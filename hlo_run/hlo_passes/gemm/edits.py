"""Replacing instructions while a computation is walked: what nothing uses any more leaves the use lists at once."""

from __future__ import annotations

from dataclasses import dataclass, field

from hlo_run.hlo.edit import is_removable
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule


@dataclass
class Edits:
    """The edits of one computation.

    Rules ask how many users a value has, so an instruction that is replaced gives up its operands when it is. `finish` takes
    the instructions out of the computation, in one walk.
    """

    module: HloModule
    computation: HloComputation
    _gone: set[HloInstruction] = field(default_factory=set[HloInstruction])
    _ordered: set[HloInstruction] = field(default_factory=set[HloInstruction])

    def __post_init__(self) -> None:
        self._ordered = {p for i in self.computation.instructions for p in i.control_predecessors}

    def is_gone(self, instruction: HloInstruction) -> bool:
        """True if the instruction was dropped."""
        return instruction in self._gone

    def replace(self, old: HloInstruction, new: HloInstruction) -> None:
        """Let the users of `old` use `new`, and drop `old`."""
        self.module.replace(old, new)
        self.drop(old)

    def drop(self, instruction: HloInstruction) -> None:
        """Drop an instruction if nothing uses it, and then its operands likewise."""
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
        """Remove what was dropped."""
        if self._gone:
            self.computation.remove_all(self._gone)
