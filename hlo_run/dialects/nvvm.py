"""The ops of MLIR's nvvm dialect that kernels use: id registers, the barrier, shuffles, dependent launches."""

from __future__ import annotations

from enum import auto
from typing import ClassVar

from xdsl.dialects.builtin import IntegerType, i32
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, Dialect, SpacedOpaqueSyntaxAttribute, SSAValue
from xdsl.irdl import (
    AnyAttr,
    AttrSizedOperandSegments,
    IRDLOperation,
    VarConstraint,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import NoMemoryEffect, Pure
from xdsl.utils.str_enum import StrEnum


class SpecialRegisterOp(IRDLOperation):
    """Base of the ops that read an id register; the result is an i32."""

    assembly_format = "attr-dict `:` type($res)"
    res = result_def(IntegerType)
    traits = traits_def(Pure())

    def __init__(self) -> None:
        super().__init__(result_types=[i32])


@irdl_op_definition
class ThreadIdXOp(SpecialRegisterOp):
    """Return the thread's index in its block along x, as i32."""

    name = "nvvm.read.ptx.sreg.tid.x"


@irdl_op_definition
class ThreadIdYOp(SpecialRegisterOp):
    """Return the thread's index in its block along y, as i32."""

    name = "nvvm.read.ptx.sreg.tid.y"


@irdl_op_definition
class ThreadIdZOp(SpecialRegisterOp):
    """Return the thread's index in its block along z, as i32."""

    name = "nvvm.read.ptx.sreg.tid.z"


@irdl_op_definition
class BlockIdXOp(SpecialRegisterOp):
    """Return the block's index in the grid along x, as i32."""

    name = "nvvm.read.ptx.sreg.ctaid.x"


@irdl_op_definition
class BlockIdYOp(SpecialRegisterOp):
    """Return the block's index in the grid along y, as i32."""

    name = "nvvm.read.ptx.sreg.ctaid.y"


@irdl_op_definition
class BlockIdZOp(SpecialRegisterOp):
    """Return the block's index in the grid along z, as i32."""

    name = "nvvm.read.ptx.sreg.ctaid.z"


@irdl_op_definition
class BlockDimXOp(SpecialRegisterOp):
    """Return the number of threads of a block along x, as i32."""

    name = "nvvm.read.ptx.sreg.ntid.x"


@irdl_op_definition
class BlockDimYOp(SpecialRegisterOp):
    """Return the number of threads of a block along y, as i32."""

    name = "nvvm.read.ptx.sreg.ntid.y"


@irdl_op_definition
class BlockDimZOp(SpecialRegisterOp):
    """Return the number of threads of a block along z, as i32."""

    name = "nvvm.read.ptx.sreg.ntid.z"


@irdl_op_definition
class GridDimXOp(SpecialRegisterOp):
    """Return the number of blocks of the grid along x, as i32."""

    name = "nvvm.read.ptx.sreg.nctaid.x"


@irdl_op_definition
class GridDimYOp(SpecialRegisterOp):
    """Return the number of blocks of the grid along y, as i32."""

    name = "nvvm.read.ptx.sreg.nctaid.y"


@irdl_op_definition
class GridDimZOp(SpecialRegisterOp):
    """Return the number of blocks of the grid along z, as i32."""

    name = "nvvm.read.ptx.sreg.nctaid.z"


BLOCK_DIM_OPS = {"x": BlockDimXOp, "y": BlockDimYOp, "z": BlockDimZOp}
GRID_DIM_OPS = {"x": GridDimXOp, "y": GridDimYOp, "z": GridDimZOp}
THREAD_ID_OPS = {"x": ThreadIdXOp, "y": ThreadIdYOp, "z": ThreadIdZOp}
BLOCK_ID_OPS = {"x": BlockIdXOp, "y": BlockIdYOp, "z": BlockIdZOp}


@irdl_op_definition
class BarrierOp(IRDLOperation):
    """Wait for all threads of the block (`bar.sync 0`). Not pure. Older MLIR calls it nvvm.barrier0."""

    name = "nvvm.barrier"
    # Always absent, but MLIR's generic form needs their segment sizes.
    barrier_id = opt_operand_def(i32)
    number_of_threads = opt_operand_def(i32)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    def __init__(self) -> None:
        super().__init__(operands=[[], []])

    def print(self, printer: Printer) -> None:
        """Print the attributes only: the operands are always absent."""
        printer.print_op_attributes(self.attributes)

    @classmethod
    def parse(cls, parser: Parser) -> BarrierOp:
        """Parse an optional attribute dictionary; the barrier has no operands."""
        op = cls()
        op.attributes |= parser.parse_optional_attr_dict()
        return op


class ShuffleKind(StrEnum):
    """The lane that a shuffle reads: lane id xor offset, lane id - offset, lane id + offset, or the lane `offset`."""

    BFLY = auto()
    UP = auto()
    DOWN = auto()
    IDX = auto()


@irdl_attr_definition
class ShuffleKindAttr(EnumAttribute[ShuffleKind], SpacedOpaqueSyntaxAttribute):
    """The kind of a shuffle, `#nvvm<shfl_kind bfly>`."""

    name = "nvvm.shfl_kind"


@irdl_op_definition
class ShuffleSyncOp(IRDLOperation):
    """Read `value` of the lane at `offset`. The operands are the mask of lanes, value, offset, and mask-and-clamp.

    It has no memory effects but is not speculatable: every lane of the mask must run it together.
    """

    name = "nvvm.shfl.sync"
    _T: ClassVar = VarConstraint("T", AnyAttr())
    kind = prop_def(ShuffleKindAttr)
    thread_mask = operand_def(i32)
    value = operand_def(_T)
    offset = operand_def(i32)
    mask_and_clamp = operand_def(i32)
    res = result_def(_T)
    traits = traits_def(NoMemoryEffect())

    def __init__(self, kind: ShuffleKind, mask: SSAValue, value: SSAValue, offset: SSAValue, clamp: SSAValue) -> None:
        super().__init__(
            operands=[mask, value, offset, clamp],
            result_types=[value.type],
            properties={"kind": ShuffleKindAttr(kind)},
        )

    def print(self, printer: Printer) -> None:
        """Print `bfly %mask, %value, %offset, %clamp : f32 -> f32`, the types of value and result."""
        printer.print_string(f" {self.kind.data.value} ")
        printer.print_list(self.operands, printer.print_ssa_value)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.value.type)
        printer.print_string(" -> ")
        printer.print_attribute(self.res.type)

    @classmethod
    def parse(cls, parser: Parser) -> ShuffleSyncOp:
        """Parse `bfly %mask, %value, %offset, %clamp : f32 -> f32`. The result has the type of the value."""
        kind = parser.parse_str_enum(ShuffleKind)
        names = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        value_type: Attribute = parser.parse_type()
        parser.parse_punctuation("->")
        parser.parse_type()
        mask, value, offset, clamp = parser.resolve_operands(names, [i32, value_type, i32, i32], parser.pos)
        op = cls(kind, mask, value, offset, clamp)
        op.attributes |= attributes
        return op


