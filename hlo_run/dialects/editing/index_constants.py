"""Makes index constants of a function, each once, at the start of the function."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, IntegerAttr
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from hlo_run.dialects.types import constant_int


class IndexConstants:
    """Returns index constants. Constants that already begin the entry block are reused."""

    def __init__(self, entry: Block) -> None:
        self._entry = entry
        self._last: Operation | None = None
        self._known: dict[int, SSAValue] = {}
        for op in entry.ops:
            if not isinstance(op, arith.ConstantOp):
                break
            self._last = op
            number = constant_int(op.result)
            if number is not None and isinstance(op.result.type, IndexType):
                self._known.setdefault(number, op.result)

    def get(self, number: int) -> SSAValue:
        """Return the index constant `number`. A new constant goes after the constants that begin the entry block."""
        found = self._known.get(number)
        if found is None:
            op = arith.ConstantOp(IntegerAttr(number, IndexType()))
            place = InsertPoint.after(self._last) if self._last is not None else InsertPoint.at_start(self._entry)
            Rewriter.insert_op(op, place)
            self._last = op
            found = self._known[number] = op.result
        return found
