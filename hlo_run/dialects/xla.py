"""XLA's spelling of kernel IR: the dialect `xla`, which is read and converted to ours.

    %0 = xla.workgroup_id x                                                  %0 = gpu.block_id  x
    %3 = scf.forall (%t, %u, %v) in (128, 1, 1) shared_outs(%o = %a) ..      %t = gpu.thread_id  x, and the body
    %p = xla.pure_call @f(%t)                                                %p = xla_gpu.pure_call @f(%t)

Ops that differ in their name alone are parsed as our op. `become_ours` replaces the others after parsing, so that the passes
know one form.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import auto
from itertools import product
from math import prod
from typing import Any

from xdsl.dialects import vector
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    IndexType,
    IntegerAttr,
    IntegerType,
    ModuleOp,
    UnrealizedConversionCastOp,
    VectorType,
    i64,
)
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, Data, Dialect, Operation, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
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
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import IsTerminator, NoTerminator
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.str_enum import StrEnum

from hlo_run.dialects import gpu, llvm_extra, xla_gpu
from hlo_run.dialects.types import is_vector, tensor_type


class BackendKind(StrEnum):
    """The backend for which XLA emitted a function."""

    CPU = auto()
    GPU = auto()


@irdl_attr_definition
class BackendKindAttr(EnumAttribute[BackendKind]):
    """The backend of a kernel, `#xla.backend_kind<gpu>`."""

    name = "xla.backend_kind"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> BackendKind:
        """Parse the backend in angle brackets."""
        with parser.in_angle_brackets():
            return parser.parse_str_enum(BackendKind)

    def print_parameter(self, printer: Printer) -> None:
        """Print the backend in angle brackets."""
        with printer.in_angle_brackets():
            printer.print_string(f"{self.data.value}")


class _XlaIndexingMap(Data[Any]):
    """`#xla.indexing_map<"..">`, read as our attribute."""

    name = "xla.indexing_map"

    def __new__(cls, data: Any) -> Any:
        """Return our attribute."""
        return xla_gpu.IndexingMapAttr(data)

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Any:
        """Parse the map as ours."""
        return xla_gpu.IndexingMapAttr.parse_parameter(parser)

    def print_parameter(self, printer: Printer) -> None:
        """Print nothing: an instance of this class does not exist."""
        raise AssertionError("the class makes instances of another class")


def _spelled(ours: type[Any], name: str) -> type[Any]:
    """Return a class with XLA's name whose parser and constructor make an instance of our class."""

    def make(cls: type[Any], *_: Any, **__: Any) -> Any:
        return object.__new__(ours)

    def parse(cls: type[Any], parser: Parser) -> Any:
        return ours.parse(parser)

    members = {"name": name, "__new__": make, "parse": classmethod(parse), "__doc__": f"`{name}`, read as `{ours.name}`."}
    return type(f"_Xla{ours.__name__}", (ours,), members)


