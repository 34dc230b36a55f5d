"""Ops of MLIR's llvm dialect that xDSL lacks or implements in part; `EXTRA_OPS` replace xDSL's ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import (
    AnyFloatConstr,
    ArrayAttr,
    BoolAttr,
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    IntegerAttr,
    IntegerType,
    SignlessIntegerConstraint,
    StringAttr,
    UnitAttr,
    VectorType,
    i1,
    i32,
    i64,
)
from xdsl.dialects.llvm import GEP_USE_SSA_VAL, FastMathAttr, GenericCastOp, LLVMPointerType, LLVMStructType
from xdsl.dialects.utils import parse_dynamic_index_list_without_types, print_dynamic_index_list
from xdsl.ir import Attribute, Block, SSAValue
from xdsl.irdl import (
    AnyAttr,
    AttrSizedOperandSegments,
    IRDLOperation,
    ParsePropInAttrDict,
    VarConstraint,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    successor_def,
    traits_def,
    var_operand_def,
    var_successor_def,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import IsTerminator, MemoryReadEffect, NoMemoryEffect, Pure
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from hlo_run.dialects.types import is_vector

INBOUNDS = 3  # MLIR's noWrapFlags: inbounds, which implies no unsigned-signed wrap


@irdl_op_definition
class LoadOp(IRDLOperation):
    """Read from memory. `invariant` promises that the memory does not change while the kernel runs."""

    name = "llvm.load"
    ptr = operand_def(LLVMPointerType)
    alignment = opt_prop_def(IntegerAttr[IntegerType])
    ordering = prop_def(IntegerAttr[IntegerType], default_value=IntegerAttr(0, i64))
    invariant = opt_prop_def(UnitAttr)
    res = result_def()
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(MemoryReadEffect())
    assembly_format = "$ptr (`invariant` $invariant^)? attr-dict `:` type($ptr) `->` type($res)"

    def __init__(self, ptr: SSAValue, type_: Attribute, alignment: int | None = None, *, invariant: bool = False) -> None:
        super().__init__(
            operands=[ptr],
            result_types=[type_],
            properties={
                "alignment": None if alignment is None else IntegerAttr(alignment, i64),
                "invariant": UnitAttr() if invariant else None,
            },
        )


@irdl_op_definition
class GEPOp(IRDLOperation):
    """Address arithmetic: the pointer plus indices into `elem_type`. `rawConstantIndices` holds the constant indices."""

    name = "llvm.getelementptr"
    ptr = operand_def(LLVMPointerType)
    indices = var_operand_def(IntegerType)
    raw_constant_indices = prop_def(DenseArrayBase.constr(i32), prop_name="rawConstantIndices")
    elem_type = prop_def()
    no_wrap_flags = prop_def(IntegerAttr[IntegerType], prop_name="noWrapFlags", default_value=IntegerAttr(0, i32))
    res = result_def(LLVMPointerType)
    traits = traits_def(Pure())

    def __init__(self, ptr: SSAValue, indices: Sequence[SSAValue | int], elem_type: Attribute, *, inbounds: bool = True) -> None:
        raw = [index if isinstance(index, int) else GEP_USE_SSA_VAL for index in indices]
        super().__init__(
            operands=[ptr, [index for index in indices if not isinstance(index, int)]],
            result_types=[ptr.type],
            properties={
                "rawConstantIndices": DenseArrayBase.from_list(i32, raw),
                "elem_type": elem_type,
                "noWrapFlags": IntegerAttr(INBOUNDS if inbounds else 0, i32),
            },
        )

    @property
    def inbounds(self) -> bool:
        """True if the op has the flag `inbounds`: the address stays inside the object that `ptr` points to."""
        return self.no_wrap_flags.value.data == INBOUNDS

    def mixed_indices(self) -> list[SSAValue | int]:
        """Return the indices in order, constant indices as ints."""
        dynamic = iter(self.indices)
        return [next(dynamic) if index == GEP_USE_SSA_VAL else index for index in self.raw_constant_indices.iter_values()]

    def print(self, printer: Printer) -> None:
        """Print `inbounds %ptr[%i, 3] : (!llvm.ptr, i64) -> !llvm.ptr, f32`; the last type is `elem_type`."""
        printer.print_string(" inbounds " if self.inbounds else " ")
        printer.print_ssa_value(self.ptr)
        print_dynamic_index_list(printer, GEP_USE_SSA_VAL, self.indices, self.raw_constant_indices.iter_values())
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_function_type(self.operand_types, self.result_types)
        printer.print_string(", ")
        printer.print_attribute(self.elem_type)

    @classmethod
    def parse(cls, parser: Parser) -> GEPOp:
        """Parse `inbounds %ptr[%i, 3] : (!llvm.ptr, i64) -> !llvm.ptr, f32`; `inbounds` is optional."""
        inbounds = parser.parse_optional_keyword("inbounds") is not None
        ptr = parser.parse_unresolved_operand()
        names, raw = parse_dynamic_index_list_without_types(parser, GEP_USE_SSA_VAL)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        types = parser.parse_function_type().inputs.data
        parser.parse_punctuation(",")
        elem_type = parser.parse_type()
        base, *dynamic = parser.resolve_operands([ptr, *names], types, parser.pos)
        values = iter(dynamic)
        op = cls(base, [next(values) if i == GEP_USE_SSA_VAL else i for i in raw], elem_type, inbounds=inbounds)
        op.attributes |= attributes
        return op


@irdl_op_definition
class ExtractElementOp(IRDLOperation):
    """Return the element of a rank-1 vector at a dynamic position, a signless integer."""

    name = "llvm.extractelement"
    _ELEMENT: ClassVar = VarConstraint("ELEMENT", AnyAttr())
    vector = operand_def(VectorType.constr(_ELEMENT))
    position = operand_def(SignlessIntegerConstraint)
    res = result_def(_ELEMENT)
    traits = traits_def(Pure())
    assembly_format = "$vector `[` $position `:` type($position) `]` attr-dict `:` type($vector)"

    def __init__(self, vector: SSAValue, position: SSAValue) -> None:
        assert is_vector(vector.type), "extractelement reads a vector"
        super().__init__(operands=[vector, position], result_types=[vector.type.get_element_type()])


@irdl_op_definition
class PoisonOp(IRDLOperation):
    """Return a poison value of the result type."""

    name = "llvm.mlir.poison"
    res = result_def()
    traits = traits_def(Pure())
    assembly_format = "attr-dict `:` type($res)"

    def __init__(self, type_: Attribute) -> None:
        super().__init__(result_types=[type_])


@irdl_op_definition
class AddrSpaceCastOp(GenericCastOp):
    """Cast a pointer to another address space."""

    name = "llvm.addrspacecast"


@irdl_op_definition
class FPToSIOp(GenericCastOp):
    """Convert floats to signed integers, rounded toward zero. A value that does not fit gives poison."""

    name = "llvm.fptosi"


@irdl_op_definition
class FPToUIOp(GenericCastOp):
    """Convert floats to unsigned integers, rounded toward zero. A value that does not fit gives poison."""

    name = "llvm.fptoui"


@irdl_op_definition
class UIToFPOp(GenericCastOp):
    """Convert unsigned integers to floats, rounded to nearest."""

    name = "llvm.uitofp"


def _dense_integers(type_: Attribute, values: Sequence[int]) -> DenseIntOrFPElementsAttr:
    assert isa(type_, IntegerType), "a switch is on an integer"
    return DenseIntOrFPElementsAttr.from_list(VectorType(type_, [len(values)]), values)


@irdl_op_definition
class SwitchOp(IRDLOperation):
    """Jump to the block of the case that equals `value`, else to the default block. The blocks must have no arguments."""

    name = "llvm.switch"
    value = operand_def(IntegerType)
    default_operands = var_operand_def()
    case_operands = var_operand_def()
    case_values = opt_prop_def(DenseIntOrFPElementsAttr)
    case_operand_segments = prop_def(DenseArrayBase)
    default_block = successor_def()
    case_blocks = var_successor_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(IsTerminator(), NoMemoryEffect())

    def __init__(self, value: SSAValue, default_block: Block, case_values: Sequence[int], case_blocks: Sequence[Block]) -> None:
        values = _dense_integers(value.type, case_values) if case_values else None
        super().__init__(
            operands=[value, [], []],
            properties={
                "case_values": values,
                "case_operand_segments": DenseArrayBase.from_list(i32, [0] * len(case_values)),
            },
            successors=[default_block, case_blocks],
        )

    def cases(self) -> list[tuple[int, Block]]:
        """Return value and block of each case, in order."""
        values = () if self.case_values is None else self.case_values.get_values()
        return [(value, block) for value, block in zip(values, self.case_blocks, strict=True) if isinstance(value, int)]

    def verify_(self) -> None:
        """Check that no block takes arguments and that each case value has one block."""
        if self.default_operands or self.case_operands:
            raise VerifyException("the blocks of an llvm.switch take no arguments here")
        if len(self.cases()) != len(self.case_blocks):
            raise VerifyException("an llvm.switch has one block per case value")

    def print(self, printer: Printer) -> None:
        """Print `%value : i32, ^default [ 0: ^bb1, 1: ^bb2 ]`."""
        printer.print_string(" ")
        printer.print_ssa_value(self.value)
        printer.print_string(" : ")
        printer.print_attribute(self.value.type)
        printer.print_string(", ")
        printer.print_block_name(self.default_block)
        printer.print_string(" [")
        for number, (value, block) in enumerate(self.cases()):
            printer.print_string(f"{',' if number else ''} {value}: ")
            printer.print_block_name(block)
        printer.print_string(" ]")
        printer.print_op_attributes(self.attributes)

    @classmethod
    def parse(cls, parser: Parser) -> SwitchOp:
        """Parse `%value : i32, ^default [0: ^bb1, 1: ^bb2]`. Blocks cannot have operands."""
        name = parser.parse_unresolved_operand()
        parser.parse_punctuation(":")
        value = parser.resolve_operand(name, parser.parse_type())
        parser.parse_punctuation(",")
        default_block = parser.parse_successor()

        def parse_case() -> tuple[int, Block]:
            number = parser.parse_integer()
            parser.parse_punctuation(":")
            return number, parser.parse_successor()

        cases = parser.parse_optional_comma_separated_list(parser.Delimiter.SQUARE, parse_case) or []
        op = cls(value, default_block, [number for number, _ in cases], [block for _, block in cases])
        op.attributes |= parser.parse_optional_attr_dict()
        return op


class _FloatBinaryIntrinsic(IRDLOperation):
    _T: ClassVar = VarConstraint("T", AnyFloatConstr | VectorType.constr(AnyFloatConstr))
    lhs = operand_def(_T)
    rhs = operand_def(_T)
    fastmath = prop_def(FastMathAttr, default_value=FastMathAttr(None), prop_name="fastmathFlags")
    res = result_def(_T)
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())
    assembly_format = "`(` operands `)` attr-dict `:` functional-type(operands, results)"

    def __init__(self, lhs: SSAValue, rhs: SSAValue) -> None:
        super().__init__(operands=[lhs, rhs], result_types=[lhs.type])


@irdl_op_definition
class MaximumOp(_FloatBinaryIntrinsic):
    """The greater value; NaN if an operand is NaN. +0 is greater than -0."""

    name = "llvm.intr.maximum"


@irdl_op_definition
class MinimumOp(_FloatBinaryIntrinsic):
    """The smaller value; NaN if an operand is NaN. -0 is smaller than +0."""

    name = "llvm.intr.minimum"


class _IntegerBinaryIntrinsic(IRDLOperation):
    _T: ClassVar = VarConstraint("T", SignlessIntegerConstraint | VectorType.constr(SignlessIntegerConstraint))
    lhs = operand_def(_T)
    rhs = operand_def(_T)
    res = result_def(_T)
    traits = traits_def(Pure())
    assembly_format = "`(` operands `)` attr-dict `:` functional-type(operands, results)"

    def __init__(self, lhs: SSAValue, rhs: SSAValue) -> None:
        super().__init__(operands=[lhs, rhs], result_types=[lhs.type])


@irdl_op_definition
class SMaxOp(_IntegerBinaryIntrinsic):
    """The greater of two signed integers, or vectors of them."""

    name = "llvm.intr.smax"


@irdl_op_definition
class SMinOp(_IntegerBinaryIntrinsic):
    """The smaller of two signed integers, or vectors of them."""

    name = "llvm.intr.smin"


@irdl_op_definition
class UMaxOp(_IntegerBinaryIntrinsic):
    """The greater of two unsigned integers, or vectors of them."""

    name = "llvm.intr.umax"


@irdl_op_definition
class UMinOp(_IntegerBinaryIntrinsic):
    """The smaller of two unsigned integers, or vectors of them."""

    name = "llvm.intr.umin"


@irdl_op_definition
class CtPopOp(IRDLOperation):
    """The number of one bits."""

    name = "llvm.intr.ctpop"
    _T: ClassVar = VarConstraint("T", SignlessIntegerConstraint | VectorType.constr(SignlessIntegerConstraint))
    value = operand_def(_T)
    res = result_def(_T)
    traits = traits_def(Pure())
    assembly_format = "`(` operands `)` attr-dict `:` functional-type(operands, results)"

    def __init__(self, value: SSAValue) -> None:
        super().__init__(operands=[value], result_types=[value.type])


@irdl_op_definition
class CountLeadingZerosOp(IRDLOperation):
    """The number of leading zero bits; the type's width for 0."""

    name = "llvm.intr.ctlz"
    _T: ClassVar = VarConstraint("T", SignlessIntegerConstraint | VectorType.constr(SignlessIntegerConstraint))
    value = operand_def(_T)
    is_zero_poison = prop_def(BoolAttr)
    res = result_def(_T)
    traits = traits_def(Pure())

    def __init__(self, value: SSAValue) -> None:
        super().__init__(operands=[value], result_types=[value.type], properties={"is_zero_poison": BoolAttr.from_bool(False)})


