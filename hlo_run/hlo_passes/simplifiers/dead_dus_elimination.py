"""Remove updates of slices that no slice of the result reads.

    u = f32[8] dynamic-update-slice(x, f32[2] y, 0)
    slice(u), slice={[4:8]}                           =>   slice(x), slice={[4:8]}

The start must be constant. Leaves the update to `dce`. XLA's `DeadDynamicUpdateSliceElimination`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import is_removable
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.pass_support.hlo_pass import PassContext


class DeadDusElimination(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "dead-dus-elimination"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place, users before operands."""
        del ctx
        for update in reversed(module.in_post_order("dynamic-update-slice")):
            ranges = _updated(update)
            if ranges is None or not update.users or not is_removable(update):
                continue
            if all(_misses(user, ranges) for user in update.users):
                module.replace_uses(update, update.operands[0])
                assert update.parent is not None, "the update is in a computation"
                update.parent.remove(update)


def _updated(update: HloInstruction) -> list[tuple[int, int]] | None:
    """Return (start, limit) of the update per dimension, None if a start is not constant."""
    target, source, *starts = update.operands
    if any(start.opcode != "constant" or start.shape.dims for start in starts):
        return None
    ranges: list[tuple[int, int]] = []
    for start, size, whole in zip(starts, source.shape.dims, target.shape.dims, strict=True):
        first = max(0, min(int(start.constant_array), whole - size))
        ranges.append((first, first + size))
    return ranges


def _misses(user: HloInstruction, ranges: list[tuple[int, int]]) -> bool:
    """True for a slice that ends before the update, or begins after it, in some dimension."""
    if user.opcode != "slice":
        return False
    return any(limit <= first or end <= start for (start, limit, _), (first, end) in zip(user.slice_ranges, ranges, strict=True))
