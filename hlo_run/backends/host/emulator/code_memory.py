"""Memory accesses, atomics, warp-wide instructions and barriers as numpy code: one row per record of `specs`."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from hlo_run.backends.host.emulator.code_integer import Emit
from hlo_run.backends.host.emulator.code_move import define_integer, integer_source
from hlo_run.backends.host.emulator.code_writer import BITS_OF_WIDTH, CodeWriter
from hlo_run.backends.host.ptx import specs
from hlo_run.backends.host.ptx.instruction_set import Operation, row
from hlo_run.backends.host.ptx.syntax import Address, Operand, Pair, Sink, Symbol, Vector

# ---- loads and stores -----------------------------------------------------------------------------------------------


def _strength(is_ordered: bool) -> str:
    """Return the argument that marks an access as ordered with other threads' accesses."""
    return ", True" if is_ordered else ""


def _load(w: CodeWriter, op: Operation, spec: specs.Load) -> None:
    target, address = op.operands
    if spec.space == "param":
        _load_parameter(w, target, address)
        return
    pointer, displacement = w.pointer(address, spec.space)
    size = spec.size_bytes
    elements = target.elements if isinstance(target, Vector) else (target,)
    pieces = op.instruction.used_pieces(size, len(elements))
    if pieces is None and not isinstance(target, Vector):
        loaded = w.temporary(f"{pointer}.load({displacement}, {size}, {op.line}{_strength(spec.is_ordered)})")
        _define_loaded(w, target, loaded, spec.item)
        return
    names = [w.fresh() for _ in elements]
    used = "" if pieces is None else f", {pieces}"
    w.emit(f"{', '.join(names)}, = {pointer}.load_vector({displacement}, {size}, {len(names)}, {op.line}{used})")
    for element, name in zip(elements, names, strict=True):
        _define_loaded(w, element, name, spec.item)


def _define_loaded(w: CodeWriter, target: Operand, name: str, item: str) -> None:
    """Set a register to loaded bits. Signed types are sign-extended to a wider register, others zero-extended."""
    if isinstance(target, Sink):
        return
    if w.width(target) == int(item[1:]):
        w.define(target, BITS_OF_WIDTH[int(item[1:])], name)
    else:
        typed = f"{name}.view(i{int(item[1:]) // 8})" if item[0] == "s" else name
        define_integer(w, target, typed, item)


def _load_parameter(w: CodeWriter, target: Operand, address: Operand) -> None:
    """Load a kernel parameter: always a whole 64-bit pointer."""
    assert isinstance(address, Address), "the rules have checked the operands"
    assert isinstance(address.base, Symbol), "the rules have checked the operands"
    _, number = w.symbols[address.base.name]
    w.define(target, "u64", f"s.launch.parameters[{number}]")


def _bits(w: CodeWriter, operand: Operand, size_bytes: int) -> str:
    """Return a variable with the low bits of a register as an unsigned integer of a size."""
    return integer_source(w, operand, f"u{8 * size_bytes}")


def _store(w: CodeWriter, op: Operation, spec: specs.Store) -> None:
    address, source = op.operands
    pointer, displacement = w.pointer(address, spec.space)
    elements = source.elements if isinstance(source, Vector) else (source,)
    names = ", ".join(_bits(w, element, spec.size_bytes) for element in elements)
    w.emit(f"{pointer}.store(({names},), {displacement}, {spec.size_bytes}, {op.line}{_strength(spec.is_ordered)})")


def _update(w: CodeWriter, op: Operation, spec: specs.Update) -> None:
    target, address, *sources = op.operands if spec.returns else (Sink(), *op.operands)
    pointer, displacement = w.pointer(address, spec.space)
    wants_old = not isinstance(target, Sink) and w.result_is_used
    lists = [source.elements if isinstance(source, Vector) else (source,) for source in sources]
    size = spec.size_bytes
    if len(lists[0]) > 1:
        w.emit(f"{pointer}.check({displacement}, {size * len(lists[0])}, 'atomic', {op.line})")
    targets = target.elements if isinstance(target, Vector) else (target,) * len(lists[0])
    for number, element in enumerate(targets):
        names = ", ".join(_bits(w, elements[number], size) for elements in lists)
        place = displacement + number * size
        call = f"atomic(s, {pointer}, {place}, {spec.operation!r}, {spec.type!r}, ({names},), {op.line}, {wants_old})"
        if wants_old:
            w.define(element, BITS_OF_WIDTH[8 * size], call)
        else:
            w.emit(call)