@irdl_op_definition
class AbsOp(IRDLOperation):
    """The absolute value; the smallest integer gives itself."""

    name = "llvm.intr.abs"
    _T: ClassVar = VarConstraint("T", SignlessIntegerConstraint | VectorType.constr(SignlessIntegerConstraint))
    value = operand_def(_T)
    is_int_min_poison = prop_def(BoolAttr)
    res = result_def(_T)
    traits = traits_def(Pure())

    def __init__(self, value: SSAValue) -> None:
        super().__init__(operands=[value], result_types=[value.type], properties={"is_int_min_poison": BoolAttr.from_bool(False)})


@irdl_op_definition
class TruncOp(IRDLOperation):
    """Round to an integral value, towards zero."""

    name = "llvm.intr.trunc"
    _T: ClassVar = VarConstraint("T", AnyFloatConstr | VectorType.constr(AnyFloatConstr))
    value = operand_def(_T)
    fastmath = prop_def(FastMathAttr, default_value=FastMathAttr(None), prop_name="fastmathFlags")
    res = result_def(_T)
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())
    assembly_format = "`(` operands `)` attr-dict `:` functional-type(operands, results)"

    def __init__(self, value: SSAValue) -> None:
        super().__init__(operands=[value], result_types=[value.type])


# MLIR's numbers of the atomicrmw operations.
ATOMIC_BIN_OPS = {
    name: number
    for number, name in enumerate(
        "xchg add sub _and nand _or _xor max min umax umin fadd fsub fmax fmin uinc_wrap udec_wrap usub_cond usub_sat "
        "fmaximum fminimum".split()
    )
}
_ORDERINGS = ("not_atomic", "unordered", "monotonic")
MONOTONIC = _ORDERINGS.index("monotonic")


