"""Expands `gpu.all_reduce` to accesses of shared memory.

    %r = gpu.all_reduce add %x {} : (f32) -> (f32)
      =>
    %t = xla_gpu.allocate_shared : tensor<128xf32>      every thread inserts its value at its number, then a barrier;
    %s = scf.if %has_partner -> (tensor<128xf32>) {..}  a thread with number < 64 adds the value at its number + 64, a barrier;
                                                        and so on at distances 32, 16, .., 1
    %r = tensor.extract %s[%c0]                         and a last barrier, so that the tile can be used again

The function's attribute `gpu.known_block_size` gives the block's size; else it is read, and the tile has room for the largest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from msgspec import Struct
from xdsl.dialects import arith, func, scf, tensor
from xdsl.dialects.builtin import DenseArrayBase, IndexType, IntegerAttr, IntegerType, ModuleOp, TensorType, i64
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from hlo_run.dialects import gpu
from hlo_run.dialects.editing.loops import hand_on_origin
from hlo_run.dialects.editing.rewriting import replace_op
from hlo_run.dialects.gpu_launch import AllReduceOp, BlockDimOp, ReduceOperation, YieldOp
from hlo_run.dialects.types import is_integer
from hlo_run.dialects.xla_gpu import AllocateSharedOp, SyncThreadsOp
from hlo_run.errors import Unsupported

KNOWN_BLOCK_SIZE = "gpu.known_block_size"
"""The attribute of a kernel with the three sizes of its blocks."""
_MOST_THREADS = 1024
_AXES = (gpu.Dimension.X, gpu.Dimension.Y, gpu.Dimension.Z)
_INTEGERS: dict[ReduceOperation, Callable[[SSAValue, SSAValue], Operation]] = {
    ReduceOperation.ADD: arith.AddiOp,
    ReduceOperation.MUL: arith.MuliOp,
    ReduceOperation.MINUI: arith.MinUIOp,
    ReduceOperation.MINSI: arith.MinSIOp,
    ReduceOperation.MAXUI: arith.MaxUIOp,
    ReduceOperation.MAXSI: arith.MaxSIOp,
    ReduceOperation.AND: arith.AndIOp,
    ReduceOperation.OR: arith.OrIOp,
    ReduceOperation.XOR: arith.XOrIOp,
}
_FLOATS: dict[ReduceOperation, Callable[[SSAValue, SSAValue], Operation]] = {
    ReduceOperation.ADD: arith.AddfOp,
    ReduceOperation.MUL: arith.MulfOp,
    ReduceOperation.MINNUMF: arith.MinnumfOp,
    ReduceOperation.MAXNUMF: arith.MaxnumfOp,
    ReduceOperation.MINIMUMF: arith.MinimumfOp,
    ReduceOperation.MAXIMUMF: arith.MaximumfOp,
}


def reduction(kind: ReduceOperation, own: SSAValue, other: SSAValue) -> Operation:
    """Return the operation that combines two values of an integer or float type."""
    return (_INTEGERS if is_integer(own.type) else _FLOATS)[kind](own, other)


def expand_all_reduces(module: ModuleOp) -> None:
    """Expand every `gpu.all_reduce` of the module. Raises Unsupported for a body of several blocks."""
    for op in [*module.walk()]:
        if isinstance(op, AllReduceOp):
            _expand(op)


class _Emitter(Struct, frozen=True):
    """Emits operations, each by `insert`, with the origin of `op`."""

    op: AllReduceOp
    insert_op: Callable[[Operation], None]

    def add(self, new: Operation) -> SSAValue:
        self.insert_op(hand_on_origin(self.op, new))
        return new.results[0]

    def number(self, value: int) -> SSAValue:
        return self.add(arith.ConstantOp(IntegerAttr(value, IndexType())))

    def product(self, one: SSAValue, two: SSAValue) -> SSAValue:
        return self.add(arith.MuliOp(one, two))

    def total(self, one: SSAValue, two: SSAValue) -> SSAValue:
        return self.add(arith.AddiOp(one, two))


def _expand(op: AllReduceOp) -> None:
    emit = _Emitter(op, lambda new: Rewriter.insert_op(new, InsertPoint.before(op)))
    sizes = _known_sizes(op)
    most = sizes[0] * sizes[1] * sizes[2] if sizes else _MOST_THREADS
    x, y, z = (emit.add(gpu.ThreadIdOp(axis)) for axis in _AXES)
    widths = [emit.number(size) for size in sizes] or [emit.add(BlockDimOp(axis)) for axis in _AXES]
    thread = emit.total(x, emit.product(widths[0], emit.total(y, emit.product(widths[1], z))))
    count = emit.number(most) if sizes else emit.product(emit.product(widths[0], widths[1]), widths[2])
    value = emit.add(arith.IndexCastOp(op.value, i64)) if isinstance(op.value.type, IndexType) else op.value
    type_ = TensorType(value.type, [most])
    tile = _synchronised(emit, emit.add(tensor.InsertOp(value, emit.add(AllocateSharedOp(type_)), [thread])))
    distance = 1 << (most - 1).bit_length() - 1 if most > 1 else 0
    while distance:
        far = emit.number(distance)
        partner = emit.total(thread, far)
        is_near = emit.add(arith.CmpiOp(thread, far, "slt"))
        has_partner = emit.add(arith.AndIOp(is_near, emit.add(arith.CmpiOp(partner, count, "slt"))))
        tile = _synchronised(emit, emit.add(_combining(op, tile, value.type, thread, partner, has_partner)))
        distance //= 2
    result = emit.add(tensor.ExtractOp(tile, [emit.number(0)], value.type))
    emit.add(SyncThreadsOp([tile]))
    if isinstance(op.value.type, IndexType):
        result = emit.add(arith.IndexCastOp(result, IndexType()))
    replace_op(op, [result])


def _combining(
    op: AllReduceOp, tile: SSAValue, element: Attribute, thread: SSAValue, partner: SSAValue, has_partner: SSAValue
) -> scf.IfOp:
    """Return the `scf.if` that combines the values of type `element` of a thread and its partner in the tile."""
    block = Block()
    emit = _Emitter(op, block.add_op)
    own, other = (emit.add(tensor.ExtractOp(tile, [place], element)) for place in (thread, partner))
    new = emit.add(tensor.InsertOp(_combined(emit, own, other), tile, [thread]))
    block.add_op(scf.YieldOp(new))
    return scf.IfOp(has_partner, [tile.type], Region(block), Region(Block([scf.YieldOp(tile)])))


def _combined(emit: _Emitter, own: SSAValue, other: SSAValue) -> SSAValue:
    op = emit.op
    if op.op is not None:
        return emit.add(reduction(op.op.data, own, other))
    if len(op.body.blocks) != 1:
        raise Unsupported("gpu.all_reduce with a body of several blocks has no lowering")
    is_index = isinstance(op.value.type, IndexType)
    arguments: Sequence[SSAValue] = [own, other]
    if is_index:
        arguments = [emit.add(arith.IndexCastOp(value, IndexType())) for value in arguments]
    values: dict[SSAValue, SSAValue] = dict(zip(op.body.blocks[0].args, arguments, strict=True))
    for inner in op.body.blocks[0].ops:
        if isinstance(inner, YieldOp):
            result = values.get(inner.operands[0], inner.operands[0])
            return emit.add(arith.IndexCastOp(result, i64)) if is_index else result
        copy = inner.clone(values)
        emit.insert_op(copy)
    raise Unsupported("the body of gpu.all_reduce does not end in gpu.yield")


def _synchronised(emit: _Emitter, tile: SSAValue) -> SSAValue:
    return emit.add(SyncThreadsOp([tile]))


def _known_sizes(op: Operation) -> tuple[int, ...]:
    """Return the sizes of a block of the function around an operation; () if it does not say."""
    around = op.parent_op()
    while around is not None and not isinstance(around, func.FuncOp):
        around = around.parent_op()
    sizes = around.attributes.get(KNOWN_BLOCK_SIZE) if around is not None else None
    if not isinstance(sizes, DenseArrayBase):
        return ()
    values = tuple(map(int, cast("DenseArrayBase[IntegerType]", sizes).get_values()))
    return values if len(values) == len(_AXES) and all(size > 0 for size in values) else ()
