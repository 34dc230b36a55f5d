"""Memory accesses and atomics as LLVM IR. An access without proven bounds executes only if a check succeeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from hlo_run.backends.host.emulator.memory import LOCAL_NUMBER, NUMBER_SHIFT, POISON, SHARED_NUMBER, VARIABLE_NUMBER
from hlo_run.backends.host.jit import rounding
from hlo_run.backends.host.jit.affine_sum import Affine
from hlo_run.backends.host.jit.body import Body
from hlo_run.backends.host.jit.forms import Value
from hlo_run.backends.host.jit.integer import Emit
from hlo_run.backends.host.jit.move import define_integer, integer_source
from hlo_run.backends.host.jit.plan import MIXED, ROW_WORDS, TABLE, RegionSpec
from hlo_run.backends.host.ptx import specs
from hlo_run.backends.host.ptx.instruction_set import Operation, row
from hlo_run.backends.host.ptx.specs import is_integer
from hlo_run.backends.host.ptx.syntax import Address, Float, Integer, Operand, Register, Sink, Symbol, Vector

_HALF = 1 << (NUMBER_SHIFT - 1)
_GROUP = "!llvm.access.group !1"
_STAYS = "!invariant.load !2"
_ZERO = "@zero"


class AccessAddress(Struct, frozen=True):
    """The address of an access: `offset` (i64) bytes behind `base`, if the i1 `condition` holds ("": always).

    `space` names the memory for alias analysis ("": any). `safe` is an offset at which an access of this size can always read, if
    one is known. `affine` is the offset as an affine sum, if it is one. With `stays`, the kernel never writes this memory, so a
    load may be done once for all threads.
    """

    base: str
    offset: str
    condition: str
    space: str
    safe: int | None = None
    affine: Affine | None = None
    stays: bool = False


# ---- addresses ------------------------------------------------------------------------------------------------------


def locate(e: Body, address: Operand, space: str, size: int, kind: str) -> AccessAddress:
    """Return the place of an access of `size` bytes. `kind` is load, store or atomic."""
    assert isinstance(address, Address), "memory is accessed through an address"
    base, displacement = address.base, address.offset
    if isinstance(base, Symbol):
        space, displacement = e.plan.addresses[base.name][0], displacement + base.offset
        base = Symbol(base.name)
    affine = e.plan.pure.affine_of(base)
    number = _static_number(e, base, space, affine)
    if number is None:
        return _dynamic(e, base, displacement, size, kind)
    region = e.plan.regions[number]
    start = 0 if space in ("shared", "local") else number << NUMBER_SHIFT
    name = f"{number}" if number < SHARED_NUMBER else space
    pointer = _region_base(e, region)
    if affine is not None:
        offset = e.plan.pure.make(dict(affine.terms), affine.constant + displacement - start)
        condition = _affine_condition(e, region, offset, size, kind)
        return AccessAddress(pointer, e.sum(offset, 64), condition, name, _safe_offset(region, size), offset, _stays(e, region))
    value = _address(e, base)
    offset_name = e.b.binary("add", "i64", value, str(displacement - start))
    condition = _condition(e, region, offset_name, size, kind, aligned=False)
    return AccessAddress(pointer, _hidden(e, offset_name), condition, name, _safe_offset(region, size), stays=_stays(e, region))


def _hidden(e: Body, offset: str) -> str:
    """Return an offset (i64) such that LLVM does not see how it is computed.

    LLVM takes the low bits of the thread's number for a narrow counter. If the rest of the address is a 32-bit sum that may wrap,
    the vectoriser of LLVM 22 drops the check that the counter does not wrap: threads that should read 0 1 2 3 0 1 read 0 to 5.
    """
    if e.jumps:
        return offset
    e.b.module.declarations[_ZERO] = f"{_ZERO} = internal externally_initialized global i64 0"
    with e.prologue():
        zero = e.b.op(f"load i64, ptr {_ZERO}, align 8, {_STAYS}, {_GROUP}")
    return e.b.binary("xor", "i64", offset, zero)


def _stays(e: Body, region: RegionSpec) -> bool:
    """True if no region that the kernel may write overlaps this one. False in code with jumps, which must not hoist loads."""
    written = {other.alias for other in e.plan.shape.regions if other.writable}
    return not e.jumps and region.number < VARIABLE_NUMBER and region.alias not in written


def _safe_offset(region: RegionSpec, size: int) -> int | None:
    """Return the first offset in a region at which `size` bytes can be read; None if it is too small."""
    first = -(-region.low // size) * size
    return first if first + size <= region.high else None


def _static_number(e: Body, base: Register | Symbol | Integer, space: str, affine: Affine | None) -> int | None:
    if space in ("shared", "local"):
        return SHARED_NUMBER if space == "shared" else LOCAL_NUMBER
    number: int | None = None
    if affine is not None:
        first, last = (affine.low + _HALF) >> NUMBER_SHIFT, (affine.high + _HALF) >> NUMBER_SHIFT
        number = first if first == last else None
    if number is None and isinstance(base, Register):
        number = e.plan.provenance.get(base.name, MIXED)
    return number if number in e.plan.regions and number not in (SHARED_NUMBER, LOCAL_NUMBER) else None


def _address(e: Body, base: Register | Symbol | Integer) -> str:
    if isinstance(base, Register):
        width = e.width(base)
        return e.b.resize(e.read(base, f"i{width}"), f"i{width}", "i64")
    return e.read(base, "i64")


def _region_base(e: Body, region: RegionSpec) -> str:
    pointer = e.state(region.index)
    if not region.stride:
        return pointer
    offset = e.b.binary("mul", "i64", e.b.resize(e.thread(), "i32", "i64"), str(region.stride))
    return e.b.pointer(pointer, offset)


def _affine_condition(e: Body, region: RegionSpec, offset: Affine, size: int, kind: str) -> str:
    low, high = region.bounds(kind, size)
    aligned = offset.multiple_of(size)
    if aligned and offset.low >= low and offset.high + size <= high and (kind == "load" or region.writable):
        return ""
    return _condition(e, region, e.sum(offset, 64), size, kind, aligned=aligned)


def _condition(e: Body, region: RegionSpec, offset: str, size: int, kind: str, *, aligned: bool) -> str:
    low, high = region.bounds(kind, size)
    if high - low < size or (kind != "load" and not region.writable):
        return "false"
    from_low = e.b.binary("sub", "i64", offset, str(low)) if low else offset
    inside = e.b.compare("ule", "i64", from_low, str(high - low - size))
    return inside if aligned else _and_aligned(e, inside, offset, size)


def _and_aligned(e: Body, inside: str, offset: str, size: int) -> str:
    if size == 1:
        return inside
    rest = e.b.binary("and", "i64", offset, str(size - 1))
    return e.b.binary("and", "i1", inside, e.b.compare("eq", "i64", rest, "0"))


def _dynamic(e: Body, base: Register | Symbol | Integer, displacement: int, size: int, kind: str) -> AccessAddress:
    """Look up the region at run time, by the number in the address."""
    b, plan = e.b, e.plan
    address = _address(e, base)
    number = b.binary("lshr", "i64", b.binary("add", "i64", address, str(_HALF)), str(NUMBER_SHIFT))
    rows = plan.row_of
    row = str(len(rows))
    variables = [n for n in rows if VARIABLE_NUMBER <= n < SHARED_NUMBER]
    arguments = [n for n in rows if n < VARIABLE_NUMBER]
    for first, count in ((1, len(arguments)), (VARIABLE_NUMBER, len(variables)), (SHARED_NUMBER, 2)):
        if count:
            nth = b.binary("sub", "i64", number, str(first))
            inside = b.compare("ult", "i64", nth, str(count))
            row = b.select(inside, "i64", b.binary("add", "i64", nth, str(rows[first])), row)
    entry = b.pointer(e.state(TABLE), b.binary("mul", "i64", row, str(8 * ROW_WORDS)))
    words = [b.op(f"load i64, ptr {b.pointer(entry, str(8 * word))}, align 8, {_GROUP}") for word in range(ROW_WORDS)]
    by_word = kind == "load" or (kind != "store" and size <= 4)
    low, high = (words[3], words[4]) if by_word else (words[1], words[2])
    offset = b.binary("sub", "i64", address, b.op(f"shl i64 {number}, {NUMBER_SHIFT}"))
    offset = b.binary("add", "i64", offset, str(displacement))
    inside = b.binary("and", "i1", b.compare("sge", "i64", offset, low), _before(e, offset, size, high))
    if kind != "load":
        inside = b.binary("and", "i1", inside, b.compare("ne", "i64", words[5], "0"))
    is_local = b.compare("eq", "i64", number, str(LOCAL_NUMBER))
    own = b.binary("mul", "i64", b.resize(e.thread(), "i32", "i64"), str(plan.local_stride))
    pointer = b.pointer(b.cast("inttoptr", words[0], "i64", "ptr"), b.select(is_local, "i64", own, "0"))
    return AccessAddress(pointer, offset, _and_aligned(e, inside, offset, size), "")


def _before(e: Body, offset: str, size: int, high: str) -> str:
    return e.b.compare("sle", "i64", e.b.binary("add", "i64", offset, str(size)), high)


def guarded(
    e: Body, place: AccessAddress, line: int, access: Callable[[str], list[tuple[str, str]]], *, is_load: bool = False
) -> list[str]:
    """Write an access that executes only if its condition holds; otherwise its results are 0.

    `access` maps a pointer to the (type, name) of the results.
    """
    b = e.b
    if not place.condition:
        return [name for _, name in access(b.pointer(place.base, place.offset))]
    e.fault(line, place.condition)
    if is_load and place.safe is not None and not e.jumps:
        # No branch around the load: LLVM's vectoriser handles a select of addresses, but branches give slow code.
        offset = b.select(place.condition, "i64", place.offset, str(place.safe))
        found = access(b.pointer(place.base, offset))
        return [b.select(place.condition, type_name, name, "0") for type_name, name in found]
    before, inside, after = b.place(), b.fresh("inside"), b.fresh("after")
    b.branch(place.condition, inside, after)
    b.label(inside)
    results = access(b.pointer(place.base, place.offset))
    last = b.place()
    b.jump(after)
    b.label(after)
    return [b.op(f"phi {type_name} [ {name}, %{last} ], [ 0, %{before} ]") for type_name, name in results]


# ---- loads and stores -----------------------------------------------------------------------------------------------


def _load(e: Body, op: Operation, spec: specs.Load) -> None:
    target, address = op.operands
    if spec.space == "param":
        _load_parameter(e, target, address)
        return
    elements = target.elements if isinstance(target, Vector) else (target,)
    size = spec.size_bytes
    pieces = op.instruction.used_pieces(size, len(elements))
    if pieces is None:
        place = locate(e, address, spec.space, size * len(elements), "load")
        e.note_load("constant" if spec.is_constant else place.space)
        if place.condition:
            e.note_places(place.affine, size, len(elements))
        names = guarded(e, place, op.line, lambda pointer: _loads(e, pointer, size, len(elements), place.stays), is_load=True)
    else:
        names = [_load_used(e, op, address, spec.space, (number, size), used) for number, used in enumerate(pieces)]
    for element, name in zip(elements, names, strict=True):
        if not isinstance(element, Sink):
            define_integer(e, element, name, spec.item)


def _single_load(e: Body, size: int, stays: bool) -> Callable[[str], list[tuple[str, str]]]:
    return lambda pointer: _loads(e, pointer, size, 1, stays)


def _loads(e: Body, pointer: str, size: int, count: int, stays: bool) -> list[tuple[str, str]]:
    """Load items one by one, because LLVM's vectoriser does not accept vectors in a loop's body."""
    type_name = f"i{8 * size}"
    marks = f"{_GROUP}, {_STAYS}" if stays else _GROUP
    places = [e.b.pointer(pointer, str(number * size)) if number else pointer for number in range(count)]
    return [(type_name, e.b.op(f"load {type_name}, ptr {place}, align {size}, {marks}")) for place in places]


def _load_used(e: Body, op: Operation, address: Operand, space: str, item: tuple[int, int], used: list[tuple[int, int]]) -> str:
    """Load only the used pieces of an item (its number, its bytes). The rest is poison and may be out of bounds."""
    assert isinstance(address, Address), "memory is accessed through an address"
    number, size = item
    type_name = f"i{8 * size}"
    poison = bytearray(int(POISON).to_bytes(2, "little") * 4)[:size]
    for first, size_bytes in used:
        poison[first : first + size_bytes] = bytes(size_bytes)
    whole = str(int.from_bytes(poison, "little", signed=True))
    for first, size_bytes in used:
        place = locate(e, Address(address.base, address.offset + number * size + first), space, size_bytes, "load")
        e.note_load(place.space)
        if place.condition:
            e.note_places(place.affine, size_bytes, 1)
        (name,) = guarded(e, place, op.line, _single_load(e, size_bytes, place.stays), is_load=True)
        if size_bytes == size:
            return name
        wide = e.b.op(f"zext i{8 * size_bytes} {name} to {type_name}")
        moved = e.b.op(f"shl {type_name} {wide}, {8 * first}")
        whole = e.b.op(f"or {type_name} {moved}, {whole}")
    return whole


def _load_parameter(e: Body, target: Operand, address: Operand) -> None:
    """Load a kernel parameter: always a whole 64-bit pointer."""
    assert isinstance(address, Address), "the rules have checked the operands"
    assert isinstance(address.base, Symbol), "the rules have checked the operands"
    _, value = e.plan.addresses[address.base.name]
    e.define(target, "i64", str(value))


def _bits(e: Body, operand: Operand, type_name: str, size_bytes: int) -> str:
    """Return the low bits of a register as an integer of the type's size."""
    if isinstance(operand, Float) and type_name in ("f32", "f64"):
        return e.form(Value({type_name: e.read(operand, type_name)}), f"i{type_name[1:]}")
    return integer_source(e, operand, f"u{8 * size_bytes}")


