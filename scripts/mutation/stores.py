"""Faults of every store of a kernel: zeros, flipped signs, values that are one per cent too large, the last store left out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mutation.instructions import FAULT_REGISTERS, KernelText

STORE_FAULTS = ("zero", "negate", "scale", "skip last")
_STORE = re.compile(
    r"^(?P<guard>@!?%\w+\s+)?(?P<op>st(?:\.\w+)*\.global(?:\.\w+)*\.[bfsu](?P<bits>8|16|32|64))\s+"
    r"\[(?P<address>%\w+)(?P<offset>\+-?\d+)?\],\s*(?P<value>\{[^}]*\}|%\w+|-?\w+);$"
)
_ATOMIC = re.compile(
    r"^(?P<head>(?:@!?%\w+\s+)?(?:red|atom)(?:\.\w+)*\.global(?:\.\w+)*\.(?:add|exch|min|max|and|or|xor)(?:\.\w+)*"
    r"\.[bfsu](?P<bits>16|32|64)\s+(?:%\w+,\s*)?\[(?P<address>%\w+)[^\]]*\],\s*)(?P<value>%\w+);$"
)
# A float of half the bits of a complex number is stored as a float.
_FLOATS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64, "c64": 32, "c128": 64}
_SCALES = {"f32": "0f3F8147AE", "f64": "0d3FF028F5C28F5C29"}


@dataclass(frozen=True)
class Array:
    """An array that a kernel reads or writes: the parameter, the size, and the type of the elements ("": unknown)."""

    number: int
    size_bytes: int
    dtype: str = ""
    is_written: bool = False


def mutate_stores(ptx: str, fault: str, arrays: Sequence[Array]) -> str | None:
    """Return the PTX of a kernel with one of the `STORE_FAULTS`, or None if it has no such store."""
    kernel = KernelText(ptx)
    written = [array for array in arrays if array.is_written]
    widths = {name: int(bits) for bits, name in re.findall(r"\.reg \.b(\d+)\s+(%[a-z]+)<", ptx)}
    changes: dict[int, list[str]] = {}
    for number, line in enumerate(kernel.lines):
        text = line.strip()
        store, atomic = _STORE.match(text), _ATOMIC.match(text)
        found = store or atomic
        if found is None or (atomic is not None and fault == "skip last"):
            continue
        if fault == "skip last":
            assert store is not None, "atomic operations have no last store"
            changes[number] = _without_last(store, kernel.entry, written)
            continue
        values = [value.strip() for value in found["value"].strip("{}").split(",")]
        dtype = _dtype(kernel, found["address"], written)
        made = _changed(values, int(found["bits"]), fault, dtype, widths)
        if made is None:
            continue
        names, before = made
        whole = "{" + ", ".join(names) + "}" if found["value"].startswith("{") else names[0]
        changes[number] = [*before, f"\t{text[: found.start('value')]}{whole};"]
    return kernel.with_changes(changes) if changes else None


def _dtype(kernel: KernelText, address: str, written: Sequence[Array]) -> str:
    """Return the type of the elements at an address; "" if the arrays that it may point into have several."""
    reached = kernel.parameters_of(address)
    types = {array.dtype for array in written if array.number in reached}
    return types.pop() if len(types) == 1 else ""


def _changed(
    values: Sequence[str], bits: int, fault: str, dtype: str, widths: dict[str, int]
) -> tuple[list[str], list[str]] | None:
    """Return the registers to store in the place of `values`, and the instructions that fill them; None if they do not fit.

    `widths` are the bits of the registers by the letters of their names; a narrow store may take a wide register.
    """
    letters = re.match(r"%[a-z]+", values[0])
    width = widths.get(letters[0], max(bits, 16)) if letters else max(bits, 16)
    names = [f"{FAULT_REGISTERS[width]}{lane}" for lane in range(len(values))]
    moves = [f"\tmov.b{width} \t{name}, {value};" for name, value in zip(names, values, strict=True)]
    match fault:
        case "zero":
            return names, [f"\tmov.b{width} \t{name}, 0;" for name in names]
        case "negate":
            mask = 1 if bits == 8 and dtype == "pred" else 1 << (bits - 1)
            signed = mask - (1 << width) if mask >> (width - 1) else mask
            return names, [*moves, *(f"\txor.b{width} \t{name}, {name}, {signed};" for name in names)]
        case _:
            size = _FLOATS.get(dtype, 0)
            if size not in (bits, bits // 2) or width != bits:
                return None
            scaled = [line for name in names for line in _scaled(name, bits, size, dtype)]
            return names, [*moves, *scaled]


def _scaled(name: str, bits: int, size: int, dtype: str) -> list[str]:
    """Return the instructions that multiply the floats in a register by 1.01."""
    if size == bits and size > 16:
        return [f"\tmul.rn.f{size} \t{name}, {name}, {_SCALES[f'f{size}']};"]
    halves = ("%mutant_h14", "%mutant_h15") if bits == 32 else (name,)
    if size != 16 or bits > 32:
        return []
    out = [f"\tmov.b32 \t{{{', '.join(halves)}}}, {name};"] if bits == 32 else []
    for half in halves:
        out += [
            f"\tcvt.f32.{dtype} \t%mutant_r15, {half};",
            f"\tmul.rn.f32 \t%mutant_r15, %mutant_r15, {_SCALES['f32']};",
            f"\tcvt.rn.{dtype}.f32 \t{half}, %mutant_r15;",
        ]
    return out + ([f"\tmov.b32 \t{name}, {{{', '.join(halves)}}};"] if bits == 32 else [])


def _without_last(store: re.Match[str], entry: str, written: Sequence[Array]) -> list[str]:
    """Return the instructions of a store that is left out where it would write the last element of an array."""
    lanes = store["value"].count(",") + 1
    width = int(store["bits"]) // 8 * lanes
    out = [
        "\tmov.b64 \t%mutant_d0, 0;",
        "\tsetp.eq.b64 \t%mutant_p0, %mutant_d0, %mutant_d0;",
        f"\tadd.s64 \t%mutant_d1, {store['address']}, {(store['offset'] or '+0')[1:]};",
    ]
    for array in written:
        out += [
            f"\tld.param.b64 \t%mutant_d2, [{entry}_param_{array.number}];",
            f"\tadd.s64 \t%mutant_d3, %mutant_d2, {array.size_bytes - width};",
            "\tsetp.ne.b64 \t%mutant_p1, %mutant_d1, %mutant_d3;",
            "\tand.pred \t%mutant_p0, %mutant_p0, %mutant_p1;",
        ]
    guard = (store["guard"] or "").strip()
    if guard:
        name = guard.lstrip("@!")
        out += [
            f"\tnot.pred \t%mutant_p2, {name};",
            f"\tand.pred \t%mutant_p0, %mutant_p0, {'%mutant_p2' if '!' in guard else name};",
        ]
    return [*out, f"\t@%mutant_p0 {store['op']} \t[{store['address']}{store['offset'] or ''}], {store['value']};"]