# ---- warps and barriers ---------------------------------------------------------------------------------------------


def _shuffle(w: CodeWriter, op: Operation, spec: specs.Shuffle) -> None:
    target, value, distance, bounds, _ = op.operands
    result, in_range = w.fresh(), w.fresh()
    names = f"{w.read(value, 'u32')}, {spec.mode!r}, {w.read(distance, 'u32')}, {w.read(bounds, 'u32')}"
    w.emit(f"{result}, {in_range} = shuffle(s, {names})")
    _define_both(w, target, result, in_range)


def _define_both(w: CodeWriter, target: Operand, word: str, flag: str) -> None:
    """Set a register, or a register and a predicate."""
    if isinstance(target, Pair):
        w.define(target.first, "u32", word)
        w.define(target.second, "pred", flag)
    else:
        w.define(target, "u32", word)


def _vote(w: CodeWriter, op: Operation, spec: specs.Vote) -> None:
    target, predicate, members = op.operands
    form = "u32" if spec.mode == "ballot" else "pred"
    w.define(target, form, f"vote(s, {w.read(predicate, 'pred')}, {spec.mode!r}, {w.read(members, 'u32')})")


def _match(w: CodeWriter, op: Operation, spec: specs.Match) -> None:
    target, value, members = op.operands
    names = f"{w.read(value, BITS_OF_WIDTH[spec.bits])}, {w.read(members, 'u32')}"
    if spec.mode == "any":
        w.define(target, "u32", f"match_any(s, {names})")
        return
    mask, same = w.fresh(), w.fresh()
    w.emit(f"{mask}, {same} = match_all(s, {names})")
    _define_both(w, target, mask, same)


def _reduce_warp(w: CodeWriter, op: Operation, spec: specs.ReduceWarp) -> None:
    target, value, members = op.operands
    form = "s32" if spec.is_signed else "u32"
    w.define(target, form, f"reduce_warp(s, {w.read(value, form)}, {spec.operation!r}, {w.read(members, 'u32')})")


def _elect(w: CodeWriter, op: Operation, spec: specs.Elect) -> None:
    del spec
    target, members = op.operands
    leader, chosen = w.fresh(), w.fresh()
    w.emit(f"{leader}, {chosen} = elect(s, {w.read(members, 'u32')})")
    _define_both(w, target, leader, chosen)


def _active_mask(w: CodeWriter, op: Operation, spec: specs.ActiveMask) -> None:
    del spec
    w.define(op.operands[0], "u32", "active_mask(s)")


def _barrier(w: CodeWriter, op: Operation, spec: specs.Barrier) -> None:
    """Notify the checks and reduce for `bar.red`. The threads have already met when the barrier's block begins."""
    if spec.is_warp:
        w.emit(f"pass_warp_barrier(s, {op.line})")
        return
    operands = list(op.operands)
    target = operands.pop(0) if spec.reduction else Sink()
    predicate = operands.pop() if spec.reduction else Sink()
    threads = w.read(operands[1], "u32") if len(operands) > 1 else "None"
    w.emit(f"pass_barrier(s, {threads}, {op.line})")
    if spec.reduction:
        form = "u32" if spec.reduction == "popc" else "pred"
        w.define(target, form, f"block_reduce(s, {w.read(predicate, 'pred')}, {spec.reduction!r})")


def _trap(w: CodeWriter, op: Operation, spec: specs.Trap) -> None:
    del spec
    w.emit(f"s.launch.fail('the kernel executed a trap', {op.line}, s.describe(0))")


def _nothing(w: CodeWriter, op: Operation, spec: specs.NoEffect) -> None:
    del w, op, spec


EMITTERS: Mapping[type[Struct], Emit] = dict(
    (
        row(specs.Load, _load),
        row(specs.Store, _store),
        row(specs.Update, _update),
        row(specs.Shuffle, _shuffle),
        row(specs.Vote, _vote),
        row(specs.Match, _match),
        row(specs.ReduceWarp, _reduce_warp),
        row(specs.Elect, _elect),
        row(specs.ActiveMask, _active_mask),
        row(specs.Barrier, _barrier),
        row(specs.Trap, _trap),
        row(specs.NoEffect, _nothing),
    )
)
