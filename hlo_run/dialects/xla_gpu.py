"""The `xla_gpu` dialect: guarded loops over indexing maps, pure calls, shared memory, atomics and warp reductions.

Names and syntax follow the text "XLA:GPU Emitters", semantics XLA's `xla_ops.td` and `xla_gpu_ops.td`.
The file is longer than usual, so that the whole dialect is in one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects import builtin, func
from xdsl.dialects.builtin import IndexType, IntegerAttr, ModuleOp, StringAttr, SymbolRefAttr, TensorType, i32
from xdsl.dialects.utils import AbstractYieldOperation
from xdsl.ir import Attribute, Block, Data, Dialect, Operation, Region, SSAValue
from xdsl.irdl import (
    AnyAttr,
    AttrSizedOperandSegments,
    IRDLOperation,
    RangeOf,
    RangeVarConstraint,
    VarConstraint,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import AttrParser, Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import IsTerminator, Pure, RecursiveMemoryEffect, SymbolUserOpInterface
from xdsl.utils.exceptions import VerifyException

from hlo_run.dialects.types import SEGMENTS, is_tensor, is_vector, operand_segments, tensor_type
from hlo_run.errors import HloRunError
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.indexing.printer import attribute_text
from hlo_run.indexing.text import parse_indexing_map


@irdl_attr_definition
class IndexingMapAttr(Data[IndexingMap]):
    """`#xla_gpu.indexing_map<"(dims)[ranges] -> (results), domain: ..">`. The parser joins adjacent strings."""

    name = "xla_gpu.indexing_map"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> IndexingMap:
        """Parse one or more string literals in angle brackets as a map. A malformed map is a parse error."""
        with parser.in_angle_brackets():
            position = parser.pos
            text = parser.parse_str_literal()
            while (more := parser.parse_optional_str_literal()) is not None:
                text += " " + more
            try:
                return parse_indexing_map(text)
            except HloRunError as error:
                parser.raise_error(error.message, position)

    def print_parameter(self, printer: Printer) -> None:
        """Print the map as one string literal in angle brackets."""
        with printer.in_angle_brackets():
            printer.print_string_literal(attribute_text(self.data))


@irdl_op_definition
class YieldOp(AbstractYieldOperation[Attribute]):
    """The terminator of the body of a loop or an atomic_rmw."""

    name = "xla_gpu.yield"
    traits = traits_def(IsTerminator(), Pure())

    def verify_(self) -> None:
        """Check that the parent is a loop or an atomic_rmw."""
        if not isinstance(self.parent_op(), LoopOp | AtomicRMWOp):
            raise VerifyException("'xla_gpu.yield' must be in an xla_gpu.loop or xla_gpu.atomic_rmw")


@irdl_op_definition
class LoopOp(IRDLOperation):
    """Nested loops over the range variables of a map, the first outermost. Steps outside the map's domain do nothing.

    The block arguments are one index per range variable, one index per map result, then the iteration values.
    """

    name = "xla_gpu.loop"
    indexing_map = prop_def(IndexingMapAttr)
    dims = var_operand_def(IndexType)
    inits = var_operand_def()
    res = var_result_def()
    body = region_def("single_block")
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(RecursiveMemoryEffect())

    def __init__(
        self,
        indexing_map: IndexingMapAttr | IndexingMap,
        dims: Sequence[SSAValue],
        inits: Sequence[SSAValue],
        body: Region | None = None,
    ) -> None:
        """Make a loop; without `body` its body is empty and its block arguments are named after the map's range variables."""
        attr = indexing_map if isinstance(indexing_map, IndexingMapAttr) else IndexingMapAttr(indexing_map)
        # Not the constructor of IRDL ops, which sorts operands into segments: it takes four times as long.
        Operation.__init__(
            self,
            operands=(*dims, *inits),
            result_types=[init.type for init in inits],
            properties={"indexing_map": attr, SEGMENTS: operand_segments(len(dims), len(inits))},
            regions=[_empty_loop_body(attr.data, inits) if body is None else body],
        )

    def set_dims(self, indexing_map: IndexingMap, dims: Sequence[SSAValue]) -> None:
        """Replace the map and its dimensions. The map's ranges and results must be as many as before."""
        inits = tuple(self.inits)
        self.indexing_map = IndexingMapAttr(indexing_map)
        self.operands = (*dims, *inits)
        self.properties[SEGMENTS] = operand_segments(len(dims), len(inits))

    @property
    def map(self) -> IndexingMap:
        """The map whose range variables the loop steps through."""
        return self.indexing_map.data

    @property
    def induction_variables(self) -> Sequence[SSAValue]:
        """The block arguments for the range variables, the outermost loop first."""
        return self.body.block.args[: len(self.map.ranges)]

    @property
    def map_results(self) -> Sequence[SSAValue]:
        """The block arguments for the results of the map at the current step."""
        first = len(self.map.ranges)
        return self.body.block.args[first : first + len(self.map.results)]

    @property
    def iteration_values(self) -> Sequence[SSAValue]:
        """The block arguments for the values that one step passes to the next, one per init."""
        return self.body.block.args[len(self.map.ranges) + len(self.map.results) :]

    @property
    def yield_op(self) -> YieldOp:
        """The terminator of the body; its operands are the next iteration values."""
        last = self.body.block.last_op
        assert isinstance(last, YieldOp), "a verified loop body ends in a yield"
        return last

    def verify_(self) -> None:
        """Check the counts and types of operands, block arguments, results and yielded values.

        The map has one dimension per dim operand and no runtime variables. Inits, iteration values, yielded values and results
        have the same types. The other block arguments are indices.
        """
        args, used_map = self.body.block.args, self.map
        if len(self.dims) != len(used_map.dims):
            raise VerifyException(f"loop has {len(self.dims)} dims, its map has {len(used_map.dims)}")
        if used_map.rts:
            raise VerifyException("the map of a loop must have no runtime variables")
        if len(args) != len(used_map.ranges) + len(used_map.results) + len(self.inits):
            raise VerifyException(
                f"loop body has {len(args)} arguments, expected {len(used_map.ranges)} induction variables, "
                f"{len(used_map.results)} map results and {len(self.inits)} iteration values"
            )
        first = len(args) - len(self.inits)
        if any(not isinstance(arg.type, IndexType) for arg in args[:first]):
            raise VerifyException("induction variables and map results of a loop must be of index type")
        types = tuple(init.type for init in self.inits)
        last = self.body.block.last_op
        if not isinstance(last, YieldOp):
            raise VerifyException("the body of a loop must end in xla_gpu.yield")
        for what, found in (
            ("iteration values", tuple(arg.type for arg in args[first:])),
            ("results", self.result_types),
            ("yielded values", last.operand_types),
        ):
            if tuple(found) != types:
                raise VerifyException(f"types of the {what} of a loop differ from the types of its inits")

    def print(self, printer: Printer) -> None:
        """Print `(%dims)[%i] -> (%r) in #map iter_args(%value = %init) -> (f32) {..}`; without inits, no `iter_args` or types."""
        printer.print_string(" (")
        printer.print_list(self.dims, printer.print_ssa_value)
        printer.print_string(")[")
        printer.print_list(self.induction_variables, printer.print_ssa_value)
        printer.print_string("] -> (")
        printer.print_list(self.map_results, printer.print_ssa_value)
        printer.print_string(") in ")
        printer.print_attribute(self.indexing_map)
        if self.inits:
            printer.print_string(" iter_args(")
            printer.print_list(zip(self.iteration_values, self.inits, strict=True), lambda p: _print_assignment(printer, *p))
            printer.print_string(") -> (")
            printer.print_list(self.result_types, printer.print_attribute)
            printer.print_string(")")
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False, print_empty_block=False)
        printer.print_op_attributes(self.attributes)

    @classmethod
    def parse(cls, parser: Parser) -> LoopOp:
        """Parse `(%dims)[%i] -> (%r) in #map iter_args(%value = %init) -> (f32) {..}`; `iter_args(..) -> (..)` is optional."""
        dims = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: parser.parse_operand(IndexType()))
        index_args = _parse_index_args(parser, parser.Delimiter.SQUARE)
        parser.parse_punctuation("->")
        index_args += _parse_index_args(parser, parser.Delimiter.PAREN)
        parser.parse_keyword("in")
        attr = _parse_map(parser)
        pairs, types = _parse_iter_args(parser)
        inits = parser.resolve_operands([init for _, init in pairs], types, parser.pos)
        iter_args = [arg.resolve(type_) for (arg, _), type_ in zip(pairs, types, strict=True)]
        body = parser.parse_region([*index_args, *iter_args])
        op = cls(attr, dims, inits, body)
        op.attributes |= parser.parse_optional_attr_dict()
        return op


