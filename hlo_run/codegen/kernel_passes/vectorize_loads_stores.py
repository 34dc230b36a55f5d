"""Vectorise loads and stores of neighbouring elements in a loop: one vector load before it, one vector store after it.

    %r = scf.for %i = 0 to 4 iter_args(%t = %out) {      %b = apply_indexing #map(%th, %c0)
      %d = apply_indexing #map(%th, %i)                  %v = vector.transfer_read %in[%b], %zero
      %x = tensor.extract %in[%d]                        %r:2 = scf.for %i = 0 to 4 iter_args(%t = %out, %u = %zeros) {
      %y = f(%x)                                           %x = vector.extract %v[%i]
      %s = tensor.insert %y into %t[%d]             =>     %y = f(%x)
      scf.yield %s                                         %w = vector.insert %y, %u[%i]
    }                                                      scf.yield %t, %w
                                                         }
                                                         %s = vector.transfer_write %r#1, %out[%b]

The pass needs flat tensors. The loop must be over 0, 1, .. n-1, with n a power of two up to 32, and must be the direct
parent of the access. Vectors have at most 256 bits. The index must start at a multiple of n and grow by one per step. A load
must read a tensor from outside of the loop. A store must be the only use of its iteration value. Atomic additions of f32
become vectors of 2 or 4 on Hopper and newer (`sm`). canonicalize must run before, so that apply_indexing has no symbols.
optimize-loops unrolls the remaining loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from msgspec import Struct, field
from xdsl.context import Context
from xdsl.dialects import arith, scf, tensor, vector
from xdsl.dialects.builtin import (
    AffineMapAttr,
    AnyDenseElement,
    AnyFloat,
    ArrayAttr,
    BoolAttr,
    BytesAttr,
    DenseIntOrFPElementsAttr,
    FixedBitwidthType,
    FloatAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    ModuleOp,
    VectorType,
    f32,
)
from xdsl.ir import Attribute, Block, BlockArgument, Operation, OpResult, Region, SSAValue, SSAValues
from xdsl.ir.affine import AffineMap
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from hlo_run.dialects.editing.loops import counted_trips, hand_on_origin, is_defined_in, yield_of
from hlo_run.dialects.editing.rewriting import ops_in, unlimited
from hlo_run.dialects.types import is_tensor, is_vector
from hlo_run.dialects.xla_gpu import ApplyIndexingOp, AtomicRMWOp, YieldOp
from hlo_run.indexing.divisor import divisor_of
from hlo_run.indexing.expr import ADD, DIM, Expr

_MAX_TRIPS = 32
_MAX_VECTOR_BITS = 256
_INDEX_BITS = 64  # the largest width of index
_ELEMENTWISE = AffineMapAttr(AffineMap.identity(1))
_BaseKey: TypeAlias = tuple[Attribute, tuple[SSAValue, ...]]
_IN_BOUNDS = ArrayAttr([BoolAttr.from_bool(True)])


@dataclass(frozen=True)
class VectorizeLoadsStores(ModulePass):
    """Replaces accesses to neighbouring elements in a loop by vector accesses before and after it. `sm` is the GPU.

    `take` returns False if no more accesses may be replaced.
    """

    name = "vectorize-loads-stores"
    sm: int = 90
    take: Callable[[], bool] = unlimited

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Vectorise every `scf.for` of n = 2, 4, .. 32 steps over 0, 1, .. n-1."""
        for loop in [loop for loop in ops_in(op) if type(loop) is scf.ForOp]:
            trips = counted_trips(loop)
            if trips is not None and 2 <= trips <= _MAX_TRIPS and trips & (trips - 1) == 0:
                _LoopVectorizer(loop, trips, self.sm, self.take).run()


@lru_cache(maxsize=256)
def _vector_type(element: Attribute, size: int) -> VectorType[Attribute] | None:
    """Return the vector type of `size` elements; None if the type cannot be an element, or the vector is too wide."""
    if isinstance(element, IndexType):
        bits = _INDEX_BITS
    elif isinstance(element, FixedBitwidthType) and isa(element, IntegerType | AnyFloat):
        bits = element.bitwidth
    else:
        return None
    return VectorType(element, [size]) if bits * size <= _MAX_VECTOR_BITS else None


@lru_cache(maxsize=256)
def _zero(type_: Attribute) -> Attribute:
    if is_vector(type_):
        element = type_.get_element_type()
        assert isa(element, AnyDenseElement), "checked by _vector_type"
        # A zero has all bits zero in every element type, also in types that xDSL cannot pack.
        zeros = BytesAttr(bytes(element.compile_time_size * type_.get_shape()[0]))
        return DenseIntOrFPElementsAttr(VectorType(element, type_.get_shape()), zeros)
    if isinstance(type_, AnyFloat):
        return FloatAttr(0.0, type_)
    assert isa(type_, IntegerType | IndexType), "checked by _vector_type"
    return IntegerAttr(0, type_)


