"""Faults of one instruction of a kernel: another operation, operand, sign, bound or address, or no operation at all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mutation.instructions import Instruction, KernelText
from mutation.stores import STORE_FAULTS, Array, mutate_stores


@dataclass(frozen=True)
class Fault:
    """A kernel with a fault. `place` says what changed: the line of the instruction before, and after."""

    kind: str
    place: str
    ptx: str


_ADDRESS = re.compile(r"\[(%\w+)(?:\+(-?\d+))?\]")
# A change of one instruction: the lines in its place.
Change = list[str]


def faults(ptx: str, kind: str, arrays: Sequence[Array], grid: tuple[int, int, int]) -> list[Fault]:
    """Return the faults of a kind that a kernel can have, in the order of its lines.

    `arrays` are those that the kernel reads and writes, `grid` the blocks of its launch.
    """
    if kind in STORE_FAULTS:
        changed = mutate_stores(ptx, kind, arrays)
        return [] if changed is None else [Fault(kind, "all stores", changed)]
    kernel = KernelText(ptx)
    if kind == "last block":
        return list(_last_block(kernel, grid))
    if kind == "next element":
        return list(_next_element(kernel, {array.number: array.size_bytes for array in arrays}))
    found: list[Fault] = []
    for instruction in kernel.instructions:
        for change in _CHANGES[kind](kernel, instruction):
            after = "; ".join(" ".join(line.split()).rstrip(";") for line in change) or "nothing"
            before = " ".join(kernel.lines[instruction.number].split()).rstrip(";")
            place = f"line {instruction.number + 1}: {before} => {after}"
            found.append(Fault(kind, place, kernel.with_lines(instruction.number, change)))
    return found


def _last_block(kernel: KernelText, grid: tuple[int, int, int]) -> Iterator[Fault]:
    """The last block in one direction ends at once, as if the grid were smaller."""
    for axis, size in zip("xyz", grid, strict=True):
        if size > 1:
            first = [
                f"\tmov.u32 \t%mutant_r0, %ctaid.{axis};",
                f"\tsetp.eq.s32 \t%mutant_p0, %mutant_r0, {size - 1};",
                "\t@%mutant_p0 ret;",
            ]
            yield Fault("last block", f"grid.{axis}: {size} => {size - 1}", kernel.with_changes({}, first))


def _next_element(kernel: KernelText, sizes: Mapping[int, int]) -> Iterator[Fault]:
    """A load of the next or the last element, where the array has one."""
    for i in kernel.instructions:
        address = _ADDRESS.fullmatch(i.operands[1]) if i.parts[0] == "ld" and "global" in i.parts else None
        numbers = kernel.parameters_of(address[1]) & sizes.keys() if address is not None else set[int]()
        if address is None or len(numbers) != 1:
            continue
        (number,) = numbers
        width = i.bits // 8 * (i.operands[0].count(",") + 1)
        for step in (width, -width):
            lines = [
                f"\tld.param.b64 \t%mutant_d0, [{kernel.entry}_param_{number}];",
                f"\tadd.s64 \t%mutant_d1, %mutant_d0, {sizes[number] - width};",
                f"\tadd.s64 \t%mutant_d2, {address[1]}, {address[2] or 0};",
                f"\tadd.s64 \t%mutant_d3, %mutant_d2, {step};",
                "\tmin.u64 \t%mutant_d3, %mutant_d3, %mutant_d1;",
                "\tmax.u64 \t%mutant_d3, %mutant_d3, %mutant_d0;",
                i.text(None, i.operands[0], "[%mutant_d3]"),
            ]
            place = f"line {i.number + 1}: {' '.join(kernel.lines[i.number].split())} {step:+d} bytes"
            yield Fault("next element", place, kernel.with_lines(i.number, lines))


def _renamed(instruction: Instruction, name: str) -> str:
    return ".".join([name, *instruction.parts[1:]])


def _is(instruction: Instruction, names: str) -> bool:
    """True for arithmetic with one of these names. Comparisons into predicates and carries are something else."""
    parts = instruction.parts
    return parts[0] in names.split() and not {"pred", "cc", "hi", "wide"} & set(parts)


def _move(instruction: Instruction, source: str) -> str:
    return instruction.text(f"mov.b{instruction.bits}", instruction.operands[0], source)


def _temporary(instruction: Instruction) -> str:
    return {16: "%mutant_h0", 32: "%mutant_r0", 64: "%mutant_d0"}[instruction.bits]


def _swap(kernel: KernelText, i: Instruction) -> Iterator[Change]:
    if _is(i, "sub div rem selp") and kernel.is_data(i) and i.operands[1] != i.operands[2]:
        yield [i.text(None, i.operands[0], i.operands[2], i.operands[1], *i.operands[3:])]


def _mul_for_add(kernel: KernelText, i: Instruction) -> Iterator[Change]:
    if _is(i, "add") and kernel.is_data(i):
        yield [i.text(_renamed(i, "mul" if i.is_float else "mul.lo"))]


def _add_for_mul(kernel: KernelText, i: Instruction) -> Iterator[Change]:
    if not kernel.is_data(i):
        return
    if _is(i, "mul"):
        yield [i.text(".".join(["add", *(part for part in i.parts[1:] if part != "lo")]))]
    elif _is(i, "fma") and i.is_float:
        result, a, b, c = i.operands
        add, name = _renamed(i, "add"), _temporary(i)
        yield [i.text(add, name, a, b), i.text(add, result, name, c)]


def _sign(kernel: KernelText, i: Instruction) -> Iterator[Change]:
    if not kernel.is_data(i):
        return
    if _is(i, "add") or _is(i, "sub"):
        yield [i.text(_renamed(i, "sub" if i.parts[0] == "add" else "add"))]
    elif _is(i, "neg abs"):
        yield [_move(i, i.operands[1])]
    elif _is(i, "fma") and i.is_float and not i.operands[1].startswith("0"):
        name = _temporary(i)
        negate = i.text(f"neg.{i.parts[-1]}", name, i.operands[1])
        yield [negate, i.text(None, i.operands[0], name, *i.operands[2:])]


def _min_for_max(kernel: KernelText, i: Instruction) -> Iterator[Change]:
    if _is(i, "min max") and kernel.is_data(i):
        yield [i.text(_renamed(i, "max" if i.parts[0] == "min" else "min"))]


def _lost_max(kernel: KernelText, i: Instruction) -> Iterator[Change]:
    if _is(i, "min max") and kernel.is_data(i):
        yield from ([_move(i, source)] for source in i.operands[1:3] if source.startswith("%"))


def _lost_term(kernel: KernelText, i: Instruction) -> Iterator[Change]:
    if not kernel.is_data(i):
        return
    if _is(i, "add"):
        yield from ([_move(i, source)] for source in i.operands[1:3] if source.startswith("%"))
    elif _is(i, "fma") and i.is_float:
        yield [i.text(_renamed(i, "mul"), *i.operands[:3])]
        yield [_move(i, i.operands[3])]


def _accumulator(kernel: KernelText, i: Instruction) -> Iterator[Change]:
    """A wrong first value: of a register that a loop carries, or of a sum that is written out."""
    if i.parts[0] == "mov" and len(i.operands) == 2 and re.fullmatch(r"0[fdx][0-9A-F]+|-?\d+", i.operands[1]):
        is_float = i.operands[1].startswith(("0f", "0d"))
        carries_data = set(i.results) & kernel.stored and (is_float or not set(i.results) & kernel.steering)
        if carries_data and kernel.is_carried(i):
            yield [i.text(None, i.operands[0], _other_value(i.operands[1]))]
    elif _is(i, "add") and i.is_float and kernel.is_data(i):
        for number in (1, 2):
            if re.fullmatch(r"0f0+|0d0+", i.operands[number]):
                yield [i.text(None, *i.operands[:number], _other_value(i.operands[number]), *i.operands[number + 1 :])]


def _other_value(value: str) -> str:
    """Return another immediate of the same form: one for zero (in bf16 if it has 16 bits), zero for others."""
    is_zero = not value.lstrip("-0fdx")
    match value[:2]:
        case "0f":
            return "0f3F800000" if is_zero else "0f00000000"
        case "0d":
            return "0d3FF0000000000000" if is_zero else "0d0000000000000000"
        case "0x":
            return "0x3F80" if is_zero else "0x0000"
        case _:
            return "1" if is_zero else "0"


def _stale_shared(_: KernelText, i: Instruction) -> Iterator[Change]:
    if i.op.startswith(("st.shared", "bar.sync", "barrier.sync")):
        yield []


def _off_by_one(kernel: KernelText, i: Instruction) -> Iterator[Change]:
    """A constant of an index that is one off, or the next element in shared memory."""
    if i.parts[0] == "ld" and "shared" in i.parts:
        address = _ADDRESS.fullmatch(i.operands[1])
        width = i.bits // 8 * (i.operands[0].count(",") + 1)
        for step in (width, -width) if address else ():
            assert address is not None, "a loop over no address is empty"
            yield [i.text(None, i.operands[0], f"[{address[1]}+{int(address[2] or 0) + step}]")]
    elif _is(i, "add sub mad") and not i.is_float and i.bits <= 32 and set(i.results) & kernel.steering:
        constant = i.operands[-1]
        if re.fullmatch(r"-?\d+", constant):
            yield from ([i.text(None, *i.operands[:-1], str(int(constant) + step))] for step in (1, -1))


_COMPARISONS = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "eq": "ne", "ne": "eq", "lo": "ls", "hi": "hs"} | {
    "ltu": "leu", "leu": "ltu", "gtu": "geu", "geu": "gtu", "equ": "neu", "neu": "equ"
}  # fmt: skip


def _predicate(_: KernelText, i: Instruction) -> Iterator[Change]:
    if i.parts[0] == "setp" and i.parts[1] in _COMPARISONS:
        yield [i.text(".".join(["setp", _COMPARISONS[i.parts[1]], *i.parts[2:]]))]
    elif i.op in ("or.pred", "and.pred"):
        yield [i.text("and.pred" if i.parts[0] == "or" else "or.pred")]
    elif i.guard and i.parts[0] == "bra":
        guard = i.guard.replace("@!", "@") if "!" in i.guard else i.guard.replace("@", "@!")
        yield [f"\t{guard} {i.op} \t{i.operands[0]};"]


_CHANGES: dict[str, Callable[[KernelText, Instruction], Iterator[Change]]] = {
    "swap": _swap,
    "mul for add": _mul_for_add,
    "add for mul": _add_for_mul,
    "sign": _sign,
    "min for max": _min_for_max,
    "lost max": _lost_max,
    "lost term": _lost_term,
    "accumulator": _accumulator,
    "stale shared": _stale_shared,
    "off by one": _off_by_one,
    "predicate": _predicate,
}
KINDS = (*STORE_FAULTS, "last block", "next element", *_CHANGES)
