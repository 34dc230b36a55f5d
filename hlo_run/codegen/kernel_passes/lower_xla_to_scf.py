"""Lower predicated accesses to `scf.if`, shuffle_reduce to shuffles and calls of the combiner, and gpu.all_reduce.

    %v = xla_gpu.predicated_extract %t[%i] if %c else %f : tensor<4xf32>
      =>
    %v = scf.if %c -> (f32) { %x = tensor.extract %t[%i]; scf.yield %x } else { scf.yield %f }

    %r = xla_gpu.shuffle_reduce(%a) to 16 combiner=@add : f32
      =>
    %s, %valid = gpu.shuffle down %a, %c16_i32, %c32_i32 : f32
    %b = xla_gpu.pure_call @add(%a, %s) : (f32, f32) -> f32        and so on at distances 8, 4, 2, 1

Shuffles move 32 bits. Shorter values are extended, longer values are split into words, and complex values are moved by
parts. The combiner takes this lane's values first. It is called once per distance, so the inliner does not inline it; LLVM
does. `dialects/editing/all_reduce.py` shows what becomes of `gpu.all_reduce`, which XLA's emitters do not use.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from xdsl.context import Context
from xdsl.dialects import arith, complex, scf, tensor
from xdsl.dialects.builtin import FixedBitwidthType, Float32Type, IntegerAttr, IntegerType, ModuleOp, i32
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from hlo_run.dialects import gpu
from hlo_run.dialects.editing.all_reduce import expand_all_reduces
from hlo_run.dialects.editing.loops import hand_on_origin
from hlo_run.dialects.editing.rewriting import replace_op
from hlo_run.dialects.types import is_complex, is_integer
from hlo_run.dialects.xla_gpu import PredicatedExtractOp, PredicatedInsertOp, PureCallOp, ShuffleReduceOp
from hlo_run.errors import InternalError

_LANES = 32


class LowerXlaToScf(ModulePass):
    """Lowers predicated accesses to `scf.if`, and shuffle_reduce to shuffles and calls."""

    name = "lower-xla-to-scf"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Lower every predicated_extract, predicated_insert, shuffle_reduce and gpu.all_reduce."""
        expand_all_reduces(op)
        for inner in list(op.walk()):
            match inner:
                case PredicatedExtractOp():
                    access = tensor.ExtractOp(inner.source, inner.indices, inner.res.type)
                    _choose(inner, inner.condition, access, inner.fallback)
                case PredicatedInsertOp():
                    access = tensor.InsertOp(inner.value, inner.dest, inner.indices)
                    _choose(inner, inner.condition, access, inner.dest)
                case ShuffleReduceOp():
                    _lower_shuffle_reduce(inner)
                case _:
                    pass


def _choose(op: Operation, condition: SSAValue, access: Operation, otherwise: SSAValue) -> None:
    """Replace the op by an `scf.if` that yields the result of the access, or `otherwise`."""
    then = Region(Block([hand_on_origin(op, access), scf.YieldOp(access.results[0])]))
    choice = scf.IfOp(condition, [otherwise.type], then, Region(Block([scf.YieldOp(otherwise)])))
    Rewriter.insert_op(hand_on_origin(op, choice), InsertPoint.before(op))
    choice.results[0].name_hint = op.results[0].name_hint
    replace_op(op, choice.results)


def _lower_shuffle_reduce(op: ShuffleReduceOp) -> None:
    distance = op.max_distance.value.data
    if distance >= _LANES or distance <= 0 or distance & (distance - 1):
        raise InternalError(f"a shuffle_reduce over {distance} lanes; the distance must be a power of two below {_LANES}")
    emitter = _ShuffleEmitter(op)
    values: Sequence[SSAValue] = op.values
    while distance:
        moved = [emitter.shuffle(value, distance) for value in values]
        call = PureCallOp(op.combiner, [*values, *moved], op.result_types)
        emitter.insert(call)
        values, distance = call.res, distance // 2
    replace_op(op, values)


class _ShuffleEmitter(Struct):
    """Emits shuffles of values of any type before `op`."""

    op: ShuffleReduceOp

    def insert(self, new: Operation) -> SSAValue:
        Rewriter.insert_op(hand_on_origin(self.op, new), InsertPoint.before(self.op))
        return new.results[0]

    def shuffle(self, value: SSAValue, distance: int) -> SSAValue:
        """Return the value of the lane at this lane's number + `distance`."""
        type_ = value.type
        if is_complex(type_):
            real, imaginary = (self.insert(part(value)) for part in (complex.ReOp, complex.ImOp))
            parts = self.shuffle(real, distance), self.shuffle(imaginary, distance)
            return self.insert(complex.CreateOp(*parts, type_))
        if type_ == i32 or isinstance(type_, Float32Type):
            return self._shuffle_word(value, distance)
        if is_integer(type_):
            return self._shuffle_integer(value, type_, distance)
        if not isinstance(type_, FixedBitwidthType):
            raise InternalError(f"no lowering for a shuffle of type {type_}")
        bits = IntegerType(type_.bitwidth)
        moved = self._shuffle_integer(self.insert(arith.BitcastOp(value, bits)), bits, distance)
        return self.insert(arith.BitcastOp(moved, type_))

    def _shuffle_word(self, value: SSAValue, distance: int) -> SSAValue:
        offset, width = self._number(distance, i32), self._number(_LANES, i32)
        return self.insert(gpu.ShuffleOp(gpu.ShuffleMode.DOWN, value, offset, width))

    def _shuffle_integer(self, value: SSAValue, type_: IntegerType, distance: int) -> SSAValue:
        bits = type_.width.data
        if bits < 32:
            moved = self._shuffle_word(self.insert(arith.ExtUIOp(value, i32)), distance)
            return self.insert(arith.TruncIOp(moved, type_))
        if bits % 32:
            wide = IntegerType(bits + 32 - bits % 32)
            moved = self._shuffle_integer(self.insert(arith.ExtUIOp(value, wide)), wide, distance)
            return self.insert(arith.TruncIOp(moved, type_))
        words = [self._shuffle_word(self._word(value, type_, start), distance) for start in range(0, bits, 32)]
        return self._joined(words, type_)

    def _word(self, value: SSAValue, type_: IntegerType, start_bit: int) -> SSAValue:
        if start_bit:
            value = self.insert(arith.ShRUIOp(value, self._number(start_bit, type_)))
        return self.insert(arith.TruncIOp(value, i32)) if type_ != i32 else value

    def _joined(self, words: Sequence[SSAValue], type_: IntegerType) -> SSAValue:
        """Return the value with these 32-bit words, lowest first."""
        if type_ == i32:
            return words[0]
        joined = self.insert(arith.ExtUIOp(words[0], type_))
        for number, word in enumerate(words[1:], start=1):
            high = self.insert(arith.ExtUIOp(word, type_))
            high = self.insert(arith.ShLIOp(high, self._number(32 * number, type_)))
            joined = self.insert(arith.OrIOp(joined, high))
        return joined

    def _number(self, value: int, type_: IntegerType) -> SSAValue:
        return self.insert(arith.ConstantOp(IntegerAttr(value, type_)))