def _store(e: Body, op: Operation, spec: specs.Store) -> None:
    address, source = op.operands
    elements = source.elements if isinstance(source, Vector) else (source,)
    size = spec.size_bytes
    names = [_bits(e, element, spec.type, size) for element in elements]
    place = locate(e, address, spec.space, size * len(names), "store")
    e.note_store(place.space)

    def stores(pointer: str) -> list[tuple[str, str]]:
        for number, name in enumerate(names):
            target = e.b.pointer(pointer, str(number * size)) if number else pointer
            e.b.do(f"store i{8 * size} {name}, ptr {target}, align {size}, {_GROUP}")
        return []

    guarded(e, place, op.line, stores)


# ---- atomics --------------------------------------------------------------------------------------------------------

_READ_MODIFY_WRITE = {
    "add": "add",
    "and": "and",
    "or": "or",
    "xor": "xor",
    "exch": "xchg",
    "inc": "uinc_wrap",
    "dec": "udec_wrap",
}


def _update(e: Body, op: Operation, spec: specs.Update) -> None:
    target, address, *sources = op.operands if spec.returns else (Sink(), *op.operands)
    size = spec.size_bytes
    lists = [source.elements if isinstance(source, Vector) else (source,) for source in sources]
    values = [[_bits(e, element, spec.type, size) for element in elements] for elements in lists]
    place = locate(e, address, spec.space, size * len(values[0]), "atomic")
    e.note_store(place.space)
    e.is_parallel = False
    # Shared memory belongs to one block, and one worker runs the block.
    is_shared = place.space == "shared" or not e.plan.shape.concurrent

    def updates(pointer: str) -> list[tuple[str, str]]:
        results: list[tuple[str, str]] = []
        for number in range(len(values[0])):
            item = e.b.pointer(pointer, str(number * size)) if number else pointer
            own = [value[number] for value in values]
            old = _plain(e, spec, item, own) if is_shared else _locked(e, spec, item, own)
            results.append((f"i{8 * size}", old))
        return results

    olds = guarded(e, place, op.line, updates)
    targets = target.elements if isinstance(target, Vector) else (target,) * len(olds)
    for element, old in zip(targets, olds, strict=True):
        if not isinstance(element, Sink):
            define_integer(e, element, old, f"u{8 * size}")