def _stride(expr: Expr, moving: int) -> int | None:
    """Return the increase of `expr` when dimension `moving` grows by one; None if it is not constant."""
    if not expr.uses_dim(moving):
        return 0
    if expr.kind is DIM:
        return 1
    if expr.kind is not ADD:
        return None
    left, right = _stride(expr.left, moving), _stride(expr.right, moving)
    return None if left is None or right is None else left + right


class _LoopVectorizer(Struct):
    """Vectorises one loop. `bases` and `zeros` cache the ops inserted before it, which equal accesses share."""

    loop: scf.ForOp
    trips: int
    sm: int
    take: Callable[[], bool]
    bases: dict[_BaseKey, SSAValue] = field(default_factory=dict[_BaseKey, SSAValue])
    zeros: dict[Attribute, SSAValue] = field(default_factory=dict[Attribute, SSAValue])
    last_after: Operation | None = None

    def run(self) -> None:
        for op in self.body.ops:
            match op:
                case tensor.ExtractOp():
                    self._load(op)
                case tensor.InsertOp():
                    self._store(op)
                case AtomicRMWOp() if self.sm >= 90:
                    self._atomic_add(op)
                case _:
                    pass
        self._forward_copies()
        for op in reversed(self.body.ops):
            if isinstance(op, ApplyIndexingOp) and not any(result.uses for result in op.results):
                Rewriter.erase_op(op)

    @property
    def body(self) -> Block:
        return self.loop.body.block

    @property
    def induction_variable(self) -> SSAValue:
        return self.body.args[0]

    def _load(self, op: tensor.ExtractOp) -> None:
        type_ = self._accessed(op.tensor.type)
        if type_ is None or is_defined_in(op.tensor, self.body):
            return
        base = self._base(op.indices[0], op)
        if base is None or not self.take():
            return
        zero = self._constant(type_.get_element_type())
        read = vector.TransferReadOp(op.tensor, [base], zero, type_, _IN_BOUNDS, _ELEMENTWISE)
        self._before(hand_on_origin(op, read))
        element = vector.ExtractOp(read.result, [self.induction_variable], op.result.type)
        Rewriter.replace_op(op, hand_on_origin(op, element))

    def _store(self, op: tensor.InsertOp) -> None:
        type_ = self._accessed(op.dest.type)
        init = self._only_stored_to(op.dest, op.result, op)
        base = self._base(op.indices[0], op) if type_ is not None and init is not None else None
        if type_ is None or init is None or base is None or not self.take():
            return
        gathered = self._gather(op, op.scalar, type_)
        result = self._pass_through(op, op.dest)
        assert is_tensor(op.dest.type), "checked with the accessed type"
        write = vector.TransferWriteOp(gathered, init, [base], _IN_BOUNDS, permutation_map=_ELEMENTWISE, result_type=op.dest.type)
        self._after(op, write, result)

    def _atomic_add(self, op: AtomicRMWOp) -> None:
        type_ = self._accessed(op.tensor.type)
        added = _addend(op)
        init = self._only_stored_to(op.tensor, op.res, op)
        if type_ is None or added is None or init is None or op.current.type != f32 or self.trips not in (2, 4):
            return
        base = self._base(op.indices[0], op)
        if base is None or not self.take():
            return
        gathered = self._gather(op, added, type_)
        result = self._pass_through(op, op.tensor)
        block = Block(arg_types=[type_])
        total = arith.AddfOp(block.args[0], gathered, flags=None)
        block.add_ops([total, YieldOp(total.result)])
        self._after(op, AtomicRMWOp(init, [base], Region(block)), result)

    # Conditions.

    def _accessed(self, type_: Attribute) -> VectorType[Attribute] | None:
        """Return the vector type for accesses to a tensor of this type; None if they cannot be vectorised."""
        if not is_tensor(type_) or type_.get_num_dims() != 1 or type_.get_shape()[0] % self.trips:
            return None
        return _vector_type(type_.get_element_type(), self.trips)

    def _only_stored_to(self, target: SSAValue, result: SSAValue, op: Operation) -> SSAValue | None:
        """Return the init of the buffer if this store is the only use of the buffer in the loop, else None."""
        if not isinstance(target, BlockArgument) or target.block is not self.body or target.index == 0:
            return None
        use = result.get_unique_use()
        if not target.has_one_use() or use is None or use.operation is not self.body.last_op:
            return None
        return self.loop.iter_args[target.index - 1] if use.index == target.index - 1 else None

    def _base(self, index: SSAValue, access: Operation) -> SSAValue | None:
        """Return the index of the first of the n neighbours that the loop accesses; None if they are not neighbours."""
        if index is self.induction_variable:
            return self.loop.lb
        apply = index.owner
        if not isinstance(apply, ApplyIndexingOp) or len(apply.res) != 1 or len(apply.map.dims) != len(apply.arguments):
            return None
        arguments = tuple(apply.arguments)
        moving = [place for place, argument in enumerate(arguments) if argument is self.induction_variable]
        if len(moving) != 1 or any(is_defined_in(a, self.body) for a in arguments if a is not self.induction_variable):
            return None
        expr = apply.map.results[0]
        if _stride(expr, moving[0]) != 1 or divisor_of(expr, moving[0]) % self.trips:
            return None
        return self._base_value(apply, tuple(self.loop.lb if a is self.induction_variable else a for a in arguments), access)

    # Building.

    def _before(self, op: Operation) -> None:
        Rewriter.insert_op(op, InsertPoint.before(self.loop))

    def _base_value(self, apply: ApplyIndexingOp, arguments: tuple[SSAValue, ...], access: Operation) -> SSAValue:
        key = (apply.indexing_map, arguments)
        if key not in self.bases:
            base = ApplyIndexingOp(apply.indexing_map, arguments)
            base.res[0].name_hint = apply.res[0].name_hint
            self._before(hand_on_origin(access, base))
            self.bases[key] = base.res[0]
        return self.bases[key]

    def _constant(self, type_: Attribute) -> SSAValue:
        if type_ not in self.zeros:
            zero = arith.ConstantOp.create(result_types=[type_], properties={"value": _zero(type_)})
            self._before(zero)
            self.zeros[type_] = zero.results[0]
        return self.zeros[type_]

    def _gather(self, op: Operation, value: SSAValue, type_: VectorType[Attribute]) -> SSAValue:
        """Insert `value` of every step into a vector, a new iteration value; return the loop's result with the vector."""
        loop, body, zeros = self.loop, self.body, self._constant(type_)
        filled = body.insert_arg(type_, len(body.args))
        insert = vector.InsertOp(value, filled, [self.induction_variable])
        Rewriter.insert_op(hand_on_origin(op, insert), InsertPoint.before(op))
        loop.operands = [*loop.operands, zeros]
        ended = yield_of(body)
        ended.operands = [*ended.operands, insert.result]
        gathered = OpResult(type_, loop, len(loop.results))
        loop.results = SSAValues((*loop.results, gathered))
        return gathered

    def _pass_through(self, op: Operation, target: SSAValue) -> SSAValue:
        """Erase the store: the loop passes the buffer on unchanged. Returns the loop's result for the buffer."""
        assert isinstance(target, BlockArgument), "checked before"
        Rewriter.replace_op(op, [], [target])
        return self.loop.results[target.index - 1]

    def _after(self, origin: Operation, op: Operation, replaced: SSAValue) -> None:
        """Insert `op` after the loop and the ops inserted there before, and replace the loop's result `replaced` by it."""
        replaced.replace_all_uses_with(op.results[0])
        op.results[0].name_hint = None  # the name is of the loop
        Rewriter.insert_op(hand_on_origin(origin, op), InsertPoint.after(self.last_after or self.loop))
        self.last_after = op

    def _forward_copies(self) -> None:
        """Use the source vector itself if the steps only copy one vector into another.

        Not if the source is a whole tensor: that vector would be spilled and read back.
        """
        ended = yield_of(self.body)
        for place, value in enumerate(ended.operands):
            insert = value.owner
            extract = insert.source.owner if isinstance(insert, vector.InsertOp) else None
            if not isinstance(insert, vector.InsertOp) or not isinstance(extract, vector.ExtractOp):
                continue
            source = extract.vector
            in_step = [*insert.dynamic_position] == [*extract.dynamic_position] == [self.induction_variable]
            fits = source.type == value.type == _vector_type(extract.result.type, self.trips)
            if in_step and fits and value.has_one_use() and not is_defined_in(source, self.body) and not _is_whole_tensor(source):
                ended.operands[place] = source
                Rewriter.erase_op(insert)
                if not extract.result.uses:
                    Rewriter.erase_op(extract)


def _is_whole_tensor(value: SSAValue) -> bool:
    read = value.owner
    return (
        isinstance(read, vector.TransferReadOp)
        and is_tensor(read.source.type)
        and is_vector(value.type)
        and read.source.type.get_shape() == value.type.get_shape()
    )


def _addend(op: AtomicRMWOp) -> SSAValue | None:
    """Return the value that an atomic update adds to the current value; None for other updates."""
    add = op.body.block.first_op
    if not isinstance(add, arith.AddfOp) or add.next_op is not op.yield_op or op.yield_op.operands[0] is not add.result:
        return None
    sides = [add.lhs, add.rhs]
    if op.current not in sides:
        return None
    other = sides[1 - sides.index(op.current)]
    return None if other is op.current else other
