"""The ops of MLIR's gpu dialect that make kernels: modules, functions, more ids, printf, and the spaces of memory."""

from __future__ import annotations

from collections.abc import Sequence
from enum import auto

from xdsl.dialects.builtin import (
    DenseArrayBase,
    FunctionType,
    IndexType,
    IntegerAttr,
    StringAttr,
    SymbolNameConstraint,
    UnitAttr,
    i64,
)
from xdsl.dialects.utils import AbstractYieldOperation, EnumAttribute
from xdsl.ir import Attribute, Block, Operation, ParametrizedAttribute, Region, SSAValue, TypeAttribute
from xdsl.irdl import (
    IRDLOperation,
    attr_def,
    irdl_attr_definition,
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.traits import IsolatedFromAbove, IsTerminator, NoTerminator, Pure, SymbolOpInterface, SymbolTable
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.str_enum import StrEnum

from hlo_run.dialects import gpu
from hlo_run.dialects.types import is_memref


class AddressSpace(StrEnum):
    """The place of a memref: global memory, the shared memory of a block, or the memory of one thread."""

    GLOBAL = auto()
    WORKGROUP = auto()
    PRIVATE = auto()


@irdl_attr_definition
class AddressSpaceAttr(EnumAttribute[AddressSpace]):
    """A space of memory, `#gpu.address_space<workgroup>`."""

    name = "gpu.address_space"

    def print_parameter(self, printer: Printer) -> None:
        """Print `<workgroup>`."""
        printer.print_string(f"<{self.data.value}>")

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> AddressSpace:
        """Parse `<workgroup>`."""
        with parser.in_angle_brackets():
            return parser.parse_str_enum(AddressSpace)


@irdl_attr_definition
class AsyncTokenType(ParametrizedAttribute, TypeAttribute):
    """The type of the token that an asynchronous op returns and others wait for."""

    name = "gpu.async.token"


WORKGROUP_SPACE, PRIVATE_SPACE = 3, 5
_SPACES = {
    AddressSpace.GLOBAL: 1,
    AddressSpace.WORKGROUP: WORKGROUP_SPACE,
    AddressSpace.PRIVATE: PRIVATE_SPACE,
}


def space_number(space: Attribute) -> int | None:
    """Return the number of a memory space: 0 or 1 global, 3 shared, 5 private. None for other attributes."""
    if isinstance(space, AddressSpaceAttr):
        return _SPACES[space.data]
    if isinstance(space, IntegerAttr):
        return space.value.data
    return 0 if space.name == "none" else None


@irdl_op_definition
class GlobalIdOp(gpu.IdOp):
    """Return block id * block size + thread id along one dimension, as an index."""

    name = "gpu.global_id"


class _NumberOp(IRDLOperation):
    """Base of the ops that return a number of a warp or of a thread in it."""

    result = result_def(IndexType)
    traits = traits_def(Pure())

    def __init__(self) -> None:
        super().__init__(result_types=[IndexType()])


@irdl_op_definition
class LaneIdOp(_NumberOp):
    """Return the number of the thread in its warp."""

    name = "gpu.lane_id"
    assembly_format = "attr-dict"


@irdl_op_definition
class SubgroupIdOp(_NumberOp):
    """Return the number of the warp in its block."""

    name = "gpu.subgroup_id"
    assembly_format = "attr-dict `:` type($result)"


@irdl_op_definition
class NumSubgroupsOp(_NumberOp):
    """Return the number of warps of a block."""

    name = "gpu.num_subgroups"
    assembly_format = "attr-dict `:` type($result)"


@irdl_op_definition
class SubgroupSizeOp(_NumberOp):
    """Return the number of threads of a warp."""

    name = "gpu.subgroup_size"
    assembly_format = "attr-dict `:` type($result)"


@irdl_op_definition
class PrintfOp(IRDLOperation):
    """Print values, as C's printf does. It is read, and has no lowering."""

    name = "gpu.printf"
    format = prop_def(StringAttr)
    arguments = var_operand_def()

    def print(self, printer: Printer) -> None:
        """Print `"format", %a, %b : f32, i32`."""
        printer.print_string(" ")
        printer.print_attribute(self.format)
        if self.arguments:
            printer.print_string(", ")
            printer.print_list(self.arguments, printer.print_ssa_value)
            printer.print_string(" : ")
            printer.print_list([value.type for value in self.arguments], printer.print_attribute)
        printer.print_op_attributes(self.attributes)

    @classmethod
    def parse(cls, parser: Parser) -> PrintfOp:
        """Parse the form of `print`; earlier MLIR has no comma after the format."""
        text = StringAttr(parser.parse_str_literal())
        parser.parse_optional_punctuation(",")
        values = parser.parse_optional_undelimited_comma_separated_list(
            parser.parse_optional_unresolved_operand, parser.parse_unresolved_operand
        )
        operands: Sequence[SSAValue] = ()
        if values:
            parser.parse_punctuation(":")
            types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
            operands = parser.resolve_operands(values, types, parser.pos)
        return cls(operands=[operands], properties={"format": text})


@irdl_op_definition
class ReturnOp(AbstractYieldOperation[Attribute]):
    """The terminator of a gpu.func."""

    name = "gpu.return"
    traits = traits_def(IsTerminator(), Pure())


@irdl_op_definition
class GpuModuleOp(IRDLOperation):
    """A module of kernels, which is compiled for the GPU on its own."""

    name = "gpu.module"
    sym_name = prop_def(SymbolNameConstraint())
    body = region_def("single_block")
    traits = traits_def(IsolatedFromAbove(), NoTerminator(), SymbolOpInterface(), SymbolTable())

    def __init__(self, name: str, ops: Sequence[Operation]) -> None:
        super().__init__(properties={"sym_name": StringAttr(name)}, regions=[Region(Block(ops))])

    def print(self, printer: Printer) -> None:
        """Print `@name {..}`, with attributes before the body."""
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name.data)
        printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body, print_empty_block=False)

    @classmethod
    def parse(cls, parser: Parser) -> GpuModuleOp:
        """Parse `@name attributes {..} {..}`. Targets, `[#nvvm.target]`, are not kept."""
        name = parser.parse_symbol_name()
        parser.parse_optional_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_attribute)
        attributes = parser.parse_optional_attr_dict_with_keyword()
        region = parser.parse_region()
        if not region.blocks:
            region.add_block(Block())
        op = cls.create(properties={"sym_name": name}, regions=[region])
        if attributes is not None:
            op.attributes |= attributes.data
        return op