def _plain(e: Body, spec: specs.Update, pointer: str, values: list[str]) -> str:
    """Update an item that no other thread accesses at the same time. Return its old value."""
    form = f"i{8 * spec.size_bytes}"
    old = e.b.op(f"load {form}, ptr {pointer}")
    e.b.do(f"store {form} {_updated(e, spec, form, old, values)}, ptr {pointer}")
    return old


def _locked(e: Body, spec: specs.Update, pointer: str, values: list[str]) -> str:
    b, operation = e.b, spec.operation
    form = f"i{8 * spec.size_bytes}"
    if operation == "cas":
        pair = b.op(f"cmpxchg ptr {pointer}, {form} {values[0]}, {form} {values[1]} seq_cst seq_cst")
        return b.op(f"extractvalue {{ {form}, i1 }} {pair}, 0")
    if is_integer(spec.type) or operation == "exch":
        name = _READ_MODIFY_WRITE.get(operation) or ("" if spec.type[0] == "s" else "u") + operation
        return b.op(f"atomicrmw {name} ptr {pointer}, {form} {values[0]} seq_cst")
    return _compare_and_swap_loop(e, spec, pointer, form, values)


def _compare_and_swap_loop(e: Body, spec: specs.Update, pointer: str, form: str, values: list[str]) -> str:
    b = e.b
    first = b.op(f"load atomic {form}, ptr {pointer} seq_cst, align {int(form[1:]) // 8}")
    before = b.place()
    again, done = b.fresh("again"), b.fresh("done")
    b.jump(again)
    b.label(again)
    old, seen = f"%{b.fresh()}", f"%{b.fresh()}"
    last = b.fresh("last")
    b.do(f"{old} = phi {form} [ {first}, %{before} ], [ {seen}, %{last} ]")
    new = _updated(e, spec, form, old, values)
    b.jump(last)
    b.label(last)
    pair = b.op(f"cmpxchg ptr {pointer}, {form} {old}, {form} {new} seq_cst seq_cst")
    b.do(f"{seen} = extractvalue {{ {form}, i1 }} {pair}, 0")
    swapped = b.op(f"extractvalue {{ {form}, i1 }} {pair}, 1")
    b.branch(swapped, done, again)
    b.label(done)
    return old


