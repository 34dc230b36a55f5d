"""Convert to and from f8E4M3FN, f8E5M2 and f4E2M1FN with PTX's conversion instructions, which handle pairs of numbers.

    %y = arith.truncf %x : f32 to f8E5M2   =>   %b = llvm.call_intrinsic "llvm.nvvm.ff.to.e5m2x2.rn"(%x, %x) : .. -> i16
                                                %y = low byte of %b, or infinity where |%x| >= 61440
    %y = arith.extf %x : f8E5M2 to f32     =>   %h = llvm.call_intrinsic "llvm.nvvm.e5m2x2.to.f16x2.rn"(%b) : .. -> vector<2xf16>
                                                %y = arith.extf %h[0] : f16 to f32

The instruction saturates, so the pass corrects numbers that are too large: to infinity, or to NaN in f8E4M3FN, which has
no infinity. f4E2M1FN has neither and needs no correction: NaN becomes 6, the largest number. The pass leaves the following
to expand-float-ops: GPUs before `sm` 89 (for f4E2M1FN, GPUs other than Blackwell), conversions from f64, which would round
twice by way of f32, and other formats. Mirrors XLA's ConvertFloatNvidia.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct
from xdsl.context import Context
from xdsl.dialects import arith, llvm, math, vector
from xdsl.dialects.builtin import (
    Float4E2M1FNType,
    Float8E4M3FNType,
    Float8E5M2Type,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    ModuleOp,
    VectorType,
    bf16,
    f16,
    f32,
    i8,
    i16,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from hlo_run.dialects.editing.loops import hand_on_origin
from hlo_run.dialects.editing.rewriting import ops_in

_FIRST_SM = 89
# The GPUs for which PTX has f4E2M1FN, in the architecture-specific variants `sm_100a` etc.
_SM_WITH_F4 = frozenset((100, 101, 103, 110, 120, 121))
_PAIR = VectorType(f16, [2])


class _Overflow(Struct, frozen=True):
    """The correction of overflow: a magnitude `predicate` `beyond` becomes `bits`."""

    bits: int
    predicate: str
    beyond: float


class _Hardware(Struct, frozen=True):
    """The name of a pair in intrinsics, the integer type of one number, the rounding suffix, and the overflow correction."""

    pair: str
    bits: IntegerType
    rounding: str
    overflow: _Overflow | None


_F8: dict[Attribute, _Hardware] = {
    # Ties go to the even neighbour: 464 is between 448 and NaN, 61440 is between 57344 and infinity.
    Float8E4M3FNType(): _Hardware("e4m3x2", i8, "rn", _Overflow(0x7F, "ogt", 464.0)),
    Float8E5M2Type(): _Hardware("e5m2x2", i8, "rn", _Overflow(0x7C, "oge", 61440.0)),
}
_F8_AND_F4 = {**_F8, Float4E2M1FNType(): _Hardware("e2m1x2", IntegerType(4), "rn.satfinite", None)}


@dataclass(frozen=True)
class ConvertFloatNvidia(ModulePass):
    """Converts to and from f8E4M3FN, f8E5M2 and f4E2M1FN by PTX instructions. `sm` is the GPU, for example 90."""

    name = "convert-float-nvidia"
    sm: int = 90

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Replace the conversions that GPU `sm` has instructions for. Before sm_89 no GPU has them, and nothing changes."""
        if self.sm < _FIRST_SM:
            return
        formats = _F8_AND_F4 if self.sm in _SM_WITH_F4 else _F8
        for each in ops_in(op):
            if type(each) is arith.TruncFOp and each.result.type in formats and each.input.type in (f16, bf16, f32):
                _truncate(each, formats[each.result.type])
            elif type(each) is arith.ExtFOp and each.input.type in formats:
                _extend(each, formats[each.input.type])


def _replace(op: Operation, ops: list[Operation]) -> None:
    for new in ops:
        hand_on_origin(op, new)
    Rewriter.replace_op(op, ops)


def _number(value: int, type_: IntegerType) -> Operation:
    return arith.ConstantOp(IntegerAttr(value, type_))


def _truncate(op: arith.TruncFOp, hardware: _Hardware) -> None:
    ops: list[Operation] = []

    def add(new: Operation) -> SSAValue:
        ops.append(new)
        return new.results[0]

    value = op.input if op.input.type == f32 else add(arith.ExtFOp(op.input, f32))
    pair = add(llvm.CallIntrinsicOp(f"llvm.nvvm.ff.to.{hardware.pair}.{hardware.rounding}", [value, value], [i16]))
    bits = add(arith.TruncIOp(pair, hardware.bits))
    if (overflow := hardware.overflow) is not None:
        limit = add(arith.ConstantOp(FloatAttr(overflow.beyond, f32)))
        beyond = add(arith.CmpfOp(add(math.AbsFOp(value)), limit, overflow.predicate))
        sign = add(arith.AndIOp(bits, add(_number(-128, i8))))
        special = add(arith.OrIOp(sign, add(_number(overflow.bits, i8))))
        bits = add(arith.SelectOp(beyond, special, bits))
    add(arith.BitcastOp(bits, op.result.type))
    _replace(op, ops)


def _extend(op: arith.ExtFOp, hardware: _Hardware) -> None:
    ops: list[Operation] = []

    def add(new: Operation) -> SSAValue:
        ops.append(new)
        return new.results[0]

    bits = add(arith.ExtUIOp(add(arith.BitcastOp(op.input, hardware.bits)), i16))
    pair = add(llvm.CallIntrinsicOp(f"llvm.nvvm.{hardware.pair}.to.f16x2.rn", [bits], [_PAIR]))
    half = add(vector.ExtractOp(pair, [0], f16))
    wide = op.result.type
    if wide == bf16:
        add(arith.TruncFOp(add(arith.ExtFOp(half, f32)), bf16))
    elif wide != f16:
        add(arith.ExtFOp(half, wide))
    _replace(op, ops)
