"""Memory accesses, atomics, warp-wide instructions and barriers as numpy code: one row per opcode."""

from __future__ import annotations

from collections.abc import Mapping

from hlo_run.backends.host.emulator.code_integer import Emit
from hlo_run.backends.host.emulator.code_move import define_integer, integer_source
from hlo_run.backends.host.emulator.code_writer import BITS_OF_WIDTH, CodeWriter
from hlo_run.backends.host.ptx.instruction_set import Operation
from hlo_run.backends.host.ptx.syntax import TYPE_BYTES, Address, Operand, Pair, Sink, Symbol, Vector

# ---- loads and stores -----------------------------------------------------------------------------------------------


def _space(op: Operation) -> str:
    """Return shared, local, param or "". Global, const and generic addresses carry their region's number."""
    if op.flags & {"shared", "shared::cta"}:
        return "shared"
    if op.flags & {"param", "param::entry", "param::func"}:
        return "param"
    return "local" if "local" in op.flags else ""


def _item_type(type_name: str) -> str:
    """Return the integer type that has the bits of a value of the type."""
    return type_name if type_name[0] in "su" and type_name[1:].isdigit() else f"u{8 * TYPE_BYTES[type_name]}"


def _strength(op: Operation) -> str:
    """Return the argument that marks an access as ordered with those of other threads."""
    return ", True" if op.flags & {"relaxed", "acquire", "release", "volatile", "mmio"} else ""


def _load(w: CodeWriter, op: Operation) -> None:
    target, address = op.operands
    if op.type == "b128":
        raise op.unsupported()
    if _space(op) == "param":
        _load_parameter(w, op, target, address)
        return
    pointer, displacement = w.pointer(address, _space(op))
    item, size = _item_type(op.type), TYPE_BYTES[op.type]
    elements = target.elements if isinstance(target, Vector) else (target,)
    pieces = op.instruction.used_pieces(size, len(elements))
    if pieces is None and not isinstance(target, Vector):
        loaded = w.temporary(f"{pointer}.load({displacement}, {size}, {op.line}{_strength(op)})")
        _define_loaded(w, target, loaded, item)
        return
    names = [w.fresh() for _ in elements]
    used = "" if pieces is None else f", {pieces}"
    w.emit(f"{', '.join(names)}, = {pointer}.load_vector({displacement}, {size}, {len(names)}, {op.line}{used})")
    for element, name in zip(elements, names, strict=True):
        _define_loaded(w, element, name, item)


def _define_loaded(w: CodeWriter, target: Operand, name: str, item: str) -> None:
    """Set a register to loaded bits. Signed types are sign-extended to a wider register, others zero-extended."""
    if isinstance(target, Sink):
        return
    if w.width(target) == int(item[1:]):
        w.define(target, BITS_OF_WIDTH[int(item[1:])], name)
    else:
        typed = f"{name}.view(i{int(item[1:]) // 8})" if item[0] == "s" else name
        define_integer(w, target, typed, item)


def _load_parameter(w: CodeWriter, op: Operation, target: Operand, address: Operand) -> None:
    """Load a kernel parameter: always a whole 64-bit pointer."""
    assert isinstance(address, Address), "memory is accessed through an address"
    base = address.base
    if not isinstance(base, Symbol) or base.offset + address.offset != 0 or TYPE_BYTES[op.type] != 8:
        raise op.unsupported()
    space, number = w.symbols.get(base.name, ("", 0))
    if space != "param" or isinstance(target, Vector):
        raise op.unsupported()
    w.define(target, "u64", f"s.launch.parameters[{number}]")


def _bits(w: CodeWriter, operand: Operand, type_name: str) -> str:
    """Return a variable with the low bits of a register as an unsigned integer of the type's size."""
    return integer_source(w, operand, f"u{8 * TYPE_BYTES[type_name]}")


def _store(w: CodeWriter, op: Operation) -> None:
    address, source = op.operands
    if op.type == "b128" or _space(op) == "param":
        raise op.unsupported()
    pointer, displacement = w.pointer(address, _space(op))
    elements = source.elements if isinstance(source, Vector) else (source,)
    names = ", ".join(_bits(w, element, op.type) for element in elements)
    w.emit(f"{pointer}.store(({names},), {displacement}, {TYPE_BYTES[op.type]}, {op.line}{_strength(op)})")


_HALVES = ("f16", "f16x2", "bf16", "bf16x2")
_ATOMIC_OPERATIONS = ("add", "inc", "dec", "min", "max", "and", "or", "xor", "exch", "cas")


