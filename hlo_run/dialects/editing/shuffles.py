"""Builds shuffles of values of any type from shuffles of 32-bit words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from xdsl.dialects import arith, complex
from xdsl.dialects.builtin import FixedBitwidthType, Float32Type, IntegerAttr, IntegerType, i32
from xdsl.ir import Operation, SSAValue

from hlo_run.dialects import gpu
from hlo_run.dialects.types import is_complex, is_integer
from hlo_run.errors import InternalError

WARP_LANES = 32


class Shuffler(Struct, frozen=True):
    """Emits shuffles by `insert`, which returns the result of an operation. `mode` is the lane that is read."""

    insert: Callable[[Operation], SSAValue]
    mode: gpu.ShuffleMode = gpu.ShuffleMode.DOWN

    def shuffle(self, value: SSAValue, distance: int) -> SSAValue:
        """Return the value of the lane at this lane's number + `distance` (or xor, as the mode says)."""
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
        offset, width = self._number(distance, i32), self._number(WARP_LANES, i32)
        return self.insert(gpu.ShuffleOp(self.mode, value, offset, width))

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