def _empty_loop_body(indexing_map: IndexingMap, inits: Sequence[SSAValue]) -> Region:
    index_count = len(indexing_map.ranges) + len(indexing_map.results)
    block = Block(arg_types=[*([IndexType()] * index_count), *(init.type for init in inits)])
    for arg, variable in zip(block.args, indexing_map.ranges, strict=False):
        arg.name_hint = variable.name or None
    return Region(block)


def _print_assignment(printer: Printer, arg: SSAValue, init: SSAValue) -> None:
    printer.print_ssa_value(arg)
    printer.print_string(" = ")
    printer.print_ssa_value(init)


def _parse_index_args(parser: Parser, delimiter: Parser.Delimiter) -> list[Parser.Argument]:
    arguments = parser.parse_comma_separated_list(delimiter, lambda: parser.parse_argument(expect_type=False))
    return [argument.resolve(IndexType()) for argument in arguments]


def _parse_iter_args(
    parser: Parser,
) -> tuple[list[tuple[Parser.UnresolvedArgument, UnresolvedOperand]], list[Attribute]]:
    if parser.parse_optional_keyword("iter_args") is None:
        return [], []

    def parse_pair() -> tuple[Parser.UnresolvedArgument, UnresolvedOperand]:
        arg = parser.parse_argument(expect_type=False)
        parser.parse_punctuation("=")
        return arg, parser.parse_unresolved_operand()

    position = parser.pos
    pairs = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parse_pair)
    parser.parse_punctuation("->")
    types: list[Attribute] = [*parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)]
    if len(pairs) != len(types):
        parser.raise_error(f"{len(pairs)} iteration values but {len(types)} types", position)
    return pairs, types


