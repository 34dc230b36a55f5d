"""What an `xla_gpu.atomic_rmw` does to memory: one instruction where there is one, else a loop of compare-and-swap.

    xla_gpu.atomic_rmw %t[%i] { ^bb0(%x): %y = arith.addf %x, %u; xla_gpu.yield %y }   =>   llvm.atomicrmw fadd %p, %u

    any other body   =>   %first = llvm.load %p
                          scf.while (%old = %first) {
                            body;  %r = llvm.cmpxchg %p, %old, %new
                            scf.condition(%failed) %now
                          } do { ^bb0(%next): scf.yield %next }

A body that does not look at the element is a store. LLVM itself expands compare-and-swap of 8 and 16 bits to the word
around them, and additions that the card lacks to a loop.
"""

from __future__ import annotations

from xdsl.dialects import arith, llvm, scf, vector
from xdsl.dialects.builtin import (
    BFloat16Type,
    DenseArrayBase,
    FixedBitwidthType,
    Float16Type,
    Float32Type,
    Float64Type,
    IntAttr,
    IntegerAttr,
    IntegerType,
    i1,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from hlo_run.dialects.llvm_extra import AddrSpaceCastOp, AtomicCmpXchgOp, AtomicRMWOp, LoadOp
from hlo_run.dialects.loops import hand_on_origin
from hlo_run.dialects.types import is_integer, is_vector
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


def lower_atomic(op: XlaAtomicRMWOp, address: SSAValue) -> None:
    """Insert in front of `op` what does the same at `address`; the op itself is left, its body empty of what moved.

    Raises Unsupported for elements that no compare-and-swap takes.
    """
    current = op.current
    if is_vector(current.type):
        _add_vector(op, address)
    elif not any(True for _ in current.uses):
        _store(op, address)
    elif (native := _native(op)) is not None:
        keyword, value = native
        _move_body(op, keep_last=False)
        _insert(op, AtomicRMWOp(keyword, address, value))
    else:
        _compare_and_swap(op, address)


def _insert(op: XlaAtomicRMWOp, new: Operation) -> SSAValue | None:
    Rewriter.insert_op(hand_on_origin(op, new), InsertPoint.before(op))
    return new.results[0] if new.results else None


def _move_body(op: XlaAtomicRMWOp, keep_last: bool) -> SSAValue:
    """Move the body in front of the op, without its yield (and, unless `keep_last`, without what it yields)."""
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
    """Return what an instruction has to do with which value, None if none does."""
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


def _store(op: XlaAtomicRMWOp, address: SSAValue) -> None:
    new = _move_body(op, keep_last=True)
    cell = _cell_type(new.type)
    if cell != new.type and not isinstance(new.type, _ADDED_FLOATS):
        cast = _insert(op, arith.BitcastOp(new, cell))
        assert cast is not None, "a bitcast has a result"
        new = cast
    _insert(op, llvm.StoreOp(new, address))


def _cell_type(element: Attribute) -> IntegerType:
    """Return the integer that is compared and swapped for an element."""
    if isinstance(element, FixedBitwidthType) and element.bitwidth in (8, 16, 32, 64):
        return IntegerType(element.bitwidth)
    raise Unsupported(f"atomic updates of elements of type {element}", hint="scatter with unique_indices=true needs none")


def _compare_and_swap(op: XlaAtomicRMWOp, address: SSAValue) -> None:
    element = op.current.type
    cell = _cell_type(element)
    first = _insert(op, LoadOp(address, cell))
    assert first is not None, "a load has a result"
    body = op.body.detach_block(0)
    ended = body.last_op
    assert ended is not None, "a body ends in a yield"
    (new,) = ended.operands
    Rewriter.erase_op(ended)
    old: SSAValue = body.args[0]
    if cell != element:
        old = body.insert_arg(cell, 0)
        seen = hand_on_origin(op, arith.BitcastOp(old, element))
        first_op = body.first_op
        if first_op is None:
            body.add_op(seen)
        else:
            body.insert_op_before(seen, first_op)
        body.args[1].replace_all_uses_with(seen.results[0])
        new = seen.results[0] if new is body.args[1] else new
        body.erase_arg(body.args[1])

    def append(added: Operation) -> SSAValue:
        body.add_op(hand_on_origin(op, added))
        return added.results[0]

    if cell != element:
        new = append(arith.BitcastOp(new, cell))
    exchanged = append(AtomicCmpXchgOp(address, old, new))
    now, stored = (
        append(llvm.ExtractValueOp(DenseArrayBase.from_list(i64, [number]), exchanged, type_))
        for number, type_ in enumerate((cell, i1))
    )
    one = append(arith.ConstantOp(IntegerAttr(-1, i1)))
    body.add_op(scf.ConditionOp(append(arith.XOrIOp(stored, one)), now))
    again = Block(arg_types=[cell])
    again.add_op(scf.YieldOp(again.args[0]))
    _insert(op, scf.WhileOp([first], [cell], Region(body), Region(again)))


def _add_vector(op: XlaAtomicRMWOp, address: SSAValue) -> None:
    """A vectorised addition of f32 (sm_90 and newer): LLVM has no instruction for it."""
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