@irdl_op_definition
class GpuFuncOp(IRDLOperation):
    """A function of a gpu.module; with `kernel`, it can be launched.

    The arguments of its body are those of its type, then memrefs in shared memory (`workgroup_attributions` of them), then
    memrefs of each thread.
    """

    name = "gpu.func"
    sym_name = attr_def(SymbolNameConstraint())  # an attribute in MLIR too
    function_type = prop_def(FunctionType)
    workgroup_attributions = opt_prop_def(IntegerAttr)
    kernel = opt_prop_def(UnitAttr)
    known_block_size = opt_prop_def(DenseArrayBase)
    known_grid_size = opt_prop_def(DenseArrayBase)
    body = region_def()
    traits = traits_def(IsolatedFromAbove(), SymbolOpInterface())

    def __init__(self, name: str, type_: FunctionType, body: Region, workgroup: int = 0, *, is_kernel: bool = True) -> None:
        properties: dict[str, Attribute] = {"function_type": type_}
        if workgroup:
            properties["workgroup_attributions"] = IntegerAttr(workgroup, i64)
        if is_kernel:
            properties["kernel"] = UnitAttr()
        super().__init__(properties=properties, attributes={"sym_name": StringAttr(name)}, regions=[body])

    @property
    def is_kernel(self) -> bool:
        """True for a function that can be launched."""
        return self.kernel is not None

    @property
    def workgroup_count(self) -> int:
        """The number of memrefs in shared memory."""
        return 0 if self.workgroup_attributions is None else self.workgroup_attributions.value.data

    @property
    def attributions(self) -> tuple[Sequence[SSAValue], Sequence[SSAValue]]:
        """The memrefs in shared memory, and the memrefs of each thread."""
        further = self.body.blocks[0].args[len(self.function_type.inputs) :]
        return further[: self.workgroup_count], further[self.workgroup_count :]

    def verify_(self) -> None:
        """Check the arguments of the body, and the values that it returns."""
        types = [argument.type for argument in self.body.blocks[0].args] if self.body.blocks else []
        count = len(self.function_type.inputs)
        if not self.body.blocks:
            raise VerifyException("gpu.func has no body")
        if types[:count] != [*self.function_type.inputs] or len(types) < count + self.workgroup_count:
            raise VerifyException("the arguments of the body of gpu.func are not those of its type and its attributions")
        check_attributions(types[count:], self.workgroup_count)
        if self.is_kernel and self.function_type.outputs.data:
            raise VerifyException("a kernel returns nothing")
        for block in self.body.blocks:
            if isinstance(last := block.last_op, ReturnOp) and last.operand_types != self.function_type.outputs.data:
                raise VerifyException("gpu.return returns other types than the function")

    def print(self, printer: Printer) -> None:
        """Print `@k(%a: f32) workgroup(%w : memref<..>) private(..) kernel attributes {..} {..}`."""
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name.data)
        inputs = self.body.blocks[0].args[: len(self.function_type.inputs)]
        printer.print_string("(")
        printer.print_list(inputs, lambda value: print_typed(printer, value, ": "))
        printer.print_string(")")
        outputs = self.function_type.outputs.data
        if outputs:
            printer.print_string(" -> ")
            text = [*outputs]
            if len(text) == 1:
                printer.print_attribute(text[0])
            else:
                with printer.in_parens():
                    printer.print_list(text, printer.print_attribute)
        print_attributions(printer, *self.attributions)
        if self.is_kernel:
            printer.print_string(" kernel")
        shown = {name: value for name, value in self.attributes.items() if name != "sym_name"}
        for name in ("known_block_size", "known_grid_size"):
            if name in self.properties:
                shown[name] = self.properties[name]
        printer.print_op_attributes(shown, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)

    @classmethod
    def parse(cls, parser: Parser) -> GpuFuncOp:
        """Parse the form of `print`."""
        name = parser.parse_symbol_name()
        arguments = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: _parse_argument(parser))
        outputs: Sequence[Attribute] = ()
        if parser.parse_optional_punctuation("->"):
            several = parser.parse_optional_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
            outputs = [parser.parse_type()] if several is None else several
        workgroup, private = parse_attributions(parser)
        is_kernel = parser.parse_optional_keyword("kernel") is not None
        attributes = parser.parse_optional_attr_dict_with_keyword()
        body = parser.parse_region([*arguments, *workgroup, *private])
        type_ = FunctionType.from_lists([argument.type for argument in arguments], outputs)
        op = cls(name.data, type_, body, len(workgroup), is_kernel=is_kernel)
        for key, value in attributes.data.items() if attributes is not None else ():
            (op.properties if key in ("known_block_size", "known_grid_size") else op.attributes)[key] = value
        return op


