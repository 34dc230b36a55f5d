"""Flatten every tensor and vector of rank 2 or more to rank 1, with the elements in memory order.

    %x = tensor.extract %t[%i, %j] : tensor<8x16xf32>
      =>
    %k = xla_gpu.apply_indexing #xla_gpu.indexing_map<"(d0, d1) -> (d0 * 16 + d1), ..">(%i, %j)
    %x = tensor.extract %t[%k] : tensor<128xf32>

The pass removes layouts, which are the encodings of tensor types. If %i and %j are results of apply_indexing, the maps are
composed to one map over dims only, so that vectorize-loads-stores sees how the offset depends on a loop. Accesses of one
block at equal indices share their offset. Predicated accesses, shuffles and xla_gpu.loop must be lowered before.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeAlias

import numpy as np
from msgspec import Struct, field
from xdsl.context import Context
from xdsl.dialects import arith, func, tensor, vector
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AffineMapAttr,
    BytesAttr,
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    FunctionType,
    IndexType,
    IntegerAttr,
    IntegerType,
    ModuleOp,
    NoneAttr,
    TensorType,
    VectorType,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from hlo_run.dialects.editing.loops import hand_on_origin
from hlo_run.dialects.editing.rewriting import ops_in
from hlo_run.dialects.types import constant_int, is_tensor, is_vector
from hlo_run.dialects.xla_gpu import ApplyIndexingOp, AtomicRMWOp
from hlo_run.errors import InternalError
from hlo_run.indexing.expr import ZERO, Expr, constant, dim
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.indexing.interval import Interval
from hlo_run.indexing.substitute import Substitution
from hlo_run.indexing.variable import Variable

_Position: TypeAlias = SSAValue | int
_DYNAMIC = DenseArrayBase.from_list(i64, [DYNAMIC_INDEX])  # a position that is an operand


class FlattenTensors(ModulePass):
    """Flattens tensors and vectors to rank 1, in memory order, and removes layouts."""

    name = "flatten-tensors"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Flatten the indices of all accesses, then the types of all values."""
        ops = ops_in(op)
        offsets = _Offsets()
        for each in ops:  # before types change, because they hold the shapes
            _flatten_access(each, offsets)
        types = _FlatTypes()
        for each in reversed(ops):  # users first, so that chains of dead apply_indexing ops are erased
            if isinstance(each, ApplyIndexingOp) and not any(result.uses for result in each.results):
                Rewriter.erase_op(each)
            else:
                _flatten_types(each, types)


def _rank(type_: Attribute) -> int:
    return type_.get_num_dims() if is_tensor(type_) or is_vector(type_) else 0


def minor_to_major(type_: TensorType[Attribute]) -> tuple[int, ...]:
    """Return the layout of a tensor type: its dimensions, the fastest varying first."""
    encoding: Attribute = type_.encoding
    if not isinstance(encoding, NoneAttr) and isa(encoding, DenseIntOrFPElementsAttr[IntegerType]):
        return tuple(encoding.get_values())
    return tuple(reversed(range(type_.get_num_dims())))


# Accesses: replace several indices by one.


def _flatten_access(op: Operation, offsets: _Offsets) -> None:
    match op:
        case tensor.ExtractOp() if _rank(op.tensor.type) > 1:
            op.operands = [op.tensor, offsets.of(op, op.tensor.type, op.indices)]
        case tensor.InsertOp() if _rank(op.dest.type) > 1:
            op.operands = [op.scalar, op.dest, offsets.of(op, op.dest.type, op.indices)]
        case AtomicRMWOp() if _rank(op.tensor.type) > 1:
            op.operands = [op.tensor, offsets.of(op, op.tensor.type, op.indices)]
        case vector.TransferReadOp() | vector.TransferWriteOp() if _rank(op.source.type) > 1:
            _flatten_transfer(op, offsets)
        case vector.ExtractOp() if _rank(op.vector.type) > 1:
            _check_scalar(op, op.result.type)
            op.operands = [op.vector, offsets.of(op, op.vector.type, op.get_mixed_position())]
            op.static_position = _DYNAMIC
        case vector.InsertOp() if _rank(op.dest.type) > 1:
            _check_scalar(op, op.source.type)
            op.operands = [op.source, op.dest, offsets.of(op, op.dest.type, op.get_mixed_position())]
            op.static_position = _DYNAMIC
        case _:
            pass


def _check_scalar(op: Operation, element: Attribute) -> None:
    if is_vector(element):
        raise InternalError(f"flatten-tensors cannot flatten '{op.name}' of a part that is itself a vector")


def _flatten_transfer(op: vector.TransferReadOp | vector.TransferWriteOp, offsets: _Offsets) -> None:
    type_ = op.source.type
    moved = op.result.type if isinstance(op, vector.TransferReadOp) else op.vector.type
    assert is_tensor(type_), "kernels hold no memrefs"
    if _rank(moved) != 1 or not op.permutation_map.data.is_minor_identity() or minor_to_major(type_)[0] != _rank(type_) - 1:
        raise InternalError(f"flatten-tensors cannot flatten '{op.name}' that does not move neighbours in memory")
    index = offsets.of(op, type_, op.indices)
    is_read = isinstance(op, vector.TransferReadOp)
    op.operands = [op.source, index, op.padding] if is_read else [op.vector, op.source, index]
    op.properties["operandSegmentSizes"] = DenseArrayBase.from_list(i32, [1, 1, 1, 0])
    op.permutation_map = AffineMapAttr(AffineMap.identity(1))


