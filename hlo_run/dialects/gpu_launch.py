"""The ops of MLIR's gpu dialect around kernels: sizes, launches, and reductions over a block or a warp."""

from __future__ import annotations

from collections.abc import Sequence
from enum import auto
from typing import Any, ClassVar

from xdsl.dialects.builtin import DenseArrayBase, IndexType, IntegerAttr, IntegerType, SymbolRefAttr, UnitAttr, i32, i64
from xdsl.dialects.utils import AbstractYieldOperation, EnumAttribute
from xdsl.ir import Attribute, Operation, Region, SpacedOpaqueSyntaxAttribute, SSAValue
from xdsl.irdl import (
    AnyAttr,
    AttrSizedOperandSegments,
    IRDLOperation,
    VarConstraint,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    opt_result_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.rewriter import Rewriter
from xdsl.traits import IsTerminator, Pure
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.lexer import Input, Span
from xdsl.utils.str_enum import StrEnum

from hlo_run.dialects import gpu
from hlo_run.dialects.gpu_kernel import (
    AsyncTokenType,
    ReturnOp,
    check_attributions,
    parse_attributions,
    print_attributions,
    print_typed,
)

_AXES = "xyz"
_IDS = 12  # ids and sizes that the body of a launch gets


@irdl_op_definition
class BlockDimOp(gpu.IdOp):
    """Return the number of threads of a block along one dimension, as an index."""

    name = "gpu.block_dim"


@irdl_op_definition
class GridDimOp(gpu.IdOp):
    """Return the number of blocks of the grid along one dimension, as an index."""

    name = "gpu.grid_dim"


class ReduceOperation(StrEnum):
    """The operation of an `all_reduce` without a body."""

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


def _check_reduction(name: str, kind: ReduceOperation, type_: Attribute) -> None:
    is_integer = isinstance(type_, IntegerType | IndexType)
    if f"{kind.value}" in (_OF_FLOATS if is_integer else _OF_INTEGERS):
        raise VerifyException(f"{name} cannot compute '{kind.value}' of this type")


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
    uniform = opt_prop_def(UnitAttr)
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
            _check_reduction("all_reduce", self.op.data, type_)
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
        printer.print_string(" uniform " if self.uniform is not None else " ")
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
        """Parse `add %x uniform {} : (f32) -> f32`, where `uniform` may be missing."""
        name = parser.parse_optional_identifier()
        try:
            kind = None if name is None else ReduceOperation(name)
        except ValueError:
            parser.raise_error(f"'{name}' is not a reduction")
        value = parser.parse_unresolved_operand()
        uniform = parser.parse_optional_keyword("uniform")
        body = parser.parse_region()
        if body.blocks and not body.blocks[0].ops:
            body = Region()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type_ = parser.parse_function_type().inputs.data[0]
        op = cls(parser.resolve_operand(value, type_), kind, body)
        if uniform is not None:
            op.properties["uniform"] = UnitAttr()
        op.attributes |= attributes
        return op


@irdl_op_definition
class SubgroupReduceOp(IRDLOperation):
    """Reduce one value per thread over the warp; each thread gets the result."""

    name = "gpu.subgroup_reduce"
    _T: ClassVar = VarConstraint("T", AnyAttr())
    value = operand_def(_T)
    op = prop_def(ReduceOperationAttr)
    uniform = opt_prop_def(UnitAttr)
    res = result_def(_T)

    def verify_(self) -> None:
        """Check that the operation fits the type."""
        _check_reduction("subgroup_reduce", self.op.data, self.value.type)

    def print(self, printer: Printer) -> None:
        """Print `add %x uniform : (f32) -> f32`."""
        printer.print_string(f" {self.op.data.value} ")
        printer.print_ssa_value(self.value)
        printer.print_string(" uniform" if self.uniform is not None else "")
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : (")
        printer.print_attribute(self.value.type)
        printer.print_string(") -> ")
        printer.print_attribute(self.res.type)

    @classmethod
    def parse(cls, parser: Parser) -> SubgroupReduceOp:
        """Parse `add %x uniform : (f32) -> f32`."""
        properties: dict[str, Attribute] = {"op": ReduceOperationAttr(parser.parse_str_enum(ReduceOperation))}
        value = parser.parse_unresolved_operand()
        if parser.parse_optional_keyword("uniform"):
            properties["uniform"] = UnitAttr()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type_ = parser.parse_function_type().inputs.data[0]
        return cls.create(
            operands=[parser.resolve_operand(value, type_)], result_types=[type_], properties=properties, attributes=attributes
        )


_SIZE = IndexType | IntegerType


class _LaunchBase(IRDLOperation):
    """Base of the launches: what they wait for, three grid sizes, three block sizes, and the bytes of dynamic shared memory.

    The subclasses define the operands: xDSL would number those of a base after their own.
    """

    @property
    def waits_for(self) -> Sequence[SSAValue]:
        """The tokens that the launch waits for."""
        return self.operands[: self._segments()[0]]

    @property
    def grid(self) -> Sequence[SSAValue]:
        """The numbers of blocks in x, y and z."""
        first = self._segments()[0]
        return self.operands[first : first + 3]

    @property
    def block(self) -> Sequence[SSAValue]:
        """The numbers of threads of a block in x, y and z."""
        first = self._segments()[0] + 3
        return self.operands[first : first + 3]

    @property
    def is_async(self) -> bool:
        """True if the launch returns a token."""
        return bool(self.results)

    def _segments(self) -> tuple[int, ...]:
        segments = self.properties["operandSegmentSizes"]
        assert isinstance(segments, DenseArrayBase), "the sizes of segments are an array"
        return tuple(map(int, segments.get_values()))

    def _check_sizes(self) -> None:
        if any(self._segments()[7:10]):
            raise VerifyException("launches of clusters are not supported")


@irdl_op_definition
class LaunchFuncOp(_LaunchBase):
    """Launch the kernel `kernel` of a gpu.module: grid sizes, block sizes, then the kernel's arguments."""

    name = "gpu.launch_func"
    async_dependencies = var_operand_def(AsyncTokenType)
    grid_x = operand_def(_SIZE)
    grid_y = operand_def(_SIZE)
    grid_z = operand_def(_SIZE)
    block_x = operand_def(_SIZE)
    block_y = operand_def(_SIZE)
    block_z = operand_def(_SIZE)
    cluster_x = opt_operand_def()
    cluster_y = opt_operand_def()
    cluster_z = opt_operand_def()
    dynamic_shared = opt_operand_def(i32)
    arguments = var_operand_def()
    async_object = opt_operand_def()
    token = opt_result_def(AsyncTokenType)
    kernel = prop_def(SymbolRefAttr)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    def __init__(
        self,
        kernel: SymbolRefAttr,
        sizes: Sequence[SSAValue],
        arguments: Sequence[SSAValue],
        waits_for: Sequence[SSAValue] = (),
        dynamic_shared: SSAValue | None = None,
        *,
        is_async: bool = False,
    ) -> None:
        super().__init__(
            operands=[waits_for, *sizes, [], [], [], [] if dynamic_shared is None else [dynamic_shared], arguments, []],
            properties={"kernel": kernel},
            result_types=[[AsyncTokenType()] if is_async else []],
        )

    def verify_(self) -> None:
        """Check the sizes and the name of the kernel."""
        self._check_sizes()
        if len(self.kernel.nested_references) != 1:
            raise VerifyException("gpu.launch_func names a module and a kernel in it: @module::@kernel")

    def print(self, printer: Printer) -> None:
        """Print `async [%t] @module::@kernel blocks in (..) threads in (..) dynamic_shared_memory_size %s args(%a : type)`."""
        print_async(printer, self.is_async, self.waits_for)
        printer.print_string(" ")
        printer.print_attribute(self.kernel)
        for what, sizes in (("blocks", self.grid), ("threads", self.block)):
            printer.print_string(f" {what} in ")
            with printer.in_parens():
                printer.print_list(sizes, printer.print_ssa_value)
        if not isinstance(self.grid_x.type, IndexType):
            printer.print_string(" : ")
            printer.print_attribute(self.grid_x.type)
        _print_dynamic(printer, self.dynamic_shared)
        if self.arguments:
            printer.print_string(" args(")
            printer.print_list(self.arguments, lambda value: print_typed(printer, value))
            printer.print_string(")")
        printer.print_op_attributes(self.attributes)

    @classmethod
    def parse(cls, parser: Parser) -> LaunchFuncOp:
        """Parse the form of `print`; sizes are of index type if no type follows them."""
        is_async, waits_for = parse_async(parser)
        kernel = parser.parse_attribute()
        if not isinstance(kernel, SymbolRefAttr):
            parser.raise_error("expected a symbol")
        sizes: list[UnresolvedOperand] = []
        for what in ("blocks", "threads"):
            parser.parse_keyword(what)
            parser.parse_keyword("in")
            found = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
            if len(found) != len(_AXES):
                parser.raise_error("a launch needs three grid sizes and three block sizes")
            sizes += found
        type_ = parser.parse_type() if parser.parse_optional_punctuation(":") else IndexType()
        dynamic = _parse_dynamic(parser)
        arguments: list[SSAValue] = []
        if parser.parse_optional_keyword("args"):
            arguments = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: _parse_typed(parser))
        op = cls(
            kernel, [parser.resolve_operand(size, type_) for size in sizes], arguments, waits_for, dynamic, is_async=is_async
        )
        op.attributes |= parser.parse_optional_attr_dict()
        return op


def print_async(printer: Printer, is_async: bool, waits_for: Sequence[SSAValue]) -> None:
    """Print ` async [%t]`, each part if it exists."""
    if is_async:
        printer.print_string(" async")
    if waits_for:
        printer.print_string(" [")
        printer.print_list(waits_for, printer.print_ssa_value)
        printer.print_string("]")


def parse_async(parser: Parser) -> tuple[bool, Sequence[SSAValue]]:
    """Parse the form of `print_async`."""
    is_async = parser.parse_optional_keyword("async") is not None
    tokens = parser.parse_optional_comma_separated_list(parser.Delimiter.SQUARE, lambda: parser.parse_operand(AsyncTokenType()))
    return is_async, tokens or []


def _print_dynamic(printer: Printer, size: SSAValue | None) -> None:
    if size is not None:
        printer.print_string(" dynamic_shared_memory_size ")
        printer.print_ssa_value(size)


def _parse_dynamic(parser: Parser) -> SSAValue | None:
    return parser.parse_operand(i32) if parser.parse_optional_keyword("dynamic_shared_memory_size") else None


def _parse_typed(parser: Parser) -> SSAValue:
    name = parser.parse_unresolved_operand()
    parser.parse_punctuation(":")
    return parser.resolve_operand(name, parser.parse_type())


@irdl_op_definition
class LaunchOp(_LaunchBase):
    """Launch the body on a grid.

    The arguments of the body are block ids, thread ids, grid sizes and block sizes of x, y and z, then memrefs in shared memory
    (`workgroup_attributions` of them), then memrefs of each thread. The body may use values from outside.
    """

    name = "gpu.launch"
    async_dependencies = var_operand_def(AsyncTokenType)
    grid_x = operand_def(_SIZE)
    grid_y = operand_def(_SIZE)
    grid_z = operand_def(_SIZE)
    block_x = operand_def(_SIZE)
    block_y = operand_def(_SIZE)
    block_z = operand_def(_SIZE)
    cluster_x = opt_operand_def()
    cluster_y = opt_operand_def()
    cluster_z = opt_operand_def()
    dynamic_shared = opt_operand_def(i32)
    token = opt_result_def(AsyncTokenType)
    workgroup_attributions = opt_prop_def(IntegerAttr)
    body = region_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    @property
    def workgroup_count(self) -> int:
        """The number of memrefs in shared memory."""
        return 0 if self.workgroup_attributions is None else self.workgroup_attributions.value.data

    @property
    def attributions(self) -> tuple[Sequence[SSAValue], Sequence[SSAValue]]:
        """The memrefs in shared memory, and the memrefs of each thread."""
        further = self.body.blocks[0].args[_IDS:]
        return further[: self.workgroup_count], further[self.workgroup_count :]

    def verify_(self) -> None:
        """Check the arguments of the body and its terminator."""
        self._check_sizes()
        types = [argument.type for argument in self.body.blocks[0].args] if self.body.blocks else []
        if len(types) < _IDS + self.workgroup_count or any(not isinstance(type_, IndexType) for type_ in types[:_IDS]):
            raise VerifyException("the body of gpu.launch begins with 12 arguments of type index, for ids and sizes")
        check_attributions(types[_IDS:], self.workgroup_count)
        if not isinstance(self.body.blocks[-1].last_op, TerminatorOp):
            raise VerifyException("the body of gpu.launch must end in gpu.terminator")

    def print(self, printer: Printer) -> None:
        """Print `blocks(%bx, %by, %bz) in (%gx = %0, ..) threads(..) in (..) workgroup(..) private(..) {..}`."""
        print_async(printer, self.is_async, self.waits_for)
        args = self.body.blocks[0].args
        for what, ids, sizes, values in (
            ("blocks", args[0:3], args[6:9], self.grid),
            ("threads", args[3:6], args[9:12], self.block),
        ):
            printer.print_string(f" {what}(")
            printer.print_list(ids, printer.print_ssa_value)
            printer.print_string(") in (")
            _print_assignments(printer, sizes, values)
            printer.print_string(")")
        _print_dynamic(printer, self.dynamic_shared)
        print_attributions(printer, *self.attributions)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)
        printer.print_op_attributes(self.attributes)

    @classmethod
    def parse(cls, parser: Parser) -> LaunchOp:
        """Parse the form of `print`. In the earlier form, `args(%a = %b) : type` gives names to values from outside."""
        is_async, waits_for = parse_async(parser)
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
        if len(ids) != _IDS // 2 or len(sizes) != _IDS // 2:
            parser.raise_error("a launch needs three grid sizes and three block sizes")
        dynamic = _parse_dynamic(parser)
        given, values = _parse_earlier_arguments(parser)
        workgroup, private = parse_attributions(parser)
        arguments = [argument.resolve(IndexType()) for argument in (*ids, *sizes)]
        body = parser.parse_region([*arguments, *workgroup, *private, *given])
        implied_terminator(body)
        capture(body, values)
        op = cls.of(operands, body, len(workgroup), waits_for, dynamic, is_async=is_async)
        op.attributes |= parser.parse_optional_attr_dict()
        return op

    @classmethod
    def of(
        cls,
        sizes: Sequence[SSAValue],
        body: Region,
        workgroup: int = 0,
        waits_for: Sequence[SSAValue] = (),
        dynamic_shared: SSAValue | None = None,
        *,
        is_async: bool = False,
    ) -> LaunchOp:
        """Return a launch of six sizes; `workgroup` of the body's last arguments are in shared memory."""
        return cls(
            operands=[waits_for, *sizes, [], [], [], [] if dynamic_shared is None else [dynamic_shared]],
            properties={"workgroup_attributions": IntegerAttr(workgroup, i64)} if workgroup else {},
            regions=[body],
            result_types=[[AsyncTokenType()] if is_async else []],
        )


