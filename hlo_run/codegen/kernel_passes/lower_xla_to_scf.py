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

from xdsl.context import Context
from xdsl.dialects import scf, tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from hlo_run.dialects.editing.all_reduce import expand_all_reduces
from hlo_run.dialects.editing.loops import hand_on_origin
from hlo_run.dialects.editing.rewriting import ops_in, replace_op
from hlo_run.dialects.editing.shuffles import WARP_LANES, Shuffler
from hlo_run.dialects.xla_gpu import PredicatedExtractOp, PredicatedInsertOp, PureCallOp, ShuffleReduceOp
from hlo_run.errors import InternalError


class LowerXlaToScf(ModulePass):
    """Lowers predicated accesses to `scf.if`, and shuffle_reduce to shuffles and calls."""

    name = "lower-xla-to-scf"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Lower every predicated_extract, predicated_insert, shuffle_reduce and gpu.all_reduce."""
        expand_all_reduces(op)
        for inner in ops_in(op):
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
    if distance >= WARP_LANES or distance <= 0 or distance & (distance - 1):
        raise InternalError(f"a shuffle_reduce over {distance} lanes; the distance must be a power of two below {WARP_LANES}")

    def insert(new: Operation) -> SSAValue:
        Rewriter.insert_op(hand_on_origin(op, new), InsertPoint.before(op))
        return new.results[0]

    shuffler = Shuffler(insert)
    values: Sequence[SSAValue] = op.values
    while distance:
        moved = [shuffler.shuffle(value, distance) for value in values]
        call = PureCallOp(op.combiner, [*values, *moved], op.result_types)
        insert(call)
        values, distance = call.res, distance // 2
    replace_op(op, values)
