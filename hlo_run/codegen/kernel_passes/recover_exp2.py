"""Turn exp(x * log 2) into exp2(x).

    %m = arith.mulf %x, %log2 : f32     =>   %y = math.exp2 %x : f32
    %y = math.exp %m : f32

The constant, rounded to f32, is log 2 as f32, tf32 or bf16 has it, or one of its two neighbours there: a constant of a
narrower type was widened before. It is the second operand, where canonicalize puts it. It is not a row of the kernel table,
because XLA for NVIDIA GPUs does not run it. Mirrors XLA's pass.
"""

from __future__ import annotations

import math as numbers
import struct

from xdsl.context import Context
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import AnyFloat, FloatAttr, ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from hlo_run.dialects.editing.loops import hand_on_origin
from hlo_run.dialects.editing.rewriting import ops_in

# The bits of f32 that tf32 and bf16 do not have.
_DROPPED_BITS = {"f32": 0, "tf32": 13, "bf16": 16}


def _bits(value: float) -> int:
    return struct.unpack("<I", struct.pack("<f", value))[0]


def _accepted() -> frozenset[int]:
    """Return the f32 patterns of log 2 in each type, and of its neighbours."""
    accepted: set[int] = set()
    for dropped in _DROPPED_BITS.values():
        step = 1 << dropped
        nearest = (_bits(numbers.log(2)) + step // 2) // step * step
        accepted |= {nearest - step, nearest, nearest + step}
    return frozenset(accepted)


_LOG_2 = _accepted()


class RecoverExp2(ModulePass):
    """Replaces exponentials of products with log 2 by `math.exp2`."""

    name = "recover-exp2"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Replace every such exponential of a scalar in the module. The product stays for its other users."""
        for inner in ops_in(op):
            if type(inner) is not math.ExpOp or not isinstance(inner.result.type, AnyFloat):
                continue
            product = inner.operand.owner
            if not isinstance(product, arith.MulfOp) or not _is_log_2(product):
                continue
            Rewriter.replace_op(inner, hand_on_origin(inner, math.Exp2Op(product.lhs)))
            if not product.result.uses:
                Rewriter.erase_op(product)


def _is_log_2(product: arith.MulfOp) -> bool:
    constant = product.rhs.owner
    if not isinstance(constant, arith.ConstantOp) or not isinstance(constant.value, FloatAttr):
        return False
    value = constant.value.value.data
    return abs(value) < 1 and _bits(value) in _LOG_2