class _Offsets(Struct):
    """Makes the linear offsets of accesses. Accesses in one block with equal types and indices share an offset."""

    known: dict[tuple[object, ...], SSAValue] = field(default_factory=dict[tuple[object, ...], SSAValue])

    def of(self, op: Operation, type_: Attribute, indices: Sequence[_Position]) -> SSAValue:
        key = (op.parent, type_, *indices)
        if key not in self.known:
            self.known[key] = _linear_index(op, type_, indices)
        return self.known[key]


def _linear_index(op: Operation, type_: Attribute, indices: Sequence[_Position]) -> SSAValue:
    assert is_tensor(type_) or is_vector(type_), "only shaped values have indices"
    sizes = type_.get_shape()
    layout = minor_to_major(type_) if is_tensor(type_) else tuple(reversed(range(len(sizes))))
    folder = _IndexFolder()
    exprs = [folder.expr(index, Variable(Interval.of_size(size))) for index, size in zip(indices, sizes, strict=True)]
    total, stride = ZERO, 1
    for each in layout:
        total += exprs[each] * stride
        stride *= sizes[each]
    full = IndexingMap(tuple(folder.variables), (), (), (total,)).simplify()
    used, kept = full.remove_unused_vars()
    values = [value for value, keep in zip(folder.values, kept, strict=True) if keep]
    offset = used.results[0]
    if offset.is_constant:
        return _insert(op, arith.ConstantOp(IntegerAttr(offset.value, IndexType())))
    if offset.is_variable:
        return values[offset.value]
    return _insert(op, ApplyIndexingOp(used, values))


def _insert(op: Operation, new: Operation) -> SSAValue:
    Rewriter.insert_op(hand_on_origin(op, new), InsertPoint.before(op))
    return new.results[0]


class _IndexFolder(Struct):
    """Expands index values through apply_indexing and constants to expressions; dimension i is `values[i]`."""

    values: list[SSAValue] = field(default_factory=list[SSAValue])
    variables: list[Variable] = field(default_factory=list[Variable])

    def expr(self, index: _Position, variable: Variable) -> Expr:
        """Return `index`, which is in the bounds of `variable`, as an expression."""
        number = index if isinstance(index, int) else constant_int(index)
        if number is not None:
            return constant(number)
        assert isinstance(index, SSAValue), "an index is a number or a value"
        producer = index.owner
        if not isinstance(producer, ApplyIndexingOp):
            return self._variable(index, variable)
        used = producer.map
        inner = [self.expr(value, own) for value, own in zip(producer.arguments, used.dims + used.symbols, strict=True)]
        count = len(used.dims)
        return Substitution(inner[:count], inner[count:])(used.results[producer.res.index(index)])

    def _variable(self, value: SSAValue, variable: Variable) -> Expr:
        is_taken = any(variable.name == other.name for other in self.variables)
        name = "" if is_taken else variable.name
        if value in self.values:
            place = self.values.index(value)
            known = self.variables[place]
            self.variables[place] = Variable(known.bounds.intersect(variable.bounds), known.name or name)
            return dim(place)
        self.values.append(value)
        self.variables.append(Variable(variable.bounds, name))
        return dim(len(self.values) - 1)


# Types.


class _FlatTypes(Struct):
    """A cache of flat types."""

    known: dict[Attribute, Attribute] = field(default_factory=dict[Attribute, Attribute])

    def of(self, type_: Attribute) -> Attribute:
        if not is_tensor(type_) and not is_vector(type_):
            return type_
        flat = self.known.get(type_)
        if flat is None:
            flat = self.known[type_] = _flat_type(type_)
        return flat


def _flat_type(type_: TensorType[Attribute] | VectorType[Attribute]) -> Attribute:
    size = [prod(type_.get_shape())]
    if is_tensor(type_):
        return TensorType(type_.get_element_type(), size if type_.get_num_dims() else [])
    return type_ if type_.get_num_dims() < 2 else VectorType(type_.get_element_type(), size)


def _flatten_types(op: Operation, types: _FlatTypes) -> None:
    if isinstance(op, arith.ConstantOp):
        _flatten_constant(op, types)
    for value in (*op.results, *(arg for region in op.regions for block in region.blocks for arg in _args(block))):
        flat = types.of(value.type)
        if flat != value.type:
            Rewriter.replace_value_with_new_type(value, flat)
    if isinstance(op, func.FuncOp):
        inputs, outputs = op.function_type.inputs, op.function_type.outputs
        op.function_type = FunctionType.from_lists([types.of(t) for t in inputs], [types.of(t) for t in outputs])


def _args(block: Block) -> Sequence[SSAValue]:
    return block.args


def _flatten_constant(op: arith.ConstantOp, types: _FlatTypes) -> None:
    value, type_ = op.value, op.result.type
    flat = types.of(type_)
    if flat == type_ or not isinstance(value, DenseIntOrFPElementsAttr):
        return
    data = value.data.data
    if is_tensor(type_):
        in_memory = np.frombuffer(data, np.uint8).reshape(*type_.get_shape(), -1)
        order = tuple(reversed(minor_to_major(type_)))
        data = in_memory.transpose(*order, type_.get_num_dims()).tobytes()
    op.properties["value"] = DenseIntOrFPElementsAttr.new([flat, BytesAttr(data)])
