"""The builder of functions in the LLVM dialect: converted values, types, constants, declarations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from msgspec import Struct, field
from xdsl.dialects import llvm
from xdsl.dialects.builtin import (
    AnyFloat,
    DenseArrayBase,
    FunctionType,
    IndexType,
    IntegerAttr,
    IntegerType,
    SymbolRefAttr,
    VectorType,
    i32,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.utils.hints import isa

from hlo_run.dialects.origin import HLO_OP
from hlo_run.dialects.types import is_complex, is_vector
from hlo_run.errors import Unsupported

# Lowers one op: reads the LLVM values of its operands, and sets the LLVM values of its results.
Handler: TypeAlias = Callable[["Builder", Any], None]
_PLAIN_CALL: Mapping[str, Attribute] = {
    "fastmathFlags": llvm.FastMathAttr("none"),
    "CConv": llvm.CallingConventionAttr("ccc"),
    "TailCallKind": llvm.TailCallKindAttr(llvm.TailCallKind.NONE),
    "op_bundle_sizes": DenseArrayBase.from_list(i32, ()),
}
NO_PROPERTIES: Mapping[str, Attribute] = {}


@lru_cache(maxsize=1024)
def _converted(type_: Attribute, index_type: IntegerType) -> Attribute:
    if isinstance(type_, IndexType):
        return index_type
    if isa(type_, AnyFloat):
        # LLVM has no floats of 8 or fewer bits, so integers hold their bits.
        return IntegerType(type_.bitwidth) if type_.bitwidth <= 8 else type_
    if is_complex(type_):
        return llvm.LLVMStructType.from_type_list([type_.element_type, type_.element_type])
    if isa(type_, IntegerType | llvm.LLVMPointerType | llvm.LLVMStructType):
        return type_
    if is_vector(type_) and type_.get_num_dims() == 1:
        return VectorType(_converted(type_.get_element_type(), index_type), type_.get_shape())
    raise Unsupported(f"values of type {type_} in a kernel")


class ModuleState(Struct):
    """The state that all functions of a module share: the integer type of index, converted types, library declarations."""

    index_type: IntegerType
    types: dict[Attribute, Attribute] = field(default_factory=dict[Attribute, Attribute])
    declared: dict[str, llvm.LLVMFunctionType] = field(default_factory=dict[str, llvm.LLVMFunctionType])

    def convert(self, type_: Attribute) -> Attribute:
        """Return the LLVM type of values of `type_`. Raises Unsupported if LLVM has none."""
        found = self.types.get(type_)
        if found is None:
            found = self.types[type_] = _converted(type_, self.index_type)
        return found

    def result_type(self, types: Sequence[Attribute]) -> Attribute:
        """Return the LLVM return type of a function with these results: void, the type, or a struct of the types."""
        converted = [self.convert(type_) for type_ in types]
        if not converted:
            return llvm.LLVMVoidType()
        return converted[0] if len(converted) == 1 else llvm.LLVMStructType.from_type_list(converted)

    def function_type(self, type_: FunctionType) -> llvm.LLVMFunctionType:
        """Return the LLVM type of a function. Raises Unsupported for a type that LLVM functions cannot take or return."""
        return llvm.LLVMFunctionType([self.convert(each) for each in type_.inputs], self.result_type(type_.outputs.data))


class Builder(Struct):
    """Appends LLVM ops to `block`. `values` and `blocks` map the function's old values and blocks to the new ones."""

    module: ModuleState
    block: Block
    values: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])
    blocks: dict[Block, Block] = field(default_factory=dict[Block, Block])
    constants: dict[tuple[Attribute, Attribute], Operation] = field(default_factory=dict[tuple[Attribute, Attribute], Operation])
    origin: Attribute | None = None

    def begin(self, op: Operation) -> None:
        """Start the lowering of `op`. Ops appended from now on have its HLO instruction as origin."""
        self.origin = op.attributes.get(HLO_OP)

    def value(self, old: SSAValue) -> SSAValue:
        """Return the new value of `old`."""
        return self.values[old]

    def operands(self, op: Operation) -> list[SSAValue]:
        """Return the new values of the operands of `op`."""
        values = self.values
        return [values[operand] for operand in op.operands]

    def convert(self, type_: Attribute) -> Attribute:
        """Return the type that replaces `type_` in the LLVM dialect. Raises Unsupported if no type does."""
        return self.module.convert(type_)

    def add(
        self,
        kind: type[Operation],
        operands: Sequence[SSAValue],
        type_: Attribute,
        properties: Mapping[str, Attribute] = NO_PROPERTIES,
    ) -> SSAValue:
        """Append an op with one result, and return the result. Avoids the op's constructor, which is three times slower."""
        op = kind.create(operands=operands, result_types=(type_,), properties=properties)
        self.append(op)
        return op.results[0]

    def append(self, op: Operation) -> None:
        """Append an existing op, with the HLO instruction of the lowered op as origin."""
        if self.origin is not None:
            op.attributes[HLO_OP] = self.origin
        self.block.add_op(op)

    def constant(self, value: Attribute, type_: Attribute) -> SSAValue:
        """Return a constant. Equal constants are one op at the start of the function."""
        key = (value, type_)
        op = self.constants.get(key)
        if op is None:
            op = llvm.ConstantOp.create(result_types=(type_,), properties={"value": value})
            self.constants[key] = op
        return op.results[0]

    def integer(self, number: int, type_: IntegerType) -> SSAValue:
        """Return an integer constant."""
        return self.constant(IntegerAttr(number, type_), type_)

    def call(self, name: str, arguments: Sequence[SSAValue], type_: Attribute) -> SSAValue:
        """Call a library function, and declare it with the types of the call."""
        signature = llvm.LLVMFunctionType([argument.type for argument in arguments], type_)
        declared = self.module.declared.setdefault(name, signature)
        assert declared == signature, f"{name} is called with different types"
        return self.call_function(SymbolRefAttr(name), arguments, type_)

    def call_function(self, callee: SymbolRefAttr, arguments: Sequence[SSAValue], type_: Attribute) -> SSAValue:
        """Call a function that returns a value. Avoids the op's slow constructor."""
        segments = DenseArrayBase.from_list(i32, [len(arguments), 0])
        return self.add(llvm.CallOp, arguments, type_, {"callee": callee, "operandSegmentSizes": segments, **_PLAIN_CALL})

    def place_constants(self, entry: Block) -> None:
        """Insert the constants at the start of the entry block. Call it after the function is built."""
        ops = [*self.constants.values()]
        if entry.first_op is None:
            entry.add_ops(ops)
        else:
            entry.insert_ops_before(ops, entry.first_op)
