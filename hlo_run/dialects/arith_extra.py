"""Ops of MLIR's arith dialect that xDSL lacks."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, IntegerType
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import IRDLOperation, base, irdl_op_definition, operand_def, result_def, traits_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException


@irdl_op_definition
class RemFOp(arith.FloatingPointLikeBinaryOperation):
    """Floating-point remainder of the division rounded to zero; the result has the sign of the dividend."""

    name = "arith.remf"
    traits = traits_def(Pure())


@irdl_op_definition
class IndexCastUIOp(IRDLOperation):
    """Cast between index and an integer type; a wider result is zero-extended."""

    name = "arith.index_castui"
    _TYPE: ClassVar = base(IntegerType) | base(IndexType)
    input = operand_def(_TYPE)
    result = result_def(_TYPE)
    traits = traits_def(Pure())
    assembly_format = "$input attr-dict `:` type($input) `to` type($result)"

    def __init__(self, value: SSAValue, type_: Attribute) -> None:
        super().__init__(operands=[value], result_types=[type_])

    def verify_(self) -> None:
        """Check that either the operand or the result has index type, but not both."""
        if isinstance(self.input.type, IndexType) == isinstance(self.result.type, IndexType):
            raise VerifyException("index_castui has exactly one side of index type")


EXTRA_OPS = (RemFOp, IndexCastUIOp)
