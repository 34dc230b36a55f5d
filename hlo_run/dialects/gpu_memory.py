"""The ops of MLIR's gpu dialect that a host runs around launches: memory of the device, copies, and waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import IndexType, MemRefType, UnitAttr, UnrankedMemRefType
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    AnyAttr,
    AttrSizedOperandSegments,
    IRDLOperation,
    base,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    opt_result_def,
    result_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from hlo_run.dialects.gpu_kernel import AsyncTokenType
from hlo_run.dialects.gpu_launch import parse_async, print_async
from hlo_run.dialects.types import is_memref


class _OrderedOp(IRDLOperation):
    """Base of the ops `async [%t] %a, %b : type, type`, whose operands after the tokens are `VALUES` values."""

    VALUES: ClassVar[int]

    @property
    def values(self) -> Sequence[SSAValue]:
        """The operands without the tokens."""
        return self.operands[len(self.operands) - self.VALUES :] if self.VALUES else ()

    def print(self, printer: Printer) -> None:
        """Print `async [%t] %a, %b : type, type`."""
        print_async(printer, bool(self.results), self.operands[: len(self.operands) - self.VALUES])
        if self.values:
            printer.print_string(" ")
            printer.print_list(self.values, printer.print_ssa_value)
        printer.print_op_attributes(self.attributes)
        if self.values:
            printer.print_string(" : ")
            printer.print_list([value.type for value in self.values], printer.print_attribute)

    @classmethod
    def parse(cls, parser: Parser) -> _OrderedOp:
        """Parse the form of `print`."""
        is_async, waits_for = parse_async(parser)
        values: list[SSAValue] = []
        if cls.VALUES:
            names = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
            attributes = parser.parse_optional_attr_dict()
            parser.parse_punctuation(":")
            types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
            if len(names) != cls.VALUES or len(types) != cls.VALUES:
                parser.raise_error(f"'{cls.name}' has {cls.VALUES} operands with their types")
            values = [parser.resolve_operand(name, type_) for name, type_ in zip(names, types, strict=True)]
        else:
            attributes = parser.parse_optional_attr_dict()
        results = [AsyncTokenType()] if is_async else []
        return cls.create(operands=[*waits_for, *values], result_types=results, attributes=attributes)


@irdl_op_definition
class WaitOp(_OrderedOp):
    """Wait for tokens; with `async`, return one token for them all."""

    name = "gpu.wait"
    VALUES: ClassVar[int] = 0
    waits_for = var_operand_def(AsyncTokenType)
    token = opt_result_def(AsyncTokenType)


@irdl_op_definition
class DeallocOp(_OrderedOp):
    """Free memory of the device."""

    name = "gpu.dealloc"
    VALUES: ClassVar[int] = 1
    waits_for = var_operand_def(AsyncTokenType)
    token = opt_result_def(AsyncTokenType)
    memref = operand_def(MemRefType)


@irdl_op_definition
class MemcpyOp(_OrderedOp):
    """Copy a memref to another one, the first."""

    name = "gpu.memcpy"
    VALUES: ClassVar[int] = 2
    waits_for = var_operand_def(AsyncTokenType)
    token = opt_result_def(AsyncTokenType)
    dst = operand_def(MemRefType)
    src = operand_def(MemRefType)

    def verify_(self) -> None:
        """Check that the elements have one type."""
        if _element(self.dst) != _element(self.src):
            raise VerifyException("gpu.memcpy copies between memrefs of one element type")


@irdl_op_definition
class MemsetOp(_OrderedOp):
    """Set all elements of a memref to a value."""

    name = "gpu.memset"
    VALUES: ClassVar[int] = 2
    waits_for = var_operand_def(AsyncTokenType)
    token = opt_result_def(AsyncTokenType)
    dst = operand_def(MemRefType)
    value = operand_def(AnyAttr())

    def verify_(self) -> None:
        """Check the type of the value."""
        if _element(self.dst) != self.value.type:
            raise VerifyException("gpu.memset sets elements to a value of their type")


def _element(memref: SSAValue) -> Attribute:
    assert is_memref(memref.type), "the operand is a memref"
    return memref.type.get_element_type()


@irdl_op_definition
class AllocOp(IRDLOperation):
    """Return new memory of the device."""

    name = "gpu.alloc"
    waits_for = var_operand_def(AsyncTokenType)
    dynamic_sizes = var_operand_def(IndexType)
    symbol_operands = var_operand_def(IndexType)
    host_shared = opt_prop_def(UnitAttr, prop_name="hostShared")
    memref = result_def(MemRefType)
    token = opt_result_def(AsyncTokenType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    def verify_(self) -> None:
        """Check the number of sizes."""
        type_ = self.memref.type
        dynamic = sum(size < 0 for size in type_.get_shape())
        if dynamic != len(self.dynamic_sizes):
            raise VerifyException(f"gpu.alloc has {len(self.dynamic_sizes)} sizes for {dynamic} dynamic dimensions")

    def print(self, printer: Printer) -> None:
        """Print `async [%t] host_shared (%n) : type`."""
        print_async(printer, self.token is not None, self.waits_for)
        printer.print_string(" host_shared (" if self.host_shared is not None else " (")
        printer.print_list(self.dynamic_sizes, printer.print_ssa_value)
        printer.print_string(")")
        if self.symbol_operands:
            with printer.in_square_brackets():
                printer.print_list(self.symbol_operands, printer.print_ssa_value)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.memref.type)

    @classmethod
    def parse(cls, parser: Parser) -> AllocOp:
        """Parse the form of `print`."""
        is_async, waits_for = parse_async(parser)
        is_shared = parser.parse_optional_keyword("host_shared") is not None

        def size() -> SSAValue:
            return parser.parse_operand(IndexType())

        sizes = parser.parse_comma_separated_list(parser.Delimiter.PAREN, size)
        symbols = parser.parse_optional_comma_separated_list(parser.Delimiter.SQUARE, size) or []
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        op = cls(
            operands=[waits_for, sizes, symbols],
            result_types=[parser.parse_type(), [AsyncTokenType()] if is_async else []],
            properties={"hostShared": UnitAttr()} if is_shared else {},
        )
        op.attributes |= attributes
        return op


@irdl_op_definition
class HostRegisterOp(IRDLOperation):
    """Let the device reach memory of the host."""

    name = "gpu.host_register"
    value = operand_def(base(MemRefType) | base(UnrankedMemRefType))
    assembly_format = "$value attr-dict `:` type($value)"


@irdl_op_definition
class HostUnregisterOp(IRDLOperation):
    """Undo gpu.host_register."""

    name = "gpu.host_unregister"
    value = operand_def(base(MemRefType) | base(UnrankedMemRefType))
    assembly_format = "$value attr-dict `:` type($value)"


MEMORY_OPS: tuple[type[Operation], ...] = (*(WaitOp, DeallocOp, MemcpyOp, MemsetOp, AllocOp, HostRegisterOp, HostUnregisterOp),)