@irdl_op_definition
class ForallOp(IRDLOperation):
    """`scf.forall` over the threads of a block: each step is a thread, and the results are whole tensors.

    The block arguments are one index per bound, then the shared outputs.
    """

    name = "scf.forall"
    bounds = prop_def(DenseArrayBase.constr(i64))
    inits = var_operand_def()
    res = var_result_def()
    body = region_def("single_block")

    def __init__(self, bounds: DenseArrayBase[IntegerType], inits: list[SSAValue], body: Region) -> None:
        super().__init__(
            operands=[inits], result_types=[[init.type for init in inits]], properties={"bounds": bounds}, regions=[body]
        )

    @classmethod
    def parse(cls, parser: Parser) -> ForallOp:
        """Parse `(%t) in (128) shared_outs(%o = %a) -> (tensor<..>) {..}`; bounds are constants."""
        threads = parser.parse_comma_separated_list(
            parser.Delimiter.PAREN, lambda: parser.parse_argument(expect_type=False).resolve(IndexType())
        )
        parser.parse_keyword("in")
        bounds = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_integer)
        pairs: list[tuple[Any, Any]] = []
        types: list[Attribute] = []
        if parser.parse_optional_keyword("shared_outs"):

            def pair() -> tuple[Any, Any]:
                argument = parser.parse_argument(expect_type=False)
                parser.parse_punctuation("=")
                return argument, parser.parse_unresolved_operand()

            pairs = parser.parse_comma_separated_list(parser.Delimiter.PAREN, pair)
            parser.parse_punctuation("->")
            types += parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
        if len(threads) != len(bounds) or len(pairs) != len(types):
            parser.raise_error("scf.forall needs one index per bound and one type per shared output")
        inits = [*parser.resolve_operands([init for _, init in pairs], types, parser.pos)]
        outputs = [argument.resolve(type_) for (argument, _), type_ in zip(pairs, types, strict=True)]
        body = parser.parse_region([*threads, *outputs])
        op = cls(DenseArrayBase.from_list(i64, bounds), inits, body)
        op.attributes |= parser.parse_optional_attr_dict()
        return op

    def print(self, printer: Printer) -> None:
        """Print the form that `parse` reads."""
        block, count = self.body.block, len(self.bounds)
        printer.print_string(" (")
        printer.print_list(block.args[:count], printer.print_ssa_value)
        printer.print_string(f") in ({', '.join(map(str, self.bounds.get_values()))})")
        if self.inits:
            printer.print_string(" shared_outs(")
            pairs = [*zip(block.args[count:], self.inits, strict=True)]

            def pair(values: tuple[SSAValue, SSAValue]) -> None:
                printer.print_ssa_value(values[0])
                printer.print_string(" = ")
                printer.print_ssa_value(values[1])

            printer.print_list(pairs, pair)
            printer.print_string(") -> (")
            printer.print_list(self.res.types, printer.print_attribute)
            printer.print_string(")")
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)
        printer.print_op_attributes(self.attributes)

    def verify_(self) -> None:
        """Check that the bounds fit a block, and that each shared output is written once as a whole."""
        bounds = self.bounds.get_values()
        if len(bounds) > len(_AXES):
            raise VerifyException(f"scf.forall has {len(bounds)} bounds, and a block has at most 3")
        last = self.body.block.last_op
        if not isinstance(last, InParallelOp):
            raise VerifyException("the body of scf.forall must end in scf.forall.in_parallel")
        written = [op.dest for op in last.body.block.ops if isinstance(op, ParallelInsertSliceOp)]
        if sorted(map(id, written)) != sorted(map(id, self.body.block.args[len(bounds) :])):
            raise VerifyException("scf.forall must write each shared output once")


@irdl_op_definition
class InParallelOp(IRDLOperation):
    """The terminator of `scf.forall`: the slices that the threads write."""

    name = "scf.forall.in_parallel"
    body = region_def("single_block")
    traits = traits_def(IsTerminator(), NoTerminator())

    @classmethod
    def parse(cls, parser: Parser) -> InParallelOp:
        """Parse the region of slices."""
        return cls(regions=[parser.parse_region()])

    def print(self, printer: Printer) -> None:
        """Print the region of slices."""
        printer.print_string(" ")
        printer.print_region(self.body)


