"""Edits of a module's text: sizes of dimensions, element types, layouts. The parser infers and checks the rest."""

from __future__ import annotations

import re
from collections import Counter

from hlo_run.hlo.print_options import DEFAULT
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.records import replace

# The texts that edits change are printed so, with all constants in full.
PRINTED = replace(DEFAULT, percent=False, large_constants=True, program_shape=False, operand_index_interval=0)

_TYPES = "|".join(sorted(DTYPES, key=len, reverse=True))
_SHAPE = re.compile(rf"\b({_TYPES})\[((?:<=)?\d+(?:,(?:<=)?\d+)*)\]")
_LAYOUT = re.compile(rf"(\b(?:{_TYPES})\[[\d,<=]*\])\{{[^{{}}]*\}}")
# Attributes whose numbers are sizes of dimensions.
_SIZES = re.compile(r"\b(dynamic_slice_sizes|slice_sizes)=\{([\d,]*)\}")
_SLICE = re.compile(r"\bslice=\{[^}]*\}")
_WINDOW = re.compile(r"(\bsize=)([\dx]+)")
# A type -> the simpler types to try, in order.
SIMPLER = {
    **dict.fromkeys(("f64", "bf16", "f16", "c64", "c128"), ("f32",)),
    **{name: ("f32", "bf16") for name in DTYPES if name.startswith("f8") or name.startswith("f4")},
    **dict.fromkeys(("s64", "u64", "u32", "s16", "u16", "s8", "u8", "s4", "u4", "s2", "u2", "s1", "u1"), ("s32",)),
}


def dimension_sizes(text: str) -> list[int]:
    """Return the sizes above 1 of all dimensions, by decreasing total effect."""
    weight: Counter[int] = Counter()
    for found in _SHAPE.finditer(text):
        for size in found[2].replace("<=", "").split(","):
            weight[int(size)] += int(size)
    return [size for size, _ in weight.most_common() if size > 1]


def with_size(text: str, old: int, new: int, multiples: bool) -> str:
    """Return the text with dimensions of size `old` replaced by `new`; with `multiples` also multiples of `old` in proportion."""

    def change(size: int) -> int:
        if size == old:
            return new
        return size // old * new if multiples and size > old and size % old == 0 else size

    def numbers(found: str) -> str:
        return re.sub(r"\d+", lambda n: str(change(int(n[0]))), found)

    text = _SHAPE.sub(lambda found: f"{found[1]}[{numbers(found[2])}]", text)
    text = _SIZES.sub(lambda found: f"{found[1]}={{{numbers(found[2])}}}", text)
    text = _SLICE.sub(lambda found: re.sub(r":(\d+)", lambda n: f":{change(int(n[1]))}", found[0]), text)
    return _WINDOW.sub(lambda found: found[1] + numbers(found[2]), text)


def with_type(text: str, old: str, new: str) -> str:
    """Return the text with one element type replaced by another."""
    return re.sub(rf"\b{old}\[", f"{new}[", text)


def element_types(text: str) -> list[str]:
    """Return the element types of the text that have a simpler one."""
    return [name for name in dict.fromkeys(found[1] for found in _SHAPE.finditer(text)) if name in SIMPLER]


def without_layouts(text: str) -> str:
    """Return the text without layouts, so that they are the default ones."""
    return _LAYOUT.sub(r"\1", text)
