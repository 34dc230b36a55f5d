"""Lowers `xla_gpu.atomic_rmw` to one atomic instruction if the hardware has it, else to a compare-and-swap loop.

    xla_gpu.atomic_rmw %t[%i] { ^bb0(%x): %y = arith.addf %x, %u; xla_gpu.yield %y }   =>   llvm.atomicrmw fadd %p, %u

    any other body   =>   %first = llvm.load %p
                          scf.while (%old = %first) {
                            body;  %r = llvm.cmpxchg %p, %old, %new
                            scf.condition(%failed) %now
                          } do { ^bb0(%next): scf.yield %next }

A body that does not read the element becomes a store. The maximum of f32 becomes a maximum or minimum of integers: of two
non-negative floats the larger has the larger bits as a signed integer, of two negative floats the smaller bits as an
unsigned integer. For elements of less than 32 bits, the loop compares and swaps the 32-bit word around them. LLVM expands
additions that the GPU lacks to a loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct
from xdsl.dialects import arith, complex, llvm, scf, vector
from xdsl.dialects.builtin import (
    BFloat16Type,
    ComplexType,
    DenseArrayBase,
    FixedBitwidthType,
    Float16Type,
    Float32Type,
    Float64Type,
    FloatAttr,
    IntAttr,
    IntegerAttr,
    IntegerType,
    f32,
    i1,
    i8,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from hlo_run.dialects.editing.loops import hand_on_origin
from hlo_run.dialects.editing.packed import PackedAccess
from hlo_run.dialects.llvm_extra import AddrSpaceCastOp, AtomicCmpXchgOp, AtomicRMWOp, GEPOp, LoadOp
from hlo_run.dialects.types import is_complex, is_integer, is_vector
from hlo_run.dialects.xla_gpu import AtomicRMWOp as XlaAtomicRMWOp
from hlo_run.errors import Unsupported

_INTEGER_OPS: dict[type[Operation], str] = {
    arith.AddiOp: "add",
    arith.MaxSIOp: "max",
    arith.MinSIOp: "min",
    arith.MaxUIOp: "umax",
    arith.MinUIOp: "umin",
    arith.AndIOp: "_and",
    arith.OrIOp: "_or",
    arith.XOrIOp: "_xor",
}
_ADDED_FLOATS = (Float16Type, BFloat16Type, Float32Type, Float64Type)
_GLOBAL = llvm.LLVMPointerType(IntAttr(1))
_WORD_BITS = 32
_NO_ATOMICS_NEEDED = "scatter with unique_indices=true needs none"
Add: TypeAlias = Callable[[Operation], SSAValue]


def lower_atomic(op: XlaAtomicRMWOp, address: SSAValue) -> None:
    """Insert ops before `op` that update the element at `address`. The caller erases `op`, whose body may be empty then.

    Raises Unsupported for element types that compare-and-swap does not support.
    """
    current = op.current
    if is_vector(current.type):
        _add_vector(op, address)
    elif not any(True for _ in current.uses):
        _store(op, address)
    elif (value := _maximum_of(op)) is not None:
        _move_body(op, keep_last=False)
        _maximum(op, address, value)
    elif (native := _native(op)) is not None:
        keyword, value = native
        _move_body(op, keep_last=False)
        _insert(op, AtomicRMWOp(keyword, address, value))
    elif not is_complex(current.type) and _cell_type(current.type).width.data < _WORD_BITS:
        _swap_in_word(op, address, current.type, None)
    else:
        _compare_and_swap(op, address, _cell_of(current.type))


def _insert(op: XlaAtomicRMWOp, new: Operation) -> SSAValue | None:
    Rewriter.insert_op(hand_on_origin(op, new), InsertPoint.before(op))
    return new.results[0] if new.results else None


def _move_body(op: XlaAtomicRMWOp, keep_last: bool) -> SSAValue:
    """Move the body before the op, without its yield. Unless `keep_last`, erase the op that makes the yielded value too."""
    ended = op.yield_op
    (new,) = ended.operands
    Rewriter.erase_op(ended)
    for inner in [*op.body.block.ops]:
        inner.detach()
        if inner is new.owner and not keep_last:
            inner.erase(safe_erase=False)
        else:
            Rewriter.insert_op(inner, InsertPoint.before(op))
    return new


def _native(op: XlaAtomicRMWOp) -> tuple[str, SSAValue] | None:
    """Return the kind of llvm.atomicrmw that does the same as the body and its operand, None if no kind does."""
    (new,) = op.yield_op.operands
    owner, current = new.owner, op.current
    if not isinstance(owner, Operation) or len(owner.operands) != 2 or not current.has_one_use():
        return None
    others = [operand for operand in owner.operands if operand is not current]
    if len(others) != 1:
        return None
    if isinstance(owner, arith.AddfOp) and isinstance(current.type, _ADDED_FLOATS):
        return "fadd", others[0]
    if is_integer(current.type) and current.type.width.data in (32, 64) and type(owner) in _INTEGER_OPS:
        return _INTEGER_OPS[type(owner)], others[0]
    return None


def _maximum_of(op: XlaAtomicRMWOp) -> SSAValue | None:
    """Return the other operand of the maximum if the body is a maximum of f32, else None."""
    (new,) = op.yield_op.operands
    owner, current = new.owner, op.current
    if not isinstance(owner, arith.MaximumfOp) or current.type != f32 or not current.has_one_use():
        return None
    return owner.rhs if owner.lhs is current else owner.lhs


def _maximum(op: XlaAtomicRMWOp, address: SSAValue, value: SSAValue) -> None:
    """Write `value` if the element is not NaN, and is less than `value` or `value` is NaN. A NaN is written as positive."""

    def add(new: Operation) -> SSAValue:
        result = _insert(op, new)
        assert result is not None, f"{new.name} has a result"
        return result

    current = add(LoadOp(address, f32))
    nan = add(arith.ConstantOp(FloatAttr(math.nan, f32)))
    raised = add(arith.SelectOp(add(arith.CmpfOp(value, value, "uno")), nan, value))
    is_number, is_less = add(arith.CmpfOp(current, current, "ord")), add(arith.CmpfOp(current, raised, "ult"))
    word = add(arith.BitcastOp(raised, i32))
    is_positive = add(arith.CmpiOp(word, add(arith.ConstantOp(IntegerAttr(0, i32))), "sge"))
    signed, unsigned = (
        Region(Block([hand_on_origin(op, AtomicRMWOp(keyword, address, word)), scf.YieldOp()])) for keyword in ("max", "umin")
    )
    chosen = hand_on_origin(op, scf.IfOp(is_positive, [], signed, unsigned))
    _insert(op, scf.IfOp(add(arith.AndIOp(is_number, is_less)), [], Region(Block([chosen, scf.YieldOp()])), Region()))


def _store(op: XlaAtomicRMWOp, address: SSAValue) -> None:
    def add(new: Operation) -> SSAValue:
        result = _insert(op, new)
        assert result is not None, f"{new.name} has a result"
        return result

    new = _move_body(op, keep_last=True)
    if not isinstance(new.type, _ADDED_FLOATS):
        new = _cell_of(new.type).with_element(add, new, new)
    _insert(op, llvm.StoreOp(new, address))


def _cell_type(element: Attribute) -> IntegerType:
    """Return the integer type that is compared and swapped for an element."""
    if isinstance(element, FixedBitwidthType) and element.bitwidth in (8, 16, 32, 64):
        return IntegerType(element.bitwidth)
    raise Unsupported(f"atomic updates of elements of type {element}", hint=_NO_ATOMICS_NEEDED)


class _Cell(Struct):
    """The integer in memory that holds an element. `element_of` extracts the element, `with_element` replaces it."""

    type: IntegerType
    element_of: Callable[[Add, SSAValue], SSAValue]
    with_element: Callable[[Add, SSAValue, SSAValue], SSAValue]


def _cell_of(element: Attribute) -> _Cell:
    if is_complex(element):
        return _complex_cell(element)
    cell = _cell_type(element)
    if cell == element:
        return _Cell(cell, lambda _, word: word, lambda _add, _old, new: new)
    return _Cell(
        cell,
        lambda add, word: add(arith.BitcastOp(word, element)),
        lambda add, _, new: add(arith.BitcastOp(new, cell)),
    )


def _complex_cell(element: ComplexType) -> _Cell:
    """Return the i64 cell of a c64 element: the real part is the low half. Compare-and-swap has at most 64 bits."""
    part = element.element_type
    if part != f32:
        raise Unsupported(f"atomic updates of elements of type {element}", hint=_NO_ATOMICS_NEEDED)

    def element_of(add: Add, word: SSAValue) -> SSAValue:
        high = add(arith.ShRUIOp(word, add(arith.ConstantOp(IntegerAttr(32, i64)))))
        real, imaginary = (add(arith.BitcastOp(add(arith.TruncIOp(half, i32)), f32)) for half in (word, high))
        return add(complex.CreateOp(real, imaginary, element))

    def with_element(add: Add, _old: SSAValue, new: SSAValue) -> SSAValue:
        parts = (add(arith.BitcastOp(add(op(new)), i32)) for op in (complex.ReOp, complex.ImOp))
        low, high = (add(arith.ExtUIOp(part, i64)) for part in parts)
        return add(arith.OrIOp(low, add(arith.ShLIOp(high, add(arith.ConstantOp(IntegerAttr(32, i64)))))))

    return _Cell(i64, element_of, with_element)


def lower_packed_atomic(op: XlaAtomicRMWOp, address: SSAValue, shift: SSAValue, element: Attribute) -> None:
    """Insert ops as `lower_atomic` does, for an element of less than a byte at bit `shift` (i8) of the byte at `address`."""
    _swap_in_word(op, address, element, shift)


def _swap_in_word(op: XlaAtomicRMWOp, address: SSAValue, element: Attribute, shift: SSAValue | None) -> None:
    """Compare and swap the 32-bit word around an element; `shift` (i8) as in `lower_packed_atomic`."""

    def add(new: Operation) -> SSAValue:
        result = _insert(op, new)
        assert result is not None, f"{new.name} has a result"
        return result

    def number(value: int, type_: IntegerType) -> SSAValue:
        return add(arith.ConstantOp(IntegerAttr(value, type_)))

    place = add(arith.AndIOp(add(llvm.PtrToIntOp(address, i64)), number(_WORD_BITS // 8 - 1, i64)))
    begin = add(GEPOp(address, [add(arith.SubiOp(number(0, i64), place))], i8))
    first_bit = add(arith.MuliOp(add(arith.TruncIOp(place, i32)), number(8, i32)))
    if shift is not None:
        first_bit = add(arith.AddiOp(first_bit, add(arith.ExtUIOp(shift, i32))))
    cell = _Cell(
        i32,
        lambda append, word: PackedAccess(append, element).unpack(word, first_bit),
        lambda append, old, new: PackedAccess(append, element).merge(old, first_bit, new),
    )
    _compare_and_swap(op, begin, cell)


def _compare_and_swap(op: XlaAtomicRMWOp, address: SSAValue, cell: _Cell) -> None:
    first = _insert(op, LoadOp(address, cell.type))
    assert first is not None, "a load has a result"
    loop_body = Block(arg_types=[cell.type])
    old = loop_body.args[0]

    def append(added: Operation) -> SSAValue:
        loop_body.add_op(hand_on_origin(op, added))
        return added.results[0]

    op.current.replace_all_uses_with(cell.element_of(append, old))
    ended = op.yield_op
    (new,) = ended.operands
    Rewriter.erase_op(ended)
    for inner in [*op.body.block.ops]:
        inner.detach()
        loop_body.add_op(inner)
    exchanged = append(AtomicCmpXchgOp(address, old, cell.with_element(append, old, new)))
    now, stored = (
        append(llvm.ExtractValueOp(DenseArrayBase.from_list(i64, [number]), exchanged, type_))
        for number, type_ in enumerate((cell.type, i1))
    )
    one = append(arith.ConstantOp(IntegerAttr(-1, i1)))
    loop_body.add_op(scf.ConditionOp(append(arith.XOrIOp(stored, one)), now))
    again = Block(arg_types=[cell.type])
    again.add_op(scf.YieldOp(again.args[0]))
    _insert(op, scf.WhileOp([first], [cell.type], Region(loop_body), Region(again)))


def _add_vector(op: XlaAtomicRMWOp, address: SSAValue) -> None:
    """Emit a vectorised addition of f32 (sm_90 and newer) as inline PTX: LLVM has no instruction for it."""
    native = _native_vector(op)
    type_ = op.current.type
    assert is_vector(type_), "checked by the caller"
    (lanes,) = type_.get_shape()
    _move_body(op, keep_last=False)
    pointer = _insert(op, AddrSpaceCastOp(address, _GLOBAL))
    assert pointer is not None, "a cast has a result"
    parts: list[SSAValue] = []
    for lane in range(lanes):
        part = _insert(op, vector.ExtractOp(native, [lane], type_.get_element_type()))
        assert part is not None, "an extract has a result"
        parts.append(part)
    places = ", ".join(f"${number}" for number in range(1, lanes + 1))
    text = f"red.relaxed.gpu.global.add.v{lanes}.f32 [$0], {{{places}}};"
    constraints = ",".join(["l", *"f" * lanes, "~{memory}"])
    _insert(op, llvm.InlineAsmOp(text, constraints, [pointer, *parts], has_side_effects=True))


def _native_vector(op: XlaAtomicRMWOp) -> SSAValue:
    (new,) = op.yield_op.operands
    owner = new.owner
    assert isinstance(owner, arith.AddfOp), "only additions are vectorised"
    return owner.rhs if owner.lhs is op.current else owner.lhs
