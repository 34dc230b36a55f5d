"""The ops of MLIR's gpu dialect that kernels use, in MLIR's syntax. xDSL's own ops print in generic form only."""

from __future__ import annotations

from enum import auto
from typing import ClassVar, Self

from xdsl.dialects.builtin import IndexType, IntegerType, i1, i32
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Dialect, SpacedOpaqueSyntaxAttribute, SSAValue
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    VarConstraint,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import NoMemoryEffect, Pure
from xdsl.utils.str_enum import StrEnum


class Dimension(StrEnum):
    """A dimension of the grid or of a block."""

    X = auto()
    Y = auto()
    Z = auto()


class ShuffleMode(StrEnum):
    """The lane that a shuffle reads: lane id xor offset, lane id - offset, lane id + offset, or the lane `offset`."""

    XOR = auto()
    UP = auto()
    DOWN = auto()
    IDX = auto()


@irdl_attr_definition
class DimensionAttr(EnumAttribute[Dimension], SpacedOpaqueSyntaxAttribute):
    """The dimension of an id op, `#gpu<dim x>`."""

    name = "gpu.dim"


@irdl_attr_definition
class ShuffleModeAttr(EnumAttribute[ShuffleMode], SpacedOpaqueSyntaxAttribute):
    """The mode of a shuffle, `#gpu<shuffle_mode xor>`."""

    name = "gpu.shuffle_mode"


class IdOp(IRDLOperation):
    """Base of the ops that read an id. The attribute `xla.range` gives the closed interval of the result."""

    dimension = prop_def(DimensionAttr)
    result = result_def(IndexType)
    traits = traits_def(Pure())

    def __init__(self, dimension: Dimension | str) -> None:
        super().__init__(result_types=[IndexType()], properties={"dimension": DimensionAttr(Dimension(dimension))})

    def print(self, printer: Printer) -> None:
        """Print the dimension and the attributes."""
        # Two spaces, as MLIR's printer writes: one before the enum and one before its value.
        printer.print_string(f"  {self.dimension.data.value}")
        printer.print_op_attributes(self.attributes)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parse `x {..}`."""
        op = cls(parser.parse_str_enum(Dimension))
        op.attributes |= parser.parse_optional_attr_dict()
        return op


@irdl_op_definition
class ThreadIdOp(IdOp):
    """Return the index of the thread in its block along one dimension, as an index."""

    name = "gpu.thread_id"


@irdl_op_definition
class BlockIdOp(IdOp):
    """Return the index of the block in the grid along one dimension, as an index."""

    name = "gpu.block_id"


@irdl_op_definition
class BarrierOp(IRDLOperation):
    """Wait for all threads of the block and make their writes visible to each other. Not pure."""

    name = "gpu.barrier"
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__()


@irdl_op_definition
class ShuffleOp(IRDLOperation):
    """Read the value of another lane of the warp; `valid` tells whether that lane exists.

    It has no memory effects, so it can be merged or dropped. It is not speculatable: all lanes must run it together.
    """

    name = "gpu.shuffle"
    _T: ClassVar = VarConstraint("T", AnyAttr())
    mode = prop_def(ShuffleModeAttr)
    value = operand_def(_T)
    offset = operand_def(i32)
    width = operand_def(i32)
    shuffle_result = result_def(_T)
    valid = result_def(IntegerType(1))
    traits = traits_def(NoMemoryEffect())

    def __init__(self, mode: ShuffleMode | str, value: SSAValue, offset: SSAValue, width: SSAValue) -> None:
        super().__init__(
            operands=[value, offset, width],
            result_types=[value.type, i1],
            properties={"mode": ShuffleModeAttr(ShuffleMode(mode))},
        )

    def print(self, printer: Printer) -> None:
        """Print `gpu.shuffle  xor %value, %offset, %width : f32`, with two spaces as MLIR does."""
        printer.print_string(f"  {self.mode.data.value} ")
        printer.print_list(self.operands, printer.print_ssa_value)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.value.type)

    @classmethod
    def parse(cls, parser: Parser) -> ShuffleOp:
        """Parse `xor %value, %offset, %width : f32`. The type belongs to the value; offset and width are i32."""
        mode = parser.parse_str_enum(ShuffleMode)
        value = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        offset = parser.parse_operand(i32)
        parser.parse_punctuation(",")
        width = parser.parse_operand(i32)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        op = cls(mode, parser.resolve_operand(value, parser.parse_type()), offset, width)
        op.attributes |= attributes
        return op


Gpu = Dialect("gpu", [ThreadIdOp, BlockIdOp, BarrierOp, ShuffleOp], [DimensionAttr, ShuffleModeAttr])
