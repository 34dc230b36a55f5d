"""The ops of MLIR's gpu dialect around kernels: sizes, launches, kernel modules, and reductions over a block."""

from __future__ import annotations

from collections.abc import Sequence
from enum import auto
from typing import Any, ClassVar

from xdsl.dialects.builtin import IndexType, IntegerType, SymbolNameConstraint, SymbolRefAttr
from xdsl.dialects.utils import AbstractYieldOperation, EnumAttribute
from xdsl.ir import Attribute, Operation, Region, SpacedOpaqueSyntaxAttribute, SSAValue
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    VarConstraint,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsolatedFromAbove, IsTerminator, NoTerminator, Pure, SymbolOpInterface, SymbolTable
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.str_enum import StrEnum

from hlo_run.dialects import gpu

_AXES = "xyz"


@irdl_op_definition
class BlockDimOp(gpu.IdOp):
    """Return the number of threads of a block along one dimension, as an index."""

    name = "gpu.block_dim"


@irdl_op_definition
class GridDimOp(gpu.IdOp):
    """Return the number of blocks of the grid along one dimension, as an index."""

    name = "gpu.grid_dim"


class ReduceOperation(StrEnum):
    """What an `all_reduce` without a body computes."""

    ADD = auto()
    MUL = auto()
    MINUI = auto()
    MINSI = auto()
    MAXUI = auto()
    MAXSI = auto()
    AND = auto()
    OR = auto()
    XOR = auto()
    MINNUMF = auto()
    MAXNUMF = auto()
    MINIMUMF = auto()
    MAXIMUMF = auto()


_OF_INTEGERS = frozenset("minui minsi maxui maxsi and or xor".split())
_OF_FLOATS = frozenset("minnumf maxnumf minimumf maximumf".split())


@irdl_attr_definition
class ReduceOperationAttr(EnumAttribute[ReduceOperation], SpacedOpaqueSyntaxAttribute):
    """The operation of a reduction, `#gpu<all_reduce_op add>`."""

    name = "gpu.all_reduce_op"


@irdl_op_definition
class YieldOp(AbstractYieldOperation[Attribute]):
    """The terminator of the body of an all_reduce."""

    name = "gpu.yield"
    traits = traits_def(IsTerminator(), Pure())


@irdl_op_definition
class TerminatorOp(IRDLOperation):
    """The terminator of the body of a launch."""

    name = "gpu.terminator"
    assembly_format = "attr-dict"
    traits = traits_def(IsTerminator(), Pure())


@irdl_op_definition
class AllReduceOp(IRDLOperation):
    """Reduce one value per thread over the block; each thread gets the result. All threads or none of a block run it.

    The reduction is `op`, or a body that combines two values.
    """

    name = "gpu.all_reduce"
    _T: ClassVar = VarConstraint("T", AnyAttr())
    value = operand_def(_T)
    op = opt_prop_def(ReduceOperationAttr)
    res = result_def(_T)
    body = region_def()

    def __init__(self, value: SSAValue, op: ReduceOperation | None, body: Region | None = None) -> None:
        properties = {} if op is None else {"op": ReduceOperationAttr(op)}
        super().__init__(operands=[value], result_types=[value.type], properties=properties, regions=[body or Region()])

    def verify_(self) -> None:
        """Check that there is an operation for the type or a body of two values, and not both."""
        type_ = self.value.type
        if (self.op is None) == (not self.body.blocks):
            raise VerifyException("all_reduce has either an operation or a body")
        if self.op is not None:
            kind = f"{self.op.data.value}"
            is_integer = isinstance(type_, IntegerType | IndexType)
            if kind in (_OF_FLOATS if is_integer else _OF_INTEGERS):
                raise VerifyException(f"all_reduce cannot compute '{kind}' of this type")
            return
        block = self.body.blocks[0]
        last = self.body.blocks[-1].last_op
        if [argument.type for argument in block.args] != [type_] * 2:
            raise VerifyException("the body of all_reduce has two arguments of the type of its operand")
        if not isinstance(last, YieldOp) or tuple(last.operand_types) != (type_,):
            raise VerifyException("the body of all_reduce must yield one value of the type of its operand")

    def print(self, printer: Printer) -> None:
        """Print `add %x {} : (f32) -> f32`, or the body in place of `{}` and without an operation."""
        if self.op is not None:
            printer.print_string(f" {self.op.data.value}")
        printer.print_string(" ")
        printer.print_ssa_value(self.value)
        printer.print_string(" ")
        if self.body.blocks:
            printer.print_region(self.body)
        else:
            printer.print_string("{\n}")
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : (")
        printer.print_attribute(self.value.type)
        printer.print_string(") -> ")
        printer.print_attribute(self.res.type)

    @classmethod
    def parse(cls, parser: Parser) -> AllReduceOp:
        """Parse `add %x {} : (f32) -> f32`, with `uniform` before the region skipped."""
        name = parser.parse_optional_identifier()
        try:
            kind = None if name is None else ReduceOperation(name)
        except ValueError:
            parser.raise_error(f"'{name}' is not a reduction")
        value = parser.parse_unresolved_operand()
        parser.parse_optional_keyword("uniform")
        body = parser.parse_region()
        if body.blocks and not body.blocks[0].ops:
            body = Region()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type_ = parser.parse_function_type().inputs.data[0]
        op = cls(parser.resolve_operand(value, type_), kind, body)
        op.attributes |= attributes
        return op


@irdl_op_definition
class GpuModuleOp(IRDLOperation):
    """A module of kernels, which is compiled for the GPU on its own."""

    name = "gpu.module"
    sym_name = prop_def(SymbolNameConstraint())
    body = region_def("single_block")
    traits = traits_def(IsolatedFromAbove(), NoTerminator(), SymbolOpInterface(), SymbolTable())

    def print(self, printer: Printer) -> None:
        """Print `@name {..}`, with attributes before the body."""
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name.data)
        printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body, print_empty_block=False)

    @classmethod
    def parse(cls, parser: Parser) -> GpuModuleOp:
        """Parse `@name attributes {..} {..}`."""
        name = parser.parse_symbol_name()
        attributes = parser.parse_optional_attr_dict_with_keyword()
        region = parser.parse_region()
        if not region.blocks:
            from xdsl.ir import Block

            region.add_block(Block())
        op = cls(properties={"sym_name": name}, regions=[region])
        if attributes is not None:
            op.attributes |= attributes.data
        return op