def _parse_map(parser: Parser) -> IndexingMapAttr:
    position = parser.pos
    attr = parser.parse_attribute()
    if not isinstance(attr, IndexingMapAttr):
        parser.raise_error("expected an #xla_gpu.indexing_map", position)
    return attr


def _function_named(op: Operation, name: StringAttr) -> func.FuncOp | None:
    """Return the function `name` of the module around `op`. Ten times faster than xDSL's lookup, which reads all traits."""
    module = op.parent_op()
    while module is not None and not isinstance(module, ModuleOp):
        module = module.parent_op()
    functions = () if module is None else module.body.block.ops
    return next((each for each in functions if isinstance(each, func.FuncOp) and each.sym_name == name), None)


class _CalleeExists(SymbolUserOpInterface):
    """Checks that the callee is a `func.func` with as many arguments as the call. Result types are not checked."""

    def verify(self, op: Operation) -> None:
        assert isinstance(op, PureCallOp), "the trait belongs to pure_call"
        callee = _function_named(op, op.callee.root_reference)
        if callee is None:
            raise VerifyException(f"pure_call of {op.callee}, which is not a func.func")
        if len(callee.function_type.inputs) != len(op.arguments):
            raise VerifyException(
                f"pure_call of {op.callee} with {len(op.arguments)} arguments, expected {len(callee.function_type.inputs)}"
            )


@irdl_op_definition
class PureCallOp(IRDLOperation):
    """A call without side effects: equal calls can be merged, unused calls dropped."""

    name = "xla_gpu.pure_call"
    callee = prop_def(SymbolRefAttr)
    arguments = var_operand_def()
    res = var_result_def()
    traits = traits_def(Pure(), _CalleeExists())
    assembly_format = "$callee `(` $arguments `)` attr-dict `:` functional-type($arguments, $res)"

    def __init__(self, callee: str | SymbolRefAttr, arguments: Sequence[SSAValue], result_types: Sequence[Attribute]) -> None:
        symbol = SymbolRefAttr(callee) if isinstance(callee, str) else callee
        super().__init__(operands=[arguments], result_types=[result_types], properties={"callee": symbol})