def _parse_argument(parser: Parser) -> Parser.Argument:
    argument = parser.parse_argument()
    parser.parse_optional_attr_dict()
    return argument


def check_attributions(types: Sequence[Attribute], workgroup: int) -> None:
    """Raise VerifyException unless the types are memrefs with sizes, the first `workgroup` in shared memory, others private."""
    for number, type_ in enumerate(types):
        if not is_memref(type_) or not type_.has_static_shape():
            raise VerifyException("an attribution is a memref with constant sizes")
        wanted = WORKGROUP_SPACE if number < workgroup else PRIVATE_SPACE
        if space_number(type_.memory_space) != wanted:
            kind = "workgroup" if number < workgroup else "private"
            raise VerifyException(f"a {kind} attribution is in memory space {wanted} or #gpu.address_space<{kind}>")


def print_typed(printer: Printer, value: SSAValue, colon: str = " : ") -> None:
    """Print a value and its type."""
    printer.print_ssa_value(value)
    printer.print_string(colon)
    printer.print_attribute(value.type)


def print_attributions(printer: Printer, workgroup: Sequence[SSAValue], private: Sequence[SSAValue]) -> None:
    """Print ` workgroup(%a : type) private(%b : type)`, each if it has memrefs."""
    for word, values in (("workgroup", workgroup), ("private", private)):
        if values:
            printer.print_string(f" {word}(")
            printer.print_list(values, lambda value: print_typed(printer, value))
            printer.print_string(")")


def parse_attributions(parser: Parser) -> tuple[list[Parser.Argument], list[Parser.Argument]]:
    """Parse the form of `print_attributions`."""
    found: list[list[Parser.Argument]] = []
    for word in ("workgroup", "private"):
        has = parser.parse_optional_keyword(word) is not None
        found.append(parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_argument) if has else [])
    return found[0], found[1]


KERNEL_OPS: tuple[type[Operation], ...] = (
    *(GlobalIdOp, LaneIdOp, SubgroupIdOp, NumSubgroupsOp, SubgroupSizeOp, PrintfOp, ReturnOp, GpuModuleOp, GpuFuncOp),
)
KERNEL_ATTRIBUTES: tuple[type[Attribute], ...] = (AddressSpaceAttr, AsyncTokenType)
