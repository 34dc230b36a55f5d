"""Convert index arithmetic to integers of the width that the module gives to `index`.

    %a = arith.muli %th, %c4 overflow<nsw> : index          %t = arith.index_cast %th : index to i32
    %b = arith.index_castui %a : index to i32         =>    %a = arith.muli %t, %c4_i32 : i32
    use %b                                                  use %a

The pass makes no casts between converted ops, and erases casts to the same width. Other users of a value take it through
an `arith.index_cast`. Overflow flags are dropped, because they were for an index of unlimited width. Comparisons stay on
index.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field
from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, IntegerAttr, IntegerType, ModuleOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from hlo_run.dialects.arith_extra import IndexCastUIOp
from hlo_run.dialects.editing.loops import hand_on_origin
from hlo_run.dialects.editing.rewriting import ops_in
from hlo_run.dialects.module_info import index_bits
from hlo_run.dialects.types import constant_int

_ARITHMETIC = frozenset((arith.AddiOp, arith.SubiOp, arith.MuliOp, arith.DivUIOp, arith.DivSIOp, arith.RemUIOp, arith.RemSIOp))
_WRAPS: Mapping[str, Attribute] = {"overflowFlags": arith.IntegerOverflowAttr("none")}
_NO_FLAGS: Mapping[str, Attribute] = {}


class ConvertIndexType(ModulePass):
    """Gives index arithmetic the integer type of the module's index width."""

    name = "convert-index-type"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Convert index arithmetic and erase the casts to the same width."""
        converter = _Converter(IntegerType(index_bits(op)))
        for each in ops_in(op):
            if type(each) in _ARITHMETIC:  # the exact class: `isinstance` asks each class in turn
                converter.convert(each)
            elif type(each) is arith.IndexCastOp or type(each) is IndexCastUIOp:
                converter.drop_cast(each)
        converter.finish()


class _Converter(Struct):
    """Converts the ops of a module.

    `narrow` maps index values to integer values. `widened` are the casts from such integers to index. `converted` are the
    index ops with their integer copies.
    """

    type: IntegerType
    narrow: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])
    widened: list[Operation] = field(default_factory=list[Operation])
    converted: list[tuple[Operation, Operation]] = field(default_factory=list[tuple[Operation, Operation]])

    def convert(self, op: Operation) -> None:
        if not isinstance(op.results[0].type, IndexType):
            return
        operands = [self._as_integer(operand) for operand in op.operands]
        flags = _WRAPS if "overflowFlags" in op.properties else _NO_FLAGS
        new = type(op).create(operands=operands, result_types=[self.type], properties=dict(flags))
        new.results[0].name_hint = op.results[0].name_hint
        Rewriter.insert_op(hand_on_origin(op, new), InsertPoint.before(op))
        self.narrow[op.results[0]] = new.results[0]
        self.converted.append((op, new))

    def drop_cast(self, op: arith.IndexCastOp | IndexCastUIOp) -> None:
        if op.input.type == self.type:
            self.narrow[op.result] = op.input
            self.widened.append(op)
        elif op.result.type == self.type and op.input in self.narrow:
            Rewriter.replace_op(op, [], [self.narrow[op.input]])

    def _as_integer(self, value: SSAValue) -> SSAValue:
        found = self.narrow.get(value)
        if found is not None:
            return found
        number = constant_int(value)
        new: Operation
        new = arith.IndexCastOp(value, self.type) if number is None else arith.ConstantOp(IntegerAttr(number, self.type))
        owner = value.owner
        place = InsertPoint.at_start(owner) if isinstance(owner, Block) else InsertPoint.after(owner)
        Rewriter.insert_op(new, place)
        self.narrow[value] = new.results[0]
        return new.results[0]

    def finish(self) -> None:
        """Cast results back for the remaining users of index values, and erase the old ops, users before producers."""
        for op, new in reversed(self.converted):
            if op.results[0].uses:
                cast = arith.IndexCastOp(new.results[0], IndexType())
                Rewriter.insert_op(cast, InsertPoint.after(new))
                op.results[0].replace_all_uses_with(cast.result)
            Rewriter.erase_op(op)
        for op in self.widened:
            if not op.results[0].uses:
                Rewriter.erase_op(op)