@irdl_op_definition
class ApplyIndexingOp(IRDLOperation):
    """Evaluate a map without constraints. The operands are its dims, then its symbols; each map result is one index."""

    name = "xla_gpu.apply_indexing"
    indexing_map = prop_def(IndexingMapAttr)
    arguments = var_operand_def(IndexType)
    res = var_result_def(IndexType)
    traits = traits_def(Pure())

    def __init__(self, indexing_map: IndexingMapAttr | IndexingMap, arguments: Sequence[SSAValue]) -> None:
        attr = indexing_map if isinstance(indexing_map, IndexingMapAttr) else IndexingMapAttr(indexing_map)
        super().__init__(
            operands=[arguments],
            result_types=[[IndexType()] * len(attr.data.results)],
            properties={"indexing_map": attr},
        )

    @property
    def map(self) -> IndexingMap:
        """The map to evaluate."""
        return self.indexing_map.data

    def verify_(self) -> None:
        """Check that the map has no constraints, one variable per operand, and one result per op result."""
        used_map = self.map
        expected = len(used_map.dims) + len(used_map.ranges) + len(used_map.rts)
        if len(self.arguments) != expected:
            raise VerifyException(f"apply_indexing has {len(self.arguments)} operands, its map has {expected} variables")
        if used_map.constraints:
            raise VerifyException("apply_indexing cannot have constraints in its map")
        if len(self.res) != len(used_map.results):
            raise VerifyException(f"apply_indexing has {len(self.res)} results, its map has {len(used_map.results)}")

    def print(self, printer: Printer) -> None:
        """Print `#map(%dim)[%symbol]`, without brackets that would be empty."""
        printer.print_string(" ")
        printer.print_attribute(self.indexing_map)
        dim_count = len(self.map.dims)
        for operands, brackets in ((self.arguments[:dim_count], "()"), (self.arguments[dim_count:], "[]")):
            if operands:
                with printer.delimited(brackets[0], brackets[1]):
                    printer.print_list(operands, printer.print_ssa_value)
        printer.print_op_attributes(self.attributes)

    @classmethod
    def parse(cls, parser: Parser) -> ApplyIndexingOp:
        """Parse `#map(%dim)[%symbol]`; both lists are optional. All operands are of index type."""
        attr = _parse_map(parser)
        operands: list[SSAValue] = []
        for delimiter in (parser.Delimiter.PAREN, parser.Delimiter.SQUARE):
            operands += parser.parse_optional_comma_separated_list(delimiter, lambda: parser.parse_operand(IndexType())) or []
        op = cls(attr, operands)
        op.attributes |= parser.parse_optional_attr_dict()
        return op


