"""Ops of the memref dialect in MLIR's syntax, for which xDSL has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xdsl.dialects import memref
from xdsl.dialects.builtin import (
    DenseIntOrFPElementsAttr,
    IndexType,
    IntegerAttr,
    StringAttr,
    TensorType,
    UnitAttr,
    i64,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.parser import Parser
from xdsl.printer import Printer

from hlo_run.dialects.types import is_memref

ATOMIC_KINDS = tuple("addf addi andi assign maximumf maxnumf maxs maxu minimumf minnumf mins minu mulf muli ori xori".split())
"""The operations of memref.atomic_rmw by the number of the attribute `kind`."""


def _print_to(printer: Printer, op: Any) -> None:
    """Print `%a : type to type`."""
    printer.print_string(" ")
    source, target = op.operands[0], op.operands[1] if len(op.operands) > 1 else op.results[0]
    printer.print_ssa_value(source)
    if len(op.operands) > 1:
        printer.print_string(", ")
        printer.print_ssa_value(target)
    printer.print_op_attributes(op.attributes)
    printer.print_string(" : ")
    printer.print_attribute(source.type)
    printer.print_string(" to ")
    printer.print_attribute(target.type)


def _parse_cast(parser: Parser, kind: type[Operation]) -> Operation:
    source = parser.parse_unresolved_operand()
    attributes = parser.parse_optional_attr_dict()
    parser.parse_punctuation(":")
    value = parser.resolve_operand(source, parser.parse_type())
    parser.parse_keyword("to")
    return kind.create(operands=[value], result_types=[parser.parse_type()], attributes=attributes)


class _CastSyntax(memref.CastOp):
    def __new__(cls, *_: object, **__: object) -> memref.CastOp:  # pyright: ignore[reportInconsistentConstructor] - gives the base
        return object.__new__(memref.CastOp)

    @classmethod
    def parse(cls, parser: Parser) -> Operation:
        return _parse_cast(parser, memref.CastOp)


class _SpaceCastSyntax(memref.MemorySpaceCastOp):
    def __new__(cls, *_: object, **__: object) -> memref.MemorySpaceCastOp:  # pyright: ignore[reportInconsistentConstructor] - gives the base
        return object.__new__(memref.MemorySpaceCastOp)

    @classmethod
    def parse(cls, parser: Parser) -> Operation:
        return _parse_cast(parser, memref.MemorySpaceCastOp)


class _CopySyntax(memref.CopyOp):
    def __new__(cls, *_: object, **__: object) -> memref.CopyOp:  # pyright: ignore[reportInconsistentConstructor] - gives the base
        return object.__new__(memref.CopyOp)

    @classmethod
    def parse(cls, parser: Parser) -> Operation:
        names = [parser.parse_unresolved_operand()]
        parser.parse_punctuation(",")
        names.append(parser.parse_unresolved_operand())
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        types = [parser.parse_type()]
        parser.parse_keyword("to")
        types.append(parser.parse_type())
        operands = [parser.resolve_operand(name, type_) for name, type_ in zip(names, types, strict=True)]
        return memref.CopyOp.create(operands=operands, attributes=attributes)


def _print_atomic(printer: Printer, op: memref.AtomicRMWOp) -> None:
    """Print `addf %v, %m[%i] : (f32, memref<8xf32>) -> f32`."""
    printer.print_string(f" {ATOMIC_KINDS[op.kind.value.data]} ")
    printer.print_ssa_value(op.value)
    printer.print_string(", ")
    printer.print_ssa_value(op.memref)
    with printer.in_square_brackets():
        printer.print_list(op.indices, printer.print_ssa_value)
    printer.print_op_attributes(op.attributes)
    printer.print_string(" : (")
    printer.print_list([op.value.type, op.memref.type], printer.print_attribute)
    printer.print_string(") -> ")
    printer.print_attribute(op.result.type)


class _AtomicSyntax(memref.AtomicRMWOp):
    def __new__(cls, *_: object, **__: object) -> memref.AtomicRMWOp:  # pyright: ignore[reportInconsistentConstructor] - gives the base
        return object.__new__(memref.AtomicRMWOp)

    @classmethod
    def parse(cls, parser: Parser) -> Operation:
        kind = parser.parse_identifier()
        if kind not in ATOMIC_KINDS:
            parser.raise_error(f"'{kind}' is not an atomic operation: {', '.join(ATOMIC_KINDS)}")
        value = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        target = parser.parse_unresolved_operand()
        indices = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parser.parse_operand(IndexType()))
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type_ = parser.parse_function_type()
        if len(type_.inputs) != 2:
            parser.raise_error("the type of memref.atomic_rmw is (element, memref) -> element")
        element, of = type_.inputs
        operands: list[SSAValue] = [parser.resolve_operand(value, element), parser.resolve_operand(target, of), *indices]
        properties: dict[str, Attribute] = {"kind": IntegerAttr(ATOMIC_KINDS.index(kind), i64)}
        return memref.AtomicRMWOp.create(
            operands=operands, result_types=type_.outputs.data, properties=properties, attributes=attributes
        )


_PUBLIC = "public"


def _print_global(printer: Printer, op: memref.GlobalOp) -> None:
    """Print `"private" constant @w : memref<3xf32> = dense<..>`."""
    printer.print_string(" ")
    if op.sym_visibility.data != _PUBLIC:
        printer.print_attribute(op.sym_visibility)
        printer.print_string(" ")
    printer.print_string("constant " if op.constant is not None else "")
    printer.print_symbol_name(op.sym_name.data)
    printer.print_string(" : ")
    printer.print_attribute(op.properties["type"])
    if isinstance(op.initial_value, DenseIntOrFPElementsAttr):
        printer.print_string(f" = {str(op.initial_value).rpartition(' : ')[0]}")  # the type is that of the memref
    elif op.sym_visibility.data != "private":
        printer.print_string(" = uninitialized")
    shown = {"alignment": op.alignment} if op.alignment is not None else {}
    printer.print_op_attributes({**op.attributes, **shown})


class _GlobalSyntax(memref.GlobalOp):
    def __new__(cls, *_: object, **__: object) -> memref.GlobalOp:  # pyright: ignore[reportInconsistentConstructor] - gives the base
        return object.__new__(memref.GlobalOp)

    @classmethod
    def parse(cls, parser: Parser) -> Operation:
        properties: dict[str, Attribute] = {"sym_visibility": StringAttr(parser.parse_optional_str_literal() or _PUBLIC)}
        if parser.parse_optional_keyword("constant"):
            properties["constant"] = UnitAttr()
        properties["sym_name"] = parser.parse_symbol_name()
        parser.parse_punctuation(":")
        type_ = parser.parse_type()
        properties["type"], properties["initial_value"] = type_, UnitAttr()
        if parser.parse_optional_punctuation("=") and not parser.parse_optional_keyword("uninitialized"):
            if not is_memref(type_):
                parser.raise_error("a memref.global has the type of a memref")
            of = TensorType(type_.element_type, type_.get_shape())
            properties["initial_value"] = _with_type(parser, of)
        attributes = parser.parse_optional_attr_dict()
        if "alignment" in attributes:
            properties["alignment"] = attributes.pop("alignment")
        return memref.GlobalOp.create(properties=properties, attributes=attributes)


def _with_type(parser: Parser, type_: Any) -> Attribute:
    """Parse `dense<..>`, whose type is known."""
    parser.parse_keyword("dense")
    return parser.parse_dense_int_or_fp_elements_attr(type_)


MEMREF_PRINTERS: dict[type[Operation], Callable[[Printer, Any], None]] = {
    memref.CastOp: _print_to,
    memref.MemorySpaceCastOp: _print_to,
    memref.CopyOp: _print_to,
    memref.AtomicRMWOp: _print_atomic,
    memref.GlobalOp: _print_global,
}
MEMREF_SYNTAX: tuple[type[Operation], ...] = (_CastSyntax, _SpaceCastSyntax, _CopySyntax, _AtomicSyntax, _GlobalSyntax)
