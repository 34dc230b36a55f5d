"""Prints and parses ops in MLIR's syntax where it differs from xDSL's: attribute dictionaries that xDSL drops, and spaces.

`PRINTERS` maps an op class to the function that the printer calls instead of the op's own `print`. `SYNTAX_OPS` are
subclasses that parse the same text and return instances of xDSL's class. Their `__new__` does the same for the generic
form. The rest of the code sees only xDSL's classes. The llvm dialect's properties are read in two spellings: `<alignment = 4>`
and `fastmath<nsz>` of newer MLIR, and in the dictionary of attributes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xdsl.dialects import affine, arith, llvm, scf, tensor, vector
from xdsl.dialects.builtin import AffineMapAttr, ArrayAttr, BoolAttr, IndexType, IntegerAttr, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.irdl import IRDLOperation
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsTerminator
from xdsl.utils.hints import isa

from hlo_run.dialects.llvm_extra import LoadOp
from hlo_run.dialects.memref_syntax import MEMREF_PRINTERS, MEMREF_SYNTAX
from hlo_run.dialects.types import is_tensor, is_vector


def _print_cmpi(printer: Printer, op: arith.CmpiOp) -> None:
    printer.print_string(f" {arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data]}, ")
    printer.print_list(op.operands, printer.print_ssa_value)
    printer.print_op_attributes(op.attributes)
    printer.print_string(" : ")
    printer.print_attribute(op.lhs.type)


def _print_cmpf(printer: Printer, op: arith.CmpfOp) -> None:
    printer.print_string(f" {arith.CMPF_COMPARISON_OPERATIONS[op.predicate.value.data]}, ")
    printer.print_list(op.operands, printer.print_ssa_value)
    if op.fastmath.data:
        printer.print_string(" fastmath")
        op.fastmath.print_parameter(printer)
    printer.print_op_attributes(op.attributes)
    printer.print_string(" : ")
    printer.print_attribute(op.lhs.type)


def _parse_compared(parser: Parser) -> tuple[str, Callable[[], tuple[SSAValue, SSAValue]]]:
    """Parse a predicate and two operands. Returns the predicate, and a function that parses the type and resolves both."""
    predicate = parser.parse_optional_str_literal() or parser.parse_identifier()  # earlier MLIR has it in quotation marks
    parser.parse_punctuation(",")
    lhs = parser.parse_unresolved_operand()
    parser.parse_punctuation(",")
    rhs = parser.parse_unresolved_operand()

    def resolve() -> tuple[SSAValue, SSAValue]:
        parser.parse_punctuation(":")
        type_ = parser.parse_type()
        return parser.resolve_operand(lhs, type_), parser.resolve_operand(rhs, type_)

    return predicate, resolve


class _CmpiSyntax(arith.CmpiOp):
    def __new__(cls, *_: object, **__: object) -> arith.CmpiOp:  # pyright: ignore[reportInconsistentConstructor] - gives the base
        return object.__new__(arith.CmpiOp)

    @classmethod
    def parse(cls, parser: Parser) -> arith.CmpiOp:
        predicate, resolve = _parse_compared(parser)
        attributes = parser.parse_optional_attr_dict()
        op = arith.CmpiOp(*resolve(), predicate)
        op.attributes |= attributes
        return op


class _CmpfSyntax(arith.CmpfOp):
    def __new__(cls, *_: object, **__: object) -> arith.CmpfOp:  # pyright: ignore[reportInconsistentConstructor] - gives the base
        return object.__new__(arith.CmpfOp)

    @classmethod
    def parse(cls, parser: Parser) -> arith.CmpfOp:
        predicate, resolve = _parse_compared(parser)
        fastmath = arith.FastMathFlagsAttr("none")
        if parser.parse_optional_keyword("fastmath"):
            fastmath = arith.FastMathFlagsAttr(arith.FastMathFlagsAttr.parse_parameter(parser))
        attributes = parser.parse_optional_attr_dict()
        op = arith.CmpfOp(*resolve(), predicate, fastmath)
        op.attributes |= attributes
        return op


def _print_tensor_empty(printer: Printer, op: tensor.EmptyOp) -> None:
    with printer.in_parens():
        printer.print_list(op.dynamic_sizes, printer.print_ssa_value)
    printer.print_op_attributes(op.attributes)
    printer.print_string(" : ")
    printer.print_attribute(op.tensor.type)


class _TensorEmptySyntax(tensor.EmptyOp):
    def __new__(cls, *_: object, **__: object) -> tensor.EmptyOp:  # pyright: ignore[reportInconsistentConstructor] - gives the base
        return object.__new__(tensor.EmptyOp)

    @classmethod
    def parse(cls, parser: Parser) -> tensor.EmptyOp:
        sizes = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: parser.parse_operand(IndexType()))
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        op = tensor.EmptyOp(sizes, parser.parse_type())
        op.attributes |= attributes
        return op


def _print_affine_apply(printer: Printer, op: affine.ApplyOp) -> None:
    dim_count = op.map.data.num_dims
    printer.print_string(" ")
    printer.print_attribute(op.map)
    with printer.in_parens():
        printer.print_list(op.mapOperands[:dim_count], printer.print_ssa_value)
    if op.mapOperands[dim_count:]:
        with printer.in_square_brackets():
            printer.print_list(op.mapOperands[dim_count:], printer.print_ssa_value)
    printer.print_op_attributes(op.attributes)


class _AffineApplySyntax(affine.ApplyOp):
    def __new__(cls, *_: object, **__: object) -> affine.ApplyOp:  # pyright: ignore[reportInconsistentConstructor] - gives the base
        return object.__new__(affine.ApplyOp)

    @classmethod
    def parse(cls, parser: Parser) -> affine.ApplyOp:
        op = super().parse(parser)
        op.attributes |= parser.parse_optional_attr_dict()
        return op


def _print_if(printer: Printer, op: scf.IfOp) -> None:
    printer.print_string(" ")
    printer.print_ssa_value(op.cond)
    if op.output:
        printer.print_string(" -> (")
        printer.print_list(op.output.types, printer.print_attribute)
        printer.print_string(")")
    printer.print_string(" ")
    printer.print_region(op.true_region, print_entry_block_args=False, print_block_terminators=bool(op.output))
    if op.false_region.blocks:
        printer.print_string(" else ")
        printer.print_region(op.false_region, print_entry_block_args=False, print_block_terminators=bool(op.output))
    printer.print_op_attributes(op.attributes)


class _IndexSwitchSyntax(scf.IndexSwitchOp):
    """Newer MLIR leaves out the `scf.yield` of the default region if it yields nothing."""

    def __new__(cls, *_: object, **__: object) -> scf.IndexSwitchOp:  # pyright: ignore[reportInconsistentConstructor] - gives the base
        return object.__new__(scf.IndexSwitchOp)

    @classmethod
    def parse(cls, parser: Parser) -> scf.IndexSwitchOp:
        op = scf.IndexSwitchOp.parse(parser)
        for region in op.regions:
            if not region.blocks:
                region.add_block(Block())
            last = region.blocks[0].last_op
            if len(region.blocks) == 1 and (last is None or not last.has_trait(IsTerminator)):
                region.blocks[0].add_op(scf.YieldOp())
        return op


class _TransferReadSyntax(vector.TransferReadOp):
    def __new__(cls, *_: object, **__: object) -> vector.TransferReadOp:  # pyright: ignore[reportInconsistentConstructor] - gives the base
        return object.__new__(vector.TransferReadOp)

    @classmethod
    def parse(cls, parser: Parser) -> vector.TransferReadOp:
        source = parser.parse_unresolved_operand()
        indices = _parse_indices(parser)
        parser.parse_punctuation(",")
        padding = parser.parse_unresolved_operand()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        source_type = parser.parse_type()
        parser.parse_punctuation(",")
        vector_type = parser.parse_type()
        permutation, in_bounds = _transfer_properties(parser, attributes, source_type, vector_type)
        assert is_tensor(source_type), "checked with the properties"
        op = vector.TransferReadOp(
            parser.resolve_operand(source, source_type),
            indices,
            parser.resolve_operand(padding, source_type.get_element_type()),
            vector_type,
            in_bounds,
            permutation,
        )
        op.attributes |= attributes
        return op


class _TransferWriteSyntax(vector.TransferWriteOp):
    def __new__(cls, *_: object, **__: object) -> vector.TransferWriteOp:  # pyright: ignore[reportInconsistentConstructor] - gives the base
        return object.__new__(vector.TransferWriteOp)

    @classmethod
    def parse(cls, parser: Parser) -> vector.TransferWriteOp:
        written = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        target = parser.parse_unresolved_operand()
        indices = _parse_indices(parser)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        vector_type = parser.parse_type()
        parser.parse_punctuation(",")
        target_type = parser.parse_type()
        permutation, in_bounds = _transfer_properties(parser, attributes, target_type, vector_type)
        assert is_tensor(target_type), "checked with the properties"
        op = vector.TransferWriteOp(
            parser.resolve_operand(written, vector_type),
            parser.resolve_operand(target, target_type),
            indices,
            in_bounds,
            permutation_map=permutation,
            result_type=target_type,
        )
        op.attributes |= attributes
        return op


def _parse_indices(parser: Parser) -> list[SSAValue]:
    return [*parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parser.parse_operand(IndexType()))]


def _transfer_properties(
    parser: Parser, attributes: dict[str, Attribute], shaped: Attribute, moved: Attribute
) -> tuple[AffineMapAttr, ArrayAttr[BoolAttr]]:
    """Remove the two properties of a transfer from its attribute dictionary and return them, or their defaults."""
    if not is_tensor(shaped) or not is_vector(moved):
        parser.raise_error("expected a tensor and a vector type")
    permutation = attributes.pop("permutation_map", None)
    if not isinstance(permutation, AffineMapAttr):
        permutation = AffineMapAttr(vector.VectorTransferOperation.get_transfer_minor_identity_map(shaped, moved))
    in_bounds = attributes.pop("in_bounds", None)
    if not isa(in_bounds, ArrayAttr[BoolAttr]):
        in_bounds = ArrayAttr([BoolAttr.from_bool(False)] * len(permutation.data.results))
    return permutation, in_bounds


class _LoadSyntax(LoadOp):
    def __new__(cls, *_: object, **__: object) -> LoadOp:  # pyright: ignore[reportInconsistentConstructor] - gives the base
        return object.__new__(LoadOp)

    @classmethod
    def parse(cls, parser: Parser) -> LoadOp:
        pointer = parser.parse_unresolved_operand()
        is_invariant = parser.parse_optional_keyword("invariant") is not None
        attributes = _parse_memory_attributes(parser)
        parser.parse_punctuation(":")
        pointer_type = parser.parse_type()
        parser.parse_punctuation("->")
        op = LoadOp(parser.resolve_operand(pointer, pointer_type), parser.parse_type(), invariant=is_invariant)
        _give(op, attributes)
        return op


class _StoreSyntax(llvm.StoreOp):
    def __new__(cls, *_: object, **__: object) -> llvm.StoreOp:  # pyright: ignore[reportInconsistentConstructor] - gives the base
        return object.__new__(llvm.StoreOp)

    @classmethod
    def parse(cls, parser: Parser) -> llvm.StoreOp:
        is_volatile = parser.parse_optional_keyword("volatile") is not None
        value = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        pointer = parser.parse_unresolved_operand()
        attributes = _parse_memory_attributes(parser)
        parser.parse_punctuation(":")
        value_type = parser.parse_type()
        parser.parse_punctuation(",")
        pointer_type = parser.parse_type()
        operands = parser.resolve_operand(value, value_type), parser.resolve_operand(pointer, pointer_type)
        op = llvm.StoreOp(*operands, volatile=is_volatile)
        _give(op, attributes)
        return op


def _parse_memory_attributes(parser: Parser) -> dict[str, Attribute]:
    """Parse `<alignment = 4>` and a dictionary, both optional; return all entries."""
    found: dict[str, Attribute] = {}
    if parser.parse_optional_punctuation("<") is not None:
        parser.parse_keyword("alignment")
        parser.parse_punctuation("=")
        found["alignment"] = IntegerAttr(parser.parse_integer(), i64)
        parser.parse_punctuation(">")
    return found | parser.parse_optional_attr_dict()


def _give(op: Operation, attributes: dict[str, Attribute]) -> None:
    """Set properties and attributes that stood in one dictionary."""
    names = type(op).get_irdl_definition().properties if isinstance(op, IRDLOperation) else {}
    for name, value in attributes.items():
        (op.properties if name in names else op.attributes)[name] = value


def _float_syntax(base: type[llvm.AbstractFloatArithOp]) -> type[Operation]:
    """Return the class that parses an op on floats with its fast-math flags behind the operands."""

    class Syntax(base):
        def __new__(cls, *_: object, **__: object) -> llvm.AbstractFloatArithOp:  # pyright: ignore[reportInconsistentConstructor] - gives the base
            return object.__new__(base)

        @classmethod
        def parse(cls, parser: Parser) -> llvm.AbstractFloatArithOp:
            lhs = parser.parse_unresolved_operand()
            parser.parse_punctuation(",")
            rhs = parser.parse_unresolved_operand()
            flags = llvm.FastMathAttr(None)
            if parser.parse_optional_keyword("fastmath"):
                flags = llvm.FastMathAttr(llvm.FastMathAttr.parse_parameter(parser))
            attributes = parser.parse_optional_attr_dict()
            parser.parse_punctuation(":")
            type_ = parser.parse_type()
            op = base(parser.resolve_operand(lhs, type_), parser.resolve_operand(rhs, type_), flags)
            _give(op, attributes)
            return op

    return Syntax


PRINTERS: dict[type[Operation], Callable[[Printer, Any], None]] = {
    affine.ApplyOp: _print_affine_apply,
    arith.CmpfOp: _print_cmpf,
    arith.CmpiOp: _print_cmpi,
    scf.IfOp: _print_if,
    tensor.EmptyOp: _print_tensor_empty,
    **MEMREF_PRINTERS,
}
SYNTAX_OPS: tuple[type[Operation], ...] = (
    _AffineApplySyntax,
    _CmpfSyntax,
    _CmpiSyntax,
    _IndexSwitchSyntax,
    _TensorEmptySyntax,
    _TransferReadSyntax,
    _TransferWriteSyntax,
    _LoadSyntax,
    _StoreSyntax,
    *map(_float_syntax, (llvm.FAddOp, llvm.FSubOp, llvm.FMulOp, llvm.FDivOp, llvm.FRemOp)),
    *MEMREF_SYNTAX,
)