@irdl_op_definition
class ParallelInsertSliceOp(IRDLOperation):
    """`tensor.parallel_insert_slice`, of a whole tensor alone: each thread has inserted its elements before."""

    name = "tensor.parallel_insert_slice"
    source = operand_def()
    dest = operand_def()

    @classmethod
    def parse(cls, parser: Parser) -> ParallelInsertSliceOp:
        """Parse `%s into %d[0, 0] [8, 4] [1, 1] : tensor<8x4xf32> into tensor<8x4xf32>`."""
        source = parser.parse_unresolved_operand()
        parser.parse_keyword("into")
        dest = parser.parse_unresolved_operand()
        offsets, sizes, strides = (
            parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer) for _ in range(3)
        )
        parser.parse_punctuation(":")
        source_type = parser.parse_type()
        parser.parse_keyword("into")
        dest_type = parser.parse_type()
        op = cls(operands=[parser.resolve_operand(source, source_type), parser.resolve_operand(dest, dest_type)])
        if any(offsets) or any(stride != 1 for stride in strides) or tuple(sizes) != tensor_type(op.dest).get_shape():
            parser.raise_error("tensor.parallel_insert_slice of a part is not supported")
        return op

    def print(self, printer: Printer) -> None:
        """Print the slice of the whole tensor."""
        shape = tensor_type(self.dest).get_shape()
        printer.print_string(" ")
        printer.print_ssa_value(self.source)
        printer.print_string(" into ")
        printer.print_ssa_value(self.dest)
        lists = ([0] * len(shape), shape, [1] * len(shape))
        printer.print_string(" ".join(f"[{', '.join(map(str, values))}]" for values in lists) + " : ")
        printer.print_attribute(self.source.type)
        printer.print_string(" into ")
        printer.print_attribute(self.dest.type)


@irdl_op_definition
class WorkgroupIdOp(gpu.IdOp):
    """`xla.workgroup_id x`, only to be printed: the parser makes `gpu.block_id` of it."""

    name = "xla.workgroup_id"

    @classmethod
    def like(cls, op: gpu.BlockIdOp) -> WorkgroupIdOp:
        """Return the op for the same id, with the same attributes."""
        new = cls(op.dimension.data)
        new.attributes |= op.attributes
        return new


_AXES = "xyz"


def become_ours(module: ModuleOp) -> None:
    """Replace the ops of XLA's form of a kernel that have no single counterpart, in place."""
    for op in [*module.walk()]:
        if isinstance(op, ForallOp):
            _inline_threads(op)
        elif isinstance(op, FromElementsOp):
            _insert_elements(op)
        elif isinstance(op, UnrealizedConversionCastOp):
            _reconcile(op)
    for op in reversed([*module.walk()]):
        if isinstance(op, UnrealizedConversionCastOp) and not any(output.uses for output in op.outputs):
            Rewriter.erase_op(op)


def _reconcile(op: UnrealizedConversionCastOp) -> None:
    """Let the users of a cast that undoes other casts use the value before those."""
    if len(op.inputs) != 1 or len(op.outputs) != 1:
        return
    source: SSAValue = op.inputs[0]
    while isinstance(cast := source.owner, UnrealizedConversionCastOp) and len(cast.inputs) == 1:
        source = cast.inputs[0]
        if source.type == op.outputs[0].type:
            op.outputs[0].replace_all_uses_with(source)
            return


def _inline_threads(op: ForallOp) -> None:
    ids: list[SSAValue] = []
    for axis, bound in zip(_AXES, op.bounds.get_values(), strict=False):
        thread_id = gpu.ThreadIdOp(axis)
        thread_id.attributes["xla.range"] = ArrayAttr([IntegerAttr(0, IndexType()), IntegerAttr(int(bound) - 1, IndexType())])
        Rewriter.insert_op(thread_id, InsertPoint.before(op))
        ids.append(thread_id.result)
    block = op.body.block
    outputs, last = [*block.args[len(ids) :]], block.last_op
    assert isinstance(last, InParallelOp), "a verified body"
    sources = {insert.dest: insert.source for insert in last.body.block.ops if isinstance(insert, ParallelInsertSliceOp)}
    written = [sources[output] for output in outputs]
    given = dict[SSAValue, SSAValue](zip(outputs, op.inits, strict=True))
    values = [given.get(value, value) for value in written]
    last.detach()
    last.erase(safe_erase=False)
    for old, new in zip(block.args, [*ids, *op.inits], strict=True):
        hint = new.name_hint
        old.replace_all_uses_with(new)
        new.name_hint = hint  # xDSL gives it the name of the old value
    for inner in [*block.ops]:
        inner.detach()
        Rewriter.insert_op(inner, InsertPoint.before(op))
    for result, value in zip(op.res, values, strict=True):
        hint = value.name_hint
        result.replace_all_uses_with(value)
        value.name_hint = hint
    Rewriter.erase_op(op)