def _updated(e: Body, spec: specs.Update, form: str, old: str, values: list[str]) -> str:
    b, operation, value = e.b, spec.operation, values[-1]
    match operation:
        case "exch":
            return value
        case "cas":
            return b.select(b.compare("eq", form, old, values[0]), form, value, old)
        case "inc":
            return b.select(b.compare("uge", form, old, value), form, "0", b.binary("add", form, old, "1"))
        case "dec":
            stops = b.binary("or", "i1", b.compare("eq", form, old, "0"), b.compare("ugt", form, old, value))
            return b.select(stops, form, value, b.binary("sub", form, old, "1"))
        case "and" | "or" | "xor":
            return b.binary(operation, form, old, value)
        case _:
            pass
    if not is_integer(spec.type):
        return _float_update(e, spec.type, operation, form, old, value)
    if operation == "add":
        return b.binary("add", form, old, value)
    return b.math(("s" if spec.type[0] == "s" else "u") + operation, form, old, value)


def _float_update(e: Body, type_name: str, operation: str, form: str, old: str, value: str) -> str:
    """Combine two float values given as bits. NaNs of the narrow formats become canonical."""
    b = e.b
    if type_name in ("f32", "f64"):
        real = "float" if type_name == "f32" else "double"
        x, y = b.cast("bitcast", old, form, real), b.cast("bitcast", value, form, real)
        combined = b.binary("fadd", real, x, y) if operation == "add" else b.math(f"{operation}imumnum", real, x, y)
        return b.cast("bitcast", combined, real, form)
    kind = type_name.removesuffix("x2")

    def half(x: str, y: str) -> str:
        if operation != "add":
            return b.math(f"{operation}imumnum", "float", x, y)
        return rounding.to_half(b, b.binary("fadd", "float", x, y), kind)

    if type_name == kind:
        return e.form(Value({kind: half(e.widen(old, kind), e.widen(value, kind))}, dirty=True), form)
    pairs = [e.halves(bits, type_name) for bits in (old, value)]
    low, high = (half(pairs[0][side], pairs[1][side]) for side in (0, 1))
    return e.form(Value({type_name: (low, high)}, dirty=True), form)


EMITTERS: Mapping[type[Struct], Emit] = dict((row(specs.Load, _load), row(specs.Store, _store), row(specs.Update, _update)))