@irdl_op_definition
class AtomicRMWOp(IRDLOperation):
    """Update the value at an address atomically and return the old value. Kernels use the monotonic ordering only."""

    name = "llvm.atomicrmw"
    bin_op = prop_def(IntegerAttr[IntegerType])
    ordering = prop_def(IntegerAttr[IntegerType], default_value=IntegerAttr(MONOTONIC, i64))
    ptr = operand_def(LLVMPointerType)
    value = operand_def()
    res = result_def()

    def __init__(self, bin_op: str, ptr: SSAValue, value: SSAValue) -> None:
        super().__init__(
            operands=[ptr, value],
            result_types=[value.type],
            properties={"bin_op": IntegerAttr(ATOMIC_BIN_OPS[bin_op], i64), "ordering": IntegerAttr(MONOTONIC, i64)},
        )

    @property
    def keyword(self) -> str:
        """The operation, in MLIR's spelling."""
        return list(ATOMIC_BIN_OPS)[self.bin_op.value.data]

    def print(self, printer: Printer) -> None:
        """Print `fadd %ptr, %value monotonic : !llvm.ptr, f32`."""
        printer.print_string(f" {self.keyword} ")
        printer.print_list((self.ptr, self.value), printer.print_ssa_value)
        printer.print_string(f" {_ORDERINGS[self.ordering.value.data]}")
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_list((self.ptr.type, self.value.type), printer.print_attribute)

    @classmethod
    def parse(cls, parser: Parser) -> AtomicRMWOp:
        """Parse `fadd %ptr, %value monotonic : !llvm.ptr, f32`. Other orderings are errors.

        XLA may write `ignore_denormal_mode` before it, which allows an update to flush denormals.
        """
        parser.parse_optional_keyword("ignore_denormal_mode")
        keyword = parser.parse_identifier()
        ptr, value = _parse_pair(parser)
        parser.parse_keyword("monotonic")
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        pointer_type = parser.parse_type()
        parser.parse_punctuation(",")
        value_type = parser.parse_type()
        op = cls(keyword, parser.resolve_operand(ptr, pointer_type), parser.resolve_operand(value, value_type))
        op.attributes |= attributes
        return op