def _atomic(w: CodeWriter, op: Operation) -> None:
    target, address, *sources = op.operands if op.opcode == "atom" else (Sink(), *op.operands)
    operation = op.choice(*_ATOMIC_OPERATIONS)
    if op.type == "f32x2" or (op.type in _HALVES and operation not in ("add", "min", "max", "exch", "cas")):
        raise op.unsupported()
    pointer, displacement = w.pointer(address, _space(op))
    wants_old = not isinstance(target, Sink) and w.result_is_used
    lists = [source.elements if isinstance(source, Vector) else (source,) for source in sources]
    size = TYPE_BYTES[op.type]
    if len(lists[0]) > 1:
        w.emit(f"{pointer}.check({displacement}, {size * len(lists[0])}, 'atomic', {op.line})")
    targets = target.elements if isinstance(target, Vector) else (target,) * len(lists[0])
    for number, element in enumerate(targets):
        names = ", ".join(_bits(w, elements[number], op.type) for elements in lists)
        place = displacement + number * size
        call = f"atomic(s, {pointer}, {place}, {operation!r}, {op.type!r}, ({names},), {op.line}, {wants_old})"
        if wants_old:
            w.define(element, BITS_OF_WIDTH[8 * size], call)
        else:
            w.emit(call)


# ---- warps and barriers ---------------------------------------------------------------------------------------------


def _shfl(w: CodeWriter, op: Operation) -> None:
    if "sync" not in op.flags:
        raise op.unsupported()
    target, value, distance, bounds, _ = op.operands
    mode = op.choice("up", "down", "bfly", "idx")
    result, in_range = w.fresh(), w.fresh()
    names = f"{w.read(value, 'u32')}, {mode!r}, {w.read(distance, 'u32')}, {w.read(bounds, 'u32')}"
    w.emit(f"{result}, {in_range} = shuffle(s, {names})")
    if isinstance(target, Pair):
        w.define(target.first, "u32", result)
        w.define(target.second, "pred", in_range)
    else:
        w.define(target, "u32", result)


def _vote(w: CodeWriter, op: Operation) -> None:
    if "sync" not in op.flags:
        raise op.unsupported()
    target, predicate, members = op.operands
    mode = op.choice("ballot", "all", "any", "uni")
    form = "u32" if mode == "ballot" else "pred"
    w.define(target, form, f"vote(s, {w.read(predicate, 'pred')}, {mode!r}, {w.read(members, 'u32')})")


def _match(w: CodeWriter, op: Operation) -> None:
    target, value, members = op.operands
    names = f"{w.read(value, BITS_OF_WIDTH[int(op.type[1:])])}, {w.read(members, 'u32')}"
    if "any" in op.flags:
        w.define(target, "u32", f"match_any(s, {names})")
        return
    mask, same = w.fresh(), w.fresh()
    w.emit(f"{mask}, {same} = match_all(s, {names})")
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, Sink())
    w.define(first, "u32", mask)
    w.define(second, "pred", same)


def _redux(w: CodeWriter, op: Operation) -> None:
    target, value, members = op.operands
    form = "s32" if op.type == "s32" else "u32"
    operation = op.choice("add", "min", "max", "and", "or", "xor")
    w.define(target, form, f"reduce_warp(s, {w.read(value, form)}, {operation!r}, {w.read(members, 'u32')})")


def _elect(w: CodeWriter, op: Operation) -> None:
    target, members = op.operands
    if not isinstance(target, Pair):
        raise op.unsupported()
    leader, chosen = w.fresh(), w.fresh()
    w.emit(f"{leader}, {chosen} = elect(s, {w.read(members, 'u32')})")
    w.define(target.first, "u32", leader)
    w.define(target.second, "pred", chosen)


def _activemask(w: CodeWriter, op: Operation) -> None:
    w.define(op.operands[0], "u32", "active_mask(s)")


def _bar(w: CodeWriter, op: Operation) -> None:
    """Notify the checks and reduce for `bar.red`. The threads have already met when the barrier's block begins."""
    if "warp" in op.flags:
        w.emit(f"pass_warp_barrier(s, {op.line})")
        return
    operands = list(op.operands)
    reduction = op.choice("popc", "and", "or") if "red" in op.flags else ""
    target = operands.pop(0) if reduction else Sink()
    predicate = operands.pop() if reduction else Sink()
    threads = w.read(operands[1], "u32") if len(operands) > 1 else "None"
    w.emit(f"pass_barrier(s, {threads}, {op.line})")
    if reduction:
        form = "u32" if reduction == "popc" else "pred"
        w.define(target, form, f"block_reduce(s, {w.read(predicate, 'pred')}, {reduction!r})")


def _trap(w: CodeWriter, op: Operation) -> None:
    w.emit(f"s.launch.fail('the kernel executed a trap', {op.line}, s.describe(0))")


def _nothing(w: CodeWriter, op: Operation) -> None:
    """Emit nothing: memory is always coherent here, kernels run one after the other, and clocks do not advance."""
    del w, op


EMITTERS: Mapping[str, Emit] = {
    "ld": _load,
    "ldu": _load,
    "st": _store,
    "atom": _atomic,
    "red": _atomic,
    "shfl": _shfl,
    "vote": _vote,
    "match": _match,
    "redux": _redux,
    "elect": _elect,
    "activemask": _activemask,
    "bar": _bar,
    "barrier": _bar,
    "trap": _trap,
    **dict.fromkeys(("membar", "fence", "griddepcontrol", "nanosleep", "prefetch", "pmevent"), _nothing),
}