class _SizedOp(IRDLOperation):
    """Base of the launches, whose first six operands are the sizes of the grid and of a block."""

    sizes = var_operand_def()

    def _verify_sizes(self) -> None:
        if len(self.operands) < 2 * len(_AXES):
            raise VerifyException("a launch needs three grid sizes and three block sizes")
        if any(not isinstance(size.type, IndexType | IntegerType) for size in self.operands[:6]):
            raise VerifyException("the sizes of a launch are integers")


@irdl_op_definition
class LaunchFuncOp(_SizedOp):
    """Launch the kernel `kernel` of a gpu.module: grid sizes, block sizes, then the kernel's arguments."""

    name = "gpu.launch_func"
    kernel = prop_def(SymbolRefAttr)

    def __init__(self, kernel: SymbolRefAttr, operands: Sequence[SSAValue]) -> None:
        super().__init__(operands=[operands], properties={"kernel": kernel})

    def verify_(self) -> None:
        """Check the sizes and, where the module has the kernel, the number of arguments."""
        self._verify_sizes()
        if len(self.kernel.nested_references) != 1:
            raise VerifyException("gpu.launch_func names a module and a kernel in it: @module::@kernel")

    def print(self, printer: Printer) -> None:
        """Print `@module::@kernel blocks in (..) threads in (..) args(%a : type)`."""
        printer.print_string(" ")
        printer.print_attribute(self.kernel)
        for what, sizes in (("blocks", self.operands[:3]), ("threads", self.operands[3:6])):
            printer.print_string(f" {what} in ")
            with printer.in_parens():
                printer.print_list(sizes, printer.print_ssa_value)
        if arguments := self.operands[6:]:
            printer.print_string(" args(")
            printer.print_list(arguments, lambda value: _print_typed(printer, value))
            printer.print_string(")")
        printer.print_op_attributes(self.attributes)

    @classmethod
    def parse(cls, parser: Parser) -> LaunchFuncOp:
        """Parse `@module::@kernel blocks in (..) threads in (..) args(%a : type)`; sizes are of index type."""
        kernel = parser.parse_attribute()
        if not isinstance(kernel, SymbolRefAttr):
            parser.raise_error("expected a symbol")
        operands: list[SSAValue] = []
        for what in ("blocks", "threads"):
            parser.parse_keyword(what)
            parser.parse_keyword("in")
            operands += parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: parser.parse_operand(IndexType()))
        if parser.parse_optional_keyword("args"):
            operands += parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: _parse_typed(parser))
        op = cls(kernel, operands)
        op.attributes |= parser.parse_optional_attr_dict()
        return op