def _parse_pair(parser: Parser) -> tuple[UnresolvedOperand, UnresolvedOperand]:
    first = parser.parse_unresolved_operand()
    parser.parse_punctuation(",")
    return first, parser.parse_unresolved_operand()


@irdl_op_definition
class AtomicCmpXchgOp(IRDLOperation):
    """Atomically store `val` if the address holds `cmp`. Returns a struct of the old value and an i1: it was stored."""

    name = "llvm.cmpxchg"
    success_ordering = prop_def(IntegerAttr[IntegerType], default_value=IntegerAttr(MONOTONIC, i64))
    failure_ordering = prop_def(IntegerAttr[IntegerType], default_value=IntegerAttr(MONOTONIC, i64))
    ptr = operand_def(LLVMPointerType)
    cmp = operand_def()
    val = operand_def()
    res = result_def()

    def __init__(self, ptr: SSAValue, cmp: SSAValue, val: SSAValue) -> None:
        ordering = IntegerAttr(MONOTONIC, i64)
        super().__init__(
            operands=[ptr, cmp, val],
            result_types=[LLVMStructType(StringAttr(""), ArrayAttr[Attribute]([val.type, i1]))],
            properties={"success_ordering": ordering, "failure_ordering": ordering},
        )

    def print(self, printer: Printer) -> None:
        """Print `%ptr, %cmp, %val monotonic monotonic : !llvm.ptr, i32`: the orderings on success and on failure."""
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_ssa_value)
        orderings = self.success_ordering, self.failure_ordering
        printer.print_string("".join(f" {_ORDERINGS[ordering.value.data]}" for ordering in orderings))
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_list((self.ptr.type, self.val.type), printer.print_attribute)

    @classmethod
    def parse(cls, parser: Parser) -> AtomicCmpXchgOp:
        """Parse `%ptr, %cmp, %val monotonic monotonic : !llvm.ptr, i32`. Other orderings are errors."""
        ptr, cmp = _parse_pair(parser)
        parser.parse_punctuation(",")
        val = parser.parse_unresolved_operand()
        parser.parse_keyword("monotonic")
        parser.parse_keyword("monotonic")
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        pointer_type = parser.parse_type()
        parser.parse_punctuation(",")
        type_ = parser.parse_type()
        resolved = parser.resolve_operands([cmp, val], [type_, type_], parser.pos)
        op = cls(parser.resolve_operand(ptr, pointer_type), *resolved)
        op.attributes |= attributes
        return op


EXTRA_OPS = (
    AtomicRMWOp,
    AtomicCmpXchgOp,
    LoadOp,
    GEPOp,
    ExtractElementOp,
    PoisonOp,
    AddrSpaceCastOp,
    FPToSIOp,
    FPToUIOp,
    UIToFPOp,
    SwitchOp,
    MaximumOp,
    MinimumOp,
    SMaxOp,
    SMinOp,
    UMaxOp,
    UMinOp,
    CtPopOp,
    CountLeadingZerosOp,
    AbsOp,
    TruncOp,
)
