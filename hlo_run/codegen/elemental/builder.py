"""The IR builder of emitters: appends ops to a block, reuses constants and indices, and sets the HLO origin of ops.

Ops are made with `create`: xDSL's constructors are four times slower, because they check types that emitters know.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from math import prod

import numpy as np
from msgspec import Struct, field
from xdsl.dialects import arith, complex, scf
from xdsl.dialects.builtin import (
    AnyFloat,
    ArrayAttr,
    BytesAttr,
    ComplexType,
    DenseIntOrFPElementsAttr,
    FixedBitwidthType,
    FloatAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    StringAttr,
    TensorType,
    VectorType,
    i1,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from hlo_run.arrays import Array
from hlo_run.dialects.types import is_complex
from hlo_run.dialects.xla_gpu import ApplyIndexingOp, IndexingMapAttr
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.indexing.expr import CONSTANT, DIM, SYMBOL, Expr
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.indexing.interval import Interval

INDEX = IndexType()
_CMPI = {name: IntegerAttr(n, i64) for n, name in enumerate("eq ne slt sle sgt sge ult ule ugt uge".split())}
_CMPF = {
    name: IntegerAttr(n, i64)
    for n, name in enumerate("false oeq ogt oge olt ole one ord ueq ugt uge ult ule une uno true".split())
}


class _Scope(Struct):
    """The values computed in one block. The block and nested blocks may reuse them."""

    elements: dict[tuple[HloInstruction, tuple[SSAValue, ...]], tuple[SSAValue, ...]] = field(
        default_factory=dict[tuple[HloInstruction, "tuple[SSAValue, ...]"], "tuple[SSAValue, ...]"]
    )
    indices: dict[tuple[IndexingMap, tuple[SSAValue, ...]], SSAValue] = field(
        default_factory=dict[tuple[IndexingMap, "tuple[SSAValue, ...]"], SSAValue]
    )


class IrBuilder:
    """Builds one function: appends ops to `block`, and inserts each constant once at the start of `entry`.

    After `locate`, ops have the HLO instruction's name as attribute `hlo.op`.
    """

    def __init__(self, entry: Block, index_bits: int) -> None:
        self.entry = entry
        self.block = entry
        self.index_bits = index_bits
        self.scopes = [_Scope()]
        self._constants: dict[tuple[Attribute, bytes], SSAValue] = {}
        self._location: Mapping[str, Attribute] = {}
        self._locations: dict[str, Mapping[str, Attribute]] = {}

    def locate(self, instruction: HloInstruction) -> None:
        """Give the ops that follow the name of `instruction` as attribute `hlo.op`."""
        location = self._locations.get(instruction.name)
        if location is None:
            location = self._locations[instruction.name] = {"hlo.op": StringAttr(instruction.name)}
        self._location = location

    def add(self, operation: Operation) -> Sequence[SSAValue]:
        """Append an op that was made by its constructor, and return its results."""
        operation.attributes.update(self._location)
        self.block.add_op(operation)
        return operation.results

    def create(
        self,
        op: type[Operation],
        operands: Sequence[SSAValue],
        result_type: Attribute,
        properties: Mapping[str, Attribute] | None = None,
    ) -> SSAValue:
        """Append an op with one result, and return the result."""
        made = op.create(operands=operands, result_types=(result_type,), properties=properties or {}, attributes=self._location)
        self.block.add_op(made)
        return made.results[0]

    def unary(self, op: type[Operation], value: SSAValue) -> SSAValue:
        """Append an op of one operand whose result has the operand's type, and return the result."""
        return self.create(op, (value,), value.type)

    def binary(self, op: type[Operation], left: SSAValue, right: SSAValue) -> SSAValue:
        """Append an op of two operands of one type, which is the result's, and return the result."""
        return self.create(op, (left, right), left.type)

    def cast(self, op: type[Operation], value: SSAValue, result_type: Attribute) -> SSAValue:
        """Append a conversion to `result_type`, and return the result."""
        return self.create(op, (value,), result_type)

    def cmpi(self, predicate: str, left: SSAValue, right: SSAValue) -> SSAValue:
        """Append an `arith.cmpi` of integers or indices, for example with predicate `slt`, and return the i1."""
        return self.create(arith.CmpiOp, (left, right), i1, {"predicate": _CMPI[predicate]})

    def cmpf(self, predicate: str, left: SSAValue, right: SSAValue) -> SSAValue:
        """Append an `arith.cmpf`, for example with predicate `oeq`, and return the i1."""
        return self.create(arith.CmpfOp, (left, right), i1, {"predicate": _CMPF[predicate]})

    def select(self, condition: SSAValue, if_true: SSAValue, if_false: SSAValue) -> SSAValue:
        """Append an `arith.select` on an i1, and return the result."""
        return self.create(arith.SelectOp, (condition, if_true, if_false), if_true.type)

    # Constants.

    def constant(self, type_: Attribute, value: float) -> SSAValue:
        """Return the constant of an integer, index or float type; integers wrap, floats round to nearest."""
        match type_:
            case IndexType():
                key = int(value).to_bytes(8, "little", signed=True)
                return self._constant(type_, key, lambda: IntegerAttr(int(value), type_))
            case IntegerType():
                bits = type_.width.data
                number = int(value) & ((1 << bits) - 1)
                # The sign bit makes the number negative, except for i1, whose constants are true and false.
                signed = number - (1 << bits) if bits > 1 and number >> (bits - 1) else number
                return self._constant(type_, number.to_bytes(16, "little"), lambda: IntegerAttr(signed, type_))
            case ComplexType():
                return self.element(type_, np.asarray(value, np.complex128))
            case _:
                with np.errstate(over="ignore"):
                    return self.element(type_, np.asarray(value).astype(DTYPES[type_.name.lower()].numpy))

    def element(self, type_: Attribute, value: Array) -> SSAValue:
        """Return the constant of one numpy element (rank 0). All bits are kept except the payload of a NaN."""
        if is_complex(type_):
            return self._complex(type_, value)
        if not isinstance(type_, AnyFloat):
            return self.constant(type_, int(value))
        # The key is the bytes: 0.0 and -0.0 are equal, but different constants.
        return self._constant(type_, value.tobytes(), lambda: FloatAttr(float(value), type_))

    def _complex(self, type_: ComplexType[AnyFloat], value: Array) -> SSAValue:
        def make() -> Operation:
            wide = np.complex128(value)
            parts = ArrayAttr([FloatAttr(float(part), type_.element_type) for part in (wide.real, wide.imag)])
            return complex.ConstantOp.create(result_types=(type_,), properties={"value": parts}, attributes=self._location)

        return self._constant_op(type_, value.astype(np.complex128).tobytes(), make)

    def dense(self, type_: TensorType[Attribute], values: Array) -> SSAValue:
        """Return a constant tensor; `values` is row-major."""
        data = np.ascontiguousarray(values).tobytes()
        return self._constant(type_, data, lambda: DenseIntOrFPElementsAttr(type_, BytesAttr(data)))  # pyright: ignore[reportArgumentType] - element types are those of types.py

    def zeros(self, type_: VectorType[Attribute]) -> SSAValue:
        """Return a constant vector of zeros; a zero has all bits zero in every element type."""
        element = type_.get_element_type()
        assert isinstance(element, FixedBitwidthType), "vectors are of integers and floats"
        data = bytes(element.compile_time_size * prod(type_.get_shape()))
        return self._constant(type_, data, lambda: DenseIntOrFPElementsAttr(type_, BytesAttr(data)))  # pyright: ignore[reportArgumentType] - element types are those of types.py

    def index(self, value: int) -> SSAValue:
        """Return the constant `value` of type index."""
        return self.constant(INDEX, value)

    def _constant(self, type_: Attribute, key: bytes, make: Callable[[], Attribute]) -> SSAValue:
        return self._constant_op(
            type_,
            key,
            lambda: arith.ConstantOp.create(result_types=(type_,), properties={"value": make()}, attributes=self._location),
        )

    def _constant_op(self, type_: Attribute, key: bytes, make: Callable[[], Operation]) -> SSAValue:
        found = self._constants.get((type_, key))
        if found is None:
            op = make()
            first = self.entry.first_op
            if first is None:
                self.entry.add_op(op)
            else:
                self.entry.insert_op_before(op, first)
            found = self._constants[type_, key] = op.results[0]
        return found

    # Indices.

    def apply(self, indexing_map: IndexingMap, operands: Sequence[SSAValue]) -> tuple[SSAValue, ...]:
        """Return the map's results at `operands` (dims, then symbols). The map's constraints are ignored.

        Each result becomes one apply_indexing with the variables that it uses. Plain variables and constants need no op.
        """
        return tuple(self._apply_one(indexing_map, result, operands) for result in indexing_map.results)

    def _apply_one(self, indexing_map: IndexingMap, result: Expr, operands: Sequence[SSAValue]) -> SSAValue:
        if result.kind is CONSTANT:
            return self.index(result.value)
        if result.kind is DIM:
            return operands[result.value]
        if result.kind is SYMBOL:
            return operands[len(indexing_map.dims) + result.value]
        used_map, used = _restrict(indexing_map, result)
        key = used_map, tuple(operands[number] for number in used)
        for scope in reversed(self.scopes):
            found = scope.indices.get(key)
            if found is not None:
                return found
        properties = {"indexing_map": IndexingMapAttr(used_map)}
        value = self.create(ApplyIndexingOp, key[1], INDEX, properties)
        self.scopes[-1].indices[key] = value
        return value

    def in_bounds(self, indexing_map: IndexingMap, sizes: Sequence[int], operands: Sequence[SSAValue]) -> SSAValue:
        """Return an i1: the map's constraints and dim intervals hold at `operands`. Dim k is in [0, sizes[k] - 1]."""
        checks = [
            check
            for value, variable, size in zip(operands, indexing_map.dims, sizes, strict=False)
            for check in self._interval_checks(value, variable.bounds, Interval.of_size(size))
        ]
        for expr, interval in indexing_map.constraints:
            value = self._apply_one(indexing_map, expr, operands)
            checks += self._interval_checks(value, interval, indexing_map.range_of(expr))
        if not checks:
            return self.constant(i1, 1)
        condition = checks[0]
        for check in checks[1:]:
            condition = self.binary(arith.AndIOp, condition, check)
        return condition

    def _interval_checks(self, value: SSAValue, interval: Interval, known: Interval) -> list[SSAValue]:
        if interval.encloses(known):
            return []
        if interval.is_point:
            return [self.cmpi("eq", value, self.index(interval.lower))]
        checks: list[SSAValue] = []
        if interval.lower > known.lower:
            checks.append(self.cmpi("sge", value, self.index(interval.lower)))
        if interval.upper < known.upper:
            checks.append(self.cmpi("sle", value, self.index(interval.upper)))
        return checks

    # Regions.

    @contextmanager
    def inside(self, block: Block) -> Generator[None, None, None]:
        """Append to `block` within the `with`. `block` must be for a region of an op in the current block."""
        outer, location = self.block, self._location
        self.block = block
        self.scopes.append(_Scope())
        try:
            yield
        finally:
            self.scopes.pop()
            self.block, self._location = outer, location

    def yield_values(self, values: Sequence[SSAValue]) -> None:
        """Append an `scf.yield`, which ends the block."""
        self.block.add_op(scf.YieldOp.create(operands=values))

    def if_op(self, condition: SSAValue, result_types: Sequence[Attribute], then: Block, otherwise: Block) -> Sequence[SSAValue]:
        """Append an `scf.if` with complete branches, which end in a yield. Returns its results."""
        regions = (Region(then), Region(otherwise))
        op = scf.IfOp.create(operands=(condition,), result_types=result_types, regions=regions, attributes=self._location)
        self.block.add_op(op)
        return op.results


def _restrict(indexing_map: IndexingMap, result: Expr) -> tuple[IndexingMap, list[int]]:
    """Return a map of one result over only the variables it uses, and their numbers (dims, then symbols)."""
    assert not indexing_map.rts, "values known at run time are added by arithmetic, not by maps"
    restricted, kept = IndexingMap(indexing_map.dims, indexing_map.ranges, (), (result,)).remove_unused_vars()
    return restricted, [number for number, keep in enumerate(kept) if keep]