@irdl_op_definition
class AtomicRMWOp(IRDLOperation):
    """Read an element, compute its new value, and write it atomically. Returns the new tensor.

    The block argument is the current element, or a rank-1 vector of elements that begin at the index.
    """

    name = "xla_gpu.atomic_rmw"
    tensor = operand_def(TensorType)
    indices = var_operand_def(IndexType)
    res = result_def(TensorType)
    body = region_def("single_block")

    def __init__(self, tensor: SSAValue, indices: Sequence[SSAValue], body: Region | None = None) -> None:
        region = Region(Block(arg_types=[tensor_type(tensor).get_element_type()])) if body is None else body
        super().__init__(operands=[tensor, indices], result_types=[tensor.type], regions=[region])

    @property
    def current(self) -> SSAValue:
        """The block argument: the current element or elements."""
        return self.body.block.args[0]

    @property
    def yield_op(self) -> YieldOp:
        """The terminator of the body; its operand is the new value."""
        last = self.body.block.last_op
        assert isinstance(last, YieldOp), "a verified atomic_rmw body ends in a yield"
        return last

    def verify_(self) -> None:
        """Check that the body takes one argument and yields one value of the same type.

        The argument has the tensor's element type, or is a rank-1 vector of it. The result has the tensor's type, and each
        dimension of the tensor has one index.
        """
        args, last = self.body.block.args, self.body.block.last_op
        if len(args) != 1:
            raise VerifyException("atomic_rmw must have one block argument, the current value")
        if not isinstance(last, YieldOp) or tuple(last.operand_types) != (args[0].type,):
            raise VerifyException("atomic_rmw must yield one value of the type of its block argument")
        tensor, element = tensor_type(self.tensor), args[0].type
        if is_vector(element):
            if element.get_num_dims() != 1:
                raise VerifyException("a vector argument of atomic_rmw must have rank 1")
            element = element.get_element_type()
        if element != tensor.get_element_type():
            raise VerifyException("the block argument of atomic_rmw differs from the tensor's element type")
        if self.res.type != tensor:
            raise VerifyException("result type of atomic_rmw differs from the type of its tensor")
        if len(self.indices) != tensor.get_num_dims():
            raise VerifyException("atomic_rmw needs one index per dimension")

    def print(self, printer: Printer) -> None:
        """Print `%tensor[%i] : tensor<8xf32> {..}`; the body prints its block argument."""
        printer.print_string(" ")
        printer.print_ssa_value(self.tensor)
        with printer.in_square_brackets():
            printer.print_list(self.indices, printer.print_ssa_value)
        printer.print_string(" : ")
        printer.print_attribute(self.tensor.type)
        printer.print_string(" ")
        printer.print_region(self.body)
        printer.print_op_attributes(self.attributes)

    @classmethod
    def parse(cls, parser: Parser) -> AtomicRMWOp:
        """Parse `%tensor[%i] : tensor<8xf32> {..}`. The indices are of index type."""
        tensor = parser.parse_unresolved_operand()
        indices = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parser.parse_operand(IndexType()))
        parser.parse_punctuation(":")
        position = parser.pos
        type_ = parser.parse_type()
        if not is_tensor(type_):
            parser.raise_error("expected a tensor type", position)
        op = cls(parser.resolve_operand(tensor, type_), indices, parser.parse_region())
        op.attributes |= parser.parse_optional_attr_dict()
        return op


@irdl_op_definition
class PredicatedInsertOp(IRDLOperation):
    """Insert the value into the tensor if the condition is true; otherwise return the tensor unchanged."""

    name = "xla_gpu.predicated_insert"
    _ELEMENT: ClassVar = VarConstraint("ELEMENT", AnyAttr())
    _TENSOR: ClassVar = VarConstraint("TENSOR", TensorType.constr(_ELEMENT))
    value = operand_def(_ELEMENT)
    dest = operand_def(_TENSOR)
    indices = var_operand_def(IndexType)
    condition = operand_def(builtin.i1)
    res = result_def(_TENSOR)
    traits = traits_def(Pure())
    assembly_format = "$value `into` $dest `[` $indices `]` `if` $condition attr-dict `:` type($dest)"

    def __init__(self, value: SSAValue, dest: SSAValue, indices: Sequence[SSAValue], condition: SSAValue) -> None:
        super().__init__(operands=[value, dest, indices, condition], result_types=[dest.type])

    def verify_(self) -> None:
        """Check that the tensor has a static shape and one index per dimension."""
        _verify_static_access(self.dest, self.indices)


@irdl_op_definition
class PredicatedExtractOp(IRDLOperation):
    """Read the element if the condition is true; otherwise return the fallback and read nothing."""

    name = "xla_gpu.predicated_extract"
    _ELEMENT: ClassVar = VarConstraint("ELEMENT", AnyAttr())
    source = operand_def(TensorType.constr(_ELEMENT))
    indices = var_operand_def(IndexType)
    condition = operand_def(builtin.i1)
    fallback = operand_def(_ELEMENT)
    res = result_def(_ELEMENT)
    traits = traits_def(Pure())
    assembly_format = "$source `[` $indices `]` `if` $condition `else` $fallback attr-dict `:` type($source)"

    def __init__(self, source: SSAValue, indices: Sequence[SSAValue], condition: SSAValue, fallback: SSAValue) -> None:
        super().__init__(operands=[source, indices, condition, fallback], result_types=[fallback.type])

    def verify_(self) -> None:
        """Check that the tensor has a static shape and one index per dimension."""
        _verify_static_access(self.source, self.indices)


def _verify_static_access(tensor: SSAValue, indices: Sequence[SSAValue]) -> None:
    type_ = tensor_type(tensor)
    if builtin.DYNAMIC_INDEX in type_.get_shape():
        raise VerifyException("predicated accesses need a static shape")
    if len(indices) != type_.get_num_dims():
        raise VerifyException("predicated accesses need one index per dimension")