def _print_typed(printer: Printer, value: SSAValue) -> None:
    printer.print_ssa_value(value)
    printer.print_string(" : ")
    printer.print_attribute(value.type)


def _parse_typed(parser: Parser) -> SSAValue:
    name = parser.parse_unresolved_operand()
    parser.parse_punctuation(":")
    return parser.resolve_operand(name, parser.parse_type())


@irdl_op_definition
class LaunchOp(_SizedOp):
    """Launch the body on a grid: its arguments are block ids, thread ids, grid sizes and block sizes of x, y and z.

    Further operands are further arguments of the body.
    """

    name = "gpu.launch"
    body = region_def()

    def verify_(self) -> None:
        """Check the sizes, the arguments of the body and its terminator."""
        self._verify_sizes()
        args = self.body.blocks[0].args if self.body.blocks else ()
        expected = 12 + len(self.operands) - 6
        if len(args) != expected:
            raise VerifyException(f"the body of gpu.launch has {len(args)} arguments, expected {expected}")
        if not isinstance(self.body.blocks[-1].last_op, TerminatorOp):
            raise VerifyException("the body of gpu.launch must end in gpu.terminator")

    def print(self, printer: Printer) -> None:
        """Print `blocks(%bx, %by, %bz) in (%gx = %0, ..) threads(..) in (..) args(%a = %b) : type {..}`."""
        args = self.body.blocks[0].args
        for what, ids, sizes, values in (
            ("blocks", args[0:3], args[6:9], self.operands[0:3]),
            ("threads", args[3:6], args[9:12], self.operands[3:6]),
        ):
            printer.print_string(f" {what}(")
            printer.print_list(ids, printer.print_ssa_value)
            printer.print_string(") in (")
            _print_assignments(printer, sizes, values)
            printer.print_string(")")
        if further := self.operands[6:]:
            printer.print_string(" args(")
            _print_assignments(printer, args[12:], further)
            printer.print_string(") : ")
            printer.print_list([value.type for value in further], printer.print_attribute)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)
        printer.print_op_attributes(self.attributes)

    @classmethod
    def parse(cls, parser: Parser) -> LaunchOp:
        """Parse the form of `print`; without `args`, the body may use values from outside."""
        ids: list[Any] = []
        sizes: list[Any] = []
        operands: list[SSAValue] = []
        for what in ("blocks", "threads"):
            parser.parse_keyword(what)
            ids += parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: parser.parse_argument(expect_type=False))
            parser.parse_keyword("in")
            pairs = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: _parse_assignment(parser))
            sizes += [argument for argument, _ in pairs]
            operands += [parser.resolve_operand(value, IndexType()) for _, value in pairs]
        further: list[Any] = []
        if parser.parse_optional_keyword("args"):
            pairs = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: _parse_assignment(parser))
            parser.parse_punctuation(":")
            types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
            if len(types) != len(pairs):
                parser.raise_error(f"{len(pairs)} arguments but {len(types)} types")
            operands += [parser.resolve_operand(value, type_) for (_, value), type_ in zip(pairs, types, strict=True)]
            further = [argument.resolve(type_) for (argument, _), type_ in zip(pairs, types, strict=True)]
        arguments = [argument.resolve(IndexType()) for argument in (*ids, *sizes)]
        op = cls(operands=[operands], regions=[parser.parse_region([*arguments, *further])])
        op.attributes |= parser.parse_optional_attr_dict()
        return op


def _print_assignments(printer: Printer, arguments: Sequence[SSAValue], values: Sequence[SSAValue]) -> None:
    for number, (argument, value) in enumerate(zip(arguments, values, strict=True)):
        printer.print_string(", " if number else "")
        printer.print_ssa_value(argument)
        printer.print_string(" = ")
        printer.print_ssa_value(value)


def _parse_assignment(parser: Parser) -> tuple[Any, Any]:
    argument = parser.parse_argument(expect_type=False)
    parser.parse_punctuation("=")
    return argument, parser.parse_unresolved_operand()


LAUNCH_OPS: tuple[type[Operation], ...] = (
    *(BlockDimOp, GridDimOp, AllReduceOp, YieldOp, TerminatorOp, GpuModuleOp, LaunchFuncOp, LaunchOp),
)
LAUNCH_ATTRIBUTES: tuple[type[Attribute], ...] = (ReduceOperationAttr,)
__all__ = ["LAUNCH_ATTRIBUTES", "LAUNCH_OPS", "AllReduceOp", "BlockDimOp", "GridDimOp"]