class GridDependencyAction(StrEnum):
    """The effect of a kernel on its neighbours: it waits for the kernels before it, or lets the kernels after it begin."""

    WAIT = auto()
    LAUNCH_DEPENDENTS = auto()


@irdl_attr_definition
class GridDependencyActionAttr(EnumAttribute[GridDependencyAction], SpacedOpaqueSyntaxAttribute):
    """The action of griddepcontrol, `#nvvm<grid_dep_action wait>`."""

    name = "nvvm.grid_dep_action"


@irdl_op_definition
class GridDependencyOp(IRDLOperation):
    """`griddepcontrol.wait` or `griddepcontrol.launch_dependents` of PTX. Not pure."""

    name = "nvvm.griddepcontrol"
    kind = prop_def(GridDependencyActionAttr)

    def __init__(self, action: GridDependencyAction) -> None:
        super().__init__(properties={"kind": GridDependencyActionAttr(action)})

    def print(self, printer: Printer) -> None:
        """Print the action and the attributes."""
        printer.print_string(f" {self.kind.data.value}")
        printer.print_op_attributes(self.attributes)

    @classmethod
    def parse(cls, parser: Parser) -> GridDependencyOp:
        """Parse the action, `wait` or `launch_dependents`, and an optional attribute dictionary."""
        op = cls(parser.parse_str_enum(GridDependencyAction))
        op.attributes |= parser.parse_optional_attr_dict()
        return op


Nvvm = Dialect(
    "nvvm",
    [
        ThreadIdXOp,
        ThreadIdYOp,
        ThreadIdZOp,
        BlockIdXOp,
        BlockIdYOp,
        BlockIdZOp,
        *BLOCK_DIM_OPS.values(),
        *GRID_DIM_OPS.values(),
        BarrierOp,
        ShuffleSyncOp,
        GridDependencyOp,
    ],
    [ShuffleKindAttr, GridDependencyActionAttr],
)