def _parse_earlier_arguments(parser: Parser) -> tuple[list[Parser.Argument], Sequence[SSAValue]]:
    """Parse `args(%a = %x, %b = 7) : f32, f32` if it follows; a number is the value of that name."""
    if not parser.parse_optional_keyword("args"):
        return [], []
    pairs = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: _parse_assignment(parser))
    parser.parse_punctuation(":")
    types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
    if len(types) != len(pairs):
        parser.raise_error(f"{len(pairs)} arguments but {len(types)} types")
    values = [parser.resolve_operand(value, type_) for (_, value), type_ in zip(pairs, types, strict=True)]
    return [argument.resolve(type_) for (argument, _), type_ in zip(pairs, types, strict=True)], values


def implied_terminator(body: Region) -> None:
    """Let the body of a launch end in a terminator, which earlier MLIR adds and calls gpu.return."""
    if not body.blocks:
        return
    for block in body.blocks:
        if isinstance(last := block.last_op, ReturnOp) and not last.operands:
            Rewriter.replace_op(last, TerminatorOp())
    last = body.blocks[-1].last_op
    if last is None or not last.has_trait(IsTerminator, value_if_unregistered=False):
        body.blocks[-1].add_op(TerminatorOp())


def capture(body: Region, values: Sequence[SSAValue]) -> None:
    """Replace the last arguments of a body by values from outside."""
    block = body.blocks[0]
    for argument, value in zip(block.args[len(block.args) - len(values) :], values, strict=True):
        argument.replace_all_uses_with(value)
        block.erase_arg(argument)


def _print_assignments(printer: Printer, arguments: Sequence[SSAValue], values: Sequence[SSAValue]) -> None:
    for number, (argument, value) in enumerate(zip(arguments, values, strict=True)):
        printer.print_string(", " if number else "")
        printer.print_ssa_value(argument)
        printer.print_string(" = ")
        printer.print_ssa_value(value)


def _parse_assignment(parser: Parser) -> tuple[Any, UnresolvedOperand]:
    argument = parser.parse_argument(expect_type=False)
    parser.parse_punctuation("=")
    if (number := parser.parse_optional_integer(allow_boolean=False, allow_negative=False)) is not None:
        # The listing of the specification has `%arg1 = 7`.
        name = f"%{number}"
        return argument, UnresolvedOperand(Span(0, len(name), Input(name, "")), 0)
    return argument, parser.parse_unresolved_operand()


LAUNCH_OPS: tuple[type[Operation], ...] = (
    *(BlockDimOp, GridDimOp, AllReduceOp, SubgroupReduceOp, YieldOp, TerminatorOp, LaunchFuncOp, LaunchOp),
)
LAUNCH_ATTRIBUTES: tuple[type[Attribute], ...] = (ReduceOperationAttr,)
