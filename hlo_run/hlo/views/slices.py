"""The view of a dynamic-slice or dynamic-update-slice."""

from __future__ import annotations

from typing import Self

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction


class DynamicSlice(Struct, frozen=True):
    """The slice of `whole` at `starts` that a dynamic-slice reads or an update replaces by `part`.

    `part` has the slice's shape: it is the dynamic-slice itself or the new value. `starts` has a scalar per dimension, or one
    vector.
    """

    whole: HloInstruction
    part: HloInstruction
    starts: tuple[HloInstruction, ...]

    @classmethod
    def of(cls, instruction: HloInstruction) -> Self:
        """Return the view of a dynamic-slice or dynamic-update-slice."""
        operands = instruction.operands
        if instruction.opcode == "dynamic-slice":
            return cls(operands[0], instruction, operands[1:])
        return cls(operands[0], operands[1], operands[2:])

    @property
    def sizes(self) -> tuple[int, ...]:
        """The slice's size in each dimension."""
        return self.part.shape.dims

    @property
    def has_scalar_starts(self) -> bool:
        """True if there is a scalar per dimension, not one vector."""
        return not any(start.shape.dims for start in self.starts)