@irdl_op_definition
class AllocateSharedOp(IRDLOperation):
    """A new uninitialised tile of shared memory. Not pure: two tiles must not be merged."""

    name = "xla_gpu.allocate_shared"
    res = result_def(TensorType)
    assembly_format = "attr-dict `:` type($res)"

    def __init__(self, type_: TensorType[Attribute]) -> None:
        super().__init__(result_types=[type_])

    def verify_(self) -> None:
        """Check that the tile has a static shape."""
        if builtin.DYNAMIC_INDEX in tensor_type(self.res).get_shape():
            raise VerifyException("shared memory needs a static shape")


@irdl_op_definition
class SyncThreadsOp(IRDLOperation):
    """A barrier. The results are the tiles with the writes of all threads of the block. Not pure."""

    name = "xla_gpu.sync_threads"
    _TYPES: ClassVar = RangeVarConstraint("TYPES", RangeOf(TensorType))
    tensors = var_operand_def(_TYPES)
    res = var_result_def(_TYPES)
    assembly_format = "$tensors attr-dict `:` type($tensors)"

    def __init__(self, tensors: Sequence[SSAValue]) -> None:
        super().__init__(operands=[tensors], result_types=[[tensor.type for tensor in tensors]])


@irdl_op_definition
class ShuffleReduceOp(IRDLOperation):
    """Reduce values over the lanes of a warp, at distances `max_distance`, `max_distance` / 2, .., 1.

    The combiner takes this lane's values first, then the values of the lane at the distance.
    """

    name = "xla_gpu.shuffle_reduce"
    combiner = prop_def(SymbolRefAttr)
    max_distance = prop_def(IntegerAttr[builtin.I32])
    values = var_operand_def()
    res = var_result_def()

    def __init__(self, combiner: str | SymbolRefAttr, values: Sequence[SSAValue], max_distance: int) -> None:
        symbol = SymbolRefAttr(combiner) if isinstance(combiner, str) else combiner
        super().__init__(
            operands=[values],
            result_types=[[value.type for value in values]],
            properties={"combiner": symbol, "max_distance": IntegerAttr(max_distance, i32)},
        )

    def verify_(self) -> None:
        """Check that the results have the types of the operands."""
        if tuple(self.result_types) != tuple(self.operand_types):
            raise VerifyException("result types of shuffle_reduce differ from its operand types")

    def print(self, printer: Printer) -> None:
        """Print `(%value) to 16 combiner=@add : f32`: the maximum distance, the combiner and the result types."""
        with printer.in_parens():
            printer.print_list(self.values, printer.print_ssa_value)
        printer.print_string(f" to {self.max_distance.value.data} combiner=")
        printer.print_attribute(self.combiner)
        printer.print_op_attributes(self.attributes)
        if self.values:
            printer.print_string(" : ")
            printer.print_list(self.result_types, printer.print_attribute)

    @classmethod
    def parse(cls, parser: Parser) -> ShuffleReduceOp:
        """Parse `(%value) to 16 combiner=@add : f32`. Without values, the types are absent."""
        unresolved = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
        parser.parse_keyword("to")
        max_distance = parser.parse_integer(allow_boolean=False, allow_negative=False)
        parser.parse_keyword("combiner")
        parser.parse_punctuation("=")
        combiner = parser.parse_attribute()
        if not isinstance(combiner, SymbolRefAttr):
            parser.raise_error("expected a symbol")
        attributes = parser.parse_optional_attr_dict()
        types: list[Attribute] = []
        if parser.parse_optional_punctuation(":"):
            types += parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        op = cls(combiner, parser.resolve_operands(unresolved, types, parser.pos), max_distance)
        op.attributes |= attributes
        return op


XlaGpu = Dialect(
    "xla_gpu",
    [
        LoopOp,
        YieldOp,
        PureCallOp,
        ApplyIndexingOp,
        AtomicRMWOp,
        PredicatedInsertOp,
        PredicatedExtractOp,
        AllocateSharedOp,
        SyncThreadsOp,
        ShuffleReduceOp,
    ],
    [IndexingMapAttr],
)
