"""Builds accesses of packed elements: elements of less than a byte, several in one byte, low bits first.

    tensor.extract %t[%i] : tensor<8xi4>    =>   %b = load i8 at %i >> 1;  trunc (%b >> 4 * (%i & 1)) to i4

    tensor.insert %x into %t[%i]            =>   atomicrmw and at %i >> 1, ~(15 << 4 * (%i & 1));  atomicrmw or ..

Other threads may store other elements of the same byte. A store is therefore atomic: it clears the element's bits, then
sets them. Vectors of whole bytes, which the unroll factors guarantee, are plain accesses of integers. Shifts cut the
elements out of the integers and join them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from msgspec import Struct
from xdsl.dialects import arith, llvm, vector
from xdsl.dialects.builtin import (
    AnyFloat,
    DenseIntOrFPElementsAttr,
    FixedBitwidthType,
    IntegerAttr,
    IntegerType,
    TensorType,
    VectorType,
    i8,
    i32,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.hints import isa

from hlo_run.dialects.llvm_extra import AtomicRMWOp, GEPOp, LoadOp, PoisonOp
from hlo_run.dialects.types import is_integer, is_vector

BYTE_BITS = 8
_WORD_BITS = 32


@lru_cache(maxsize=256)
def is_packed(element: Attribute) -> bool:
    """True for element types of 1, 2 or 4 bits: a byte holds several elements."""
    return isa(element, IntegerType | AnyFloat) and element.bitwidth in (1, 2, 4)


def bits_of(element: Attribute) -> int:
    """Return the width in bits of an element type."""
    assert isinstance(element, FixedBitwidthType), "elements in memory have a width"
    return element.bitwidth


def packed_constant(value: DenseIntOrFPElementsAttr, type_: TensorType[Attribute]) -> DenseIntOrFPElementsAttr:
    """Return a constant array as a vector of packed bytes. xDSL keeps one byte per element."""
    bits = bits_of(type_.get_element_type())
    data = np.frombuffer(value.data.data, np.uint8)
    items = data if len(data) == type_.element_count() else np.repeat(data, type_.element_count())
    stream = np.unpackbits(items[:, None], axis=1, count=bits, bitorder="little")
    packed = np.packbits(stream.reshape(-1), bitorder="little")
    return DenseIntOrFPElementsAttr.from_list(VectorType(i8, [len(packed)]), packed.astype(np.int8).tolist())


class PackedAccess(Struct):
    """Builds accesses of packed elements. `insert` inserts an op and returns its result, None if it has no result."""

    insert: Callable[[Operation], SSAValue | None]
    element: Attribute

    @property
    def bits(self) -> int:
        """The width of an element in bits."""
        return bits_of(self.element)

    def address(self, base: SSAValue, index: SSAValue | None) -> tuple[SSAValue, SSAValue]:
        """Return the address of the byte with element `index`, and the element's first bit in it (i8).

        `index` is an integer value; None means the only element.
        """
        if index is None:
            return base, self.number(0, i8)
        type_ = index.type
        assert is_integer(type_), "an index is an integer by now"
        in_byte = BYTE_BITS // self.bits
        byte = self.add(arith.ShRUIOp(index, self.number(in_byte.bit_length() - 1, type_)))
        place = self.add(arith.AndIOp(index, self.number(in_byte - 1, type_)))
        shift = self.add(arith.MuliOp(place, self.number(self.bits, type_)))
        return self.add(GEPOp(base, [byte], i8)), self.add(arith.TruncIOp(shift, i8))

    def load(self, base: SSAValue, index: SSAValue | None, *, invariant: bool) -> SSAValue:
        """Load one element. `index` is as for `address`; `invariant` promises that the memory does not change."""
        address, shift = self.address(base, index)
        return self.unpack(self.add(LoadOp(address, i8, invariant=invariant)), shift)

    def store(self, value: SSAValue, base: SSAValue, index: SSAValue | None) -> None:
        """Store one element with two atomic updates of its byte. `index` is as for `address`."""
        address, shift = self.address(base, index)
        mask = self.add(arith.ShLIOp(self.number((1 << self.bits) - 1, i8), shift))
        others = self.add(arith.XOrIOp(mask, self.number(-1, i8)))
        self.insert(AtomicRMWOp("_and", address, others))
        self.insert(AtomicRMWOp("_or", address, self.add(arith.ShLIOp(self._integer_of(value, i8), shift))))

    def unpack(self, word: SSAValue, shift: SSAValue) -> SSAValue:
        """Return the element that begins at bit `shift` of `word`."""
        cut: SSAValue = self.add(arith.TruncIOp(self.add(arith.ShRUIOp(word, shift)), IntegerType(self.bits)))
        return cut if cut.type == self.element else self.add(arith.BitcastOp(cut, self.element))

    def merge(self, word: SSAValue, shift: SSAValue, value: SSAValue) -> SSAValue:
        """Return the integer `word` with the element at bit `shift` replaced by `value`; `shift` has the type of `word`."""
        type_ = word.type
        assert is_integer(type_), "words are integers"
        mask = self.add(arith.ShLIOp(self.number((1 << self.bits) - 1, type_), shift))
        others = self.add(arith.XOrIOp(mask, self.number(-1, type_)))
        kept = self.add(arith.AndIOp(word, others))
        return self.add(arith.OrIOp(kept, self.add(arith.ShLIOp(self._integer_of(value, type_), shift))))

    def load_vector(self, base: SSAValue, index: SSAValue | None, size: int, alignment: int, *, invariant: bool) -> SSAValue:
        """Load a vector of `size` elements. `index` must be a multiple of `size`; `alignment` is in bytes."""
        type_ = VectorType(self.element, [size])
        address, shift = self.address(base, index)
        if self.bits * size < BYTE_BITS:
            byte = self.add(arith.ShRUIOp(self.add(LoadOp(address, i8, invariant=invariant)), shift))
            return self._join([byte], type_)
        words, memory = self._words(size)
        loaded = self.add(LoadOp(address, memory, alignment, invariant=invariant))
        if not is_vector(memory):
            return self._join([loaded], type_)
        return self._join([self.add(vector.ExtractOp(loaded, [place], i32)) for place in range(words)], type_)

    def store_vector(self, value: SSAValue, base: SSAValue, index: SSAValue | None, alignment: int) -> None:
        """Store a vector. `index` must be a multiple of its size; less than a byte is stored element by element."""
        assert is_vector(value.type), "a vector is stored"
        (size,) = value.type.get_shape()
        if self.bits * size < BYTE_BITS:
            for place in range(size):
                element = self.add(vector.ExtractOp(value, [place], self.element))
                self.store(element, base, self._advanced(index, place))
            return
        address, _ = self.address(base, index)
        words, memory = self._words(size)
        word_type = i32 if is_vector(memory) else memory
        assert is_integer(word_type), "words are integers"
        in_word = word_type.width.data // self.bits
        parts = [self._cut(value, place * in_word, in_word, word_type) for place in range(words)]
        whole = parts[0] if not is_vector(memory) else self._vector(parts, memory)
        self.insert(llvm.StoreOp(whole, address, alignment))

    def number(self, value: int, type_: IntegerType) -> SSAValue:
        """Return an integer constant."""
        return self.add(arith.ConstantOp(IntegerAttr(value, type_)))

    def add(self, op: Operation) -> SSAValue:
        """Insert an op that has one result, and return the result."""
        result = self.insert(op)
        assert result is not None, f"{op.name} has a result"
        return result

    def _advanced(self, index: SSAValue | None, by: int) -> SSAValue | None:
        if index is None or not by:
            return index
        assert is_integer(index.type), "an index is an integer by now"
        return self.add(arith.AddiOp(index, self.number(by, index.type)))

    def _integer_of(self, value: SSAValue, type_: IntegerType) -> SSAValue:
        """Return the bits of an element in a wider integer."""
        bits = IntegerType(self.bits)
        return self.add(arith.ExtUIOp(value if value.type == bits else self.add(arith.BitcastOp(value, bits)), type_))

    def _words(self, size: int) -> tuple[int, Attribute]:
        """Return the number of words and the memory type for `size` elements: an integer, or a vector of i32."""
        bits = self.bits * size
        return (1, IntegerType(bits)) if bits <= _WORD_BITS else (bits // _WORD_BITS, VectorType(i32, [bits // _WORD_BITS]))

    def _join(self, words: Sequence[SSAValue], type_: VectorType[Attribute]) -> SSAValue:
        (size,) = type_.get_shape()
        in_word = size // len(words)
        elements: list[SSAValue] = []
        for word in words:
            assert is_integer(word.type), "words are integers"
            elements += [self.unpack(word, self.number(self.bits * place, word.type)) for place in range(in_word)]
        return self._vector(elements, type_)

    def _cut(self, value: SSAValue, first: int, count: int, type_: IntegerType) -> SSAValue:
        """Return `count` elements of a vector as one integer."""
        word: SSAValue | None = None
        for place in range(count):
            part = self._integer_of(self.add(vector.ExtractOp(value, [first + place], self.element)), type_)
            if place:
                part = self.add(arith.ShLIOp(part, self.number(self.bits * place, type_)))
            word = part if word is None else self.add(arith.OrIOp(word, part))
        assert word is not None, "a word holds elements"
        return word

    def _vector(self, elements: Sequence[SSAValue], type_: Attribute) -> SSAValue:
        whole = self.add(PoisonOp(type_))
        for place, element in enumerate(elements):
            whole = self.add(vector.InsertOp(element, whole, [place]))
        return whole
