"""Emits the numbers of threads and warps of a block whose sizes are known."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, IntegerAttr
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from hlo_run.dialects import gpu
from hlo_run.dialects.editing.shuffles import WARP_LANES

AXES = (gpu.Dimension.X, gpu.Dimension.Y, gpu.Dimension.Z)


def known_sizes(attribute: Any) -> tuple[int, ...]:
    """Return the three sizes of an attribute; () for none."""
    values: Any = attribute.get_values() if attribute is not None else ()
    return tuple(map(int, values))


class Ids(Struct, frozen=True):
    """Emits arithmetic of ids before an operation."""

    before: Operation
    block: tuple[int, ...]
    grid: tuple[int, ...] = ()

    def add(self, op: Operation) -> SSAValue:
        """Insert an operation and return its result."""
        Rewriter.insert_op(op, InsertPoint.before(self.before))
        return op.results[0]

    def number(self, value: int) -> SSAValue:
        """Return an index constant."""
        return self.add(arith.ConstantOp(IntegerAttr(value, IndexType())))

    def linear(self) -> SSAValue:
        """Return the number of the thread in its block: x first."""
        used = [axis for axis, size in enumerate(self.block) if size > 1] or [0]
        found = self.add(gpu.ThreadIdOp(AXES[used[-1]]))
        for axis in reversed(used[:-1]):
            # Sizes of 1 between two used dimensions change nothing.
            found = self.add(arith.MuliOp(found, self.number(self.block[axis])))
            found = self.add(arith.AddiOp(found, self.add(gpu.ThreadIdOp(AXES[axis]))))
        return found

    def lane(self) -> SSAValue:
        """Return the number of the thread in its warp."""
        return self.add(arith.RemUIOp(self.linear(), self.number(WARP_LANES)))

    def warp(self) -> SSAValue:
        """Return the number of the warp in its block."""
        return self.add(arith.DivUIOp(self.linear(), self.number(WARP_LANES)))