def _insert_elements(op: FromElementsOp) -> None:
    """Write a vector of elements as insertions; an extracted row of a vector of rank 2 becomes a vector."""
    elements, shape = [*op.elements], op.type.get_shape()
    row = prod(shape[1:])
    for use in [*op.res.uses]:
        user = use.operation
        if len(shape) > 1 and isinstance(user, vector.ExtractOp):
            first, *rest = user.get_mixed_position()
            if not rest and isinstance(first, int):
                value = _vector_of(elements[first * row : (first + 1) * row], user.result.type, user)
                user.result.replace_all_uses_with(value)
                Rewriter.erase_op(user)
    if op.res.uses:
        op.res.replace_all_uses_with(_vector_of(elements, op.type, op))
    Rewriter.erase_op(op)


def _vector_of(elements: Sequence[SSAValue], type_: Attribute, before: Operation) -> SSAValue:
    assert is_vector(type_), "a row of a vector is a vector"
    added: Operation = llvm_extra.PoisonOp(type_)
    Rewriter.insert_op(added, InsertPoint.before(before))
    for position, element in zip(product(*map(range, type_.get_shape())), elements, strict=True):
        added = vector.InsertOp(element, added.results[0], [*position])
        Rewriter.insert_op(added, InsertPoint.before(before))
    return added.results[0]


@irdl_op_definition
class FromElementsOp(IRDLOperation):
    """`vector.from_elements %a, %b : vector<2xf32>`: a vector of scalars."""

    name = "vector.from_elements"
    elements = var_operand_def()
    res = result_def(VectorType)

    @property
    def type(self) -> VectorType[Attribute]:
        """The type of the vector."""
        assert is_vector(self.res.type), "verified"
        return self.res.type

    @classmethod
    def parse(cls, parser: Parser) -> FromElementsOp:
        """Parse the elements, as many as the vector has, and the type."""
        names = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        position = parser.pos
        type_ = parser.parse_type()
        if not is_vector(type_) or prod(type_.get_shape()) != len(names):
            parser.raise_error(f"expected a vector of {len(names)} elements", position)
        elements = parser.resolve_operands(names, [type_.get_element_type()] * len(names), position)
        op = cls(operands=[elements], result_types=[type_])
        op.attributes |= attributes
        return op


_OURS = {
    "workgroup_id": gpu.BlockIdOp,
    "yield": xla_gpu.YieldOp,
    "loop": xla_gpu.LoopOp,
    "pure_call": xla_gpu.PureCallOp,
    "apply_indexing": xla_gpu.ApplyIndexingOp,
    "atomic_rmw": xla_gpu.AtomicRMWOp,
    "predicated_insert": xla_gpu.PredicatedInsertOp,
    "predicated_extract": xla_gpu.PredicatedExtractOp,
}
Xla = Dialect(
    "xla",
    [_spelled(op, f"xla.{name}") for name, op in _OURS.items()],
    [_XlaIndexingMap, BackendKindAttr],
)
NAMES = {ours.name: f"xla.{name}" for name, ours in _OURS.items() if ours is not gpu.BlockIdOp}
"""XLA's name of each of our ops that it spells differently."""
Ub = Dialect("ub", [_spelled(llvm_extra.PoisonOp, "ub.poison")], [])
EXTRA_SYNTAX: tuple[type[Operation], ...] = (ForallOp, InParallelOp, ParallelInsertSliceOp, FromElementsOp)
